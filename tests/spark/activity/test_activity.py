"""The activity pipeline over a real access log and over made-up ones, against plain Python, line for line."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.harness.spark.activity import activity_twin as twin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.spark.activity import ActivityResult, Tables
    from ottla.testing import EmbeddedBroker

WINDOW_S, GAP_S, TOP, GOAL = 300, 1800.0, 20, "^/projects/"
WHOLE_RUN = pytest.mark.slow("tests/spark/activity/test_activity_counting.py::test_windows_are_those_of_plain_python")
TABLES = ("events", "late", "malformed", "windows", "pages", "sessions", "conversions")


def produce(bootstrap: str, topic: str, lines: Iterable[bytes]) -> list[tuple[str, int, int]]:
    """Where each line came to lie; a visitor's lines in one partition."""
    from confluent_kafka import Producer

    places: dict[int, tuple[str, int, int]] = {}
    producer = Producer({"bootstrap.servers": bootstrap})

    def stored(number: int) -> Any:
        def called(error: Any, message: Any) -> None:
            assert error is None
            places[number] = (topic, message.partition(), message.offset())

        return called

    for number, line in enumerate(lines):
        producer.produce(topic, line, key=line.split(b" ")[0], on_delivery=stored(number))
        producer.poll(0)
    assert producer.flush(30) == 0
    return [places[number] for number in range(len(places))]


class Row(dict[str, Any]):
    """A row of a table; columns are attributes too."""

    __getattr__ = dict[str, Any].__getitem__


def rows_of(tables: Tables) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for name in TABLES:
        rows = DeltaTable(str(tables.root / name)).to_pyarrow_table().to_pylist(maps_as_pydicts="strict")
        found[name] = [Row(row) for row in rows]
    return found


def utc(row: Any, *names: str) -> Any:
    found = [row[name].astimezone(UTC) if isinstance(row[name], datetime) else row[name] for name in names]
    return found[0] if len(found) == 1 else tuple(found)


def compare(found: dict[str, list[Any]], events: list[twin.Event]) -> None:
    """Every table made of `events` is what plain Python makes of them."""
    fields = ("time", "visitor", "method", "page", "query", "status", "bytes", "referrer", "agent", "asset", "bot")
    got = {(row.topic, row.partition, row.offset): utc(row, *fields) for row in found["events"]}
    assert len(got) == len(found["events"]) == len(events)
    assert got == {each.offset: tuple(getattr(each, name) for name in fields) for each in events}

    wanted = twin.windows(events, WINDOW_S)
    names = ("events", "views", "bots", "visitors", "bytes", "bytes_p50", "bytes_p95", "errors", "statuses")
    assert {utc(row, "start"): {name: row[name] for name in names} for row in found["windows"]} == {
        start: {name: pytest.approx(each[name]) if "_p" in name and each[name] is not None else each[name]
                for name in names}
        for start, each in wanted.items()
    }  # fmt: skip
    assert len(found["windows"]) == len(wanted)

    visits = [each.row(GOAL) for each in twin.visits(events, GAP_S)]
    names = tuple(visits[0])
    assert Counter(utc(row, *names) for row in found["sessions"]) == Counter(
        tuple(each[name] for name in names) for each in visits
    )
    compare_pages(found["pages"], events)
    assert sum(row.sessions for row in found["conversions"]) == len(visits)
    assert sum(row.converted for row in found["conversions"]) == sum(each["conversions"] > 0 for each in visits)
    assert sum(row.bounces for row in found["conversions"]) == sum(each["views"] <= 1 for each in visits)


