"""The run loop with real queries on the session that the tests share."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from ottla.client import Client
from ottla.client.reporting import Reporter, about
from ottla.spark.format import OttlaSource
from ottla.spark.running import run
from ottla.spark.running.each_batch import each_batch, readable
from ottla.spark.running.run import PipelineFailedError, RunOptions, read_stream, require_topics, run_queries
from ottla.spark.running.topic_ids import require_same
from ottla.testing import EmbeddedBroker
from tests.harness.console.over_http import user
from tests.harness.waiting import SPARKS_PATIENCE_S, soon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Printed = Callable[[], tuple[str, str]]
STATE = "spark.sql.shuffle.partitions"


def fill(broker: EmbeddedBroker, topic: str, count: int, partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(30) == 0


def counting(spark: SparkSession, options: RunOptions, topics: Any, name: str = "counted") -> DataStreamWriter:
    """A query with state: how often each value came."""
    values = read_stream(spark, options, topics, maxOffsetsPerTrigger=400).selectExpr("CAST(value AS STRING) AS value")
    counts = values.groupBy("value").count()
    return counts.writeStream.queryName(name).format("memory").outputMode("complete")


def once(broker: EmbeddedBroker, checkpoint: Path, **more: Any) -> RunOptions:
    return RunOptions(broker.bootstrap_servers, str(checkpoint), once=True, **more)


def test_a_run_reads_what_is_there_and_the_next_goes_on(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, printed: Printed
) -> None:
    broker.create_topic(topic, partitions=2)
    fill(broker, topic, 1000)
    options = once(broker, tmp_path / "checkpoint")
    require_topics(options, [topic])
    told = reporter(broker, topic)
    with told:
        reported = replace(options, reporter=told)
        finished = run_queries(reported, spark, [counting(spark, options, [topic])])
    assert (finished.rows, finished.batches, finished.stopped) == (1000, 3, False)
    shown_on_its_page(broker, topic)
    assert (tmp_path / "checkpoint" / "counted" / "commits" / "2").is_file()
    assert "Done: 1,000 rows in 3 batches" in printed()[1]
    assert spark.table("counted").count() == 1000

    fill(broker, topic, 10)
    options = once(broker, tmp_path / "checkpoint", quiet=True, conf={STATE: "7"})
    assert run_queries(options, spark, [counting(spark, options, [topic])]).rows == 10
    assert {row["count"] for row in spark.table("counted").filter("value < 10").collect()} == {2}
    said = printed()[1]  # quiet, but a setting that has no effect is worth a warning
    assert re.fullmatch(r"counted continues with the 2 shuffle partitions .*\n", said), said
    bad_checkpoints(spark, broker, topic, tmp_path / "checkpoint")


def reporter(broker: EmbeddedBroker, topic: str) -> Reporter:
    described = about("archive", "/lake", name=topic, reads=(topic,))
    return Reporter(lambda: Client(broker.bootstrap_servers), "ottla.reports", described, say=pytest.fail)


def shown_on_its_page(broker: EmbeddedBroker, topic: str) -> None:
    """What the run reported, in the console."""
    with user(broker.bootstrap_servers) as visitor:
        view = visitor.json("/pipeline", name=topic)
        assert topic in visitor.get("/pipelines")
    figures = dict(view["figures"])
    assert (view["row"]["state"], view["row"]["lag"], view["reads"]) == ("stopped", 0, [topic])
    assert (figures["rows"], figures["batches"], figures["late_rows"]) == (1000, 3, 0)
    assert figures["batch_ms"] > 0


def bad_checkpoints(spark: SparkSession, broker: EmbeddedBroker, topic: str, good: Path) -> None:
    """Each copy of a good checkpoint is spoilt in one way; the sentence names the file and a way out."""
    other = broker.create_topic()

    def says(name: str, topics: Any = topic) -> str:
        options = once(broker, good.parent / name, quiet=True)
        with pytest.raises(PipelineFailedError) as failed:
            run_queries(options, spark, [counting(spark, options, topics)])
        assert "\n" not in str(failed.value)
        assert "--checkpoint" in str(failed.value)
        return str(failed.value)

    def spoilt(name: str) -> Path:
        return Path(shutil.copytree(good, good.parent / name)) / "counted"

    def write(file: Path, text: str) -> Path:
        file.write_text(text)
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        return file

    assert f"names {topic}" in says("checkpoint", other)
    assert f"names {topic}" in says("checkpoint", re.compile("other-.*"))
    (good.parent / "file").write_text("")
    assert f"{good.parent / 'file'} is a file" in says("file")
    last = max((good / "counted" / "offsets").glob("[0-9]*"), key=lambda each: int(each.name)).name
    for text, words in (("", "is damaged"), ("v1\n{", "is damaged"), ("v9\n{}\n{}", "newer Spark (v9")):
        file = write(spoilt(f"o{len(text)}") / "offsets" / last, text)
        assert f"{file} " in (said := says(f"o{len(text)}"))
        assert words in said
    assert "metadata is damaged" in (write(spoilt("m") / "metadata", "{"), says("m"))[1]
    assert "has lost its file" in ((spoilt("l") / "metadata").unlink(), says("l"))[1]
    file = spoilt("sum") / "offsets" / last  # what Spark alone notices: the file's sum
    file.write_text(file.read_text().replace('"batchWatermarkMs":0', '"batchWatermarkMs":1'))
    assert f"{file} is damaged" in says("sum")
    options = once(broker, good, quiet=True)
    stateless = read_stream(spark, options, topic).writeStream.queryName("counted").format("noop")
    fill(broker, topic, 1)
    with pytest.raises(PipelineFailedError, match=r"that of another query, or of an earlier shape of counted"):
        run_queries(options, spark, [stateless])


def test_a_missing_topic_is_named(broker: EmbeddedBroker, topic: str) -> None:
    options = RunOptions(broker.bootstrap_servers, None)
    there = broker.create_topic()
    with pytest.raises(PipelineFailedError, match=rf"There is no topic {topic} at .* `ottla topics create {topic} -b "):
        require_topics(options, [there, topic])
    both = rf"There are no topics {topic}, {topic}-2 at .* `ottla topics create {topic} {topic}-2 -b .*` makes them\."
    with pytest.raises(PipelineFailedError, match=both):
        require_topics(options, [topic, there, f"{topic}-2"])
    with pytest.raises(PipelineFailedError, match=r"nohost"):
        require_topics(RunOptions("nohost", None), [topic])
    with pytest.raises(PipelineFailedError, match=r"sasl\.mechanism"):
        require_topics(RunOptions("localhost:1", None, kafka={"sasl.mechanism": "PLAIN"}), [topic])


def test_a_table_is_filled_from_one_topic_of_a_name(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    options = RunOptions(broker.bootstrap_servers, None)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    broker.create_topic(topic)
    for _ in range(2):
        require_same(options, [topic], tmp_path)
    admin.delete_topics([topic])[topic].result()
    broker.create_topic(topic)
    with pytest.raises(
        PipelineFailedError, match=f"{topic} was deleted and created again since .* Give another --table"
    ):
        require_same(options, [topic], tmp_path)
    require_same(options, [topic], tmp_path / "another")


def test_a_broker_that_is_down_is_waited_for(topic: str, printed: Printed) -> None:
    with EmbeddedBroker() as broker:
        broker.create_topic(topic)
        options = RunOptions(broker.bootstrap_servers, None, broker_wait_s=0.1)
        broker._stop()
        with pytest.raises(PipelineFailedError, match=r"No broker can be reached at .* Waited \d+ s"):
            require_topics(options, [topic])
        back = threading.Timer(1.0, broker.start)
        back.start()
        require_topics(RunOptions(broker.bootstrap_servers, None), [topic])
        back.join()
    said = printed()[1]
    assert "Waiting for a broker: No broker can be reached" in said
    assert f"The broker at {broker.bootstrap_servers} answers." in said


def until(condition: Any) -> None:
    soon(condition, patience_s=SPARKS_PATIENCE_S)


@pytest.mark.slow("tests/spark/running/test_run.py::test_a_signal_does_not_wait_for_executors_that_never_come")
def test_a_broker_that_goes_away_and_a_signal(
    spark: SparkSession, topic: str, tmp_path: Path, printed: Printed
) -> None:
    """One continuous run: records, the broker stopped and started again, records, SIGTERM; every record once."""
    with EmbeddedBroker() as broker:
        broker.create_topic(topic, partitions=2)
        fill(broker, topic, 100)
        options = RunOptions(
            broker.bootstrap_servers, str(tmp_path), trigger_s=0.2, kafka={"request.timeout.ms": "2000"}
        )
        writer = counting(spark, options, [topic])

        def play() -> None:
            try:
                until(lambda: (tmp_path / "counted" / "commits" / "0").exists())
                broker._stop()
                until(lambda: "is away; counted waits for it" in seen())
                broker.start()
                fill(broker, topic, 100)
                until(lambda: spark.table("counted").filter("count = 2").count() == 100)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        said: list[str] = []

        def seen() -> str:
            said.append(printed()[1])
            return "".join(said)

        thread = threading.Thread(target=play)
        thread.start()
        finished = run_queries(options, spark, [writer])
        thread.join()
    assert (finished.rows, finished.stopped) == (200, True)
    assert "Starting counted again where it was." in seen()
    assert "Stopping when the running batch is done" in seen()
    assert "Stopped: 200 rows" in seen()
    commits = {each.name for each in (tmp_path / "counted" / "commits").iterdir()}
    plans = {each.name for each in (tmp_path / "counted" / "offsets").iterdir()}
    assert commits == plans, "a batch was begun and not finished"


LATE_ONCE = """#!/bin/sh
case "$*" in *python_streaming_source_runner*)
    [ -e {begun} ] || { touch {begun}; exec sleep 11; }
