"""Finds values in JSON by a path: `$.user.ids[0]`, `$['odd name'].*`. A subset of RFC 9535, without expressions.

Numbers keep their exact value: 1, 1.0 and 1e0 are equal, and neither 0.1 nor 1e999 is rounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

STEPS_MAX: Final = 32
FOUND_MAX: Final = 10_000
_STEP: Final = re.compile(
    r"""\.(?P<name>[\w-]+) | \[(?P<index>-?\d{1,9})\] | \['(?P<single>(?:[^'\\]|\\.)*)'\]
      | \["(?P<double>(?:[^"\\]|\\.)*)"\] | (?P<all>\.\*|\[\*\])""",
    re.VERBOSE,
)


class InvalidPathError(ValueError):
    """A path that cannot be read; the text is one sentence."""


def parsed(path: str) -> tuple[str | int | None, ...]:
    """The steps of a path: a name, an index, or None for every value. Raises InvalidPathError."""
    text = path.strip()
    if not text.startswith(("$", ".", "[")):
        text = f".{text}"
    at, steps = int(text.startswith("$")), list[str | int | None]()
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None or len(steps) == STEPS_MAX:
            raise InvalidPathError(
                f"The path cannot be read from {text[at : at + 20]!r}. Write $.name[0]['other name']."
            )
        at = found.end()
        quoted = found["single"] if found["single"] is not None else found["double"]
        if found["all"] is not None:
            steps.append(None)
        elif found["index"] is not None:
            steps.append(int(found["index"]))
        else:
            steps.append(found["name"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
    return tuple(steps)


def found_in(value: Any, steps: tuple[str | int | None, ...]) -> list[Any]:
    """The values at the path, at most some thousands."""
    values = [value]
    for step in steps:
        values = [each for parent in values for each in _children(parent, step)][:FOUND_MAX]
    return values


def _children(value: Any, step: str | int | None) -> Iterator[Any]:
    if isinstance(value, dict):
        if step is None:
            yield from value.values()
        elif step in value:
            yield value[step]
    elif isinstance(value, list):
        if step is None:
            yield from value
        elif isinstance(step, int) and -len(value) <= step < len(value):
            yield value[step]


def _number(text: str) -> Decimal | str:
    """The exact value of a number; the text itself if its exponent has more than 17 digits."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


_DECODER: Final = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=str)


def read_json(data: bytes) -> Any:
    """The value of JSON, with a Decimal for each number. Raises ValueError or RecursionError."""
    return _DECODER.decode(data.decode(json.detect_encoding(data), "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A value to compare with: a text as a user types it, which may also be JSON. `value` is that of JSON, or the
    text."""

    text: str
    value: Any

    def is_equal(self, found: Any) -> bool:
        """Whether a value of JSON is this text or this value."""
        return _is_same(found, self.text) or _is_same(found, self.value)


def wanted(text: str) -> Wanted:
    """What a user means who types this text: 1.0 is a number, ann and "ann" are texts, and {"a": 1} is an object."""
    try:
        return Wanted(text, _DECODER.decode(text))
    except (ValueError, RecursionError):
        return Wanted(text, text)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of JSON are equal. True is not 1, and the order of an object's members does not matter."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, dict) and one.keys() == other.keys():
            pairs += ((each, other[name]) for name, each in one.items())
        elif isinstance(one, list) and len(one) == len(other):
            pairs += zip(one, other, strict=True)
        elif isinstance(one, (dict, list)) or one != other:
            return False
    return True
