"""Three processes: replicas move under a producer with acks=all, become more and fewer, also of internal topics."""

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ottla.broker.config.broker_table import RACK_AWARE_SELECTOR
from ottla.cli.main import main
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
from tests.harness.waiting import soon


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


def throttled(cluster: EmbeddedCluster, rate: int | None, topic: str = "slow") -> None:
    """What is moved of the topic moves at so many bytes a second, at leaders and followers."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    operation = AlterConfigOpType.SET if rate else AlterConfigOpType.DELETE
    sides = ("leader", "follower")

    def entries(what: str, value: str | None) -> list[ConfigEntry]:
        names = [f"{side}.replication.throttled.{what}" for side in sides]
        return [ConfigEntry(name, value, incremental_operation=operation) for name in names]

    resources = [
        *((ResourceType.BROKER, str(node), entries("rate", str(rate))) for node in cluster.nodes),
        (ResourceType.TOPIC, topic, entries("replicas", "*")),
    ]
    for kind, name, changes in resources:
        asked = ConfigResource(kind, name, incremental_configs=changes)
        admin.incremental_alter_configs([asked])[asked].result(20)


def test_a_throttled_move_takes_its_time(cluster: EmbeddedCluster, client: Client) -> None:
    create(client, "slow", [1])
    in_pairs = {"bootstrap.servers": cluster.bootstrap_servers, "batch.num.messages": 2}  # a batch is fetched whole
    producer = Producer(in_pairs)
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


# ---- the command line ----------------------------------------------------------------------------------------------


Ottla = Callable[..., str]


@pytest.fixture
def ottla(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ottla:
    """Run a command in this process; what it printed."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", cluster.bootstrap_servers)

    def run(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(list(words))
        sys.stdout.flush()
        out, err = capsys.readouterr()
        assert ended == code, out + err
        return out if code == 0 else err

    return run


def test_a_topic_is_reassigned_from_the_command_line(
    cluster: EmbeddedCluster, client: Client, ottla: Ottla, tmp_path: Path
) -> None:
    create(client, "cli", [1], [1], [2])
    plan = tmp_path / "plan.json"
    shown = ottla("topics", "reassign", "cli", "--replication-factor", "3")
    assert [line.split()[2] for line in shown.splitlines()[1:]] == ["1", "1", "2"]
    plan.write_text(ottla("topics", "reassign", "cli", "-r", "3", "--format", "json"))
    assert part(client, "cli").replica_nodes == [1], "only shown"
    ottla("topics", "reassign", "--plan", str(plan), "--execute", "--throttle", "10000000")
    for node in cluster.nodes:
        with Client(cluster.address_of(node)) as asked:
            assert all(sorted(part(asked, "cli", index).replica_nodes) == [1, 2, 3] for index in range(3))
    assert len({part(client, "cli", index).leader_id for index in range(3)}) == 2, "the order is as it was"
    ottla("topics", "reassign", "cli", "--brokers", "2,3", "-r", "1", "--execute")
    soon(lambda: {part(client, "cli", index).replica_nodes[0] for index in range(3)} == {2, 3})
    assert "at least" not in ottla("topics", "reassign", "cli", "--list")
    throttled(cluster, 500_000, "cli")
    lifted = "throttles are taken away from node 1, node 2, node 3, cli."
    assert ottla("topics", "reassign", "cli", "--verify") == f"Nothing is being moved; {lifted}\n"
    assert ottla("topics", "reassign", "--verify") == "Nothing is being moved.\n"
    assert "no topic nosuch" in ottla("topics", "reassign", "nosuch", "-r", "2", code=1)
    assert "can't have 4 replicas on 3 nodes" in ottla("topics", "reassign", "cli", "-r", "4", code=1)
    ottla("topics", "reassign", "cli", code=2)
    ottla("topics", "reassign", "cli", "--brokers", "1,x", code=2)


def test_what_is_moved_is_listed_taken_back_and_lacks_a_replica(
    cluster: EmbeddedCluster, client: Client, ottla: Ottla
) -> None:
    create(client, "held", [1, 2])
    cluster.kill(3)
    try:
        soon(lambda: 3 not in cluster.active(1))
        (refused,) = move_all(client, "held", [1, 3])
        assert refused is None
        rows = ottla("topics", "reassign", "--list").splitlines()[1:]
        assert [row.split() for row in rows] == [["held", "0", "1,3,2", "3", "2"]]
        lacking = ottla("topics", "describe", "held", "--under-replicated").splitlines()[1:]
        assert [row.split()[:5] for row in lacking] == [["held", "0", "1", "1,3,2", "1,2"]]
        assert ottla("topics", "describe", "held", "--unavailable").splitlines()[1:] == []
        assert "Cancelled held-0" in ottla("topics", "reassign", "held", "--cancel")
        assert ottla("topics", "reassign", "--list").splitlines()[1:] == []
        soon(lambda: part(client, "held").replica_nodes == [1, 2])
    finally:
        cluster.start_node(3)


def test_leaders_are_elected_from_the_command_line(cluster: EmbeddedCluster, client: Client, ottla: Ottla) -> None:
    create(client, "led", [1, 2], [2, 1])
    (refused,) = move_all(client, "led", [2, 1])
    assert refused is None
    assert part(client, "led").leader_id == 1
    assert "Elected leaders of 1 partition." in ottla("topics", "elect-leaders", "led")
    soon(lambda: part(client, "led").leader_id == 2)
    assert "of no partition" in ottla("topics", "elect-leaders", "led")
    ottla("topics", "elect-leaders", "--unclean", code=2)


def test_what_an_unclean_election_loses_is_shown_before(
    cluster: EmbeddedCluster, client: Client, ottla: Ottla, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, "lossy", [3, 2])
    put(cluster, "lossy", 5)
    cluster.kill(3)
    soon(lambda: part(client, "lossy").isr_nodes == [2])
    put(cluster, "lossy", 4)
    cluster.kill(2)
    try:
        cluster.start_node(3)
        soon(lambda: 3 in cluster.active(1) and part(client, "lossy").leader_id == -1)
        words = ("topics", "elect-leaders", "lossy", "--unclean")
        sentence = (
            "partition lossy-0: node 3 would lead with offsets up to 5; node 2, which is down, was in sync and may "
            "have more records."
        )
        assert sentence in ottla(*words, "--dry-run")
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        refused = ottla(*words, code=1)
        assert sentence in refused
        assert "Elect leaders of 1 partition? This cannot be undone. [y/N]" in refused
        assert part(client, "lossy").leader_id == -1
        assert "Elected leaders of 1 partition." in ottla(*words, "--yes")
        soon(lambda: part(client, "lossy").leader_id == 3)
        assert "nothing would be lost" in ottla(*words, "--dry-run")
    finally:
        for node in (2, 3):
            if not cluster.runs(node):
                cluster.start_node(node)


def put(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    """So many records, acknowledged by all in-sync replicas."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(count):
        producer.produce(topic, str(number))
    assert producer.flush(60) == 0


def move_all(client: Client, name: str, target: list[int]) -> list[str | None]:
    """The first partition of the topic moves; why not."""
    asked = ReassignableTopic(name, [ReassignablePartition(0, target)])
    answer = client.send(AlterPartitionReassignmentsRequest(topics=[asked]))
    return [each.error_message for each in answer.responses[0].partitions]
