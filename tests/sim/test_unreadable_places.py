"""Stories of clusters in which the disk of one node can't read some place of a log, for a while or for good.

Consumers get on with it, and in the end every replica is in sync again. The checkers look at every step.
"""

import errno

import pytest

from ottla.broker.partitions.own_logs import OwnLogs
from ottla.broker.upkeep import failed_reads
from ottla.broker.upkeep.failed_reads import FailedReads
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, partition_of
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.elected_cluster import OFFSETS_PARTITIONS, ElectedCluster
from ottla.sim.workloads.run import DIRECTORY
from tests.harness.log.support import is_readable

from .test_cluster_scenarios_elected import led, more_is_acknowledged, replica, running
from .test_lying_disks import LOG

BAD = range(100, 300)
"""The positions that can't be read."""
RETRY_MS = 250
"""The time until the first attempt to read again; a cluster at work is simulated for seconds, not minutes."""
COPIED_MS = 10_000
"""More than the time after which a place that can't be read is copied again."""


@pytest.fixture(autouse=True)
def attempts_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_reads, "RETRY_MS", RETRY_MS)
    monkeypatch.setattr(failed_reads, "RETRY_MAX_MS", RETRY_MS * 120)


def lie(cluster: ElectedCluster, node_id: int) -> None:
    """The checkers forgive this node the records that it has to copy again."""
    for checker in cluster.checkers:
        checker.liars.add(node_id)
        checker.lost_power(node_id, in_sync_too=True)


def spoiled(*, leads: bool) -> tuple[ElectedCluster, int]:
    """A place in the log of the leader, or of a follower, can't be read, and producers rest. Returns the cluster and
    that node."""
    cluster = running(7)
    cluster.until(more_is_acknowledged(cluster, 100))
    for producer in cluster.producers:
        producer.pause()
    leader = led(cluster)
    spoilt = leader if leads else min({1, 2, 3} - {leader})
    lie(cluster, spoilt)
    cluster.hosts[spoilt].disk.make_unreadable(LOG, BAD)
    return cluster, spoilt


def settle(cluster: ElectedCluster) -> None:
    """Let the producers work again, and check every promise in the end."""
    for producer in cluster.producers:
        producer.resume()
    cluster.until(more_is_acknowledged(cluster, 20))
    cluster.settle()


def read_from_the_start(cluster: ElectedCluster) -> None:
    """A new consumer reads everything. Raises AssertionError if it does not get on within 10 seconds."""
    reader, end = cluster.read(), cluster.checker.acknowledged_end(0)
    cluster.until(lambda: reader.position >= end)


def leader_can_not_read() -> None:
    cluster, spoilt = spoiled(leads=True)
    read_from_the_start(cluster)
    cluster.until(lambda: spoilt not in cluster.isr())
    assert cluster.leader() not in (spoilt, None)
    cluster.until(cluster.is_whole, COPIED_MS)
    assert is_readable(cluster.hosts[spoilt].disk, LOG), "the segment was cut off, and copied from the new leader"
    settle(cluster)


def test_a_leader_that_can_not_read_a_place_gives_way_and_copies_it_again() -> None:
    leader_can_not_read()


def test_the_checkers_notice_a_leader_that_does_not_report_what_it_can_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OwnLogs, "_is_reported", lambda *_: False)
    with pytest.raises((AssertionError, InvariantError)):
        leader_can_not_read()


def test_the_checkers_notice_a_place_that_is_never_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailedReads, "_attempt", lambda *_: True)
    with pytest.raises((AssertionError, InvariantError)):
        leader_can_not_read()


def test_a_place_that_can_be_read_again_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, spoilt = spoiled(leads=True)
    copied: list[str] = []
    monkeypatch.setattr(FailedReads, "_lost", lambda *_: copied.append("copied"))
    read_from_the_start(cluster)
    cluster.until(lambda: spoilt not in cluster.isr())
    cluster.world.agenda.after(500 * MS, cluster.hosts[spoilt].disk.repair)
    cluster.until(cluster.is_whole, COPIED_MS)
    assert not copied
    assert not cluster.node(spoilt).failures.reads.has(replica(cluster, spoilt))
    settle(cluster)


def test_a_follower_that_can_not_read_a_place_leaves_the_in_sync_replicas_and_copies_it() -> None:
    cluster, spoilt = spoiled(leads=False)
    leader = cluster.leader()
    cluster.node(spoilt).upkeep.scrubs.check_next(replica(cluster, spoilt))
    cluster.until(lambda: spoilt not in cluster.isr())
    assert cluster.leader() == leader
    cluster.until(cluster.is_whole, COPIED_MS)
    assert is_readable(cluster.hosts[spoilt].disk, LOG)
    settle(cluster)


