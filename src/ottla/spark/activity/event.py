"""Reads a record's value as an event: a line of an access log, a JSON event, or JSON that wraps a line.

Lines are Apache's and nginx's common and combined formats. A virtual host may precede them, and more fields may follow.
JSON events use the field names below.

Invariant: `EventReader.read` returns an event or the reason why there is none; it never raises, whatever the bytes are.
The regular expression for lines is possessive wherever it repeats a group, so it is linear on hostile lines. Strings
that recur (times, requests, agents) are parsed once: see `Remembered`.

Source: https://httpd.apache.org/docs/2.4/mod/mod_log_config.html
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ottla.spark.activity.times import SECOND_US, micros_of
from ottla.spark.text.json_text import json_object, text_of

SPACE, ANY = r"[ \t\n\x0b\f\r]", r"[^\n\r\x85\u2028\u2029]"
NO_SPACE = r"[^ \t\n\x0b\f\r]"
QUOTED = rf'"((?:[^"\\]++|\\{ANY})*+)"'
LINE = re.compile(
    rf"(?:({NO_SPACE}+) (?!- ))?({NO_SPACE}+) {NO_SPACE}+ [^\[\"]*? \[([^\]]{{1,64}})\] "  # host, client, user, time
    + QUOTED  # request
    + r" ([0-9]{3}|-) ([0-9]{1,18}|-)"
    + f"(?: {QUOTED})?(?: {QUOTED})?"  # referrer, agent
    + rf'(?: (?:"(?:[^"\\]++|\\{ANY})*+"|(?!"){NO_SPACE}++))*+{SPACE}*'  # what a format of one's own adds
)
SEPARATOR = "\x1f"
"""A line that contains it is malformed."""

TIMES = (
    "time", "ts", "timestamp", "@timestamp", "event_time", "eventTime", "datetime", "date", "time_iso8601",
    "time_local",
)  # fmt: skip
VISITORS = (
    "visitor", "visitor_id", "visitorId", "user.id", "user_id", "userId", "user", "uid", "anonymous_id", "anonymousId",
)  # fmt: skip
CLIENTS = (
    "client", "client_ip", "clientIp", "ip", "remote_addr", "remote_host", "client.ip", "remote_ip", "clientip",
    "source.ip", "context.ip",
)  # fmt: skip
PAGES = (
    "page.path", "page.url", "url.path", "page", "path", "url", "uri", "request_uri", "href", "properties.path",
    "properties.url",
)  # fmt: skip
KINDS = ("kind", "event.name", "event", "event_type", "eventType", "type", "action")
QUERIES = ("query", "q", "search", "term")
METHODS = ("method", "request_method", "verb")
STATUSES = ("status", "status_code", "statusCode", "code", "response", "response_code")
SIZES = ("bytes", "size", "body_bytes_sent", "bytes_sent", "response_size")
REFERRERS = ("referrer", "referer", "http_referer")
AGENTS = ("agent", "user_agent", "userAgent", "http_user_agent", "ua")
WRAPPED = ("message", "log", "raw")
REQUESTS = ("request", "request_line")
"""Names that a JSON event may use; the first one present counts. WRAPPED: the whole line of a log, as shippers send it.
REQUESTS: `GET /a HTTP/1.1`, as servers that log in JSON write it."""
NAMES = (
    TIMES, VISITORS, CLIENTS, PAGES, KINDS, QUERIES, METHODS, STATUSES, SIZES, REFERRERS, AGENTS, WRAPPED, REQUESTS,
)  # fmt: skip

BOTS = (
    "bot", "crawl", "spider", "slurp", "curl/", "wget", "python", "java/", "libwww", "perl", "go-http", "okhttp",
    "feed", "fetch", "scrap", "headless", "monitor", "preview", "facebookexternalhit", "archiver",
)  # fmt: skip
"""The client is a program, not a person, if its agent contains one of these."""
ASSETS = re.compile(
    r"\.(?:css|js|mjs|map|png|jpe?g|gif|svg|webp|avif|ico|bmp|woff2?|ttf|otf|eot|webmanifest)\Z", re.I | re.A
)
SEARCH_QUERY = re.compile(r"(?:\A|&)(?:q|query|search|term|keywords?)=[^&]", re.I | re.A)
SEARCH_PAGE = re.compile(r"/search(?:/|\.\w+)?\Z", re.I | re.A)
METHOD = re.compile(r"[A-Z][A-Z-]{1,19}")
HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://[^/?#]*+")
KNOWN_KINDS = tuple(
    (word, re.compile(rf"(?:\A|[^a-z]|page){plural}\Z"))
    for word, plural in (("view", "views?"), ("search", "search(?:es)?"), ("click", "clicks?"))
)
WHOLE = re.compile(r"[\x00-\x20\x7f]*([+-]?)0*([0-9]{1,19})(?:\.0*)?[\x00-\x20\x7f]*")
LONG_MAX = (1 << 63) - 1
AHEAD_MAX = "1 day"
"""How far an event may be after its record's own timestamp; otherwise a wrong clock would make all other events
late."""
DAY_US = 86400 * SECOND_US
LINE_BYTES_MAX = 1 << 20
REMEMBERED_MAX, REMEMBERED_CHARS_MAX = 1 << 15, 1 << 10

Key = TypeVar("Key", str, tuple[str, str])
Value = TypeVar("Value")


class Event(NamedTuple):
    """The fields of one record. `time` in microseconds since 1970; None where the record has no value."""

    time: int
    visitor: str | None
    kind: str
    method: str | None
    page: str | None
    query: str | None
    status: int | None
    bytes: int | None
    referrer: str | None
    agent: str | None
    bot: bool
    asset: bool


class Target(NamedTuple):
    """The target of a request."""

    page: str | None
    query: str | None
    asset: bool
    searched: bool


NOWHERE = Target(None, None, False, False)


class Remembered(dict[Key, Value], Generic[Key, Value]):
    """Answers by question, without long questions; all are dropped when there are more than REMEMBERED_MAX."""

    def __init__(self, find: Callable[[Key], Value]) -> None:
        super().__init__()
        self.find = find

    def __missing__(self, key: Key) -> Value:
        found = self.find(key)
        if sum(map(len, key if isinstance(key, tuple) else (key,))) <= REMEMBERED_CHARS_MAX:
            if len(self) >= REMEMBERED_MAX:
                self.clear()
            self[key] = found
        return found


class EventReader:
    """Reads values. `zone`: for times without a zone."""

    def __init__(self, zone: str = "UTC") -> None:
        self.times = Remembered[str, int | None](lambda told: micros_of(told, zone))
        self.requests = Remembered[str, tuple[str | None, Target]](request_of)
        self.targets = Remembered[tuple[str, str], Target](lambda both: target_of(both[0], both[1] or None))
        self.agents = Remembered[str, bool](is_bot)
        self.kinds = Remembered[str, str](known_kind)

    def read(self, value: bytes | None, timestamp_us: int | None, topic: str) -> tuple[str | None, Event | str]:
        """Return the value's text, and its event or the reason why there is none."""
        if value is None:
            return None, "no value"
        text = text_of_bytes(value).rstrip("\r\n")
        if len(value) > LINE_BYTES_MAX:
            return text, f"longer than {LINE_BYTES_MAX} bytes" if text.strip(" ") else "empty"
        bare = text.lstrip(" ")
        if bare.startswith("{"):
            return text, self.json_event(bare, timestamp_us, topic)
        groups = taken_apart(text)
        if groups is not None:
            return text, self.line_event(groups, None, timestamp_us, topic)
        return text, "not a line of an access log" if bare else "empty"

    def line_event(
        self, groups: tuple[str | None, ...], own_kind: str | None, timestamp_us: int | None, topic: str
    ) -> Event | str:
        """Return the event of a parsed line; `own_kind`: the kind in the JSON around it."""
        _, visitor, told, request, status, size, referrer, agent = groups
        assert visitor is not None
        assert status is not None
        assert size is not None
        time = None if told is None or told == "-" else self.times[told]
        if time is None or not_in(time, timestamp_us):
            return why_no_time(None if told == "-" else told, time)
        method, target = (None, NOWHERE) if not request or request == "-" else self.requests[request]
        if agent is not None and (not agent or agent == "-"):
            agent = None
        return Event(
            time,
            None if visitor == "-" else visitor,
            self.kind_of(own_kind, target, topic),
            method,
            target.page,
            target.query,
            int(status) if status != "-" and status[0] != "0" else None,
            None if size == "-" else int(size),
            None if not referrer or referrer == "-" else referrer,
            agent,
            agent is not None and self.agents[agent],
            target.asset,
        )

    def json_event(self, text: str, timestamp_us: int | None, topic: str) -> Event | str:
        found = json_object(text)
        if found is None:
            return "not valid JSON"
        (told, visitor, client, page, kind, query, method, status, size, referrer, agent, line, request) = named(found)
        kind = None if kind is None else kind.lower()
        groups = None if line is None else taken_apart(line)
        if groups is not None:
            return self.line_event(groups, kind, timestamp_us, topic)
        visitor = dashless(client if visitor is None else visitor)
        asked, target = (None, NOWHERE) if page is not None or request is None else self.requests[request]
        if target.page is None and (page is not None or query is not None):
            target = self.targets[page or "", query or ""]
        method = asked if method is None else method
        if visitor is None and target.page is None and kind is None:
            wraps = line is not None
            return (
                "a wrapped line that is not of an access log" if wraps else "JSON that names no visitor, page or kind"
            )
        told = dashless(told)
        time = timestamp_us if told is None else self.times[told]
        if time is None or not_in(time, timestamp_us):
            return why_no_time(told, time)
        agent = dashless(agent)
        return Event(
            time,
            visitor,
            self.kind_of(kind, target, topic),
            None if method is None else method.upper(),
            target.page,
            target.query,
            whole(dashless(status), 100, 999),
            whole(dashless(size), 0, LONG_MAX),
            dashless(referrer),
            agent,
            agent is not None and self.agents[agent],
            target.asset,
        )

    def kind_of(self, own: str | None, target: Target, topic: str) -> str:
        if own is not None:
            return self.kinds[own]
        return "search" if target.searched else self.kinds[topic.lower()]


