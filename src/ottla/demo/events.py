"""Web activity: made-up page views without end, or the lines of a real access log.

Every event is (topic, key, value): the visitor is the key, so a visitor's events stay in order in one partition.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

Event: TypeAlias = tuple[str, bytes, bytes]

PAGE_VIEWS = "page-views"
ERRORS = "errors"
"""Where answers with a status of 500 and above go."""

PATHS = ("/", "/search", "/cart", "/checkout", "/login", "/help", "/about", *(f"/products/{n}" for n in range(200)))
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:138.0) Gecko/20100101 Firefox/138.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Safari/605.1.15",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_4 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "curl/8.13.0",
)
STATUSES = (200,) * 90 + (304,) * 4 + (404,) * 4 + (500, 503)
VISITORS = 5000

COMBINED = re.compile(
    r"(?P<client>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "
    r'"(?:(?P<method>\S+) )?(?P<path>[^"]*?)(?: (?P<protocol>HTTP/[\d.]+))?" '
    r'(?P<status>\d{3}) (?P<bytes>\d+|-)(?: "(?P<referrer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)")?'
)
"""Apache's common and combined log formats."""


def made_up(seed: int = 1) -> Iterator[Event]:
    """Page views of a shop that does not exist, the same ones for the same seed."""
    draw = random.Random(seed)
    number = 0
    while True:
        number += 1
        visitor = f"visitor-{int(VISITORS * draw.random() ** 2)}"
        status = draw.choice(STATUSES)
        value = (
            f'{{"id":{number},"visitor":"{visitor}","path":"{draw.choice(PATHS)}","status":{status},'
            f'"millis":{draw.randrange(2, 900)},"agent":"{draw.choice(AGENTS)}"}}'
        )
        yield ERRORS if status >= 500 else PAGE_VIEWS, visitor.encode(), value.encode()


def replayed(path: Path) -> Iterator[Event]:
    """The lines of an access log, over and over; a line that is none is kept with its text. An empty file has none."""
    turn = 0
    while True:
        turn += 1
        number = 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield event_of(line.rstrip(b"\r\n"), turn, number)
        if number == 0:
            return


def event_of(line: bytes, turn: int, number: int) -> Event:
    """One line as an event. What is not UTF-8 is kept as \\x escapes."""
    text = line.decode("utf-8", "backslashreplace")
    found = COMBINED.match(text)
    place = {"turn": turn, "line": number}
    if found is None:
        return ERRORS, b"unreadable", json.dumps({**place, "raw": text}, ensure_ascii=False).encode()
    event = {**place, **found.groupdict()}
    topic = ERRORS if int(found["status"]) >= 500 else PAGE_VIEWS
    return topic, found["client"].encode(), json.dumps(event, ensure_ascii=False).encode()
