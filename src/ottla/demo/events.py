"""Makes web activity: endless made-up page views, or the lines of a real access log.

Every event is (topic, key, value): the visitor is the key, so a visitor's events stay in order in one partition.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from itertools import accumulate, count, islice
from pathlib import Path
from typing import TypeAlias

Event: TypeAlias = tuple[str, bytes, bytes]

PAGE_VIEWS = "page-views"
ERRORS = "errors"
"""The topic of answers with a status of 500 and above."""

PATHS = {
    "/": 160,
    "/search": 90,
    "/cart": 40,
    "/login": 25,
    "/checkout": 12,
    "/help": 6,
    "/about": 3,
    **{f"/products/{n}": 100 / (n + 1) for n in range(200)},
}
"""Pages and their relative frequencies: a few products are viewed often, most of them rarely."""
AGENTS = {
    "Mozilla/5.0 (X11; Linux x86_64; rv:138.0) Gecko/20100101 Firefox/138.0": 20,
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Safari/605.1.15": 30,
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_4 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148": 45,
    "curl/8.13.0": 5,
}
STATUSES = (200,) * 90 + (304,) * 4 + (404,) * 4 + (500, 503)
VISITORS = 5000
UNREADABLE = b"unreadable"
"""The key of lines that are not access log lines."""

COMBINED = re.compile(rb'(?:\S+ )?(?P<client>\S+) \S+ \S+ \[[^\]]+\] "(?:[^"\\]|\\.)*" (?P<status>\d{3}) (?:\d+|-)')
"""Apache's common and combined log formats."""


def made_up(seed: int = 1) -> Iterator[Event]:
    """Page views of a shop that does not exist; the same seed gives the same views."""
    draw = random.Random(seed)
    paths, agents = iter(drawn(draw, PATHS)), iter(drawn(draw, AGENTS))
    for number in count(1):
        visitor = f"visitor-{int(VISITORS * draw.random() ** 2)}"
        status = draw.choice(STATUSES)
        value = (
            f'{{"id":{number},"visitor":"{visitor}","path":"{next(paths)}","status":{status},'
            f'"millis":{draw.randrange(2, 900)},"agent":"{next(agents)}"}}'
        )
        yield ERRORS if status >= 500 else PAGE_VIEWS, visitor.encode(), value.encode()


def drawn(draw: random.Random, weights: Mapping[str, float]) -> Iterator[str]:
    """An endless sequence of names, each with a frequency in proportion to its weight."""
    names, until = list(weights), list(accumulate(weights.values()))
    while True:
        yield from draw.choices(names, cum_weights=until, k=100)


class AccessLog:
    """A log file of the user's, read line by line, once. `unreadable`: lines so far that are not access log lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = counted(path)
        self.unreadable = 0

    def __iter__(self) -> Iterator[Event]:
        with self.path.open("rb") as lines:
            for line in islice(lines, self.lines):
                event = event_of(line.rstrip(b"\r\n"))
                self.unreadable += event[1] == UNREADABLE
                yield event


def counted(path: Path) -> int:
    """The number of lines of a file, with or without a line end after the last one."""
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


def event_of(line: bytes) -> Event:
    """The event of a line; a line that is not an access log line becomes an error event."""
    found = COMBINED.match(line)
    if found is None:
        return ERRORS, UNREADABLE, line
    return ERRORS if found["status"] >= b"500" else PAGE_VIEWS, found["client"], line
