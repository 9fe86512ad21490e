"""The archive's tasks fetch for themselves: ranges from the source, records straight to files, counts of records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

pytest.importorskip("pyspark")

from ottla.spark.archive import run
from ottla.spark.archive.fetching import FetchFiles
from ottla.spark.archive.writing import WriteFiles
from ottla.spark.reader.losses import RecordsLostError
from ottla.spark.reader.options import stream_options
from ottla.spark.running.run import RunOptions, source_options
from ottla.testing import EmbeddedBroker
from tests.spark.archive.test_archive import kept, options_of, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Printed = Callable[[], tuple[str, str]]


def test_ranges_alone_are_what_tasks_would_have_read(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    kept(broker, topic, 3)
    produce(broker, topic, range(900), 3)
    given = source_options(options_of(broker), [topic], rangesOnly="true", readerTasks="2", minPartitions="6")
    frame = spark.read.format("ottla").options(**given).load()
    assert frame.columns == ["topic", "partition", "first", "until"]
    ranges = sorted(tuple(row) for row in frame.collect())
    assert {each[0] for each in ranges} == {topic}
    assert frame.rdd.getNumPartitions() == 6
    offsets = sorted((each[1], offset) for each in ranges for offset in range(each[2], each[3]))
    assert offsets == [(partition, offset) for partition in range(3) for offset in range(300)]


@pytest.mark.slow("tests/spark/archive/test_archive_fetching.py::test_ranges_alone_are_what_tasks_would_have_read")
def test_the_rows_told_are_records_not_ranges(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, printed: Printed
) -> None:
    produce(broker, kept(broker, topic), range(700))
    loud = replace(options_of(broker), quiet=False)
    done = run(loud, [topic], str(tmp_path / "lake"), batch_rows=300, session=spark)
    assert (done.rows, done.batches) == (700, 3)
    assert "Done: 700 rows in 3 batches" in printed()[1]


def test_a_task_tells_of_records_that_are_gone(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    produce(broker, kept(broker, topic), range(200))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 40)]).values():
        future.result()
    rows = [{"topic": topic, "partition": 0, "first": 10, "until": 90}]
    ranges = [pa.RecordBatch.from_pylist(rows)]

    def task(name: str, **more: str) -> FetchFiles:
        given = source_options(RunOptions(broker.bootstrap_servers, None), [topic], includeHeaders="true", **more)
        return FetchFiles(WriteFiles(str(tmp_path), name), stream_options(given))

    with pytest.raises(RecordsLostError, match=rf"Offsets 10 to 40 of {topic}-0 are gone"):
        list(task("strict")(iter(ranges)))
    (report,) = task("lossy", failOnDataLoss="false")(iter(ranges))
    found = json.loads(report.column("report")[0].as_py())
    assert found["spans"] == [[topic, 0, 40, 89, 50]]
    table = pq.ParquetFile(tmp_path / found["files"][0]["path"]).read()
    assert table.column("offset").to_pylist() == list(range(40, 90))
    assert table.column("headers").null_count == sum(offset * 2 % 3 != 0 for offset in range(40, 90))
