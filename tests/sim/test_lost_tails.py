"""Stories of killed nodes whose disks have lost their newest batches: more than any checkpoint shows.

A node that starts again after a kill can't notice that. The checkers look at every step, and in the end for every
acknowledged record.
"""

import random

import pytest

from ottla.broker.cluster.membership import Membership
from ottla.metadata.nodes import NodeState
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.spoiling import Spoiler
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.run import DIRECTORY

from .test_cluster_scenarios_elected import acknowledged, led, more_is_acknowledged

NEVER_MS = "3600000"
LOG = f"{DIRECTORY}/{TOPIC}-0/00000000000000000000.log"


def running(seed: int = 7, *, nodes: int = 3) -> ElectedCluster:
    """Nodes at work that checkpoint no high watermarks."""
    cluster = ElectedCluster(seed, nodes=nodes, settings={"replica.high.watermark.checkpoint.interval.ms": NEVER_MS})
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.read()
    for client in cluster.clients:
        client.pace_us = 10 * MS
    cluster.until(lambda: acknowledged(cluster) > 50 and cluster.is_whole())
    return cluster


def lose_tail(cluster: ElectedCluster, node_id: int) -> None:
    """The newest half of this dead node's batches is gone."""
    Spoiler(cluster.hosts[node_id].disk, DIRECTORY, random.Random(1)).cut_batches(LOG, 0.5)
    forgive(cluster, node_id)


def forgive(cluster: ElectedCluster, node_id: int) -> None:
    for checker in cluster.checkers:
        checker.lost_power(node_id, in_sync_too=True)


def replicas(cluster: ElectedCluster) -> tuple[int, ...]:
    return cluster.image.topics[TOPIC].partitions[0].replicas


def all_are_killed(cluster: ElectedCluster) -> None:
    """All die at once. The first replica of the assignment has lost its tail, and starts with one of the others."""
    first, second, third = replicas(cluster)
    for node_id in cluster.hosts:
        cluster.kill(node_id)
    lose_tail(cluster, first)
    cluster.begin(first)
    cluster.run(1_000)
    assert cluster.leader() is None, "its log may have lost its end"
    cluster.begin(second)
    cluster.until(lambda: cluster.leader() is not None)
    assert cluster.leader() == second
    cluster.until(more_is_acknowledged(cluster, 20))
    cluster.begin(third)
    cluster.settle()


def test_of_killed_replicas_the_one_with_the_longest_log_leads() -> None:
    all_are_killed(running())


def test_the_checkers_notice_a_replica_that_leads_before_logs_were_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "_has_ended_cleanly", lambda *_, **__: True)
    cluster = running()
    first, second, _ = replicas(cluster)
    for node_id in cluster.hosts:
        cluster.kill(node_id)
    lose_tail(cluster, first)
    cluster.begin(first)
    cluster.begin(second)
    with pytest.raises(InvariantError, match=r"leads replicated-0 in epoch .* without"):
        cluster.run(3_000)


def test_a_volume_that_goes_back_to_a_snapshot_does_not_lead() -> None:
    """The snapshot was made while the node ran: every file has the identity that it had."""
    cluster = running()
    first, second, third = replicas(cluster)
    spoiler = Spoiler(cluster.hosts[first].disk, DIRECTORY, random.Random(1))
    spoiler.back_up()
    cluster.until(more_is_acknowledged(cluster, 50))
    for node_id in cluster.hosts:
        cluster.kill(node_id)
    spoiler.restore_volume()
    forgive(cluster, first)
    cluster.begin(first)
    cluster.until(lambda: cluster.leader() is None)
    cluster.begin(second)
    cluster.until(lambda: cluster.leader() is not None)
    assert cluster.leader() == second
    cluster.begin(third)
    cluster.settle()


def test_a_killed_replica_leads_nothing_before_it_has_caught_up() -> None:
    """The leader dies while the other one of two in-sync replicas, which was killed, copies its lost tail."""
    cluster = running()
    leader = led(cluster)
    killed, away = (each for each in replicas(cluster) if each != leader)
    cluster.kill(away)
    cluster.until(lambda: away not in cluster.isr())
    cluster.until(more_is_acknowledged(cluster, 30))
    cluster.kill(killed)
    lose_tail(cluster, killed)
    network, hosts = cluster.world.network, cluster.hosts
    network.cut_path(hosts[killed].name, hosts[leader].name)
    cluster.begin(killed)
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE, NodeState.FENCED} and cluster.isr() == (leader,))
    cluster.kill(leader)
    cluster.run(3_000)
    assert cluster.leader() is None, "the dead leader has all records"
    network.mend()
    cluster.begin(leader)
    cluster.until(lambda: cluster.leader() is not None)
    assert cluster.leader() == leader
    cluster.until(more_is_acknowledged(cluster, 20), 30_000)
    cluster.settle()


def test_a_replica_that_was_killed_last_waits_for_one_that_was_killed_before() -> None:
    """The one that was killed before has the records that the last one has lost."""
    cluster = running()
    leader = led(cluster)
    killed, away = (each for each in replicas(cluster) if each != leader)
    cluster.kill(away)
    cluster.until(lambda: away not in cluster.isr())
    cluster.until(more_is_acknowledged(cluster, 30))
    cluster.kill(killed)
    cluster.until(lambda: cluster.isr() == (leader,))
    cluster.kill(leader)
    lose_tail(cluster, leader)
    for node_id in (leader, away):
        cluster.begin(node_id)
    cluster.run(3_000)
    assert cluster.leader() is None
    cluster.begin(killed)
    cluster.until(lambda: cluster.leader() is not None)
    assert cluster.leader() == killed
    cluster.settle()


@pytest.mark.parametrize("lies", [False, True])
def test_a_replica_that_stopped_cleanly_waits_for_no_other(lies: bool) -> None:
    """Its log is as the stop left it. If the record of the stop is lost, it counts as killed."""
    cluster = running()
    first, second, third = replicas(cluster)
    for node_id in (third, second, first):
        cluster.leave(node_id)
        cluster.until(lambda host=cluster.hosts[node_id]: not host.up)
    if lies:
        cluster.hosts[first].disk.put(f"{DIRECTORY}/.logs-at-clean-stop", None)
    assert cluster.image.topics[TOPIC].partitions[0].elr == (second,)
    for node_id in (first, third):
        cluster.begin(node_id)
    cluster.run(3_000)
    assert cluster.leader() == (None if lies else first)
    cluster.begin(second)
    cluster.settle()
