"""Archives of a real broker's topics: each record once over restarts, and a proof that can fail."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

pytest.importorskip("pyspark")

from deltalake import CommitProperties, DeltaTable

from ottla.spark.archive import Archived, Verdict, open_table, read, restore, run, verify
from ottla.spark.archive.delta import added
from ottla.spark.archive.layout import COLUMNS, PARTITIONED_BY, TableFile
from ottla.spark.archive.ranges import Covered
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.replay import replay
from ottla.spark.running.run import RunOptions
from ottla.testing import EmbeddedBroker
from tests.harness.topics import every_record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("delta", "parquet")
START_MS = 1_767_225_600_000 - 5_000
"""Five seconds before a day begins."""

Row = tuple[int, int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""(partition, offset, key, value, timestamp_ms, headers)"""


def produce(broker: EmbeddedBroker, topic: str, numbers: Sequence[int], partitions: int = 2) -> None:
    """One record per number, a thousand of them to ten seconds; some without key, value or headers."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in numbers:
        producer.produce(
            topic,
            key=None if number % 7 == 0 else f"k{number}",
            value=None if number % 11 == 0 else f"value {number}",
            partition=number % partitions,
            timestamp=START_MS + number * 10,
            headers=[("n", str(number).encode()), ("none", None)] if number % 3 == 0 else None,
        )
    assert producer.flush(30) == 0


def consumed(broker: EmbeddedBroker, topic: str) -> list[Row]:
    """All that a topic holds."""
    return [
        (each.partition(), each.offset(), each.key(), each.value(), each.timestamp()[1], tuple(each.headers() or ()))
        for each in every_record(broker.bootstrap_servers, topic)
    ]


def rows_of(frame: Any) -> list[Row]:
    columns = ["partition", "offset", "key", "value", "unix_millis(timestamp) AS ms", "headers"]
    found = frame.selectExpr(*columns).toArrow().to_pylist()
    return sorted(
        (
            (
                row["partition"],
                row["offset"],
                row["key"],
                row["value"],
                row["ms"],
                tuple((each["key"], each["value"]) for each in row["headers"] or ()),
            )
            for row in found
        ),
        key=lambda row: row[:2],
    )


def kept(broker: EmbeddedBroker, name: str | None = None, partitions: int = 2) -> str:
    """A topic of records that are months old and yet stay."""
    return broker.create_topic(name, partitions=partitions, configs={"retention.ms": -1})


@pytest.fixture
def made(broker: EmbeddedBroker, topic: str) -> str:
    return kept(broker, topic)


def options_of(broker: EmbeddedBroker, checkpoint: Path | None = None) -> RunOptions:
    return RunOptions(broker.bootstrap_servers, str(checkpoint) if checkpoint else None, once=True, quiet=True)


OF_PARQUET = pytest.mark.slow("tests/spark/archive/test_archive.py::test_an_archive_has_each_record_once_over_restarts")


@pytest.mark.parametrize("format", ["delta", pytest.param("parquet", marks=OF_PARQUET)])
def test_an_archive_has_each_record_once_over_restarts(
    spark: SparkSession, broker: EmbeddedBroker, made: str, tmp_path: Path, format: str, capsys: Any
) -> None:
    options, lake = options_of(broker), str(tmp_path / "lake")

    def archived(**more: Any) -> Archived:
        return run(options, [made], lake, format=format, session=spark, **more)

    produce(broker, made, range(1000))
    assert archived(batch_rows=300).rows == 1000
    produce(broker, made, range(1000, 1500))
    assert (archived().rows, archived().rows) == (500, 0)
    assert read(spark, lake).where("date = '2026-01-01'").count() == 1000

    # Killed after the table's commit, before Spark's note of it: the batch comes again and adds nothing.
    commits = tmp_path / "lake" / "_checkpoint" / "archive" / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    again = archived()
    assert (again.rows, again.again, again.table_rows) == (0, 1, 1500)

    # The checkpoint is lost: the table knows where it ends.
    shutil.rmtree(tmp_path / "lake" / "_checkpoint")
    produce(broker, made, range(1500, 1600))
    assert archived().rows == 100
    assert f"{made}-0 at 750, {made}-1 at 750" in capsys.readouterr().err

    assert rows_of(read(spark, lake)) == consumed(broker, made)
    verdict = verify(spark, options, open_table(lake), content=True)
    assert (verdict.problems, verdict.rows, verdict.compared, verdict.contents) == ((), 1600, 1600, 1600)


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_an_archive_has_each_record_once_over_restarts")
def test_what_does_not_fit_together_is_refused(
    spark: SparkSession, broker: EmbeddedBroker, made: str, tmp_path: Path
) -> None:
    options, lake = options_of(broker, tmp_path / "checkpoint"), str(tmp_path / "lake")
    produce(broker, made, range(100))
    run(options, [made], lake, session=spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    produce(broker, made, range(100, 200))
    run(options, [made], lake, session=spark)
    with pytest.raises(PipelineFailedError, match=r"at offset 0 of .*-0, but the table .* ends at 100.*Give another"):
        run(options_of(broker, tmp_path / "old"), [made], lake, session=spark)
    with pytest.raises(PipelineFailedError, match=r"the table .* has nothing of it"):
        run(options, [made], str(tmp_path / "other"), session=spark)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    produce(broker, made, range(200, 300))
    for future in admin.delete_records([TopicPartition(made, 0, 120)]).values():
        future.result()
    with pytest.raises(PipelineFailedError, match=r"no longer holds .*-0 from 100 to 119.*--allow-loss"):
        run(options_of(broker, tmp_path / "new"), [made], lake, session=spark)
    done = run(options_of(broker, tmp_path / "new"), [made], lake, session=spark, allow_loss=True)
    assert done.rows == 80
    verdict = verify(spark, options, open_table(lake))
    assert verdict.problems == ()
    assert [(each.rows, each.lost, each.holes) for each in verdict.partitions] == [(130, 20, 0), (150, 0, 0)]


@pytest.fixture(scope="module")
def whole(spark: SparkSession, broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A topic and its archive of both formats, to be broken in copies."""
    topic = kept(broker)
    produce(broker, topic, range(600))
    root = tmp_path_factory.mktemp("whole")
    for format in FORMATS:
        run(options_of(broker), [topic], str(root / format), format=format, session=spark)
    return topic, root


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, whole: tuple[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(whole[1] / request.param, tmp_path / request.param)
    return tmp_path / request.param


def first_file(lake: Path) -> TableFile:
    return min(open_table(lake).files(), key=lambda file: file.path)


def proven(spark: SparkSession, broker: EmbeddedBroker, lake: Path, **more: Any) -> Verdict:
    return verify(spark, options_of(broker), open_table(lake), **more)


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_the_proof_fails_when_a_file_is_there_twice")
def test_the_proof_fails_when_a_file_is_gone(spark: SparkSession, broker: EmbeddedBroker, lake: Path) -> None:
    file = first_file(lake)
    (lake / file.path).unlink()
    verdict = proven(spark, broker, lake)
    assert f"The file {file.path} ({file.rows} rows) is missing." in verdict.problems
    assert sum(each.missing for each in verdict.partitions) == file.rows
    assert any("in the log, but not in the table" in each for each in verdict.problems)


def test_the_proof_fails_when_a_file_is_there_twice(spark: SparkSession, broker: EmbeddedBroker, lake: Path) -> None:
    file = first_file(lake)
    copy = file.path.replace(".parquet", "-copy.parquet")
    shutil.copy(lake / file.path, lake / copy)
    if lake.name == "delta":
        twin = TableFile.from_json({**file.as_json(), "path": copy})
        DeltaTable(str(lake)).create_write_transaction(
            [added(twin)], "append", COLUMNS, PARTITIONED_BY, commit_properties=CommitProperties()
        )
    verdict = proven(spark, broker, lake)
    assert sum(each.duplicates for each in verdict.partitions) == file.rows
    assert any("twice or more in the table" in each for each in verdict.problems)


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_the_proof_fails_when_a_file_is_there_twice")
def test_the_proof_fails_when_rows_are_dropped_or_changed(
    spark: SparkSession, broker: EmbeddedBroker, whole: tuple[str, Path], lake: Path
) -> None:
    file = first_file(lake)
    path = lake / file.path
    before = pq.ParquetFile(path).read()
    values = before.column("value").to_pylist()
    values[5] = b"something else"
    pq.write_table(before.set_column(1, "value", pa.array(values, pa.binary())), path)
    spark.catalog.clearCache()
    verdict = proven(spark, broker, lake, content=True)
    changed = f"{whole[0]}-{before.column('partition')[5]}@{before.column('offset')[5]}"
    assert f"1 records differ from the log's: {changed}." in verdict.problems
    pq.write_table(pa.concat_tables([before.slice(0, 10), before.slice(13)]), path)
    verdict = proven(spark, broker, lake)
    assert sum(each.missing for each in verdict.partitions) == 3
    assert any(each.startswith(f"The file {file.path} has ") for each in verdict.problems)


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_an_archive_has_each_record_once_over_restarts")
def test_losses_show_when_the_log_has_dropped_the_records(
    spark: SparkSession, broker: EmbeddedBroker, made: str, tmp_path: Path
) -> None:
    produce(broker, made, range(200))
    run(options_of(broker), [made], str(tmp_path / "lake"), session=spark)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(made, 0, 60), TopicPartition(made, 1, 100)]).values():
        future.result()
    verdict = proven(spark, broker, tmp_path / "lake")
    assert (verdict.problems, verdict.rows, verdict.compared) == ((), 200, 40)
    file = first_file(tmp_path / "lake")
    table = pq.ParquetFile(tmp_path / "lake" / file.path).read()
    pq.write_table(table.slice(2), tmp_path / "lake" / file.path)
    verdict = proven(spark, broker, tmp_path / "lake")
    assert sum(each.missing for each in verdict.partitions) == 2
    assert any(
        "100 records were archived of the offsets 0 to 99, but the table and the log have 98" in each
        for each in verdict.problems
    )


