"""A cluster of three nodes, one topic of which each has a copy: what is acknowledged stays, whoever dies."""

import pytest

from ottla.sim.workloads.cluster import TOPIC
from tests.harness.sim.hand_cluster import HandCluster


def running(seed: int = 1, **given: object) -> HandCluster:
    """Three nodes, two producers with acks=all and a reader at work."""
    cluster = HandCluster(seed, **given)  # type: ignore[arg-type]
    cluster.start()
    cluster.produce()
    cluster.produce()
    cluster.read()
    cluster.until(lambda: sum(each.acknowledged_count for each in cluster.producers) > 20)
    return cluster


def acknowledged(cluster: HandCluster) -> int:
    return sum(each.acknowledged_count for each in cluster.producers)


def log(cluster: HandCluster, node_id: int):  # type: ignore[no-untyped-def]
    return cluster.node(node_id).replicas.by_name[TOPIC].partitions[0].log


@pytest.mark.parametrize("seed", range(5))
def test_three_copies(seed: int) -> None:
    cluster = running(seed)
    cluster.settle()
    assert acknowledged(cluster) > 20
    assert log(cluster, 1).log_end_offset == log(cluster, 3).log_end_offset


@pytest.mark.parametrize("seed", range(5))
def test_the_leader_dies_and_comes_back(seed: int) -> None:
    cluster = running(seed)
    before = acknowledged(cluster)
    cluster.kill(1)
    cluster.until(lambda: acknowledged(cluster) > before + 20)
    assert cluster.leader() != 1
    cluster.begin(1)
    cluster.until(lambda: sorted(cluster.isr()) == [1, 2, 3])
    cluster.settle()
