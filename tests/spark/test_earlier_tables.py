"""Tables and checkpoints of an earlier version are continued: each record is in the tables once.

`golden/earlier_tables.tar.gz` has the tables after two batches of each pipeline, the second committed to the tables,
but not marked as done in the checkpoint. It was written before the pipelines shared `MicroBatchPipeline` and
`DeltaTable`. To write one by another version: `PYTHONPATH=VERSION/src python -m tests.spark.test_earlier_tables FILE`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from ottla.testing import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.spark.activity import ActivityResult

KEPT = Path(__file__).with_name("golden") / "earlier_tables.tar.gz"
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
PARTITIONS = 2
BATCH = 20
QUERIES = {"site": "activity", "logs": "logs", "archive": "archive"}
TABLES = ("site/events", "logs/lines", "archive")


def put(broker: EmbeddedBroker, numbers: Sequence[int]) -> None:
    """A page view and a log line for each number, a minute apart."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in numbers:
        moment, place = START + timedelta(minutes=number), number % PARTITIONS
        view = (
            f'10.0.0.{number % 3} - - [{moment:%d/%b/%Y:%H:%M:%S} +0000] "GET /{number % 5} HTTP/1.1" 200 9 "-" "M/5"'
        )
        at_ms = int(moment.timestamp() * 1000)
        producer.produce("views", view, partition=place, timestamp=at_ms)
        producer.produce(
            "lines", f"{moment:%Y-%m-%d %H:%M:%S},000 INFO [main] a.B: x", partition=place, timestamp=at_ms
        )
    assert producer.flush(30) == 0


def create_topics(broker: EmbeddedBroker) -> None:
    for name in ("views", "lines"):
        broker.create_topic(name, partitions=PARTITIONS, configs={"retention.ms": -1})


def ran(spark: SparkSession, broker: EmbeddedBroker, root: Path) -> ActivityResult:
    from ottla.spark import activity, archive
    from ottla.spark.logs.run import run as run_logs
    from ottla.spark.running.run import RunOptions

    options = RunOptions(broker.bootstrap_servers, None, once=True, quiet=True)
    run_logs(options, ["lines"], str(root / "logs"), session=spark)
    archive.run(options, ["views"], str(root / "archive"), session=spark)
    return activity.run(options, ["views"], str(root / "site"), session=spark)


def places(table: Path) -> list[tuple[int, int]]:
    """Partition and offset of each row."""
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
    return sorted((row["partition"], row["offset"]) for row in rows)


@pytest.mark.slow("tests/spark/archive/test_archive.py::test_an_archive_has_each_record_once_over_restarts")
def test_an_earlier_versions_tables_and_checkpoints_are_continued(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    subprocess.run(["tar", "-xzf", KEPT, "-C", tmp_path], check=True)
    create_topics(broker)
    put(broker, range(2 * BATCH))
    of_each = 2 * BATCH // PARTITIONS
    before = [(partition, offset) for partition in range(PARTITIONS) for offset in range(of_each)]
    assert [places(tmp_path / table) for table in TABLES] == [before] * len(TABLES)
    put(broker, range(2 * BATCH, 3 * BATCH))
    outcome = ran(spark, broker, tmp_path)
    after = [(partition, offset) for partition in range(PARTITIONS) for offset in range(3 * BATCH // PARTITIONS)]
    assert [places(tmp_path / table) for table in TABLES] == [after] * len(TABLES)
    assert (outcome.totals.read, outcome.totals.events, outcome.totals.problems) == (3 * BATCH, 3 * BATCH, [])
    for table, query in QUERIES.items():
        commits = {each.name for each in (tmp_path / table / "_checkpoint" / query / "commits").iterdir()}
        assert {"1", "2"} <= commits, "the second batch was repeated, and a third one followed"


def write(target: str) -> None:
    """Run the pipelines twice; forget the end of the second batch, and which topics these were."""
    from ottla.spark.platform.session import pipeline_session

    spark = pipeline_session("earlier", master="local[2]", conf={"spark.driver.memory": "1g"})
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker() as broker:
        root = Path(folder)
        create_topics(broker)
        for number in range(2):
            put(broker, range(number * BATCH, (number + 1) * BATCH))
            ran(spark, broker, root)
        for table, query in QUERIES.items():
            commits = root / table / "_checkpoint" / query / "commits"
            (commits / "1").unlink()
            (commits / ".1.crc").unlink(missing_ok=True)
        for ids in ("site/_topics", "logs/_topics", "archive/_ottla/topics"):
            shutil.rmtree(root / ids)
        with tarfile.open(target, "w:gz") as kept:
            for table in QUERIES:
                kept.add(root / table, table)
    spark.stop()


if __name__ == "__main__":
    write(sys.argv[1])
