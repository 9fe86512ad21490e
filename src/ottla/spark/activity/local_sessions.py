"""Puts sessions together in this process, from Arrow tables of events and session pieces that fit in memory.

`ottla.spark.activity.sessions` defines what a piece is and which pieces belong together; the results are the same. The
cost grows with the number of pieces, not with the number of pieces in one session.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.activity.groups import Groups, codes_of, flags, longs
from ottla.spark.activity.local_windows import MOMENT, viewed

EVENT_COLUMNS = (
    "time", "visitor", "kind", "page", "status", "bytes", "referrer", "bot", "asset", "topic", "partition", "offset",
)  # fmt: skip
PLACE = pa.struct(
    [
        ("time", MOMENT),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("page", pa.string()),
    ]
)
SUMS = ("events", "views", "searches", "clicks", "errors", "bytes", "conversions")
PIECES = pa.schema(
    [
        ("visitor", pa.string()),
        ("start", MOMENT),
        ("end", MOMENT),
        *((name, pa.int64()) for name in SUMS),
        ("bot", pa.bool_()),
        ("first_page", PLACE),
        ("last_page", PLACE),
        ("first_referrer", PLACE),
    ]
)
"""`sessions.PIECE_SCHEMA` in Arrow."""
Goals: TypeAlias = Callable[[pa.Array], np.ndarray]
"""Selects the pages that count as conversions, from distinct pages without null."""


def pieces(events: pa.Table, goals: Goals | None = None) -> pa.Table:
    """EVENT_COLUMNS, each event with a visitor as the piece of a session: PIECES."""
    events = events.select(EVENT_COLUMNS).filter(pc.is_valid(events["visitor"])).combine_chunks()
    status, seen = longs(events["status"]), viewed(events)
    referred = flags(events["referrer"].is_valid())
    columns = {
        "visitor": events["visitor"],
        "start": events["time"],
        "end": events["time"],
        "events": np.ones(len(events), np.int64),
        "views": seen,
        "searches": flags(pc.equal(events["kind"], "search")),
        "clicks": flags(pc.equal(events["kind"], "click")),
        "errors": status >= 400,
        "bytes": longs(events["bytes"]),
        "conversions": reached(events, goals) & (status < 400),
        "bot": events["bot"],
        "first_page": place(events, "page", seen),
        "last_page": place(events, "page", seen),
        "first_referrer": place(events, "referrer", referred),
    }
    arrays = [whole(columns[field.name]).cast(field.type) for field in PIECES]
    return pa.Table.from_arrays(arrays, schema=PIECES)


def reached(events: pa.Table, goals: Goals | None) -> np.ndarray:
    """Which events are of a page that is a goal."""
    codes, pages = codes_of(events["page"])
    if goals is None or not len(pages):
        return np.zeros(len(events), bool)
    return np.append(goals(pages), False)[codes]


def place(events: pa.Table, name: str, where: np.ndarray) -> pa.Array:
    """The time, position in the log and text of each event that has a value in this column; otherwise null."""
    inside = [whole(events[each]) for each in ("time", "topic", "partition", "offset", name)]
    inside = [each.cast(field.type) for each, field in zip(inside, PLACE, strict=True)]
    return pa.StructArray.from_arrays(inside, fields=list(PLACE), mask=pa.array(~where))


def whole(column: pa.Array | pa.ChunkedArray | np.ndarray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return pa.array(column) if isinstance(column, np.ndarray) else column


def merge(parts: pa.Table, *, gap_s: float) -> pa.Table:
    """Join pieces that belong together: each resulting piece is a whole session, as far as it is known."""
    parts = parts.combine_chunks()
    visitors = codes_of(parts["visitor"])[0]
    numbers = sessions_of(visitors, longs(parts["start"]), longs(parts["end"]), round(gap_s * 1e6))
    groups = Groups(numbers, int(numbers.max(initial=-1)) + 1)
    firsts = groups.least(np.arange(len(parts)))
    columns = {
        "visitor": whole(parts["visitor"]).take(pa.array(firsts, pa.int64())),
        "start": groups.least(longs(parts["start"])),
        "end": groups.greatest(longs(parts["end"])),
        **{name: groups.sums(longs(parts[name])) for name in SUMS},
        "bot": groups.any(flags(parts["bot"])),
        "first_page": edge(whole(parts["first_page"]), groups, last=False),
        "last_page": edge(whole(parts["last_page"]), groups, last=True),
        "first_referrer": edge(whole(parts["first_referrer"]), groups, last=False),
    }
    return pa.Table.from_arrays([whole(columns[field.name]).cast(field.type) for field in PIECES], schema=PIECES)


def sessions_of(visitors: np.ndarray, starts: np.ndarray, ends: np.ndarray, gap_us: int) -> np.ndarray:
    """Which session each piece belongs to, from 0 on."""
    if not len(visitors):
        return visitors
    moments, ranks = np.unique(ends, return_inverse=True)
    order = np.lexsort((ends, starts, visitors))
    # the latest end so far of each visitor: numbers of one visitor are all below those of the next
    latest = np.maximum.accumulate(visitors[order] * len(moments) + ranks[order])
    reached = moments[latest[:-1] % len(moments)]
    begins = (visitors[order][1:] != visitors[order][:-1]) | (starts[order][1:] - reached > gap_us)
    numbers = np.empty(len(visitors), np.int64)
    numbers[order] = np.concatenate([[0], np.cumsum(begins)])
    return numbers


def edge(places: pa.StructArray, groups: Groups, *, last: bool) -> pa.Array:
    """The first or last place of each group; null if it has none."""
    rows = np.flatnonzero(flags(places.is_valid()))
    there = places.take(pa.array(rows, pa.int64()))
    keys = [longs(there.field("offset")), longs(there.field("partition")), codes_of(there.field("topic"))[0]]
    order = np.lexsort((*keys, longs(there.field("time")), groups.numbers[rows]))
    numbers, asked = groups.numbers[rows][order], np.arange(groups.count)
    at = np.searchsorted(numbers, asked, "right") - 1 if last else np.searchsorted(numbers, asked, "left")
    inside = np.clip(at, 0, max(len(rows) - 1, 0))
    found = numbers[inside] == asked if len(rows) else np.zeros(groups.count, bool)
    chosen = rows[order][inside] if len(rows) else np.zeros(groups.count, np.int64)
    return places.take(pa.array(chosen, pa.int64(), mask=~found))


def sessions(parts: pa.Table, *, converts: bool) -> pa.Table:
    """Merged pieces as `sessions.SESSION_COLUMNS`. `converts`: whether there is a page to reach."""
    many = len(parts)
    seconds = (longs(parts["end"]) - longs(parts["start"])) / 1e6
    converted = pa.array(longs(parts["conversions"]) > 0) if converts else pa.nulls(many, pa.bool_())
    named = {"entry": "first_page", "exit": "last_page", "referrer": "first_referrer"}
    texts = {name: pc.struct_field(whole(parts[of]), "page") for name, of in named.items()}
    counts = {name: parts[name] for name in SUMS}
    kept = {name: parts[name] for name in ("visitor", "start", "end", "bot")}
    return pa.table({**kept, **counts, **texts, "seconds": seconds, "converted": converted})