def compare_pages(rows: list[Any], events: list[twin.Event]) -> None:
    """The top of each window, and the sum of all others."""
    counted = Counter(
        (int(each.time.timestamp()) // WINDOW_S * WINDOW_S, each.page) for each in events if each.page is not None
    )
    by_window: dict[int, list[tuple[int, str]]] = {}
    for (start, page), many in counted.items():
        by_window.setdefault(start, []).append((-many, page))
    for start, pages in by_window.items():
        top = {page: -many for many, page in sorted(pages)[:TOP]}
        shown = [row for row in rows if int(utc(row, "start").timestamp()) == start]
        assert {row.page: row.events for row in shown if row["rank"] is not None and row.page is not None} == top
        assert sum(row.events for row in shown) == sum(
            int(each.time.timestamp()) // WINDOW_S * WINDOW_S == start for each in events
        )


# ---- the real log --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(
    spark: SparkSession, broker: EmbeddedBroker, real_logs: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ActivityResult, dict[str, list[Any]], list[tuple[tuple[str, int, int], str]], str]:
    """One run over the whole log: its outcome, the tables' rows, every line with its place, and the report."""
    from ottla.spark.activity import Tables, WindowSettings, run
    from ottla.spark.running.run import RunOptions

    lines = (real_logs / "activity" / "apache_access.log").read_bytes().split(b"\n")[:-1]
    broker.create_topic("access", partitions=3)
    places = produce(broker.bootstrap_servers, "access", lines)
    folder = tmp_path_factory.mktemp("activity")
    outcome = run(
        RunOptions(broker.bootstrap_servers, None, once=True, quiet=True),
        ["access"],
        str(folder / "site"),
        settings=WindowSettings(WINDOW_S, GAP_S, TOP, GOAL),
        report=str(folder / "report.html"),
        session=spark,
    )
    found = rows_of(Tables.open(str(folder / "site")))
    told = list(zip(places, (line.decode() for line in lines), strict=True))
    return outcome, found, told, (folder / "report.html").read_text()


@WHOLE_RUN
def test_the_real_log_is_counted_as_plain_python_counts_it(real: Any) -> None:
    outcome, found, told, _ = real
    read = [(place, line, twin.event(line, place)) for place, line in told]
    compare(found, [event for _, _, event in read if event is not None])
    bad = {place: line for place, line, event in read if event is None}
    assert {(row.topic, row.partition, row.offset): row.raw for row in found["malformed"]} == bad
    assert (outcome.rows, outcome.totals.read, outcome.totals.malformed) == (10_000, 10_000, 1)
    assert found["late"] == []
    assert str(outcome).startswith("Read 10,000 = 9,999 parsed + 1 malformed; 9,999 events = 9,999 in ")


@WHOLE_RUN
def test_the_report_of_the_real_log_has_its_figures(real: Any) -> None:
    outcome, _, _, page = real
    assert ">9,999<" in page
    assert f">{outcome.totals.sessions:,}<" in page
    assert ">/blog/tags/puppet<" in page
    assert page.count("<svg ") == 2 * 7  # seven charts, wide and narrow
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?\s*https?:", page), "nothing is fetched from anywhere"
    assert len(page) < 1_000_000


# ---- made-up logs, in two runs -------------------------------------------------------------------------------------


def line(
    visitor: str, moment: datetime, page: str, status: int = 200, size: int | str = 100, agent: str = "M/5"
) -> bytes:
    return (
        f'{visitor} - - [{moment:%d/%b/%Y:%H:%M:%S} +0000] "GET {page} HTTP/1.1" {status} {size} "-" "{agent}"'
    ).encode()


START = datetime(2024, 3, 1, 23, 0, tzinfo=UTC)


def crowd(seed: int, first: datetime, minutes: int, many: int) -> list[bytes]:
    """Lines of visitors who come and go, over midnight, in no order; some answers fail, some have no size."""
    draw = random.Random(seed)
    pages = ["/", "/a?x=1", "/projects/b", "/style.css", "/c/d", *(f"/p/{n}" for n in range(40))]
    return [
        line(
            f"10.0.0.{draw.randrange(150)}",
            first + timedelta(seconds=draw.randrange(minutes * 60)),
            draw.choice(pages),
            draw.choice((200, 200, 200, 304, 404, 500)),
            draw.choice(("-", draw.randrange(100_000))),
            draw.choice(("Mozilla/5.0", "bot/1", "-")),
        )
        for _ in range(many)
    ]


@dataclass(frozen=True)
class Twice:
    first: ActivityResult
    second: ActivityResult
    between: dict[str, list[Any]]
    found: dict[str, list[Any]]
    told: list[tuple[tuple[str, int, int], bytes]]
    later: list[tuple[tuple[str, int, int], bytes]]
    late: list[tuple[tuple[str, int, int], bytes]]
    published: list[tuple[str, dict[str, Any]]]
    page: str


