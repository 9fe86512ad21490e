"""The writer through Spark: columns, refusals, streams at least once and exactly once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from ottla.spark.platform.client_properties import WrongOptionError
from ottla.spark.writer.options import sink_options
from ottla.spark.writer.sink import Producer, batch_writer, stream_writer
from ottla.testing import EmbeddedBroker
from tests.harness.spark.writer.sink_faults import FaultyClient, LostAnswers
from tests.harness.topics import every_record
from tools import crash_pipelines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3


def read(broker: EmbeddedBroker, topic: str) -> list[Any]:
    """Every message, by partition and offset."""
    return list(every_record(broker.bootstrap_servers, topic))


def options(broker: EmbeddedBroker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, **more}


def test_every_column_arrives(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    begin = int(time.time()) * 1000 - 60_000
    rows = spark.range(100).selectExpr(
        f"'{topic}' AS topic",
        "if(id % 5 = 0, null, cast(id AS string)) AS key",
        "if(id % 7 = 0, null, encode(concat('value ', id), 'utf-8')) AS value",
        "if(id % 3 = 0, null, array(named_struct('key', 'a', 'value', encode(cast(id AS string), 'utf-8')),"
        " named_struct('key', 'b', 'value', cast(null AS binary)))) AS headers",
        "if(id % 4 = 0, cast(2 AS int), null) AS partition",
        f"timestamp_millis({begin} + id) AS timestamp",
        "id AS passenger",
    )
    properties = {"kafka.compression.type": "zstd", "kafka.linger.ms": "5"}
    rows.write.format("ottla").options(**options(broker, **properties)).mode("append").save()
    found = {message.timestamp()[1] - begin: message for message in read(broker, topic)}
    assert sorted(found) == list(range(100))
    for number, message in found.items():
        text = b"%d" % number
        assert message.key() == (None if number % 5 == 0 else text)
        assert message.value() == (None if number % 7 == 0 else b"value " + text)
        assert message.headers() == (None if number % 3 == 0 else [("a", text), ("b", None)])
        assert number % 4 or message.partition() == 2


def copy(spark: SparkSession, broker: EmbeddedBroker, source: str) -> DataFrame:
    given = options(broker, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="400")
    rows = spark.readStream.format("ottla").options(**given).load()
    return rows.selectExpr("concat(partition, '-', offset) AS key", "value").repartition(2)


def run(rows: DataFrame, wanted: dict[str, str], checkpoint: Path) -> int:
    """Everything available; how many micro-batches that were."""
    writer = rows.writeStream.format("ottla").options(**wanted).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return len([progress for progress in query.recentProgress if progress["numInputRows"]])


def test_a_stream_writes_exactly_once(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    out = f"{topic}-out"
    for name in (topic, out):
        broker.create_topic(name, partitions=PARTITIONS)
    fill(spark, broker, topic, 1000)
    checkpoint = tmp_path / "checkpoint"
    wanted = options(broker, topic=out, exactlyOnce="true")
    assert run(copy(spark, broker, topic), wanted, checkpoint) >= 2
    expected = sorted(b"%d-%d" % (message.partition(), message.offset()) for message in read(broker, topic))
    assert sorted(message.key() for message in read(broker, out)) == expected
    # the driver dies after the sink's commit and before Spark has written down its own: the batch is run again
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    fill(spark, broker, topic, 10)
    assert run(copy(spark, broker, topic), wanted, checkpoint) >= 1
    assert sorted(message.key() for message in read(broker, out)) == sorted(
        b"%d-%d" % (message.partition(), message.offset()) for message in read(broker, topic)
    )
    assert [path for path in (checkpoint / "ottla-sink" / "batches").iterdir()] == []
    # another query may not use the same staging location
    shared = {**wanted, "stagingLocation": f"file://{checkpoint}/ottla-sink"}
    with pytest.raises(Exception, match="belongs to another query"):
        run(copy(spark, broker, topic), shared, tmp_path / "other")


def fill(spark: SparkSession, broker: EmbeddedBroker, topic: str, rows: int) -> None:
    wanted = options(broker, topic=topic)
    spark.range(rows).selectExpr("cast(id AS string) AS value").write.format("ottla").options(**wanted).mode(
        "append"
    ).save()


@pytest.mark.slow("tests/spark/writer/test_sink_transactions.py::test_librdkafka_sees_micro_batches_whole")
def test_a_stream_of_transactions(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    """librdkafka's transactions in, read as committed, and each micro-batch a transaction out."""
    out = f"{topic}-out"
    for name in (topic, out):
        broker.create_topic(name, partitions=PARTITIONS)
    upstream = producer_of(broker, topic)
    kept = [sent(upstream, topic, number, 40, ends="commit") for number in range(2)]
    sent(upstream, topic, 2, 40, ends="abort")
    kept.append(sent(upstream, topic, 3, 40, ends="commit"))
    sent(upstream, topic, 4, 40, ends="")
    source = options(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="50")
    rows = spark.readStream.format("ottla").options(**source, **{"kafka.isolation.level": "read_committed"}).load()
    checkpoint = tmp_path / "checkpoint"
    wanted = options(broker, topic=out, transactional="true")
    assert run(rows.select("key", "value").repartition(2), wanted, checkpoint) >= 2
    assert committed(broker, out) == sorted(key for keys in kept for key in keys)
    # the driver dies between the sink's commit and its own, and with it what the sink wrote down
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (checkpoint / "ottla-sink" / "done.json").unlink()
    upstream.commit_transaction()
    assert run(rows.select("key", "value").repartition(2), wanted, checkpoint) >= 1
    kept.append([b"4/%d" % row for row in range(40)])
    assert committed(broker, out) == sorted(key for keys in kept for key in keys)
    assert list((checkpoint / "ottla-sink" / "batches").iterdir()) == []
    batch = spark.read.format("ottla").options(**options(broker, subscribe=topic))
    assert batch.load().count() == 5 * 40
    assert batch.option("kafka.isolation.level", "read_committed").load().count() == 4 * 40