# ---- why not -------------------------------------------------------------------------------------------------------


def not_in(time: int, timestamp_us: int | None) -> bool:
    """Whether a time is outside the range for events."""
    return time < 0 or (timestamp_us is not None and timestamp_us > DAY_US and time > timestamp_us + DAY_US)


def why_no_time(told: str | None, time: int | None) -> str:
    if time is None:
        return f"unreadable time: {'none' if told is None else told[:40]}"
    return "a time before 1970" if time < 0 else f"more than {AHEAD_MAX} after its record's timestamp"


# ---- texts ---------------------------------------------------------------------------------------------------------


def text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def taken_apart(line: str) -> tuple[str | None, ...] | None:
    """Split a line into host, client, time, request, status, bytes, referrer, agent; None if it is not a line of a
    log."""
    found = LINE.fullmatch(line)
    return None if found is None or SEPARATOR in line else found.groups()


def dashless(text: str | None) -> str | None:
    return None if text == "-" else text


def whole(text: str | None, least: int, most: int) -> int | None:
    found = None if text is None else WHOLE.fullmatch(text)
    if found is None:
        return None
    number = int(found[1] + found[2])
    return number if least <= number <= most else None


def is_bot(agent: str) -> bool:
    words = agent.lower()
    return any(word in words for word in BOTS)


