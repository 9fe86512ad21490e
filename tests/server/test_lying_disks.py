"""Real nodes whose disk lies: the one whose files were spoiled starts first, and nothing acknowledged is lost."""

import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.main import main
from ottla.protocol.records.batch import iter_batches
from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

RECORDS = 200
NODES = (1, 2, 3)


def produce(cluster: EmbeddedCluster, first: int, topic: str = "t") -> None:
    """RECORDS more, each acknowledged by all in-sync replicas."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0})
    for number in range(first, first + RECORDS):
        producer.produce(topic, str(number), on_delivery=lambda error, _: failed.append(error) if error else None)
        if number % 20 == 0:
            producer.flush(60)
    assert producer.flush(60) == 0
    assert not failed


def read_all(cluster: EmbeddedCluster, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        found: list[bytes | None] = []
        while len(found) < count:
            record = consumer.poll(60)
            assert record is not None, f"{len(found)} of {count} records"
            if record.error() is None:
                found.append(record.value())
        return found
    finally:
        consumer.close()


def flip_a_bit_near_the_end(data: Path, backup: Path) -> None:
    log = data / "t-0" / f"{0:020d}.log"
    octets = bytearray(log.read_bytes())
    octets[-300] ^= 1
    log.write_bytes(octets)


def lose_the_partition(data: Path, backup: Path) -> None:
    shutil.rmtree(data / "t-0")


def restore_an_older_copy(data: Path, backup: Path) -> None:
    shutil.rmtree(data)
    shutil.copytree(backup, data)


@pytest.mark.slow("tests/sim/test_lying_disks.py::test_a_torn_end_and_a_lost_directory_leave_a_leader")
@pytest.mark.parametrize(
    "spoil",
    [
        flip_a_bit_near_the_end,
        pytest.param(lose_the_partition, marks=pytest.mark.long),
        pytest.param(restore_an_older_copy, marks=pytest.mark.long),
    ],
)
def test_the_node_with_the_spoiled_disk_starts_first(tmp_path: Path, spoil: Callable[[Path, Path], None]) -> None:
    settings = {"min.insync.replicas": "2"}
    with EmbeddedCluster(nodes=3, settings=settings, directory=tmp_path / "cluster") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(30)
        produce(cluster, 0)
        cluster.stop_node(1)
        data, backup = Path(cluster.directory, "1"), tmp_path / "backup"
        shutil.copytree(data, backup)
        cluster.start_node(1)
        cluster.wait_in_sync("t")
        produce(cluster, RECORDS)
        for node in NODES:
            cluster.kill(node)
        spoil(data, backup)
        for node in NODES:
            cluster.start_node(node, wait=False)
        cluster.wait_in_sync("t")
        assert read_all(cluster, 2 * RECORDS) == [str(number).encode() for number in range(2 * RECORDS)]


def cut_the_newest_batches(data: Path) -> None:
    log = data / "t-0" / f"{0:020d}.log"
    octets = log.read_bytes()
    places = [position for _, position in iter_batches(octets)]
    log.write_bytes(octets[: places[len(places) // 2]])


@pytest.mark.slow("tests/sim/test_lying_disks.py::test_a_torn_end_and_a_lost_directory_leave_a_leader")
def test_a_killed_leader_that_has_lost_its_newest_batches_starts_first(tmp_path: Path) -> None:
    """No checkpoint shows that they are missing. The next node has them."""
    settings = {"min.insync.replicas": "2", "replica.high.watermark.checkpoint.interval.ms": "3600000"}
    with EmbeddedCluster(nodes=3, settings=settings, directory=tmp_path / "cluster") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(30)
        produce(cluster, 0)
        spoilt = cluster.leader_of("t")
        for node in NODES:
            cluster.pause(node)  # so that none sees another one die
        for node in NODES:
            cluster.kill(node)
        cut_the_newest_batches(Path(cluster.directory, str(spoilt)))
        second, third = (node for node in NODES if node != spoilt)
        for node in (spoilt, second):
            cluster.start_node(node)
        assert cluster.leader_of("t") == second
        cluster.start_node(third, wait=False)
        cluster.wait_in_sync("t")
        assert read_all(cluster, RECORDS) == [str(number).encode() for number in range(RECORDS)]


@pytest.mark.slow("tests/sim/test_lying_disks.py::test_a_torn_end_and_a_lost_directory_leave_a_leader")
def test_a_topic_that_the_restored_store_does_not_know_is_adopted(tmp_path: Path) -> None:
    settings = {"min.insync.replicas": "2", "auto.create.topics.enable": "true"}
    with EmbeddedCluster(nodes=3, settings=settings, directory=tmp_path / "cluster") as cluster:
        store = Path(cluster.directory, "metadata.sqlite")
        with closing(sqlite3.connect(store)) as live, closing(sqlite3.connect(tmp_path / "backup")) as backup:
            live.backup(backup)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(30)
        produce(cluster, 0)
        for node in NODES:
            cluster.kill(node)
        for name in ("metadata.sqlite-wal", "metadata.sqlite-shm"):
            Path(cluster.directory, name).unlink(missing_ok=True)
        shutil.copy(tmp_path / "backup", store)
        for node in (1, 2):
            cluster.start_node(node, wait=False)
        soon(lambda: [(each["topic"], each["waits_for"]) for each in described(cluster, 1)["lacking"]] == [("t", [3])])
        assert described(cluster, 1)["on_hold"] == ["t"]
        with redirect_stdout(io.StringIO()) as out:
            main(["cluster", "describe", "--bootstrap", cluster.address_of(1)])
        assert "\n\nOn hold, so that nothing of them is deleted: t. " in out.getvalue()
        cluster.start_node(3, wait=False)
        cluster.wait_in_sync("t")
        assert read_all(cluster, RECORDS) == [str(number).encode() for number in range(RECORDS)]


def described(cluster: EmbeddedCluster, node: int) -> dict[str, Any]:
    """What `ottla cluster describe` prints."""
    with redirect_stdout(io.StringIO()) as out:
        code = main(["cluster", "describe", "--bootstrap", cluster.address_of(node), "--format", "json"])
    return json.loads(out.getvalue()) if code == 0 else {"lacking": [], "on_hold": []}