def test_restored_records_are_as_they_were(
    spark: SparkSession, broker: EmbeddedBroker, whole: tuple[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(whole[1] / "delta", tmp_path / "lake")
    target = kept(broker, partitions=3)
    done = restore(spark, options_of(broker), open_table(tmp_path / "lake"), target, offset_header="was")
    assert (done.rows, done.partitions, done.resumed) == (600, 2, False)
    rows = consumed(broker, target)
    assert [(*row[:5], row[5][:-1]) for row in rows] == consumed(broker, whole[0])
    assert all(row[5][-1] == ("was", str(row[1]).encode()) for row in rows)
    with pytest.raises(PipelineFailedError, match="has 2 partitions"):
        restore(spark, options_of(broker), open_table(tmp_path / "lake"), broker.create_topic(partitions=1))


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_restored_records_are_as_they_were")
def test_a_restore_that_was_cut_off_is_finished_by_the_next(
    spark: SparkSession,
    broker: EmbeddedBroker,
    whole: tuple[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When its plan was made, and when all was sent; in between test_sink_staging.py cuts it off at every step."""
    shutil.copytree(whole[1] / "delta", tmp_path / "lake")
    target, options = kept(broker), options_of(broker)
    module = sys.modules["ottla.spark.archive.restore"]

    class CutError(Exception):
        pass

    def cut(*_: object, **named: object) -> None:
        raise CutError

    for step in ("write_topic", "counted"):
        with monkeypatch.context() as patch:
            patch.setattr(module, step, cut)
            with pytest.raises(CutError):
                restore(spark, options, open_table(tmp_path / "lake"), target)
        assert len(consumed(broker, target)) == (600 if step == "counted" else 0)
    done = restore(spark, options, open_table(tmp_path / "lake"), target)
    assert (done.rows, done.partitions, done.resumed) == (600, 2, True)
    assert consumed(broker, target) == consumed(broker, whole[0])


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_an_archive_has_each_record_once_over_restarts")
def test_new_topics_of_a_pattern_are_archived_too(
    spark: SparkSession, broker: EmbeddedBroker, made: str, tmp_path: Path
) -> None:
    import re

    options, lake = options_of(broker), str(tmp_path / "lake")
    produce(broker, made, range(10))
    run(options, re.compile(f"{made}.*"), lake, session=spark)
    later = kept(broker, f"{made}.later")
    produce(broker, later, range(20))
    done = run(options, re.compile(f"{made}.*"), lake, session=spark)
    assert (done.rows, done.table_rows) == (20, 30)
    assert Covered(later, 1, 0, 10, 10) in open_table(lake).covered()
    assert proven(spark, broker, Path(lake)).problems == ()


def test_the_ranges_stand_in_deltas_own_history(whole: tuple[str, Path]) -> None:
    history = DeltaTable(str(whole[1] / "delta")).history()
    ranges = [json.loads(each["ottla.ranges"]) for each in history if "ottla.ranges" in each]
    assert ranges == [[[whole[0], 0, 0, 300, 300], [whole[0], 1, 0, 300, 300]]]


def made_anew(broker: EmbeddedBroker, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics([name])[name].result()
    kept(broker, name)


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_an_archive_has_each_record_once_over_restarts")
def test_a_topic_that_was_made_again_is_another_one(
    spark: SparkSession, broker: EmbeddedBroker, made: str, tmp_path: Path, capsys: Any
) -> None:
    options, lake = options_of(broker), str(tmp_path / "lake")
    produce(broker, made, range(100))
    run(options, [made], lake, session=spark)
    made_anew(broker, made)
    produce(broker, made, range(100, 400))  # its offsets go further than the old one's did
    with pytest.raises(PipelineFailedError, match=f"{made} was deleted and created again.*--allow-loss.*as {made}~2"):
        run(options, [made], lake, session=spark)
    assert "was deleted and created again" in proven(spark, broker, Path(lake)).problems[0]
    with pytest.raises(PipelineFailedError, match="was deleted and created again"):
        replay(spark, broker.bootstrap_servers, [made], archive=lake)

    assert run(options, [made], lake, session=spark, allow_loss=True).rows == 300
    assert f"{made} was created again: it is {made}~2 in the table" in capsys.readouterr().err
    produce(broker, made, range(400, 410))
    assert run(options, [made], lake, session=spark).rows == 10
    verdict = proven(spark, broker, Path(lake), topics=[made], content=True)
    assert (verdict.problems, verdict.rows, verdict.compared, verdict.contents) == ((), 410, 310, 310)
    assert read(spark, lake, topics=[made]).count() == 100

    produce(broker, made, range(410, 420))
    again = rows_of(replay(spark, broker.bootstrap_servers, [made], archive=lake))
    assert again == consumed(broker, made)
    assert replay(spark, None, [made], archive=lake).count() == 100
    target = kept(broker)
    assert restore(spark, options, open_table(lake), target, topic=f"{made}~2").rows == 310