def producer_of(broker: EmbeddedBroker, name: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(30)
    return producer


def sent(producer: confluent_kafka.Producer, topic: str, number: int, rows: int, ends: str) -> list[bytes]:
    """A transaction's keys; it is left open without an end."""
    producer.begin_transaction()
    keys = [b"%d/%d" % (number, row) for row in range(rows)]
    for row, key in enumerate(keys):
        producer.produce(topic, key=key, value=key, partition=row % PARTITIONS)
    producer.flush(30)
    if ends == "commit":
        producer.commit_transaction(30)
    elif ends == "abort":
        producer.abort_transaction(30)
    return keys


def committed(broker: EmbeddedBroker, topic: str) -> list[bytes]:
    """The keys that librdkafka reads as committed, sorted."""
    return sorted(message.key() or b"" for message in every_record(broker.bootstrap_servers, topic, "read_committed"))


def test_a_batch_write_with_an_id_is_done_once(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    broker.create_topic(topic, partitions=PARTITIONS)
    wanted = options(broker, topic=topic, exactlyOnce="true", stagingLocation=str(tmp_path), writeId="day-1")
    rows = spark.range(50).selectExpr("cast(id AS string) AS value")
    for _ in range(2):
        rows.write.format("ottla").options(**wanted).mode("append").save()
    assert len(read(broker, topic)) == 50
    del wanted["writeId"]
    rows.write.format("ottla").options(**wanted).mode("append").save()
    assert len(read(broker, topic)) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["write-day-1"]


def test_a_topic_that_is_not_there_is_named(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    wanted = options(broker, topic=topic, **{"kafka.max.block.ms": "100"})
    with pytest.raises(Exception, match=f"Topic {topic} is not there after 0.1 s"):
        spark.range(1).selectExpr("'x' AS value").write.format("ottla").options(**wanted).mode("append").save()


TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "date": DateType(),
    "misnamed": ArrayType(StructType().add("name", StringType()).add("value", BinaryType())),
}


def schema_of(columns: str) -> StructType:
    """ "name type, name type" without a session, which fromDDL needs."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, TYPES[kind])
    return schema


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("key string", "topic option required when no 'topic' attribute is present. Use the topic option"),
        ("topic string, key string", "Required attribute 'value' not found"),
        ("topic string, value int", "value attribute unsupported type int. value must be a(n) string or binary"),
        ("topic binary, value string", "topic attribute unsupported type binary. topic must be a(n) string"),
        ("topic string, value string, key long", "key attribute unsupported type bigint. key must be a(n) string or"),
        ("topic string, value string, partition long", "partition attribute unsupported type bigint."),
        (
            "topic string, value string, headers misnamed",
            "headers attribute unsupported type array<struct<name:string,value:binary>>. headers must be a(n) array<",
        ),
        ("topic string, value string, timestamp date", "timestamp must be a(n) timestamp"),
    ],
)
@pytest.mark.parametrize("writer", [batch_writer, stream_writer])
def test_a_wrong_schema_is_refused_as_spark_does(writer: Callable[..., Any], columns: str, sentence: str) -> None:
    with pytest.raises(WrongOptionError) as refused:
        writer({"kafka.bootstrap.servers": "h:1"}, schema_of(columns), False)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"exactlyOnce": "true"}, "needs a directory that the driver and all executors share"),
        ({"exactlyOnce": "true", "stagingLocation": "hdfs://h/x"}, "Option 'stagingLocation' is hdfs://h/x, but"),
        ({"exactlyOnce": "true", "stagingLocation": "/x", "kafka.acks": "1"}, "needs 'kafka.acks' to be all"),
        ({"exactlyOnce": "yes"}, "Option 'exactlyOnce' must be true or false"),
        ({"exactlyOne": "true"}, "There is no option 'exactlyone': did you mean 'exactlyOnce'?"),
        ({"writeId": "x"}, "'writeId' needs option 'exactlyOnce'"),
        ({"kafka.compression.type": "brotli"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({"kafka.acks": "2"}, "must be all, -1, 0 or 1"),
        ({"kafka.acks": "0", "kafka.enable.idempotence": "true"}, "needs 'kafka.acks' to be all"),
        ({"kafka.key.serializer": "x"}, "Option 'kafka.key.serializer' is not supported"),
        ({"kafka.transactional.id": "x"}, "use option 'transactional'"),
        ({"transactionalId": "x"}, "did you mean 'transactional'?"),
        ({"transactional": "true"}, "needs a directory that the driver and all executors share"),
        ({"transactional": "true", "exactlyOnce": "false"}, "leave option 'exactlyOnce' out"),
        ({"kafka.transaction.timeout.ms": "9"}, "needs option 'transactional' to be true"),
        ({"kafka.lingerms": "x"}, "Option 'kafka.lingerms' is not supported"),
        ({"kafka.batch.size": "-1"}, "must be a whole number"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOptionError) as refused:
        sink_options({"kafka.bootstrap.servers": "h:1", **given})
    assert sentence in str(refused.value)


def test_topics_cannot_be_overwritten() -> None:
    with pytest.raises(WrongOptionError, match="Save mode overwrite is not allowed"):
        batch_writer({"kafka.bootstrap.servers": "h:1", "topic": "t"}, schema_of("value string"), True)


def test_staging_lies_below_the_checkpoint_unless_it_is_given() -> None:
    base = {"kafka.bootstrap.servers": "h:1", "exactlyOnce": "true", "checkpointLocation": "file:///c/a%20b"}
    assert sink_options(base).staging == "/c/a b/ottla-sink"
    assert sink_options({**base, "stagingLocation": "/s/../t"}).staging == "/t"


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_a_task_that_loses_answers_doubles_nothing(broker: EmbeddedBroker, topic: str, acks: str) -> None:
    """At least once: with acks=all a lost answer is asked for again under the same numbers."""
    import pyarrow as pa

    from ottla.spark.codec.encode import EncodeOptions, Encoder
    from ottla.spark.writer.destinations import Destinations

    broker.create_topic(topic, partitions=PARTITIONS)
    producer = Producer(sink_options(options(broker, **{"kafka.acks": acks})))
    lost = LostAnswers({3, 8, 9, 20, 30} if acks == "all" else set())
    producer.publisher._connect = lambda: FaultyClient(broker.bootstrap_servers, lost)  # type: ignore[attr-defined]
    find = Destinations(lambda: producer.publisher.client, 1000).find
    encoder = Encoder(EncodeOptions(topic, 200, 1000), find)
    for run_of_task in range(2):
        values = pa.array([b"%d/%d" % (run_of_task, row) for row in range(500)])
        producer.send(iter([encoder.encode(pa.table({"value": values}))]))
    expected = sorted(b"%d/%d" % (part, row) for part in range(2) for row in range(500))
    assert sorted(message.value() for message in read(broker, topic)) == expected
    assert acks == "0" or lost.count > 40


class CaughtUp:
    """Feeder, pipeline, driver and nodes of a kill loop, in which all is copied once the feeder ended."""

    failure, ended = None, None

    def __init__(self) -> None:
        self.done = threading.Event()
        self.copied = 0

    def start(self) -> None: ...
    def look(self) -> None: ...
    def complete(self, driver: object) -> None: ...
    def last_lines(self) -> str:
        return ""

    def finish(self) -> None:
        self.done.set()

    def moved(self) -> int:
        self.copied += not self.done.is_set()
        return self.copied

    def failures(self) -> list[str]:
        return []

    stop = failures


def test_the_kill_loop_awaits_no_move_of_a_pipeline_that_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_pipelines, "MOVES_WITHIN_S", 0.3)
    loop = crash_pipelines.Loop.__new__(crash_pipelines.Loop)
    loop.feeder = loop.pipeline = loop.driver = loop.nodes = CaughtUp()  # type: ignore[assignment]
    assert loop.run(0, ()) == []


@pytest.mark.slow("tests/spark/writer/test_sink_transactions.py::test_a_crash_at_any_step_shows_all_or_nothing")
@pytest.mark.parametrize("pipeline", ["commit", "commit-transactions"])
def test_killed_commits_and_a_killed_node_lose_and_double_nothing(tmp_path: Path, pipeline: str) -> None:
    """The loop of `make crash-pipelines` without a JVM, which takes minutes."""
    few = ["--rounds", "3", "--seconds", "0.3", "--rate", "600", "--directory", str(tmp_path)]
    command = [sys.executable, "-m", "tools.crash_pipelines", "--pipeline", pipeline, *few]
    top = Path(__file__).resolve().parents[3]
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 driver, 0 worker, 3 node kills: every record exactly once" in done.stdout
