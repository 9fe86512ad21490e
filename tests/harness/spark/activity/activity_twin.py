"""What the activity pipeline must find, in plain Python: lines to events, events to sessions, windows and counts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

COMBINED = re.compile(
    r'(?P<client>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) (?P<bytes>\d+|-)'
    r'(?: "(?P<referrer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)")?'
)
BOTS = (
    "bot", "crawl", "spider", "slurp", "curl/", "wget", "python", "java/", "libwww", "perl", "go-http", "okhttp",
    "feed", "fetch", "scrap", "headless", "monitor", "preview", "facebookexternalhit", "archiver",
)  # fmt: skip
ASSETS = (
    "css", "js", "mjs", "map", "png", "jpg", "jpeg", "gif", "svg", "webp", "avif", "ico", "bmp", "woff", "woff2",
    "ttf", "otf", "eot", "webmanifest",
)  # fmt: skip
GAP_S = 1800


@dataclass(frozen=True)
class Event:
    offset: tuple[str, int, int]
    time: datetime
    visitor: str
    method: str | None
    page: str | None
    query: str | None
    status: int
    bytes: int | None
    referrer: str | None
    agent: str | None

    @property
    def asset(self) -> bool:
        return self.page is not None and self.page.rsplit(".", 1)[-1].lower() in ASSETS and "." in self.page

    @property
    def viewed(self) -> bool:
        return self.page is not None and not self.asset

    @property
    def bot(self) -> bool:
        return any(word in (self.agent or "").lower() for word in BOTS)


def event(line: str, offset: tuple[str, int, int]) -> Event | None:
    """A line of the common or combined format, None where it is none."""
    found = COMBINED.fullmatch(line)
    if found is None:
        return None
    words = found["request"].split(" ")
    method, target = (words[0], words[1]) if len(words) == 3 and words[2].startswith("HTTP/") else (None, None)
    if target is not None and "://" in target and not target.startswith("/"):
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    page, query = (None, None) if target is None else (target.split("#")[0].split("?")[0] or "/", None)
    if target is not None and "?" in target.split("#")[0]:
        query = target.split("#")[0].split("?", 1)[1] or None
    return Event(
        offset,
        datetime.strptime(found["time"], "%d/%b/%Y:%H:%M:%S %z").astimezone(UTC),
        found["client"],
        method,
        page,
        query,
        int(found["status"]),
        None if found["bytes"] == "-" else int(found["bytes"]),
        *(None if found[name] in ("-", None, "") else found[name] for name in ("referrer", "agent")),
    )


@dataclass
class Visit:
    visitor: str
    events: list[Event] = field(default_factory=list)

    def row(self, goal: str | None) -> dict[str, Any]:
        viewed = [each for each in self.events if each.viewed]
        times = [each.time for each in self.events]
        fine = [each for each in self.events if goal and each.page and re.search(goal, each.page) and each.status < 400]
        return {
            "visitor": self.visitor,
            "start": min(times),
            "end": max(times),
            "events": len(self.events),
            "views": len(viewed),
            "errors": sum(each.status >= 400 for each in self.events),
            "bytes": sum(each.bytes or 0 for each in self.events),
            "entry": viewed[0].page if viewed else None,
            "exit": viewed[-1].page if viewed else None,
            "bot": any(each.bot for each in self.events),
            "conversions": len(fine),
        }


def visits(events: Iterable[Event], gap_s: float = GAP_S) -> list[Visit]:
    """Events as sessions: by visitor, in the order of their times."""
    found: list[Visit] = []
    last: dict[str, tuple[datetime, Visit]] = {}
    for each in sorted(events, key=lambda each: (each.time, each.offset)):
        before = last.get(each.visitor)
        if before is None or (each.time - before[0]).total_seconds() > gap_s:
            visit = Visit(each.visitor)
            found.append(visit)
        else:
            visit = before[1]
        visit.events.append(each)
        last[each.visitor] = (each.time, visit)
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """Interpolated between the two nearest."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def windows(events: Iterable[Event], window_s: int) -> dict[datetime, dict[str, Any]]:
    """Per window of event time, by its start."""
    inside: dict[datetime, list[Event]] = defaultdict(list)
    for each in events:
        second = int(each.time.timestamp()) // window_s * window_s
        inside[datetime.fromtimestamp(second, UTC)].append(each)
    found = {}
    for start, those in inside.items():
        sizes = [each.bytes for each in those if each.bytes is not None]
        found[start] = {
            "events": len(those),
            "views": sum(each.viewed for each in those),
            "bots": sum(each.bot for each in those),
            "visitors": len({each.visitor for each in those}),
            "bytes": sum(sizes),
            "bytes_p50": percentile(sizes, 0.5),
            "bytes_p95": percentile(sizes, 0.95),
            "errors": sum(each.status >= 400 for each in those),
            "statuses": dict(Counter(str(each.status) for each in those)),
        }
    return found
