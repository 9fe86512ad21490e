"""Reads lines of JSON objects and of logfmt: values by the names that loggers use.

Beyond JSON it accepts strings in single quotes and `INF`.
"""

from __future__ import annotations

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
from ottla.spark.text.json_text import json_object, text_of


class Keys(NamedTuple):
    """The values of a line by purpose; None where the line has no value."""

    format: str
    time: str | None
    level: str | None
    component: str | None
    message: str | None


PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^"\']+', re.DOTALL)
BARE = re.compile(r'\\(.)|(")', re.DOTALL)
INFINITE = re.compile(r"([+-]?)\b(?:INF|Infinity)\b")


def json_keys(text: str) -> Keys | None:
    """The values of a line that is a JSON object; None for what is none, or an empty one."""
    found = json_object(text) or json_object(PIECE.sub(as_json, text))
    if not found:
        return None
    return Keys(JSON, *(first(found, names) for names in (TIME_KEYS, LEVEL_KEYS, COMPONENT_KEYS, MESSAGE_KEYS)))


def as_json(piece: re.Match[str]) -> str:
    """A piece of a line, between quotes or outside of them, as JSON."""
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
