"""Reads JSON as Spark's `try_parse_json` does, and casts its values to strings as Spark does.

Knows: where Jackson's parser and Python's differ (names that come twice, NaN, depth, long numbers, half surrogate
pairs, what stands behind the object), and how Java writes numbers. Does not know: events.
Source: VariantBuilder.java, VariantGet (variantExpressions.scala) of Spark 4.3; java.lang.Double.toString.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

LONG_MAX = (1 << 63) - 1
DEPTH_MAX, DIGITS_MAX, DECIMAL_MAX = 1000, 1000, 38
DEEP = 500
"""So many brackets are looked at more closely."""


class Real(str):
    """A number with a fraction or an exponent, or none, as it was written."""

    __slots__ = ()


class Invalid(ValueError):
    """JSON that Spark's parser refuses and Python's takes."""


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Invalid
    return found


def whole_number(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise Invalid
    return int(text)


def real_number(text: str) -> Real:
    if len(text) > DIGITS_MAX + len("0."):
        raise Invalid
    return Real(text)


def no_constant(name: str) -> Any:
    raise Invalid


DECODER = json.JSONDecoder(
    object_pairs_hook=object_of, parse_float=real_number, parse_int=whole_number, parse_constant=no_constant
)


def json_object(text: str) -> dict[str, Any] | None:
    """The object that the text begins with; what stands behind it does not count. None where it is none."""
    try:
        if len(text) > DEEP and text.count("{") + text.count("[") > DEEP:
            return deep_object(text)
        found = DECODER.raw_decode(text)[0]
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
        return found
    except (ValueError, RecursionError):
        return None


def deep_object(text: str) -> dict[str, Any] | None:
    """An object that may hold so much within one another that Python's parser must be allowed to go so deep."""
    with deeper():
        found = DECODER.raw_decode(text)[0]
        level, depth = [found], 0
        while level:
            depth += 1
            inside = [each.values() if type(each) is dict else each for each in level]
            level = [part for each in inside for part in each if isinstance(part, (dict, list))]
        return found if depth <= DEPTH_MAX else None


@contextmanager
def deeper() -> Iterator[None]:
    """Allows recursion as deep as JSON may be."""
    allowed = sys.getrecursionlimit()
    sys.setrecursionlimit(allowed + 4 * DEPTH_MAX)
    try:
        yield
    finally:
        sys.setrecursionlimit(allowed)


def text_of(value: Any) -> str:
    """A JSON value as Spark casts it to a string."""
    if type(value) is str:
        return value
    if isinstance(value, (dict, list)):
        with deeper():
            return written(value)
    return "true" if value is True else "false" if value is False else number_text(value)


def number_text(value: int | Real) -> str:
    """Decimals of up to 38 digits without the zeros at their end, all others as Java writes a double."""
    if type(value) is int and -LONG_MAX - 1 <= value <= LONG_MAX:
        return str(value)
    text = str(value)
    if "e" not in text and "E" not in text:
        number = Decimal(text)
        _, digits, exponent = number.as_tuple()
        if -int(exponent) <= DECIMAL_MAX and len(digits) <= DECIMAL_MAX:
            plain = format(number, "f") if number else "0"
            return plain.rstrip("0").rstrip(".") if "." in plain else plain
    return java_double(float(text))


def java_double(number: float) -> str:
    """As Double.toString writes it."""
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    sign = "-" if repr(number).startswith("-") else ""
    shortest, longer = repr(abs(number)), f"{abs(number):.1e}"  # of two digits Java takes the nearer ones
    _, digits, exponent = Decimal(longer if float(longer) == abs(number) else shortest).normalize().as_tuple()
    if number == 0:
        return f"{sign}0.0"
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    if -3 < point <= 7:
        padded = text.ljust(point, "0") if point > 0 else "0" * (1 - point) + text
        place = max(point, 1)
        return f"{sign}{padded[:place]}.{padded[place:] or '0'}"
    return f"{sign}{text[0]}.{text[1:] or '0'}E{point - 1}"


def written(value: Any) -> str:
    """JSON as Spark writes it: names in the order of their UTF-16, no spaces."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{quoted(name)}:{written(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if type(value) is str:
        return quoted(value)
    text = "null" if value is None else text_of(value)
    return f'"{text}"' if text.endswith("Infinity") else text


ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    escaped = re.sub(r'["\\\x00-\x1f]', lambda each: ESCAPES.get(each[0], f"\\u{ord(each[0]):04X}"), text_of(text))
    return f'"{escaped}"'
