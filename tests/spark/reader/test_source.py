"""`format("ottla")` in Spark itself: found without an import, batch and stream, on one session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import spark_partition_id

from ottla.testing import EmbeddedBroker
from tests.harness.spark.reader.source_stage import produce, rows_by_confluent
from tests.spark.reader.test_source_offsets import add_partition
from tests.spark.reader.test_source_reading import delete_records, mixed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def batch(spark: SparkSession, broker: EmbeddedBroker, topic: str, **given: str) -> DataFrame:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.option("subscribe", topic).options(**given).load()


def test_a_batch_has_the_columns_and_rows_of_a_topic(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic, partitions=3)
    produce(broker.bootstrap_servers, topic, mixed(200), **{"compression.type": "lz4"})
    plain = batch(spark, broker, topic)
    assert plain.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    frame = batch(spark, broker, topic, includeHeaders="true", minPartitions="5")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    found = frame.withColumn("task", spark_partition_id()).collect()
    assert len({row.task for row in found}) == 5
    rows = [
        (
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            round(row.timestamp.timestamp() * 1000),
            row.timestampType,
            [(each.key, None if each.value is None else bytes(each.value)) for each in row.headers or []],
        )
        for row in found
    ]
    assert sorted(rows) == rows_by_confluent(broker.bootstrap_servers, topic, 3)
    assert sum(row.headers is None for row in found) == sum(not row[6] for row in rows)
    produce(broker.bootstrap_servers, topic, mixed(1))
    assert (frame.count(), batch(spark, broker, topic).count()) == (200, 201), "one load, one set of offsets"


def test_a_batch_of_nothing_and_refusals(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic)
    assert batch(spark, broker, topic).collect() == []
    with pytest.raises(Exception, match=r"WrongOptionError: Only one of these options can be given"):
        batch(spark, broker, topic, subscribePattern="x")
    with pytest.raises(Exception, match=r"WrongOptionError: The starting offset can't be latest for batch queries\."):
        batch(spark, broker, topic, startingOffsets="latest").count()
    with pytest.raises(Exception, match=r"WrongOptionError: Topic 'not-there' does not exist at"):
        batch(spark, broker, "not-there", **{"fetchOffset.retryIntervalMs": "1"}).count()


@pytest.mark.slow("tests/spark/running/test_run.py::test_a_run_reads_what_is_there_and_the_next_goes_on")
def test_a_stream_that_stops_and_goes_on(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    """AvailableNow in limited batches; started again, with a partition and a topic that came meanwhile; then lost
    data, which fails and is then gone past."""
    broker.create_topic(topic, partitions=2)
    produce(broker.bootstrap_servers, topic, [{"value": b"%d" % i, "partition": i % 2} for i in range(200)])
    given = {"subscribePattern": f"{topic}.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}

    def run(**more: str) -> StreamingQuery:
        reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap_servers)
        writer = reader.options(**given).options(**more).load().withColumn("task", spark_partition_id()).writeStream
        query = writer.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = query.trigger(availableNow=True).start(str(tmp_path / "table"))
        query.awaitTermination()
        return query

    def found() -> list[tuple[str, int, int]]:
        return sorted(
            (row.topic, row.partition, row.offset) for row in spark.read.parquet(str(tmp_path / "table")).collect()
        )

    progress = [each for each in run().recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [60, 60, 60, 20]
    (source,) = progress[0]["sources"]
    assert json.loads(source["endOffset"]) == {topic: {"0": 30, "1": 30}}
    assert json.loads(source["latestOffset"]) == {topic: {"0": 100, "1": 100}}
    expected = [(topic, p, i) for p in range(2) for i in range(100)]
    assert found() == expected

    add_partition(broker, topic, 4)
    broker.create_topic(f"{topic}-2")
    produce(broker.bootstrap_servers, topic, [{"value": b"x", "partition": p} for p in range(4)])
    produce(broker.bootstrap_servers, f"{topic}-2", [{"value": b"x"}])
    run()
    expected += [(topic, 0, 100), (topic, 1, 100), (topic, 2, 0), (topic, 3, 0), (f"{topic}-2", 0, 0)]
    assert found() == sorted(expected)
    tasks = spark.read.parquet(str(tmp_path / "table")).agg({"task": "max"}).collect()
    assert tasks[0][0] == 0  # micro-batches as small as these are one task
    assert batch(spark, broker, topic).rdd.getNumPartitions() == 2  # four partitions, two cores, two tasks

    produce(broker.bootstrap_servers, f"{topic}-2", [{"value": b"x"}] * 5)
    delete_records(broker, f"{topic}-2", 3)
    with pytest.raises(
        Exception, match=f"RecordsLostError: Offsets 1 to 3 of {topic}-2-0 are gone: it begins at 3 now"
    ):
        run()
    run(failOnDataLoss="false")
    assert found() == sorted(expected + [(f"{topic}-2", 0, i) for i in (3, 4, 5)])
