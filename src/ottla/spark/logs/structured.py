"""Reads lines of JSON objects and of logfmt: values by the names that loggers give them.

Knows: JSON as Jackson reads it for Spark's `from_json` (single quotes, NaN, the first of two equal names, whatever
stands behind the object) and its values as text. Does not know: what a time or a level is.
Source: JacksonParser.scala, JSONOptions.scala of Spark 4.3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ottla.spark.logs.formats import (
    ANY,
    COMPONENT_KEYS,
    JSON,
    LEVEL_KEYS,
    LOGFMT,
    LOGFMT_REGEX,
    MESSAGE_KEYS,
    TIME_KEYS,
)
from ottla.spark.text.spark_json import Real, java_double, quoted, real_number, whole_number


class Keys(NamedTuple):
    """What a line says of itself; None where it says nothing."""

    format: str
    time: str | None
    level: str | None
    component: str | None
    message: str | None


class Pairs(list[tuple[str, Any]]):
    """A JSON object, names that come twice included."""


DECODER = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_float=real_number, parse_int=whole_number, parse_constant=Real
)
PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^"\']+', re.DOTALL)
BARE = re.compile(r'\\(.)|(")', re.DOTALL)
INFINITE = re.compile(r"([+-]?)\b(?:INF|Infinity)\b")


def json_keys(text: str) -> Keys | None:
    """The values of a line that is a JSON object; None for what is none, or an empty one."""
    found = read_object(text)
    if not found:
        return None
    try:
        return Keys(JSON, *(first(found, names) for names in (TIME_KEYS, LEVEL_KEYS, COMPONENT_KEYS, MESSAGE_KEYS)))
    except RecursionError:
        return None


def read_object(text: str) -> Mapping[str, Any] | None:
    try:
        found = DECODER.raw_decode(text)[0]
    except RecursionError:
        return None
    except ValueError:
        try:
            found = DECODER.raw_decode(PIECE.sub(as_json, text))[0]
        except (ValueError, RecursionError):
            return None
    return dict(reversed(found))  # the first of two equal names counts


def as_json(piece: re.Match[str]) -> str:
    """A piece of what Jackson takes beyond JSON, as JSON."""
    text = piece[0]
    if text[0] in "\"'":
        body = BARE.sub(lambda each: '\\"' if each[2] else "'" if each[1] == "'" else each[0], text[1:-1])
        return f'"{body}"'
    return INFINITE.sub(lambda each: f"{each[1].replace('+', '')}Infinity", text)


def first(found: Mapping[str, Any], names: Sequence[str]) -> str | None:
    for name in names:
        value = found.get(name)
        if value is not None and value != "":
            return text_of(value)
    return None


def text_of(value: Any) -> str:
    """A value as Spark makes text of it."""
    text = value if type(value) is str else written(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # half a surrogate pair: "?"


def written(value: Any) -> str:
    """As Jackson writes what it has read."""
    if type(value) is str:
        return quoted(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{quoted(name)}:{written(each)}" for name, each in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, Real):
        number = float(value)
        text = "NaN" if number != number else java_double(number)
        return text if text[-1].isdigit() else f'"{text}"'
    return "null" if value is None else "true" if value is True else "false" if value is False else str(value)


# ---- logfmt --------------------------------------------------------------------------------------------------------


IS_LOGFMT = re.compile(LOGFMT_REGEX, re.ASCII)


def value_patterns(names: Sequence[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """For the first value if it is quoted, and for the first that is not."""
    wanted = "|".join(map(re.escape, names))
    return (
        re.compile(rf'(?:^|\s)(?:{wanted})=(?:"((?:[^"\\]|\\{ANY}){{0,1500}})|(?:\S*))', re.ASCII),
        re.compile(rf"(?:^|\s)(?:{wanted})=([^\s\x22]\S*)", re.ASCII),
    )


VALUES = tuple(map(value_patterns, (TIME_KEYS, LEVEL_KEYS, COMPONENT_KEYS, MESSAGE_KEYS)))


def logfmt_keys(head: str) -> Keys | None:
    """The values of a line of logfmt, None for what is none."""
    if "=" not in head or IS_LOGFMT.match(head) is None:
        return None
    return Keys(LOGFMT, *(value_of(head, *patterns) for patterns in VALUES))


def value_of(head: str, in_quotes: re.Pattern[str], bare: re.Pattern[str]) -> str | None:
    found = in_quotes.search(head)
    if found is not None and found[1]:
        return found[1]
    found = bare.search(head)
    return None if found is None else found[1]
