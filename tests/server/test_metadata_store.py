"""A node whose metadata store is locked, damaged or has lost its end."""

import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ottla.client import Client
from ottla.metadata.sqlite import SqliteStore
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.server.listeners import ServeRefusedError
from ottla.testing import EmbeddedBroker, EmbeddedCluster

ANSWERED_WITHIN_S = 0.1
IDLE_FACTOR = 10
"""What a busy machine is granted: so many times the 99th percentile while nothing is locked."""


def p99(waits: list[float]) -> float:
    return sorted(waits)[int(len(waits) * 0.99)]


def create(client: Client, name: str) -> tuple[int, str | None]:
    (answer,) = client.send(CreateTopicsRequest([CreatableTopic(name, 1, 1)], timeout_ms=1000)).topics
    return answer.error_code, answer.error_message


def topics_of(broker: EmbeddedBroker) -> set[str]:
    with Client(broker.bootstrap_servers) as client:
        return {topic.name for topic in client.send(MetadataRequest(topics=None)).topics}


def test_a_locked_store_delays_nobody_and_what_was_refused_is_never_done(tmp_path: Path) -> None:
    with EmbeddedBroker(directory=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        assert create(client, "before")[0] == 0
        waits: list[float] = []
        idle: list[float] = []
        stop, rested = threading.Event(), threading.Event()

        def probe() -> None:
            with Client(broker.bootstrap_servers) as other:
                while not stop.is_set():
                    begun, into = time.perf_counter(), waits if rested.is_set() else idle
                    other.send(ApiVersionsRequest("probe", "1"))
                    into.append(time.perf_counter() - begun)

        probing = threading.Thread(target=probe, daemon=True)
        probing.start()
        there = [create(client, "before") for _ in range(50)]
        rested.set()
        with closing(sqlite3.connect(tmp_path / "metadata.sqlite", isolation_level=None)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            refused = [create(client, f"refused-{number}") for number in range(50)]
            stop.set()
            probing.join()
            locker.execute("ROLLBACK")
        assert {code for code, _ in refused} == {56}
        assert "is locked by another process; try again" in (refused[0][1] or "")
        assert {code for code, _ in there} == {36}
        assert p99(waits) < max(ANSWERED_WITHIN_S, IDLE_FACTOR * p99(idle))
        assert create(client, "after")[0] == 0
        assert topics_of(broker) == {"before", "after"}
        broker.restart()
        assert topics_of(broker) == {"before", "after"}


def test_a_commit_that_hangs_hangs_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timing: the store waits until everybody else was answered."""
    gate, begun = threading.Event(), threading.Event()
    commit = SqliteStore.commit

    def hanging(self: SqliteStore, *args: Any) -> int:
        begun.set()
        assert gate.wait(60)
        return commit(self, *args)

    with EmbeddedBroker(directory=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        monkeypatch.setattr(SqliteStore, "commit", hanging)
        made: list[tuple[int, str | None]] = []
        making = threading.Thread(target=lambda: made.append(create(client, "t")), daemon=True)
        making.start()
        assert begun.wait(60)
        assert topics_of(broker) == set()
        assert not made
        gate.set()
        making.join(60)
        assert made == [(0, None)]
        assert topics_of(broker) == {"t"}


def test_a_damaged_store_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    broker = EmbeddedBroker(directory=tmp_path)
    broker.start()
    broker.create_topic("orders")
    broker.stop()
    path = tmp_path / "metadata.sqlite"
    content = bytearray(path.read_bytes())
    content[content.index(b'"topic_id"')] ^= 1
    path.write_bytes(content)
    with pytest.raises(ServeRefusedError) as refused:
        broker.start()
    assert str(refused.value).startswith(f"the value of topic/orders in the metadata store {path} does not match")
    for name in tmp_path.glob("metadata.sqlite*"):
        name.unlink()
    with broker:
        assert topics_of(broker) == set()  # it never had a record, so nothing told of it


def test_topics_outlive_the_loss_of_the_newest_commits(tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    with EmbeddedBroker(directory=first) as broker:
        names = [broker.create_topic(f"t{number}") for number in range(12)]
        broker.delete_topic("t0")
        broker.create_topic("t0")
        for name in names:
            produce(broker, name)
        shutil.copytree(first, copy)  # as kill -9 leaves it
    path = copy / "metadata.sqlite-wal"
    log = bytearray(path.read_bytes())
    log[len(log) // 3] ^= 1
    path.write_bytes(log)
    with EmbeddedBroker(directory=copy) as broker:
        assert topics_of(broker) == set(names)
        assert not list(copy.glob("*-stray"))
        for name in names:
            assert produce(broker, name) == 1
        with Client(broker.bootstrap_servers) as client:
            asked = [DescribeConfigsResource(2, name, ["ottla.retention.hold"]) for name in names]
            found = client.send(DescribeConfigsRequest(asked)).results
        assert [config.value for answer in found for config in answer.configs] == ["true"] * len(names)


def test_a_backup_of_a_stopped_node_is_complete(tmp_path: Path) -> None:
    with EmbeddedBroker(directory=tmp_path / "data") as broker:
        name = broker.create_topic("t", configs={"retention.ms": "1234567"})
        produce(broker, name)
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    with EmbeddedBroker(directory=tmp_path / "data") as broker:
        produce(broker, name)
        broker.create_topic("later")
    shutil.rmtree(tmp_path / "data")
    shutil.copytree(tmp_path / "backup", tmp_path / "data")
    with EmbeddedBroker(directory=tmp_path / "data") as broker, Client(broker.bootstrap_servers) as client:
        assert topics_of(broker) == {name}
        assert produce(broker, name) == 1
        asked = [DescribeConfigsResource(2, name, ["retention.ms", "ottla.retention.hold"])]
        (found,) = client.send(DescribeConfigsRequest(asked)).results
        assert {config.name: config.value for config in found.configs} == {
            "retention.ms": "1234567",
            "ottla.retention.hold": "false",
        }


def produce(broker: EmbeddedBroker | EmbeddedCluster, topic: str) -> int:
    """Append a record; its offset."""
    from confluent_kafka import Producer

    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"v", on_delivery=lambda _, message: offsets.append(message.offset() or 0))
    assert producer.flush(20) == 0
    return offsets[0]
