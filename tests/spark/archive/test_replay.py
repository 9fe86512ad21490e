"""Replays of log and archive as one table: what was produced, each offset once, whatever the log dropped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from ottla.cli.output import CommandError
from ottla.cli.pipeline.options import plain_failures
from ottla.cli.pipeline.replay import chosen, edge
from ottla.spark.archive import run
from ottla.spark.archive.export import export
from ottla.spark.archive.restore import sent, write_topic
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.replay import ReplayRange, plan, replay
from ottla.testing import EmbeddedBroker
from tests.spark.archive.test_archive import START_MS, Row, consumed, kept, options_of, produce, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_condition_that_is_none_is_a_sentence(spark: SparkSession, printed: Callable[[], tuple[str, str]]) -> None:
    """And not a word of Java's, in the sentence or on the standard error."""
    frame = spark.range(3)
    for where, said in (
        ("nosuch = 1", "is no condition on the columns: A column, .* `nosuch` cannot be resolved"),
        ("id === = 1", "is no condition on the columns: Syntax error at or near"),
        ("'x'", "is no condition on the columns: .*is not a boolean"),
    ):
        with pytest.raises(CommandError, match=said) as failed:
            chosen(frame, where)
        assert "\n" not in str(failed.value)
    with (
        pytest.raises(CommandError, match=r"^The command run failed: nothing is\. ") as failed,
        plain_failures(),
    ):
        chosen(frame, "assert_true(id < 0, 'nothing is') IS NULL").collect()
    Path(str(failed.value).rpartition(" ")[2].rstrip(".")).unlink()
    assert printed() == ("", "")


bounds = st.tuples(st.integers(0, 30), st.integers(1, 20)).map(lambda each: (each[0], sum(each)))
PLACE = ("t", 0)


def offsets(part: dict[tuple[str, int], tuple[int, int]]) -> list[int]:
    return list(range(*part.get(PLACE, (0, 0))))


@given(st.none() | bounds, st.none() | bounds, st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_a_plan_has_each_offset_once(
    archived: tuple[int, int] | None, logged: tuple[int, int] | None, first: int | None, until: int | None
) -> None:
    wanted = ReplayRange(
        first={} if first is None else {PLACE: first},
        until={} if until is None else {PLACE: until},
    )
    made = plan(wanted, {PLACE: archived} if archived else {}, {PLACE: logged} if logged else {})
    held = {*range(*(archived or (0, 0))), *range(*(logged or (0, 0)))}
    expected = [each for each in sorted(held) if (first or 0) <= each < (99 if until is None else until)]
    assert sorted(offsets(made.before) + offsets(made.archive) + offsets(made.after)) == expected
    assert set(offsets(made.archive)) == set(expected) & set(range(*(archived or (0, 0))))
    assert not set(offsets(made.gaps)) & held


def test_what_neither_holds_is_a_gap() -> None:
    made = plan(ReplayRange(), {PLACE: (0, 10)}, {PLACE: (15, 20)})
    assert made.gaps == {PLACE: (10, 15)}
    assert plan(ReplayRange(first={PLACE: 3}), {}, {PLACE: (5, 20)}).gaps == {PLACE: (3, 5)}
    assert plan(ReplayRange(first={PLACE: 3}, until={PLACE: 4}), {}, {PLACE: (5, 20)}).gaps == {PLACE: (3, 4)}
    assert plan(ReplayRange(first={PLACE: 16}), {PLACE: (0, 10)}, {PLACE: (15, 20)}).gaps == {}
    assert plan(ReplayRange(), {}, {PLACE: (5, 20)}).gaps == {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["2026-01-31T08:00:00Z"], (1_769_846_400_000, {})),
        (["2026-01-31 08:00"], (1_769_846_400_000, {})),
        (["2026-01-31"], (1_769_817_600_000, {})),
        (["1769817600000"], (1_769_817_600_000, {})),
        (["3:17", "4:0"], (None, {("clicks", 3): 17, ("clicks", 4): 0})),
        (["a-b:3:17"], (None, {("a-b", 3): 17})),
        (['{"x": {"0": 23}}', "2026-01-31"], (1_769_817_600_000, {("x", 0): 23})),
        (None, (None, {})),
    ],
)
def test_edges_are_times_or_offsets(given: list[str] | None, expected: Any) -> None:
    assert edge(given, ["clicks"], "--from") == expected


@pytest.mark.parametrize("given", [["yesterday"], ["{"], ["1", "2"], ["-3:1"]])
def test_other_edges_are_refused(given: list[str]) -> None:
    with pytest.raises(CommandError, match="--from"):
        edge(given, ["clicks", "views"], "--from")


