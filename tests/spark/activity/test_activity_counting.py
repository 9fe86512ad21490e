"""Sessions, windows and the check as they are made in this process, against plain Python; no JVM is needed."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.activity import local_sessions, local_windows
from ottla.spark.activity.parse import EVENTS
from ottla.spark.activity.totals import covered, runs_of
from ottla.spark.lake.schemas import arrow_schema
from tests.harness.spark.activity import activity_twin as twin

START = datetime(2024, 3, 1, tzinfo=UTC)
GAP_S, WINDOW_S, GOAL = 30.0, 60, "^/g"
NAMED = ("visitor", "events", "views", "errors", "bytes", "entry", "exit", "bot", "conversions", "start", "end")

made_up = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "é", None]),
        st.integers(0, 400),
        st.sampled_from(["/", "/g", "/x.css", None, "/\U0001f600", "/\uffff"]),
        st.sampled_from([200, 304, 404, 500]),
        st.one_of(st.none(), st.integers(0, 1 << 40)),
        st.sampled_from([None, "http://r/"]),
        st.sampled_from(["M/5", "a bot"]),
    ),
    max_size=60,
)


def events_of(rows: Sequence[tuple[Any, ...]]) -> list[twin.Event]:
    return [
        twin.Event(
            ("t", n % 2, n), START + timedelta(seconds=at), who, "GET", page, None, status, size, referrer, agent
        )
        for n, (who, at, page, status, size, referrer, agent) in enumerate(rows)
    ]


def table_of(events: Sequence[twin.Event]) -> pa.Table:
    """As the table `events` has them."""
    rows = [
        {
            **{
                name: getattr(each, name)
                for name in ("time", "visitor", "page", "status", "bytes", "referrer", "agent")
            },
            **dict(zip(("topic", "partition", "offset"), each.offset, strict=True)),
            "asset": each.asset,
            "bot": each.bot,
            "kind": "view",
        }
        for each in events
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(EVENTS))


def goals(pages: pa.Array) -> np.ndarray:
    return np.array([re.search(GOAL, page) is not None for page in pages.to_pylist()])


@given(made_up, st.lists(st.integers(0, 60), max_size=3))
def test_sessions_are_those_of_plain_python_whatever_comes_first(rows: list[Any], cuts: list[int]) -> None:
    events = [each for each in events_of(rows) if each.visitor is not None]
    table, edges = table_of(events), sorted({0, *cuts, len(events)})
    parts = local_sessions.PIECES.empty_table()
    for first, until in reversed([*itertools.pairwise(edges)]):
        new = local_sessions.pieces(table.slice(first, until - first), goals)
        parts = local_sessions.merge(pa.concat_tables([parts, new]), gap_s=GAP_S)
    found = local_sessions.sessions(parts, converts=True).to_pylist()
    wanted = [each.row(GOAL) for each in twin.visits(events, GAP_S)]
    assert Counter(tuple(row[name] for name in NAMED) for row in found) == Counter(
        tuple(row[name] for name in NAMED) for row in wanted
    )
    assert all(row["seconds"] == (row["end"] - row["start"]).total_seconds() for row in found)
    assert all(row["converted"] == (row["conversions"] > 0) for row in found)


@given(made_up)
def test_windows_are_those_of_plain_python(rows: list[Any]) -> None:
    events = events_of(rows)
    found = local_windows.windowed(table_of(events), window_s=WINDOW_S).to_pylist(maps_as_pydicts="strict")
    wanted = twin.windows(events, WINDOW_S)
    for start in {twin_window(each) for each in events if each.visitor is None}:
        wanted[start]["visitors"] -= 1  # nobody is no visitor
    assert {row["start"] for row in found} == set(wanted)
    for row in found:
        each = wanted[row["start"]]
        assert {name: row[name] for name in each} == {
            name: pytest.approx(value) if "_p" in name and value is not None else value for name, value in each.items()
        }


@given(made_up, st.integers(1, 4))
def test_the_pages_of_each_window_add_up_and_are_in_order(rows: list[Any], top: int) -> None:
    events = events_of(rows)
    found = local_windows.top_pages(table_of(events), window_s=WINDOW_S, top=top).to_pylist()
    inside: dict[datetime, list[twin.Event]] = {}
    for each in events:
        inside.setdefault(twin_window(each), []).append(each)
    for start, those in inside.items():
        many = Counter(each.page for each in those)
        order = sorted(many, key=lambda page: (-many[page], page is None, (page or "").encode()))
        shown = sorted((row for row in found if row["start"] == start), key=lambda row: row["rank"] or 99)
        assert [row["page"] for row in shown if row["rank"]] == order[:top]
        assert [row["events"] for row in shown if row["rank"]] == [many[page] for page in order[:top]]
        assert sum(row["events"] for row in shown) == len(those)
        assert sum(row["bytes"] for row in shown) == sum(each.bytes or 0 for each in those)
        assert len(shown) == min(len(order), top) + (len(order) > top)


def twin_window(event: twin.Event) -> datetime:
    second = int(event.time.timestamp()) // WINDOW_S * WINDOW_S
    return datetime.fromtimestamp(second, UTC)


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=20), min_size=1, max_size=6))
def test_different_offsets_are_counted_by_their_runs(batches: list[list[int]]) -> None:
    found = covered(np.concatenate([runs_of(np.array(each)) for each in batches]))
    assert found == len({offset for each in batches for offset in each})


def test_one_visitors_session_costs_what_its_events_do() -> None:
    """Twice the events of one visitor, all at one time or one after the other, take about twice as long, not four
    times."""

    def least_s(many: int, step_us: int) -> float:
        now = np.arange(many, dtype=np.int64) * step_us + 1_700_000_000_000_000
        one = pa.array(["a"] * many)
        rows = {
            "time": pa.array(now).cast(pa.timestamp("us", tz="UTC")),
            "visitor": one,
            "offset": pa.array(range(many)),
        }
        schema = arrow_schema(EVENTS)
        events = pa.table({each.name: rows.get(each.name, pa.nulls(many, each.type)) for each in schema})
        taken = []
        for _ in range(3):
            began = time.process_time()
            merged = local_sessions.merge(local_sessions.pieces(events), gap_s=1800)
            taken.append(time.process_time() - began)
            assert merged["events"].to_pylist() == [many]
        return min(taken)

    for step_us in (0, 1000):
        least_s(1_000, step_us)
        assert least_s(120_000, step_us) < 3.3 * least_s(60_000, step_us)
