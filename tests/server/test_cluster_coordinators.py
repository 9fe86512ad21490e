"""Real processes: coordinators on three nodes, and the node of one killed under the clients that work with it."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.testing import EmbeddedCluster
from tests.conform.test_share_groups import configure
from tests.server.test_cluster import soon
from tools.crash_transactions import PARTITIONS, SOURCE, TARGET, TOPIC, Loop, Source, Writer, check_ledger, check_moved

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


def test_transactions_are_seen_whole_and_once_whoever_is_killed(cluster: EmbeddedCluster) -> None:
    """Writers of whole transactions, loops of consume, transform, produce; the coordinator's node is killed, and then
    the node of a partition's leader."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (TOPIC, SOURCE, TARGET)]).values():
        made.result(20)
    source = Source(cluster.bootstrap_servers)
    writers = [Writer(cluster.bootstrap_servers, number, number) for number in range(2)]
    workers = [*writers, Loop(cluster.bootstrap_servers, 0)]
    for thread in (source, *workers):
        thread.start()

    def ended() -> int:
        return min(sum(outcome is not None for outcome in writer.outcome.values()) for writer in writers)

    def go_on() -> None:
        before = ended()
        soon(lambda: ended() > before + 20)

    try:
        go_on()
        for victim_of in (lambda: coordinator(cluster, TRANSACTION, "writer-0"), lambda: leader(admin, TOPIC)):
            victim = victim_of()
            cluster.kill(victim)
            go_on()
            cluster.start_node(victim)
        source.finish()
        for writer in writers:
            writer.done.set()
            writer.join(60)
        failures = [
            *check_ledger(cluster.bootstrap_servers, writers),
            *check_moved(cluster.bootstrap_servers, source.sent),
        ]
    finally:
        source.done.set()
        for worker in workers:
            worker.done.set()
        for worker in workers:
            worker.join(60)
    assert not failures
    assert not [worker.failure for worker in workers if worker.failure]


# ---- share groups --------------------------------------------------------------------------------------------------


class Sharer(threading.Thread):
    """A member that accepts every record it is given. `accepted`: the values that the broker has confirmed; `again`:
    those that came after that."""

    def __init__(self, bootstrap: str, group: str, topic: str, accepted: set[int], again: list[int]) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self.accepted = accepted
        self.again = again
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
                if error is None:
                    self.accepted.update(by_partition.get(place.partition, ()))


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
            soon(lambda: len(accepted) > sent - 100, 60)
            victim = leader(admin, topic)
            cluster.kill(victim)
            produce(150)
            soon(lambda: len(accepted) == sent, 60)
            cluster.start_node(victim)
    finally:
        for member in members:
            member.done.set()
        for member in members:
            member.join(60)
    assert [member.failure for member in members] == [None, None]
    assert not again
    assert accepted == set(range(sent))