@pytest.fixture(scope="module")
def history(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, list[Row]]:
    """A topic whose beginning is in the archive alone, its end in the log alone; all that was produced to it."""
    topic = kept(broker)
    lake = str(tmp_path_factory.mktemp("replay") / "lake")
    produce(broker, topic, range(600))
    run(options_of(broker), [topic], lake, session=spark)
    produce(broker, topic, range(600, 1000))
    everything = consumed(broker, topic)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 200), TopicPartition(topic, 1, 300)]).values():
        future.result()
    return topic, lake, everything


def test_log_and_archive_are_one_table(
    spark: SparkSession, broker: EmbeddedBroker, history: tuple[str, str, list[Row]]
) -> None:
    topic, lake, everything = history
    assert rows_of(replay(spark, broker.bootstrap_servers, [topic], archive=lake)) == everything
    alone = rows_of(replay(spark, None, [topic], archive=lake))
    assert alone == [row for row in everything if row[1] < 300]
    logged = rows_of(replay(spark, broker.bootstrap_servers, [topic]))
    assert logged == [row for row in everything if row[1] >= (200, 300)[row[0]]]


def test_a_range_of_time_or_offsets(
    spark: SparkSession, broker: EmbeddedBroker, history: tuple[str, str, list[Row]]
) -> None:
    topic, lake, everything = history
    since, until = datetime.fromtimestamp(START_MS / 1000 + 4, UTC), START_MS + 9_000
    found = rows_of(replay(spark, broker.bootstrap_servers, [topic], archive=lake, since=since, until=until))
    assert found == [row for row in everything if START_MS + 4_000 <= row[4] < until]
    assert len(found) == 500
    ranged = replay(
        spark, broker.bootstrap_servers, [topic], archive=lake, first={(topic, 0): 100}, end={(topic, 0): 350}
    )
    assert rows_of(ranged) == [row for row in everything if row[0] == 1 or 100 <= row[1] < 350]
    narrow = replay(spark, None, [topic], archive=lake, since=START_MS + 5_000)
    files = narrow.inputFiles()
    assert files
    assert all("date=2026-01-01" in file for file in files)


def test_what_nobody_holds_is_said(
    spark: SparkSession, broker: EmbeddedBroker, history: tuple[str, str, list[Row]]
) -> None:
    topic, _, everything = history
    with pytest.raises(PipelineFailedError, match=f"any more: {topic}-0 150 to 199"):
        replay(spark, broker.bootstrap_servers, [topic], first={(topic, 0): 150})
    less = replay(spark, broker.bootstrap_servers, [topic], first={(topic, 0): 150}, allow_gaps=True)
    assert less.count() == len([row for row in everything if row[1] >= (200, 300)[row[0]]])
    with pytest.raises(PipelineFailedError, match="There is no topic nobody"):
        replay(spark, broker.bootstrap_servers, [topic, "nobody"])


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_records_go_to_a_new_table(
    spark: SparkSession, broker: EmbeddedBroker, history: tuple[str, str, list[Row]], tmp_path: Path, format: str
) -> None:
    topic, lake, everything = history
    frame = replay(spark, broker.bootstrap_servers, [topic], archive=lake).where("partition = 1")
    assert export(frame, str(tmp_path / "new"), format) == 500
    if format == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(tmp_path / "new")).to_pyarrow_table(columns=["offset"]).column("offset").to_pylist()
        assert sorted(found) == [row[1] for row in everything if row[0] == 1]
    assert rows_of(spark.read.parquet(f"{tmp_path}/new/topic={topic}")) == [row for row in everything if row[0] == 1]
    with pytest.raises(PipelineFailedError, match="exists already"):
        export(frame, str(tmp_path / "new"), format)


def test_records_without_headers_go_to_the_sink_with_an_empty_list(spark: SparkSession) -> None:
    """Null lists cost the square of their number on the way to Python."""
    records = "key binary, value binary, partition int, timestamp timestamp, offset long"
    headers = "headers array<struct<key: string, value: binary>>"
    rows = [(None, None, 0, None, 7, None), (None, None, 0, None, 8, [("a", b"b")])]
    frame = spark.createDataFrame(rows, f"{records}, {headers}")
    assert [row.headers for row in sent(frame).collect()] == [[], [("a", b"b")]]
    assert [row.headers for row in sent(frame, "was").collect()] == [[("was", b"7")], [("a", b"b"), ("was", b"8")]]


def test_records_go_to_a_topic_in_their_order(
    spark: SparkSession, broker: EmbeddedBroker, history: tuple[str, str, list[Row]], tmp_path: Path
) -> None:
    topic, lake, everything = history
    target = kept(broker)
    frame = replay(spark, broker.bootstrap_servers, [topic], archive=lake).where("offset >= 100")
    write_topic(frame, options_of(broker), target, staging=str(tmp_path))
    expected = [(row[0], row[1] - 100, *row[2:]) for row in everything if row[1] >= 100]
    assert consumed(broker, target) == expected
