"""Real processes: coordinators on three nodes, and the node of one killed under the clients that work with it."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.testing import EmbeddedCluster
from tests.conform.test_share_groups import configure
from tests.harness.waiting import soon
from tools.crash_transactions import PARTITIONS, SOURCE, TARGET, TOPIC, Loop, Writer, note_ledger, note_moved
from tools.history import History, check
from tools.recorded_clients import Sender

GROUP, TRANSACTION = 0, 1
SETTINGS = {
    "min.insync.replicas": 2,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=SETTINGS) as cluster:
        yield cluster


def coordinator(cluster: EmbeddedCluster, kind: int, key: str) -> int:
    """The node that coordinates this group or transactional id."""
    with Client(cluster.address_of(cluster.active()[0])) as client:
        (found,) = client.send(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])).coordinators
    return int(found.node_id)


def leader(admin: AdminClient, topic: str) -> int:
    return int(admin.list_topics(topic, timeout=20).topics[topic].partitions[0].leader)


@pytest.mark.slow("tests/server/test_cluster_coordinators.py::test_what_a_share_group_has_accepted_never_comes_again")
def test_transactions_are_seen_whole_and_once_whoever_is_killed(cluster: EmbeddedCluster) -> None:
    """Writers of whole transactions, loops of consume, transform, produce; the coordinator's node is killed, and then
    the node of a partition's leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (TOPIC, SOURCE, TARGET)]).values():
        made.result(20)
    history = History()
    source = Sender("source", cluster.bootstrap_servers, history, SOURCE, PARTITIONS, 0.005)
    writers = [Writer(cluster.bootstrap_servers, number, number) for number in range(2)]
    workers = [*writers, Loop(cluster.bootstrap_servers, 0)]
    for thread in (source, *workers):
        thread.start()

    def ended() -> int:
        return min(sum(outcome is not None for outcome in writer.outcome.values()) for writer in writers)

    def go_on() -> None:
        before = ended()
        soon(lambda: ended() > before + 8)

    try:
        go_on()
        for victim_of in (lambda: coordinator(cluster, TRANSACTION, "writer-0"), lambda: leader(admin, TOPIC)):
            victim = victim_of()
            cluster.kill(victim)
            go_on()
            cluster.start_node(victim)
        for each in (source, *writers):
            each.done.set()
            each.join(60)
        note_ledger(history, cluster.bootstrap_servers, writers)
        note_moved(history, cluster.bootstrap_servers)
    finally:
        for each in (source, *workers):
            each.done.set()
        for each in (source, *workers):
            each.join(60)
    assert not check(history)
    assert not [each.failure for each in (source, *workers) if each.failure]


# ---- share groups --------------------------------------------------------------------------------------------------


class Sharer(threading.Thread):
    """A member that accepts every record it is given. `accepted`: the values that the broker has confirmed; `again`:
    those that came after that; `unknown`: those of which nobody knows, as whoever was asked is gone: they may have been
    accepted, and then they do not come again."""

    def __init__(self, bootstrap: str, group: str, topic: str, accepted: set[int], again: list[int]) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.accepted = accepted
        self.again = again
        self.unknown: set[int] = set()
        self.failure: BaseException | None = None
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
            "log_level": 0,
        }
        self._topic = topic

    def run(self) -> None:
        consumer = ShareConsumer(self._settings)
        try:
            consumer.subscribe([self._topic])
            while not self.done.is_set():
                self._step(consumer)
        except BaseException as error:
            self.failure = error
        finally:
            consumer.close()

    def _step(self, consumer: ShareConsumer) -> None:
        messages = [each for each in consumer.poll(0.2) if not each.error()]
        by_partition: dict[int, list[int]] = {}
        for message in messages:
            value = int(message.value() or b"")
            if value in self.accepted:
                self.again.append(value)
            try:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            except KafkaException:  # the node that gave it is gone, and nobody holds it any more
                continue
            by_partition.setdefault(message.partition() or 0, []).append(value)
        if by_partition:
            for place, error in consumer.commit_sync(30).items():
                values = by_partition.pop(place.partition, [])
                (self.accepted if error is None else self.unknown).update(values)
            self.unknown.update(value for values in by_partition.values() for value in values)


