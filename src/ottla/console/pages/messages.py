"""Shows the records of a topic: the newest, those from an offset or a time, new ones, or those that a search finds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from ottla.client.client import EARLIEST, LATEST
from ottla.console.browsing.decoding import NOTHING, Decoding, Pair
from ottla.console.browsing.filters import Filter, filter_of
from ottla.console.browsing.found import Found
from ottla.console.browsing.partitioner import partition_of
from ottla.console.browsing.scan import Scan, Scanned
from ottla.console.browsing.texts import AUTO, FORMATS, JSON, Shown, shown
from ottla.console.encoding import KEY, VALUE, Content, schema_fields, typed
from ottla.console.page import Change, Context, Done, Field, InputError, Page, Part, Preview, View, time_in, url
from ottla.console.producing import Wanted, append, headers_in, preview_of
from ottla.console.reading import leaders_of, metadata_of_all, offsets, topic_of
from ottla.escaping import visible

NEWEST, START, OFFSET, TIME = "newest", "start", "offset", "time"
BEGINS: Final = (NEWEST, START, OFFSET, TIME)
LIMITS: Final = (20, 50, 100, 200)
CHARS_MAX: Final = 400
HEADERS_MAX: Final = 20
PARTITIONS_MAX: Final = 500
TAIL_ROWS: Final = 200
"""Rows that a live page gets at a time, once a second: it skips the others, and says how many."""
NAMES_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A record. `transaction` is the state of its transaction, "" without one; `control` the kind of control record."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    transaction: str
    control: str
    producer_id: int | None
    codec: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages(View):
    """Records and how they were asked for. `topic` is "" where none was named. `next` continues, "" at the end."""

    topic: str
    names: tuple[str, ...]
    partitions: int
    partition: int | None
    begins: str
    at: str
    limit: int
    format: str
    filters: Mapping[str, str]
    only_partition: int | None
    rows: tuple[MessageRow, ...]
    records: int
    size: int
    is_over: bool
    next: str
    tail: str
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """The wishes of an address, with the topic's metadata."""

    topic: Any
    leaders: dict[tuple[str, int], int]
    search: Filter
    partition: int | None
    only_partition: int | None

    @property
    def name(self) -> str:
        return self.topic.name


def asked_for(context: Context) -> Asked:
    """Read the address. Raises InputError and MissingError."""
    topic = topic_of(context, context.need("topic"))
    count = len(topic.partitions)
    search = filter_of(context.query)
    partition = context.number("partition", -1, -1) if context.query.get("partition") else None
    if partition is not None and not 0 <= partition < count:
        raise InputError(f"{visible(topic.name)} has the partitions 0 to {count - 1}.")
    only = None
    if partition is None and search.key is not None and not context.query.get("everywhere"):
        only = partition_of(search.key, count)
    wanted = {each for each in (partition, only) if each is not None}
    leaders = {place: leader for place, leader in leaders_of([topic]).items() if not wanted or place[1] in wanted}
    if len(leaders) > PARTITIONS_MAX:
        raise InputError(f"{visible(topic.name)} has {count:,} partitions: name one of them.")
    return Asked(topic, leaders, search, partition, only)


def load(context: Context) -> Messages:
    """The records that the address asks for; a choice of topics without one. Raises InputError."""
    if not context.query.get("topic"):
        found = (topic.name for topic in metadata_of_all(context).topics if not topic.is_internal and topic.name)
        return nothing(context, tuple(sorted(found)[:NAMES_MAX]))
    asked = asked_for(context)
    begins, at = context.query.get("from") or NEWEST, context.query.get("at", "")
    if begins not in BEGINS:
        raise InputError(f"from is one of {', '.join(BEGINS)}.")
    limit, format = context.number("limit", 50, 1, LIMITS[-1]), format_of(context)
    troubles: list[str] = []
    ends = by_partition(offsets(context, asked.leaders, LATEST, unseen=troubles))
    starts = by_partition(offsets(context, asked.leaders, EARLIEST, unseen=troubles))
    known = starts.keys() & ends.keys()
    starts, ends = only(starts, known), only(ends, known)
    decoding = Decoding(context.decoder)
    scan = Scan(context.client, asked.name, asked.search, decoding=decoding)
    cursor = cursor_of(context.query.get("after", ""))
    if begins == NEWEST:
        before = {each: min(cursor.get(each, end), end) for each, end in ends.items()}
        scanned = scan.backwards(starts, before, limit)
    else:
        first = positions(context, asked, begins, at, starts, ends) | only(cursor, known)
        scanned = scan.forwards({each: max(first[each], starts[each]) for each in first}, ends, limit)
    going = "" if scanned.is_over else cursor_text(scanned.positions)
    query = {name: value for name, value in context.query.items() if name != "after"}
    return Messages(
        title=f"Messages of {visible(asked.name)}",
        command=context.command("consume", asked.name, *consume_options(context, asked, begins, at, limit)),
        topic=asked.name,
        names=(),
        partitions=len(asked.topic.partitions),
        partition=asked.partition,
        begins=begins,
        at=at,
        limit=limit,
        format=format,
        filters=asked.search.texts or {},
        only_partition=asked.only_partition,
        rows=rows_of(scanned.found, format, decoding),
        records=scanned.records,
        size=scanned.size,
        is_over=scanned.is_over,
        next=url("/messages", **(query | {"after": going})) if going else "",
        tail=tail_address(query, ends) if begins == NEWEST and not cursor else "",
        troubles=(*troubles, *scanned.troubles),
    )


