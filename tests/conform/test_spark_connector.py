"""Spark's own Kafka connector against a node: batch, stream with a restart from its checkpoint, write.

Its jars come from Maven and want a Spark of their own version, so this runs only where both are named:
OTTLA_CONNECTOR_PYTHON, a Python with the pyspark that the connector is for, and OTTLA_CONNECTOR_JARS, the folder of
spark-sql-kafka-0-10, spark-token-provider-kafka-0-10, kafka-clients and commons-pool2.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from ottla.testing import EmbeddedBroker

JOB = Path(__file__).parents[1] / "harness" / "conform" / "spark_connector_job.py"
PARTITIONS = 3
BEGAN_MS = int(time.time() * 1000)  # retention deletes what is old


@pytest.fixture
def run_job(tmp_path: Path, broker: EmbeddedBroker) -> Callable[[str, str], list[Any]]:
    python, jars = os.environ.get("OTTLA_CONNECTOR_PYTHON"), os.environ.get("OTTLA_CONNECTOR_JARS")
    if not python or not jars:
        pytest.skip("Spark's own connector is not here: OTTLA_CONNECTOR_PYTHON and OTTLA_CONNECTOR_JARS name it")

    def run(source: str, target: str) -> list[Any]:
        paths = ",".join(str(path) for path in sorted(Path(jars).glob("*.jar")))
        command = [python, str(JOB), paths, broker.bootstrap_servers, source, target, str(tmp_path / "checkpoint")]
        environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment | {"PYSPARK_PYTHON": python})
        lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
        assert lines, done.stderr[-4_000:]
        return json.loads(lines[0].removeprefix("FOUND "))

    return run


def produce(broker: EmbeddedBroker, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": "lz4"})
    for i in numbers:
        key = None if i % 5 == 0 else f"key-{i}"
        value = None if i % 7 == 0 else f"value-{i}"
        headers = [("n", str(i)), ("none", None)] if i % 3 == 0 else None
        producer.produce(topic, value, key, i % PARTITIONS, headers=headers, timestamp=BEGAN_MS + i)
    assert producer.flush(30) == 0


def consumed(broker: EmbeddedBroker, topic: str, count: int) -> list[Message]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    got: list[Message] = []
    while len(got) < count and (more := consumer.consume(count, 10)):
        got += more
    got += consumer.consume(1, 1)  # what is too much
    consumer.close()
    return got


@pytest.mark.timeout(900)  # two Sparks are started
def test_reads_streams_restarts_and_writes(
    broker: EmbeddedBroker, make_topic: Callable[..., str], run_job: Callable[[str, str], list[Any]]
) -> None:
    source, target = make_topic(PARTITIONS), make_topic(PARTITIONS)
    produce(broker, source, range(150))
    run_job(source, target)
    assert len(consumed(broker, target, 151)) == 150 + 1
    produce(broker, source, range(150, 240))
    found = run_job(source, target)

    expected = [
        [
            None if i % 5 == 0 else f"key-{i}",
            None if i % 7 == 0 else f"value-{i}",
            [["n", str(i)], ["none", None]] if i % 3 == 0 else None,
            i % PARTITIONS,
            i // PARTITIONS,
            0,
            BEGAN_MS + i,
        ]
        for i in sorted(range(240), key=lambda i: (i % PARTITIONS, i))
    ]
    assert found == expected

    copies = consumed(broker, target, 242)
    written = [message for message in copies if message.key() == b"batch"]
    assert [message.value() for message in written] == [b"written"] * 2
    copied = [(m.partition(), m.key(), m.value(), tuple(m.headers() or ())) for m in copies if m.key() != b"batch"]
    wanted = [
        (
            i % PARTITIONS,
            None if i % 5 == 0 else b"key-%d" % i,
            None if i % 7 == 0 else b"value-%d" % i,
            (("n", b"%d" % i), ("none", None)) if i % 3 == 0 else (),
        )
        for i in range(240)
    ]
    assert sorted(copied, key=repr) == sorted(wanted, key=repr)