def test_what_a_share_group_has_accepted_never_comes_again(cluster: EmbeddedCluster) -> None:
    """And what it has not does, whether the node that leads its records is killed or the one that keeps its state."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("jobs", 3, 3)])["jobs"].result(20)
    configure(cluster.bootstrap_servers, "workers", share_record_lock_duration_ms="15000")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1})
    sent = 0

    def produce(count: int) -> None:
        nonlocal sent
        for value in range(sent, sent + count):
            producer.produce("jobs", str(value).encode(), partition=value % 3)
        assert producer.flush(60) == 0
        sent += count

    accepted: set[int] = set()
    again: list[int] = []
    members = [Sharer(cluster.bootstrap_servers, "workers", "jobs", accepted, again) for _ in range(2)]
    for member in members:
        member.start()
    try:
        for topic in ("jobs", SHARE_GROUP_STATE_TOPIC):
            produce(150)
            soon(lambda: len(accepted) > sent - 100)
            victim = leader(admin, topic)
            cluster.kill(victim)
            produce(150)
            soon(lambda: set(range(sent)) <= accepted.union(*(member.unknown for member in members)))
            cluster.start_node(victim)
    finally:
        for member in members:
            member.done.set()
        for member in members:
            member.join(60)
    assert [member.failure for member in members] == [None, None]
    assert not again
    assert accepted <= set(range(sent))


# ---- consumer groups -----------------------------------------------------------------------------------------------


class Reading(threading.Thread):
    """A member of a consumer group, which commits each record before it takes the next. `acknowledged`: by partition,
    the greatest offset whose commit was answered; `times`: when each record came."""

    def __init__(self, bootstrap: str, protocol: str, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.failure: BaseException | None = None
        self.acknowledged: dict[int, int] = {}
        self.went_back: list[tuple[int, int, int]] = []
        self.times: list[float] = []
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
        self._topic = topic

    def run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe([self._topic])
            while not self.done.is_set():
                message = consumer.poll(0.1)
                if message is not None and not message.error():
                    self._take(consumer, message)
        except BaseException as error:
            self.failure = error
        finally:
            consumer.close()

    def _take(self, consumer: Consumer, message: Any) -> None:
        self.times.append(time.monotonic())
        partition, offset = message.partition(), message.offset() + 1
        known = self.acknowledged.get(partition, 0)
        if offset <= known:
            self.went_back.append((partition, offset, known))
        try:
            consumer.commit(message=message, asynchronous=False)
        except KafkaException:
            return  # it comes again, or it does not
        self.acknowledged[partition] = max(known, offset)


@pytest.mark.slow("tests/server/test_cluster_coordinators.py::test_what_a_share_group_has_accepted_never_comes_again")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_whose_coordinator_is_killed(cluster: EmbeddedCluster, protocol: str) -> None:
    """And what it has committed never goes back."""
    topic, group = f"read-{protocol}", f"readers-{protocol}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1})
    stop = threading.Event()

    def produce() -> None:
        sent = 0
        while not stop.is_set():
            producer.produce(topic, str(sent).encode(), partition=sent % 3)
            sent += 1
            producer.poll(0.005)

    writing = threading.Thread(target=produce, daemon=True)
    writing.start()
    member = Reading(cluster.bootstrap_servers, protocol, group, topic)
    member.start()
    try:
        soon(lambda: len(member.times) > 100)
        victim = coordinator(cluster, GROUP, group)
        cluster.kill(victim)
        killed = time.monotonic()
        before = len(member.times)
        soon(lambda: len(member.times) > before + 100)
        gap = max(b - a for a, b in pairwise(each for each in member.times if each > killed - 1))
        print(f"{protocol}: longest gap {gap:.2f} s")
        cluster.start_node(victim)
    finally:
        stop.set()
        member.done.set()
        writing.join()
        member.join(60)
    assert producer.flush(60) == 0
    assert member.failure is None
    assert not member.went_back
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, index) for index in range(3)])]
    kept = admin.list_consumer_group_offsets(asked)[group].result(30).topic_partitions
    assert {each.partition: each.offset for each in kept} == member.acknowledged
