"""Real processes: coordinators on three nodes, and the node of one killed under the clients that work with it."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.testing import EmbeddedCluster
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
