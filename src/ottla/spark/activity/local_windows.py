"""Counts events and sessions per window in this process, from Arrow tables that fit in memory.

The figures are exactly those of `windowed`, `top_pages` and `conversions`. Spark needs hundreds of milliseconds to
plan, compile and start a job; this module counts 100,000 events in about the same time.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.activity.groups import Groups, codes_of, flags, grouped, longs
from ottla.spark.activity.windows import OTHERS

EVENT_COLUMNS = ("time", "visitor", "kind", "page", "status", "bytes", "bot", "asset")
SESSION_COLUMNS = ("end", "views", "seconds", "converted")
MOMENT = pa.timestamp("us", tz="UTC")


def by_window(column: Any, window_s: int) -> tuple[np.ndarray, Groups]:
    """Where windows begin, in us, and the rows by window."""
    window_us = window_s * 1_000_000
    starts, groups = grouped(longs(column) // window_us)
    return starts * window_us, groups


def moments(micros: np.ndarray) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(MOMENT)


def viewed(events: pa.Table) -> np.ndarray:
    """Which events are the view of a page."""
    return flags(events["page"].is_valid()) & ~flags(events["asset"])


def windowed(events: pa.Table, *, window_s: int) -> pa.Table:
    """EVENT_COLUMNS as `ottla.spark.activity.windows.windowed` counts them."""
    starts, groups = by_window(events["time"], window_s)
    status, bot, sizes = longs(events["status"]), flags(events["bot"]), longs(events["bytes"])
    kinds, kind_names = codes_of(events["kind"])
    called = {name: number for number, name in enumerate(kind_names.to_pylist())}
    p50, p95 = groups.percentiles(sizes, flags(events["bytes"].is_valid()), (0.5, 0.95))
    texts = pc.fill_null(events["status"].cast(pa.string()), "none")
    return pa.table(
        {
            "start": moments(starts),
            "end": moments(starts + window_s * 1_000_000),
            "events": groups.rows(),
            "views": groups.rows(viewed(events)),
            "searches": groups.rows(kinds == called.get("search", -2)),
            "clicks": groups.rows(kinds == called.get("click", -2)),
            "bots": groups.rows(bot),
            "visitors": groups.distinct(codes_of(events["visitor"])[0]),
            "bytes": groups.sums(sizes),
            "bytes_p50": p50,
            "bytes_p95": p95,
            "errors": groups.rows(status >= 400),
            "statuses": counted(groups, *codes_of(texts)),
            "kinds": counted(groups, kinds, kind_names),
        }
    )


def counted(groups: Groups, codes: np.ndarray, names: pa.Array) -> pa.Array:
    """For each group, return a map from names to the number of rows with them, in the names' order."""
    pairs, many = np.unique(groups.numbers * len(names) + codes, return_counts=True)
    ends = np.searchsorted(pairs, np.arange(groups.count + 1) * len(names))
    keys = names.take(pa.array(pairs % len(names) if len(names) else pairs, pa.int64()))
    return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, pa.array(many, pa.int64()))


def top_pages(events: pa.Table, *, window_s: int, top: int) -> pa.Table:
    """EVENT_COLUMNS as `ottla.spark.activity.windows.top_pages` counts them."""
    starts, windows = by_window(events["time"], window_s)
    codes, names = codes_of(events["page"])
    codes = np.where(codes < 0, len(names), codes)  # a null page is the last among equals
    keys, groups = grouped(windows.numbers * (len(names) + 1) + codes)
    window, page = keys // (len(names) + 1), keys % (len(names) + 1)
    many = groups.rows()
    order = np.lexsort((page, -many, window))
    ranks = np.empty(len(keys), np.int64)
    ranks[order] = np.arange(len(keys)) - np.searchsorted(window[order], window[order]) + 1
    shown = order[ranks[order] <= top]
    hidden = np.flatnonzero(ranks > top)
    rest, others = grouped(window[hidden])
    figures = {
        "events": many,
        "bytes": groups.sums(longs(events["bytes"])),
        "errors": groups.rows(longs(events["status"]) >= 400),
    }
    beyond = len(rest)
    starts = starts[np.concatenate([window[shown], rest])]
    called = pa.concat_arrays([names.cast(pa.string()), pa.nulls(1, pa.string())]).take(
        pa.array(page[shown], pa.int64())
    )
    asset = groups.any(flags(events["asset"]))[shown]
    visitors = groups.distinct(codes_of(events["visitor"])[0])[shown]
    return pa.table(
        {
            "start": moments(starts),
            "end": moments(starts + window_s * 1_000_000),
            "rank": pa.concat_arrays([pa.array(ranks[shown], pa.int32()), pa.nulls(beyond, pa.int32())]),
            "page": pa.concat_arrays([called, pa.array([OTHERS] * beyond, pa.string())]),
            "asset": pa.concat_arrays([pa.array(asset, pa.bool_()), pa.nulls(beyond, pa.bool_())]),
            "visitors": pa.concat_arrays([pa.array(visitors, pa.int64()), pa.nulls(beyond, pa.int64())]),
            **{name: np.concatenate([each[shown], others.sums(each[hidden])]) for name, each in figures.items()},
        }
    )


def conversions(sessions: pa.Table, *, window_s: int) -> pa.Table:
    """SESSION_COLUMNS as `ottla.spark.activity.sessions.conversions` counts them."""
    starts, groups = by_window(sessions["end"], window_s)
    views = longs(sessions["views"])
    seconds = sessions["seconds"].combine_chunks().to_numpy(zero_copy_only=False)
    (middle,) = groups.percentiles(seconds, np.ones(len(seconds), bool), (0.5,))
    return pa.table(
        {
            "start": moments(starts),
            "end": moments(starts + window_s * 1_000_000),
            "sessions": groups.rows(),
            "converted": groups.rows(flags(sessions["converted"])),
            "bounces": groups.rows(views <= 1),
            "views": groups.sums(views),
            "seconds_p50": middle,
        }
    )