@pytest.fixture(scope="module")
def twice(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """Two runs with --once: the second finds more of the open sessions, events that come too late, and garbage."""
    from ottla.spark.activity import Tables, WindowSettings, run
    from ottla.spark.running.run import RunOptions

    for name in ("shop.views", "results"):
        broker.create_topic(name, partitions=2)
    folder = str(tmp_path_factory.mktemp("activity") / "shop")
    options = RunOptions(broker.bootstrap_servers, None, once=True, quiet=True)
    settings = WindowSettings(WINDOW_S, GAP_S, TOP, GOAL)

    def go() -> ActivityResult:
        return run(
            options, ["shop.views"], folder, settings=settings, delay_s=600, output_topic="results", session=spark,
            report=f"{folder}.html",
        )  # fmt: skip

    def put(lines: list[bytes]) -> list[tuple[tuple[str, int, int], bytes]]:
        return list(zip(produce(broker.bootstrap_servers, "shop.views", lines), lines, strict=True))

    told = put([*crowd(1, START, 120, 400), line("10.0.0.1", START + timedelta(hours=2), "/end"), b"", b"\xff\x00 bad"])
    first = go()
    between = rows_of(Tables.open(folder))
    in_time = [line("10.0.0.1", START + timedelta(minutes=110), "/projects/in-time"), b'{"broken']
    later = put([*crowd(2, START + timedelta(minutes=112), 90, 200), *in_time])
    late = put([line("10.0.0.2", START + timedelta(minutes=109, seconds=59), "/late"), *crowd(3, START, 60, 50)])
    second = go()
    published = consume(broker.bootstrap_servers, "results")
    page = Path(f"{folder}.html").read_text()
    return Twice(first, second, between, rows_of(Tables.open(folder)), told, later, late, published, page)


def consume(bootstrap: str, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Everything in a topic: key and JSON value."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False})
    found = []
    for partition in range(2):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        consumer.assign([TopicPartition(topic, partition, low)])
        count = 0
        while count < high - low:
            message = consumer.poll(10)
            assert message is not None
            assert message.error() is None
            found.append(((message.key() or b"").decode(), json.loads(message.value() or b"")))
            count += 1
    consumer.close()
    return found


def parsed(told: Iterable[tuple[tuple[str, int, int], bytes]]) -> list[twin.Event]:
    found = (twin.event(text.decode("utf-8", "replace"), place) for place, text in told)
    return [event for event in found if event is not None]


@WHOLE_RUN
def test_two_runs_hold_what_one_pass_in_plain_python_finds(twice: Twice) -> None:
    compare(twice.between, parsed(twice.told))
    compare(twice.found, parsed([*twice.told, *twice.later]))
    totals = twice.second.totals
    assert (totals.read, totals.malformed, totals.late) == (len(twice.told + twice.later + twice.late), 3, 51)
    assert totals.problems == []


@WHOLE_RUN
def test_what_comes_too_late_is_kept_with_the_watermark_it_missed(twice: Twice) -> None:
    rows = {(row.topic, row.partition, row.offset): row for row in twice.found["late"]}
    assert {place: row.raw.encode() for place, row in rows.items()} == dict(twice.late)
    assert {utc(row, "watermark") for row in rows.values()} == {START + timedelta(minutes=110)}


@WHOLE_RUN
def test_the_report_tells_of_late_and_malformed_records(twice: Twice) -> None:
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", twice.page)
    assert sum(int(cells[place + 1]) for place, cell in enumerate(cells) if cell == "not valid JSON") == 1
    behind = Counter(place[1] for place, _ in twice.late)
    rows = [(cells[n + 1], cells[n + 2]) for n, cell in enumerate(cells) if cell == "shop.views"]
    assert rows == [(str(partition), str(many)) for partition, many in behind.most_common()]


@WHOLE_RUN
def test_malformed_records_are_kept_with_their_bytes(twice: Twice) -> None:
    kept = {(row.partition, row.offset): (bytes(row.value), row.reason) for row in twice.found["malformed"]}
    assert sorted(kept.values()) == [
        (b"", "empty"),
        (b'{"broken', "not valid JSON"),
        (b"\xff\x00 bad", "not a line of an access log"),
    ]


@WHOLE_RUN
def test_what_is_final_stays_and_what_was_open_comes_again(twice: Twice) -> None:
    for name in ("windows", "pages", "sessions", "conversions"):
        before = {tuple(map(str, row.values())) for row in twice.between[name] if row.final}
        after = {tuple(map(str, row.values())) for row in twice.found[name] if row.final}
        assert before
        assert before < after
    assert not all(row.final for row in twice.between["sessions"])


@WHOLE_RUN
def test_the_topic_has_every_final_result_once(twice: Twice) -> None:
    for name in ("windows", "sessions", "conversions"):
        told = [value for _, value in twice.published if value["result"] == name and value["final"]]
        rows = [row for row in twice.found[name] if row.final]
        assert len(told) == len(rows) > 0
        assert Counter(value["start"] for value in told) == Counter(
            f"{utc(row, 'start'):%Y-%m-%dT%H:%M:%S.000Z}" for row in rows
        )
    last = {key: value for key, value in twice.published if value["result"] == "windows"}
    assert sum(value["events"] for value in last.values()) == twice.second.totals.events


# ---- kills ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow("tests/spark/writer/test_sink_transactions.py::test_a_crash_at_any_step_shows_all_or_nothing")
def test_a_batch_cut_off_anywhere_and_done_again_adds_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    from ottla.spark.activity import Tables, WindowSettings
    from ottla.spark.activity.batches import Batches
    from ottla.spark.activity.totals import totals

    lines = [*crowd(4, START, 100, 150), b"bad", *crowd(5, START + timedelta(minutes=80), 90, 150)]
    half = 151
    schema = "value binary, timestamp timestamp, topic string, partition int, offset long"
    frames: list[DataFrame] = []
    for first, until in ((0, half), (half, len(lines))):
        rows = [(bytearray(lines[n]), datetime(2026, 1, 1, tzinfo=UTC), "t", 0, n) for n in range(first, until)]
        frames.append(spark.createDataFrame(rows, schema).repartition(2))
    tables = Tables.make(str(tmp_path / "site"), WindowSettings(WINDOW_S, GAP_S, TOP, GOAL))
    cuts = iter(["sessions", "windows", "ledger"])

    class CutError(Exception):
        pass

    class Cutting(Batches):
        cut = ""

        def commit(self, name: str, *args: Any, **more: Any) -> None:
            if name == self.cut:
                raise CutError
            super().commit(name, *args, **more)

        def close_windows(self, *args: Any) -> Any:
            entry = super().close_windows(*args)
            if self.cut == "ledger":
                raise CutError
            return entry

    batches = Cutting(tables, lambda: "query", 600.0)
    batches(frames[0], 0)
    for batches.cut in cuts:
        with pytest.raises(CutError):
            batches(frames[1], 1)
    batches.cut = ""
    batches.local_rows_max = 0  # what was cut off was begun in this process, and is done by Spark
    batches(frames[1], 1)
    batches(frames[1], 1)  # done already
    batches.local_rows_max = 1000
    batches.finish(spark)
    assert totals(spark, tables).problems == []
    assert totals(spark, tables, local_rows_max=0) == totals(spark, tables)
    events = [event for n, text in enumerate(lines) if (event := twin.event(text.decode(), ("t", 0, n))) is not None]
    edge = max(event.time for event in events[: half - 1]) - timedelta(minutes=10)
    in_time = [event for event in events if event.offset[2] < half or event.time >= edge]
    assert len(in_time) < len(events)
    compare(rows_of(tables), in_time)
    local = Tables.make(str(tmp_path / "local"), tables.settings)
    batches = Batches(local, lambda: "query", 600.0)
    for number, frame in enumerate(frames):
        batches(frame, number)
    batches.finish(spark)
    assert in_order(local) == in_order(tables)


def in_order(tables: Tables) -> dict[str, list[str]]:
    return {name: sorted(repr(sorted(row.items())) for row in rows) for name, rows in rows_of(tables).items()}


@WHOLE_RUN
def test_tables_are_not_mixed_up(spark: SparkSession, tmp_path: Path) -> None:
    from ottla.spark.activity import Tables, WindowSettings
    from ottla.spark.activity.batches import Batches
    from ottla.spark.platform.failures import PipelineFailedError

    tables = Tables.make(str(tmp_path / "site"), WindowSettings())
    schema = "value binary, timestamp timestamp, topic string, partition int, offset long"
    frame = spark.createDataFrame([(bytearray(b"x"), START, "t", 0, 0)], schema)
    batches = Batches(tables, lambda: "one", 600.0)
    batches(frame, 0)
    assert batches.counts == {0: (1, 0)}, "one record, none of them late"
    with pytest.raises(PipelineFailedError, match="from another checkpoint"):
        Batches(tables, lambda: "two", 600.0)(frame, 0)
    with pytest.raises(PipelineFailedError, match=r"made with --window 300 s, not with --window 60 s. Give the same"):
        Tables.make(str(tmp_path / "site"), replace(WindowSettings(), window_s=60))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(PipelineFailedError, match="not empty"):
        Tables.make(str(tmp_path / "other"), WindowSettings())