def nothing(context: Context, names: tuple[str, ...]) -> Messages:
    """The page without a topic."""
    return Messages(
        title="Messages",
        command=context.command("topics", "list"),
        topic="",
        names=names,
        partitions=0,
        partition=None,
        begins=NEWEST,
        at="",
        limit=50,
        format=AUTO,
        filters={},
        only_partition=None,
        rows=(),
        records=0,
        size=0,
        is_over=True,
        next="",
        tail="",
        troubles=(),
    )


def tail_address(query: Mapping[str, str], positions: Mapping[int, int]) -> str:
    """The address of the records that arrive after these positions."""
    return url("/messages/part/tail", **(dict(query) | {"after": cursor_text(positions)}))


def format_of(context: Context) -> str:
    format = context.query.get("format") or AUTO
    if format not in FORMATS:
        raise InputError(f"format is one of {', '.join(FORMATS)}.")
    return format


def rows_of(found: Sequence[Found], format: str, decoding: Decoding) -> tuple[MessageRow, ...]:
    """The rows of records. Only formats that show decoded contents have them decoded."""
    pairs = decoding.of(found) if format in (AUTO, JSON) else [NOTHING] * len(found)
    return tuple(row_of(each, format, pair) for each, pair in zip(found, pairs, strict=True))


def row_of(
    found: Found, format: str, decoded: Pair = NOTHING, chars_max: int = CHARS_MAX, *, indent: bool = False
) -> MessageRow:
    """The row of a record. Control records have no text."""
    record = found.record
    key, value = (None, None) if found.control else (record.key, record.value)
    return MessageRow(
        found.partition,
        record.offset,
        record.timestamp_ms if record.timestamp_ms >= 0 else None,
        shown(key, format, chars_max, decoded=decoded[0]),
        shown(value, format, chars_max, indent=indent, decoded=decoded[1]),
        tuple(
            (name.decode("utf-8", "replace") if isinstance(name, bytes) else name, shown(each, AUTO, chars_max))
            for name, each in list(record.headers)[:HEADERS_MAX]
        ),
        found.transaction,
        found.control,
        found.producer_id if found.producer_id >= 0 else None,
        found.codec,
    )


def by_partition(found: Mapping[tuple[str, int], int]) -> dict[int, int]:
    return {partition: offset for (_, partition), offset in found.items()}


def only(found: Mapping[int, int], wanted: Iterable[int]) -> dict[int, int]:
    return {each: found[each] for each in sorted(wanted) if each in found}


def positions(
    context: Context, asked: Asked, begins: str, at: str, starts: Mapping[int, int], ends: Mapping[int, int]
) -> dict[int, int]:
    """Where reading begins in each partition. Raises InputError."""
    if begins == START:
        return dict(starts)
    if begins == OFFSET:
        if not at.isascii() or not at.isdigit() or len(at) > 18:
            raise InputError("Name the offset to begin at, a number.")
        return dict.fromkeys(ends, int(at))
    found = by_partition(offsets(context, asked.leaders, time_in(at)))
    return {each: found[each] if found.get(each, -1) >= 0 else end for each, end in ends.items()}


def cursor_of(text: str) -> dict[int, int]:
    """Positions by partition of "0:12,1:7". Raises InputError."""
    if not text:
        return {}
    if not re.fullmatch(r"\d{1,6}:\d{1,18}(,\d{1,6}:\d{1,18})*", text, re.ASCII):
        raise InputError("The positions in the address cannot be read.")
    return {int(partition): int(offset) for partition, _, offset in (each.partition(":") for each in text.split(","))}


