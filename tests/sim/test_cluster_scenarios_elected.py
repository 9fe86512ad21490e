"""Stories of nodes that elect their controller over a far store: what disks, leases and lost answers do to them.

The checkers look at every step and at every commit, so most of these tests only tell the story.
"""

from collections.abc import Callable

import pytest

from ottla.broker.partitions.partition import Partition
from ottla.sim.kernel.clock import MS
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import ElectedCluster

SEEDS = range(2)


def running(seed: int, *, fsync: bool = False, nodes: int = 3) -> ElectedCluster:
    """Nodes with a leader, producers with acks=all and a reader at work."""
    cluster = ElectedCluster(seed, fsync=fsync, nodes=nodes)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.produce()
    cluster.read()
    cluster.commit_offsets("group")
    for client in cluster.clients:
        client.pace_us = 10 * MS
    cluster.until(lambda: acknowledged(cluster) > 20)
    return cluster


def acknowledged(cluster: ElectedCluster) -> int:
    return sum(each.acknowledged_count for each in cluster.producers)


def led(cluster: ElectedCluster) -> int:
    leader = cluster.leader()
    assert leader is not None
    return leader


def replica(cluster: ElectedCluster, node_id: int) -> Partition:
    return cluster.node(node_id).replicas.by_name[TOPIC].partitions[0]


def more_is_acknowledged(cluster: ElectedCluster, count: int = 20) -> Callable[[], bool]:
    before = acknowledged(cluster)
    return lambda: acknowledged(cluster) > before + count


# ---- disks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_disk_is_full_is_followed_by_another(seed: int) -> None:
    """Kafka takes its log directory offline; here the node's row says which of its logs take nothing (KIP-858)."""
    cluster = running(seed)
    first = led(cluster)
    disk = cluster.hosts[first].disk
    disk.capacity = disk.used
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.until(more_is_acknowledged(cluster))
    assert first not in cluster.isr(), "it takes nothing, so nobody waits for it"
    disk.capacity = None
    cluster.until(lambda: first in cluster.isr())
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk_of_the_last_in_sync_replica_leaves_it_the_leader(seed: int) -> None:
    """What it holds can be read, and it goes on when there is room."""
    cluster = running(seed)
    first = led(cluster)
    for node_id in cluster.hosts:
        if node_id != first:
            cluster.kill(node_id)
    cluster.until(lambda: cluster.isr() == (first,))
    disk = cluster.hosts[first].disk
    disk.capacity = disk.used
    cluster.run(1_000)
    assert cluster.leader() == first
    disk.capacity = None
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_whose_fsync_fails_is_followed_by_another(seed: int) -> None:
    """Its log stays shut: followers may have what it would have to cut."""
    cluster = running(seed, fsync=True)
    first = led(cluster)
    cluster.hosts[first].disk.sync_failures = 1.0
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.until(more_is_acknowledged(cluster))
    cluster.hosts[first].disk.sync_failures = 0.0
    cluster.kill(first)
    cluster.settle()


@pytest.mark.parametrize("seed", SEEDS)
def test_with_fsync_nothing_acknowledged_is_lost_where_every_machine_goes_off(seed: int) -> None:
    """Each in-sync replica has it on its disk, whatever its disk has not taken yet."""
    cluster = running(seed, fsync=True)
    for node_id in (1, 2, 3):
        cluster.hosts[node_id].disk_latency_max_us = (node_id * 100) * MS
    cluster.until(more_is_acknowledged(cluster, 5))
    for node_id in cluster.up:
        cluster.kill(node_id, power_cut=True)
    cluster.settle()
