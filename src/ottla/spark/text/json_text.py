"""Reads JSON objects and returns their values as text, numbers as they are written.

Beyond JSON it accepts NaN and Infinity. If two members have the same name, the last one counts. Text after the object
is ignored.
"""

from __future__ import annotations

import json
from typing import Any

DEPTH_MAX = 200
"""Objects and lists within one another. A fifth of what Python's recursion allows, whatever has called."""


class Number(str):
    """A number as it is written."""

    __slots__ = ()


DECODER = json.JSONDecoder(parse_float=Number, parse_int=Number, parse_constant=Number)


def json_object(text: str) -> dict[str, Any] | None:
    """Return the object at the beginning of the text. None if there is none, or if it is deeper than DEPTH_MAX."""
    try:
        found = DECODER.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
    if type(found) is not dict:
        return None
    may_be_deep = len(text) > DEPTH_MAX and text.count("{") + text.count("[") > DEPTH_MAX
    return None if may_be_deep and depth_of(found) > DEPTH_MAX else found


def depth_of(value: dict[str, Any] | list[Any]) -> int:
    """How many objects and lists are within one another."""
    level, depth = [value], 0
    while level:
        depth += 1
        inside = [each.values() if isinstance(each, dict) else each for each in level]
        level = [part for each in inside for part in each if isinstance(part, (dict, list))]
    return depth


def text_of(value: Any) -> str:
    """A string or number as it is, anything else as JSON without spaces. Half a surrogate pair becomes "?"."""
    text = str(value) if isinstance(value, str) else written(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def written(value: Any) -> str:
    """A value as JSON. `json.dumps` would put numbers that are kept as text into quotes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{written(name)}:{written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return str(value) if type(value) is Number else json.dumps(value, ensure_ascii=False)