def cursor_text(positions: Mapping[int, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def consume_options(context: Context, asked: Asked, begins: str, at: str, limit: int) -> list[str]:
    """The options of `ottla consume` that read the same records; it has no filters."""
    found = ["--partition", str(asked.partition)] if asked.partition is not None else []
    if begins == NEWEST:
        found += ["--offset", f"-{limit}"]
    elif begins == TIME:
        found += ["--from-time", datetime.fromtimestamp(time_in(at) / 1000, UTC).isoformat()]
    else:
        found += ["--offset", at if begins == OFFSET and asked.partition is not None else "earliest"]
    return [*found, "--max-records", str(limit), "--exit-at-end", *context.consume_options]


# ---- live tail -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail(View):
    """The records since the last answer, newest first, and the address of those that follow. `skipped` counts records
    that came too fast to be shown."""

    rows: tuple[MessageRow, ...]
    skipped: int
    tail: str
    troubles: tuple[str, ...]


def load_tail(context: Context) -> Tail:
    """The records after the positions in the address."""
    asked = asked_for(context)
    cursor = cursor_of(context.need("after"))
    ends = by_partition(offsets(context, asked.leaders, LATEST))
    first, skipped = caught_up(cursor, ends, TAIL_ROWS)
    decoding = Decoding(context.decoder)
    scan = Scan(context.client, asked.name, asked.search, decoding=decoding)
    scanned = scan.forwards(first, only(ends, first), TAIL_ROWS)
    return tail_of(context, scanned, skipped, decoding)


def caught_up(cursor: Mapping[int, int], ends: Mapping[int, int], most: int) -> tuple[dict[int, int], int]:
    """Positions from which at most so many offsets follow, and how many offsets they leave out."""
    backlog = {each: max(0, end - cursor.get(each, end)) for each, end in ends.items()}
    total = sum(backlog.values())
    if total <= most:
        return {each: end - backlog[each] for each, end in ends.items()}, 0
    share = {each: min(waiting, max(1, waiting * most // total)) if waiting else 0 for each, waiting in backlog.items()}
    return {each: end - share[each] for each, end in ends.items()}, total - sum(share.values())


def tail_of(context: Context, scanned: Scanned, skipped: int, decoding: Decoding) -> Tail:
    format = format_of(context)
    return Tail(
        title="New messages",
        command="",
        rows=rows_of(scanned.found[::-1], format, decoding),
        skipped=skipped,
        tail=tail_address(context.query, scanned.positions),
        troubles=scanned.troubles,
    )


# ---- produce -------------------------------------------------------------------------------------------------------


def produce_fields(context: Context) -> tuple[Field, ...]:
    topic = context.need("topic")
    return (
        Field("partition", "Partition", "number", hint="Empty: by the key, as Kafka's clients do; 0 without a key."),
        Field("key", "Key", hint="Empty: no key."),
        *schema_fields(context, topic, KEY),
        Field("value", "Value", "textarea"),
        *schema_fields(context, topic, VALUE),
        Field("tombstone", "No value: a tombstone, which deletes the key in a compacted topic", "checkbox"),
        Field("headers", "Headers", "textarea", hint="One a line, as name=value."),
    )


def wanted_of(context: Context) -> Wanted:
    """The record that the form describes. Raises InputError."""
    form = context.form
    topic = topic_of(context, context.need("topic"))
    key = form.get("key", "")
    value = None if form.get("tombstone") else form.get("value", "").replace("\r\n", "\n")
    parts = {
        KEY: typed(context, KEY, key) if key else Content(None),
        VALUE: Content(None) if value is None else typed(context, VALUE, value),
    }
    return Wanted.to(topic, form.get("partition", ""), parts, headers_in(form.get("headers", "")))


def produce_preview(context: Context) -> Preview:
    return preview_of(context, wanted_of(context), "Appends")


def produce(context: Context) -> Done:
    """Append the record."""
    return append(context, wanted_of(context))


PAGE: Final = Page(
    name="messages",
    path="/messages",
    load=load,
    label="Messages",
    key="m",
    refresh_s=0,
    parts=(Part("tail", "New messages", load_tail, refresh_s=0, is_listed=False),),
    changes=(Change("produce", "Produce a message", produce_preview, produce, produce_fields, is_destructive=False),),
)