def test_without_others_in_sync_the_leader_stays_until_they_are_back() -> None:
    cluster = running(7)
    cluster.until(more_is_acknowledged(cluster, 100))
    leader = led(cluster)
    others = {1, 2, 3} - {leader}
    for node_id in others:
        cluster.kill(node_id)
    cluster.until(lambda: cluster.isr() == (leader,))
    lie(cluster, leader)
    cluster.hosts[leader].disk.make_unreadable(LOG, BAD)
    reader, end = cluster.read(), cluster.checker.acknowledged_end(0)
    cluster.run(5_000)
    assert reader.position < end
    assert cluster.leader() == leader
    assert not cluster.image.nodes[str(leader)].offline
    for node_id in others:
        cluster.begin(node_id)
    cluster.until(lambda: cluster.leader() not in (leader, None), COPIED_MS)
    cluster.until(lambda: reader.position >= end)
    cluster.until(cluster.is_whole, 2 * COPIED_MS)
    cluster.settle()


@pytest.mark.parametrize("leads", [True, False])
def test_two_replicas_of_which_neither_can_read_a_place_leave_a_leader(leads: bool) -> None:
    cluster = running(7)
    cluster.until(more_is_acknowledged(cluster, 100))
    leader = led(cluster)
    first, down = sorted({1, 2, 3} - {leader})
    cluster.kill(down)
    cluster.until(lambda: down not in cluster.isr())
    for node_id in (leader, first) if leads else (first, leader):
        lie(cluster, node_id)
        cluster.hosts[node_id].disk.make_unreadable(LOG, BAD)
        node, partition = cluster.node(node_id), replica(cluster, node_id)
        node.failures.read_failed(partition, OSError(errno.EIO, "Input/output error", LOG))
        cluster.run(0 if leads else 500)
    cluster.run(5_000)
    assert cluster.leader() is not None
    cluster.begin(down)
    cluster.until(cluster.is_whole, 2 * COPIED_MS)
    read_from_the_start(cluster)
    cluster.settle()


def test_a_disk_that_fails_again_and_again_does_not_leave_the_in_sync_replicas_each_time() -> None:
    cluster, spoilt = spoiled(leads=False)
    disk, node = cluster.hosts[spoilt].disk, cluster.node(spoilt)

    def fail() -> None:
        node.failures.read_failed(replica(cluster, spoilt), OSError(errno.EIO, "Input/output error", LOG))

    left, was_in_sync = 0, True
    for _ in range(60):  # each time it can be read again a moment later
        disk.make_unreadable(LOG, BAD)
        fail()
        cluster.run(RETRY_MS // 5)
        disk.repair()
        cluster.run(RETRY_MS)
        left += was_in_sync and spoilt not in cluster.isr()
        was_in_sync = spoilt in cluster.isr()
    assert 2 <= left <= 7, "the time until it counts again doubles"
    cluster.until(cluster.is_whole, RETRY_MS * 130)
    settle(cluster)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_can_not_be_read_is_built_again(suffix: str) -> None:
    cluster = ElectedCluster(7, settings={"log.index.interval.bytes": "0", "log.index.size.max.bytes": "400"})
    cluster.start()
    cluster.produce(idempotent=True)
    node_id = led(cluster)
    cluster.until(lambda: len(replica(cluster, node_id).log.segments) > 1)
    path, disk = LOG.removesuffix(".log") + suffix, cluster.hosts[node_id].disk
    cluster.run(100)
    disk.make_unreadable(path, range(disk.size(path)))
    partition = replica(cluster, node_id)
    segment = partition.log.segments[0]
    segment.offset_index.unload()
    with pytest.raises(OSError, match="Input/output error") as failed:
        segment.find_timestamp(segment.max_timestamp()[0], 5)
    cluster.node(node_id).failures.read_failed(partition, failed.value)
    cluster.until(lambda: is_readable(disk, path))
    cluster.until(lambda: not cluster.node(node_id).failures.reads.has(partition))
    cluster.settle()


def test_a_coordinator_that_can_not_read_its_log_gives_way() -> None:
    cluster = running(9)
    index = partition_of("group", OFFSETS_PARTITIONS)
    log = f"{DIRECTORY}/{CONSUMER_OFFSETS_TOPIC}-{index}/00000000000000000000.log"
    first, second, third = cluster.image.topics[CONSUMER_OFFSETS_TOPIC].partitions[index].replicas
    disk = cluster.hosts[second].disk
    cluster.until(lambda: disk.files().get(log, 0) > 1_000)
    lie(cluster, second)
    disk.make_unreadable(log, BAD)

    def leader() -> int | None:
        placed = cluster.image.partition(CONSUMER_OFFSETS_TOPIC, index)
        return None if placed is None else placed.leader

    cluster.kill(first)
    cluster.until(lambda: leader() == second)
    cluster.until(lambda: leader() == third)
    cluster.begin(first)
    cluster.settle()