esac
exec {python} "$@"
"""
"""A Python whose first process for planning does not start within the 10 s that Spark gives it."""


@pytest.mark.slow("tests/spark/running/test_run.py::test_a_failure_in_a_query_is_one_sentence")
def test_a_query_starts_again_when_its_python_process_is_late(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = tmp_path / "python"
    python.write_text(LATE_ONCE.replace("{begun}", str(tmp_path / "begun")).replace("{python}", sys.executable))
    python.chmod(0o755)

    class Late(OttlaSource):
        @classmethod
        def name(cls) -> str:
            return "late"

    broker.create_topic(topic)
    fill(broker, topic, 100, partitions=1)
    options = once(broker, tmp_path / "checkpoints")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    spark.dataSource.register(Late)
    read = spark.readStream.format("late").options(**run.source_options(options, topic, startingOffsets="earliest"))
    finished = run_queries(options, spark, [read.load().writeStream.queryName("counted").format("noop")])
    assert finished.rows == 100
    said = printed()[1]
    assert "A Python process of counted did not start within 10 s" in said
    assert "Starting counted again where it was." in said


def test_a_signal_does_not_wait_for_executors_that_never_come(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Local tasks that never end stand for those that no executor takes."""
    broker.create_topic(topic)
    fill(broker, topic, 10, partitions=1)
    options, waits = RunOptions(broker.bootstrap_servers, str(tmp_path), trigger_s=0.1), threading.Event()
    monkeypatch.setattr(run, "waits_for_executors", lambda session: waits.is_set())

    def never_end(batches: Any) -> Any:
        (tmp_path / "begun").touch()
        time.sleep(3600)
        yield from batches

    def take(batch: DataFrame, number: int) -> None:
        batch.mapInArrow(never_end, batch.schema).collect()

    def play() -> None:
        try:
            until((tmp_path / "begun").exists)
            waits.set()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    reading = read_stream(spark, options, topic)
    thread = threading.Thread(target=play)
    thread.start()
    finished = run_queries(options, spark, [reading.writeStream.queryName("waiting").foreachBatch(each_batch(take))])
    thread.join()
    assert (finished.rows, finished.stopped) == (0, True)
    said = printed()[1]
    assert "Stopped: 0 rows" in said
    assert "StackOverflowError" not in said


