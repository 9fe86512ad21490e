"""Three processes: replicas move under a producer with acks=all, become more and fewer, also of internal topics."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ottla.broker.config.broker_table import RACK_AWARE_SELECTOR
from ottla.client import Client
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.testing import EmbeddedCluster
from tests.server.test_cluster import soon


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "replica.fetch.max.bytes": 100_000,
        "replica.selector.class": RACK_AWARE_SELECTOR,
    }
    with EmbeddedCluster(settings=settings, racks={1: "a", 2: "b", 3: "c"}) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Iterator[Client]:
    with Client(cluster.bootstrap_servers) as client:
        yield client


def create(client: Client, name: str, *assigned: Sequence[int]) -> None:
    given = [CreatableReplicaAssignment(index, list(replicas)) for index, replicas in enumerate(assigned)]
    (made,) = client.send(CreateTopicsRequest(topics=[CreatableTopic(name, -1, -1, given)])).topics
    assert made.error_code == 0, made.error_message
    soon(lambda: name in {topic.name for topic in client.send(MetadataRequest(topics=None)).topics})


def part(client: Client, name: str, index: int = 0) -> Any:
    topics = {topic.name: topic for topic in client.send(MetadataRequest(topics=None)).topics}
    return topics[name].partitions[index]


def moved(client: Client, name: str, *replicas: int) -> None:
    """The partition of this topic is on these nodes, and nothing moves any more."""
    asked = ReassignableTopic(name, [ReassignablePartition(0, list(replicas))])
    answer = client.send(AlterPartitionReassignmentsRequest(topics=[asked]))
    assert answer.responses[0].partitions[0].error_code == 0
    soon(lambda: not client.send(ListPartitionReassignmentsRequest(topics=None)).topics)
    soon(lambda: sorted(part(client, name).isr_nodes) == sorted(replicas))
    assert part(client, name).replica_nodes == list(replicas)


class Load:
    """A producer with acks=all at work; `end` says what was acknowledged, in order."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self.acknowledged: list[int] = []
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(self._topic, str(number).encode() + bytes(200), on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.001)

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.acknowledged.append(int(message.value().rstrip(b"\0")))

    def end(self) -> list[int]:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(30) == 0
        return self.acknowledged


def read(cluster: EmbeddedCluster, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "readers"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(count, timeout=30)
    consumer.close()
    return [int((message.value() or b"").rstrip(b"\0")) for message in messages]


def test_replicas_move_under_load_and_nothing_is_lost(cluster: EmbeddedCluster, client: Client) -> None:
    create(client, "m", [1])
    load = Load(cluster, "m")
    try:
        soon(lambda: len(load.acknowledged) > 100)
        moved(client, "m", 2, 3)
        assert part(client, "m").leader_id == 2
        soon(lambda: not Path(cluster.directory, "1", "m-0").exists())
        moved(client, "m", 3, 1, 2)
        before = len(load.acknowledged)
        soon(lambda: len(load.acknowledged) > before + 100)
        moved(client, "m", 1)
        soon(lambda: not Path(cluster.directory, "3", "m-0").exists())
    finally:
        acknowledged = load.end()
    assert read(cluster, "m", len(acknowledged)) == acknowledged == list(range(len(acknowledged)))


def test_the_offsets_of_groups_get_more_copies_and_outlive_their_first_node(
    cluster: EmbeddedCluster, client: Client
) -> None:
    create(client, "g", [1, 2, 3])
    properties = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "kept"}
    consumer = Consumer(properties)
    consumer.commit(offsets=[TopicPartition("g", 0, 7)], asynchronous=False)
    (only,) = part(client, "__consumer_offsets").replica_nodes
    others = [node for node in cluster.nodes if node != only]
    moved(client, "__consumer_offsets", only, *others)
    cluster.kill(only)
    try:
        assert consumer.committed([TopicPartition("g", 0)], timeout=30)[0].offset == 7
        consumer.commit(offsets=[TopicPartition("g", 0, 8)], asynchronous=False)
    finally:
        consumer.close()
        cluster.start_node(only)


def throttled(cluster: EmbeddedCluster, rate: int | None) -> None:
    """What is moved of the topic `slow` moves at so many bytes a second, at leaders and followers."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    operation = AlterConfigOpType.SET if rate else AlterConfigOpType.DELETE
    sides = ("leader", "follower")

    def entries(what: str, value: str | None) -> list[ConfigEntry]:
        names = [f"{side}.replication.throttled.{what}" for side in sides]
        return [ConfigEntry(name, value, incremental_operation=operation) for name in names]

    resources = [
        *((ResourceType.BROKER, str(node), entries("rate", str(rate))) for node in cluster.nodes),
        (ResourceType.TOPIC, "slow", entries("replicas", "*")),
    ]
    for kind, name, changes in resources:
        asked = ConfigResource(kind, name, incremental_configs=changes)
        admin.incremental_alter_configs([asked])[asked].result(20)


def test_a_throttled_move_takes_its_time(cluster: EmbeddedCluster, client: Client) -> None:
    create(client, "slow", [1])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(20):
        producer.produce("slow", bytes(50_000))
    assert producer.flush(30) == 0
    throttled(cluster, 500_000)
    began = time.monotonic()
    moved(client, "slow", 2)
    assert time.monotonic() - began > 1_000_000 / 500_000 / 2, "ten fetches, each after what it took before"
    throttled(cluster, None)
    moved(client, "slow", 3, 1)


def test_consumers_read_at_the_replica_in_their_rack(cluster: EmbeddedCluster, client: Client) -> None:
    """And at the leader when that is gone."""
    create(client, "near", [1, 3])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    brokers: list[int] = []

    def told(text: str) -> None:
        partitions = json.loads(text)["topics"].get("near", {"partitions": {}})["partitions"]
        brokers.extend(each["broker"] for name, each in partitions.items() if name == "0")

    properties: dict[str, Any] = {"client.rack": "c", "statistics.interval.ms": 50, "stats_cb": told}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "near", **properties})
    consumer.assign([TopicPartition("near", 0, 0)])
    sent, got = 0, 0

    def one_more() -> int:
        nonlocal sent, got
        producer.produce("near", str(sent))
        sent += 1
        assert producer.flush(30) == 0
        while got < sent:
            (message,) = consumer.consume(1, timeout=30) or [None]
            assert message is not None
            assert message.error() is None, message.error()
            assert message.value() == str(got).encode()
            got += 1
        return brokers[-1] if brokers else -1

    try:
        soon(lambda: one_more() == 3)
        cluster.kill(3)
        soon(lambda: one_more() == 1)
    finally:
        consumer.close()
        cluster.start_node(3)
