"""`ottla cluster move-metadata`, and one node that becomes three without losing anything."""

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.client import Client
from ottla.metadata.sqlite import SqliteStore
from ottla.metadata.store import Put, StoreError
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.server.listeners import ServeRefusedError
from ottla.server.presence import LockedPresence
from ottla.testing import EmbeddedBroker, EmbeddedCluster
from tests.cli.conftest import Run
from tests.harness.waiting import soon
from tests.harness.zookeepers import ZooKeepers, fresh

RECORDS = 300
COMMITTED = 100


def produce(bootstrap: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1})
    for number in range(first, first + count):
        producer.produce("orders", key=str(number))
    assert producer.flush(60) == 0


def consume(bootstrap: str, count: int) -> list[int]:
    """So many of the group's next records, which are committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    keys: list[int] = []
    until = time.monotonic() + 60
    while len(keys) < count:
        assert time.monotonic() < until, keys
        for message in consumer.consume(min(50, count - len(keys)), 0.2):
            record: Any = message
            if record.error() is None:
                keys.append(int(record.key()))
    consumer.commit(asynchronous=False)
    consumer.close()
    return keys


def topics(cluster: EmbeddedCluster, by: int) -> dict[str, list[Any]]:
    with Client(cluster.address_of(by)) as client:
        return {str(topic.name): topic.partitions for topic in client.send(MetadataRequest(topics=None)).topics}


def test_one_node_becomes_three_without_losing_anything(zookeeper: ZooKeepers, tmp_path: Path, ottla: Run) -> None:
    own, place = tmp_path / "1", fresh(zookeeper)
    move = ("cluster", "move-metadata", place, "--data", str(own))
    with EmbeddedBroker(directory=own) as alone:
        alone.create_topic("orders", partitions=3)
        produce(alone.bootstrap_servers, 0, RECORDS)
        read = consume(alone.bootstrap_servers, COMMITTED)
        assert ottla(*move, code=1).err == (
            f"ottla: The data directory {own} is locked by another node. Stop that node or choose another directory.\n"
        )
    found, _, rest = ottla(*move).out.partition(" rows of cluster ")
    assert int(found) >= 4
    assert rest.partition(", ")[2] == (
        f"2 topics among them, are at {place}: compared with the file.\n"
        f"Start every node of it with --metadata {place}\n"
    )
    again = f"The metadata in {own}/metadata.sqlite was moved to {place} before. Start every node"
    assert ottla(*move).out.startswith(again)
    with pytest.raises(ServeRefusedError, match=rf"has moved: start the node with --metadata {place}\.$"):
        EmbeddedBroker(directory=own).start()
    with EmbeddedCluster(directory=tmp_path, metadata=place) as cluster:
        assert set(topics(cluster, 3)) == {"orders", "__consumer_offsets"}
        raised = ("topics", "reassign", *topics(cluster, 3), "--replication-factor", "3", "--execute")
        assert "Done: 4 partitions moved." in ottla(*raised, "-b", cluster.bootstrap_servers).out
        soon(lambda: all(len(part.isr_nodes) == 3 for parts in topics(cluster, 2).values() for part in parts))
        cluster.kill(1)
        soon(lambda: all(part.leader_id in (2, 3) for parts in topics(cluster, 2).values() for part in parts))
        produce(cluster.bootstrap_servers, RECORDS, 30)
        rest_of_them = consume(cluster.bootstrap_servers, RECORDS + 30 - COMMITTED)
        assert sorted(read + rest_of_them) == list(range(RECORDS + 30))
        reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "none"})
        ends = [reader.get_watermark_offsets(TopicPartition("orders", part), 30)[1] for part in range(3)]
        reader.close()
        assert sum(ends) == RECORDS + 30


@pytest.mark.parametrize(
    ("address", "code", "said"),
    [
        ("localhost:2181", 2, "'localhost:2181' is no place in ZooKeeper: it begins with zookeeper://."),
        (
            "zookeeper://a:b",
            2,
            "'a:b' is no server of a ZooKeeper: write zookeeper://zk1:2181,zk2:2181,zk3:2181/ottla.",
        ),
        ("zookeeper://a", 1, "There is no metadata.sqlite in DIR: --data names the directory of a node or a cluster."),
    ],
)
def test_what_makes_no_sense_is_said(tmp_path: Path, ottla: Run, address: str, code: int, said: str) -> None:
    ended = ottla("cluster", "move-metadata", address, "--data", str(tmp_path), code=code)
    assert ended.err.replace(str(tmp_path), "DIR") == f"ottla: {said}\n"


def test_a_cluster_of_one_machine_is_moved_once_all_its_nodes_have_stopped(
    zookeeper: ZooKeepers, tmp_path: Path, ottla: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise StoreError("interrupted")

    place = fresh(zookeeper)
    store = SqliteStore(str(tmp_path / "metadata.sqlite"))
    store.commit([Put("cluster/id", b"x"), Put("topic/t", b"{}")])
    store.close()
    running = [LockedPresence(str(tmp_path / "members"), number, "a", 1000, "") for number in (1, 2)]
    running[0].leave()
    move = ("cluster", "move-metadata", place, "--data", str(tmp_path))
    assert ottla(*move, code=1).err == "ottla: Node 2 of this cluster runs. Stop it first.\n"
    running[1].leave()
    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "commit", interrupted)
        assert ottla(*move, code=1).err == "ottla: Interrupted.\n"  # right before its last step
    told = f"2 rows of cluster x, 1 topics among them, are at {place}: moved there before, and used since.\n"
    assert ottla(*move).out.startswith(told)
