"""Splits a line into time, level, component and message.

Every text produces a `Line`; if it matches no format, its `format` is None. Strings that recur are parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ottla.spark.logs.formats import ACCESS, GROUPS, HEAD_MAX, LEVELS, PATTERNS, REDIS, SEVERITIES, Pattern
from ottla.spark.logs.structured import json_keys, logfmt_keys
from ottla.spark.logs.times import REMEMBERED_MAX, TimeReader

NAMED_LEVELS = {called: name for name, every in LEVELS.items() for called in every}


class Line(NamedTuple):
    """The parsed fields of a line. `time`: microseconds since 1970. `level_text`: the level as it was written."""

    time: int | None
    level: str | None
    level_text: str | None
    component: str | None
    message: str | None
    format: str | None


NOTHING = Line(None, None, None, None, None, None)


class Try(NamedTuple):
    """A pattern as it is tried: its expression's `match`, and where among its groups the fields are (0: none)."""

    holds: str
    match: Any
    fields: Any
    says: str
    name: str


class LineReader:
    """Reads lines. `zone`: for times without a zone. `hints`: the format of a service's lines, tried first."""

    def __init__(self, zone: str = "UTC", hints: Mapping[str, str] | None = None) -> None:
        self._times = TimeReader(zone)
        self._levels: dict[tuple[str, str], tuple[str | None, str | None]] = {}
        self._hints = {
            service: tries([each for each in (*PATTERNS, ACCESS) if each.name == name])
            for service, name in (hints or {}).items()
        }
        self._groups = {
            first: tries([*(each for each in PATTERNS if first in GROUPS[each.group]), ACCESS])
            for first in set().union(*GROUPS.values())
        }
        self._others = tries([ACCESS])

    def read(self, raw: str, recorded_us: int | None, service: str | None = None) -> Line:
        """Read a line. `recorded_us`: the record's own time, which supplies the year if the line has none."""
        head = raw[:HEAD_MAX]
        if "\x01" in head or "\x02" in head:
            head = head.replace("\x01", " ").replace("\x02", " ")
        if self._hints:
            found = self._taken_apart(head, recorded_us, self._hints.get(service or "", ()), raw)
            if found is not None:
                return found
        found = self._taken_apart(head, recorded_us, self._groups.get(head[:1], self._others), raw)
        return found or self._told(raw, head)

    def _taken_apart(self, head: str, recorded_us: int | None, tried: Sequence[Try], raw: str) -> Line | None:
        for holds, match, fields, says, name in tried:
            if holds and holds not in head:
                continue
            found = match(head)
            if found is None:
                continue
            year, month, day, clock, fraction, zone, level, component = fields((None, *found.groups()))
            time = self._times.of_parts((year, month, day, clock, zone), fraction, recorded_us)
            of_level = (None, None) if level is None else self._level_of(says, level)
            component = component.strip(" ") or None if component else None
            return Line(time, *of_level, component, raw[found.end() :], name)
        return None

    def _told(self, raw: str, head: str) -> Line:
        """Read a line without a known head: JSON, logfmt, or neither."""
        is_object = head[:1] == "{" and raw.rstrip(" ").endswith("}")
        keys = json_keys(raw) if is_object else logfmt_keys(head)
        if keys is None:
            return NOTHING
        time = None if keys.time is None else self._times.of_text(keys.time)
        of_level = (None, None) if keys.level is None else self._level_of("", keys.level)
        return Line(time, *of_level, keys.component, raw if keys.message is None else keys.message, keys.format)

    def _level_of(self, says: str, text: str) -> tuple[str | None, str | None]:
        try:
            return self._levels[says, text]
        except KeyError:
            if len(self._levels) >= REMEMBERED_MAX:
                self._levels.clear()
            found = self._levels[says, text] = level_of(says, text)
            return found


def tries(patterns: Sequence[Pattern]) -> tuple[Try, ...]:
    return tuple(
        Try(each.holds, re.compile(each.regex, re.ASCII).match, itemgetter(*each.fields), each.says, each.name)
        for each in patterns
    )


def level_of(says: str, text: str) -> tuple[str | None, str | None]:
    """(TRACE, DEBUG, INFO, WARN, ERROR or FATAL, as it was written); None for what is none. `says`: see `Pattern`."""
    text = SEVERITIES[int(text) % 8] if says == "pri" else REDIS[text] if says == "redis" else says + text
    lower = text.lower()
    if lower.startswith("http"):
        level = "ERROR" if lower[4:5] == "5" else "WARN" if lower[4:5] == "4" else "INFO"
    else:
        level = NAMED_LEVELS.get(lower)
    return level, None if text.startswith("http") else text