def known_kind(name: str) -> str:
    """`page-views`, `pageview`, `shop.views` are `view`, and so on; any other name is a kind of its own."""
    for word, pattern in KNOWN_KINDS:
        if word in name and pattern.search(name):
            return word
    return name


def request_of(request: str) -> tuple[str | None, Target]:
    """`GET /a?b HTTP/1.1` as method and target; both None for a broken request."""
    first, last = request.partition(" ")[0], request.rpartition(" ")[2]
    cut = len(last) + 1 if last.startswith("HTTP/") else 0
    if METHOD.fullmatch(first) is None or len(request) <= len(first) + 1 + cut:
        return None, NOWHERE
    return first, target_of(request[len(first) + 1 : len(request) - cut].strip(" "), None)


def target_of(target: str, own_query: str | None) -> Target:
    """Return a page without scheme, host and fragment (unless only these exist), and its query: the text after the
    question mark, or the query that the event names."""
    page, query = None, own_query
    if target:
        local = target
        if not target.startswith("/") and "://" in target:
            host = HOST.match(target)
            local = target if host is None else target[host.end() :]
        if not target.startswith("#"):
            local = local.partition("#")[0]
        page, mark, asked = local.partition("?")
        page, query = page or "/", asked if mark else own_query
    query = query or None
    searched = (query is not None and SEARCH_QUERY.search(query)) or (page is not None and SEARCH_PAGE.search(page))
    asset = page is not None and ASSETS.search(page) is not None
    return Target(page, query, asset, bool(searched))


# ---- JSON ----------------------------------------------------------------------------------------------------------


def places_of() -> dict[str, tuple[int, int]]:
    return {name: (slot, rank) for slot, names in enumerate(NAMES) for rank, name in enumerate(names)}


PLACES = places_of()
"""For each name, the index of its field and its rank among the field's names."""
NESTED = {name.split(".")[0] for name in PLACES if "." in name}


def named(found: dict[str, Any]) -> list[str | None]:
    """Return the fields of NAMES that a JSON event has, as text. Of several names for a field, the first one present
    counts."""
    values: list[Any] = [None] * len(NAMES)
    ranks = [99] * len(NAMES)
    for key, value in found.items():
        if value is None:
            continue
        place = PLACES.get(key) if "." not in key else None
        if place is not None and place[1] < ranks[place[0]]:
            values[place[0]], ranks[place[0]] = value, place[1]
        if key in NESTED and type(value) is dict:
            for part, inner in value.items():
                place = PLACES.get(f"{key}.{part}")
                if place is not None and inner is not None and place[1] < ranks[place[0]]:
                    values[place[0]], ranks[place[0]] = inner, place[1]
    return [None if value is None else text_of(value).strip(" ") or None for value in values]