@pytest.mark.slow("tests/spark/running/test_run.py::test_a_run_reads_what_is_there_and_the_next_goes_on")
def test_enough_ends_a_query_after_its_batch(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    printed: Printed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.create_topic(topic)
    fill(broker, topic, 100, partitions=1)
    options, enough = RunOptions(broker.bootstrap_servers, str(tmp_path), trigger_s=0.1), threading.Event()
    heard, finish_batch = threading.Event(), run.Run.finish_batch

    def finish(of: run.Run, session: SparkSession) -> None:
        finish_batch(of, session)
        heard.set()

    monkeypatch.setattr(run.Run, "finish_batch", finish)

    def take(batch: DataFrame, number: int) -> None:
        enough.set()
        assert heard.wait(30), "the loop hears of it while the batch is under way"
        assert batch.count() == 100

    writer = read_stream(spark, options, topic).writeStream.queryName("enough").foreachBatch(take)
    finished = run_queries(options, spark, [writer], enough=enough)
    assert (finished.rows, finished.batches, finished.stopped) == (100, 1, False)
    said = printed()[1]
    assert "Done: 100 rows in 1 batches" in said
    assert "Stopping" not in said


@pytest.mark.slow("tests/spark/running/test_run.py::test_spark_knows_an_interrupt_in_what_a_batch_raises")
def test_a_batch_that_the_stop_interrupts_is_no_failure_and_is_repeated(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may begin a batch between the two: the query seems to wait for its trigger, and is stopped."""
    broker.create_topic(topic)
    fill(broker, topic, 100, partitions=1)
    options, enough = RunOptions(broker.bootstrap_servers, str(tmp_path), trigger_s=0.1), threading.Event()
    begun, rows, finish_batch = tmp_path / "begun", list[int](), run.Run.finish_batch

    def hold(batches: Any) -> Any:
        held = not begun.exists()
        begun.touch()
        time.sleep(3600 if held else 0)
        yield from batches

    def take(batch: DataFrame, number: int) -> None:
        rows.append(len(batch.mapInArrow(hold, batch.schema).collect()))
        enough.set()

    def ask(of: run.Run, session: SparkSession) -> None:
        until(begun.exists)
        finish_batch(of, session)

    writer = read_stream(spark, options, topic).writeStream.queryName("raced").foreachBatch(each_batch(take))
    with monkeypatch.context() as patched:
        patched.setattr(run.Run, "finish_batch", ask)
        patched.setattr(run.Run, "rests", lambda of: True)
        enough.set()
        run_queries(options, spark, [writer], enough=enough)
    assert rows == []
    enough.clear()
    assert run_queries(options, spark, [writer], enough=enough).rows == 100
    assert rows == [100]


@pytest.mark.slow("tests/spark/running/test_run.py::test_a_failure_in_a_query_is_one_sentence")
def test_a_failure_of_the_last_batch_is_reported(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic(topic)
    fill(broker, topic, 1, partitions=1)
    options, enough = RunOptions(broker.bootstrap_servers, str(tmp_path), trigger_s=0.1), threading.Event()
    asked, finish_batch = threading.Event(), run.Run.finish_batch

    def ask(of: run.Run, session: SparkSession) -> None:
        finish_batch(of, session)
        asked.set()

    def take(batch: DataFrame, number: int) -> None:
        enough.set()
        assert asked.wait(60)
        raise ValueError("no room in the table")

    monkeypatch.setattr(run.Run, "finish_batch", ask)
    writer = read_stream(spark, options, topic).writeStream.queryName("last").foreachBatch(each_batch(take))
    with pytest.raises(PipelineFailedError, match="ValueError: no room in the table"):
        run_queries(options, spark, [writer], enough=enough)


def test_spark_knows_an_interrupt_in_what_a_batch_raises(spark: SparkSession) -> None:
    """Java's stack is longer than Spark's expression can search."""
    stack = "\tat org.apache.spark.Some.method(Some.scala:1)\n" * 1000
    context: Any = spark.sparkContext

    def is_interrupt(cause: str) -> bool:
        text = f"Traceback:\npy4j.protocol.Py4JJavaError: An error occurred while calling o1.collect.\n: {cause}\n"
        jvm = context._jvm
        raised = jvm.py4j.Py4JException(readable(text + stack))
        of_spark = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
        return of_spark.isInterruptionException(raised, context._jsc.sc())

    assert is_interrupt("java.lang.InterruptedException")
    assert is_interrupt("java.nio.channels.ClosedByInterruptException")
    assert not is_interrupt("java.lang.IllegalStateException: closed")


def test_a_failure_in_a_query_is_one_sentence(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> None:
    from pyspark.sql.functions import udf

    @udf("string")
    def spoil(value: bytes) -> str:
        raise ValueError(f"no number: {value.decode()}")

    broker.create_topic(topic)
    fill(broker, topic, 1, partitions=1)
    options = RunOptions(broker.bootstrap_servers, None, once=True, quiet=True)
    writer = read_stream(spark, options, topic).select(spoil("value")).writeStream.queryName("spoilt").format("noop")
    with pytest.raises(PipelineFailedError) as failed:
        run_queries(options, spark, [writer])
    found = re.fullmatch(
        r"The query spoilt failed: ValueError: no number: 0\. Spark's full output is in (\S+)\.",
        str(failed.value),
    )
    assert found, failed.value
    assert "def spoil" not in str(failed.value)
    whole = Path(found[1])
    assert "Traceback" in whole.read_text()
    whole.unlink()
    with pytest.raises(ValueError, match="queryName"):
        run_queries(options, spark, [read_stream(spark, options, topic).writeStream.format("noop")])
