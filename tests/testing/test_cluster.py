"""The cluster for users' tests: nodes that are cut off from each other, and what clients see of it."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import EmbeddedCluster

LAG_MS = 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {"min.insync.replicas": 2, "replica.lag.time.max.ms": LAG_MS}
    with EmbeddedCluster(settings=settings) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(20)
        yield cluster


@pytest.fixture
def healed(cluster: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    yield cluster
    cluster.heal()
    soon(lambda: seen(cluster)[1] == [1, 2, 3])


def seen(cluster: EmbeddedCluster) -> tuple[int, list[int], int]:
    """Leader, in-sync replicas, controller."""
    told = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics("t", timeout=10)
    part = told.topics["t"].partitions[0]
    return part.leader, sorted(part.isrs), told.controller_id


def soon(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


def producer(cluster: EmbeddedCluster) -> Producer:
    made = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    made.produce("t", b"before")
    assert made.flush(30) == 0
    return made


@pytest.mark.parametrize("one_way", [False, True])
def test_a_leader_that_is_cut_off_acknowledges_nothing_until_it_heals(healed: EmbeddedCluster, one_way: bool) -> None:
    writes, leader = producer(healed), seen(healed)[0]
    healed.partition([leader], one_way=one_way)
    writes.produce("t", b"waits")
    assert writes.flush(0.3) == 1
    assert healed.active(leader) == [1, 2, 3], "a client reaches it, and it is not taken for dead"
    healed.heal()
    assert writes.flush(30) == 0


def test_a_follower_that_is_cut_off_leaves_the_in_sync_replicas_and_comes_back(healed: EmbeddedCluster) -> None:
    writes, (leader, _, controller) = producer(healed), seen(healed)
    follower = next(node for node in healed.nodes if node not in (leader, controller))
    healed.partition([leader], [follower])  # the third node reaches both
    writes.produce("t", b"waits for the others to go on without it")
    assert writes.flush(30) == 0
    soon(lambda: seen(healed)[1] == sorted({1, 2, 3} - {follower}))


def test_a_partition_does_not_keep_a_cluster_from_stopping() -> None:
    with EmbeddedCluster(nodes=2) as cluster:
        cluster.partition([1])
        cluster.pause(2)
