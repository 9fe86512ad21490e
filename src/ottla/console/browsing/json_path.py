"""Finds values in JSON by a path: `$.user.ids[0]`, `$['odd name'].*`. A subset of RFC 9535, without expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
