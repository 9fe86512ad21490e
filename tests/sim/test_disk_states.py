"""Stories of disks that are not damaged: they are full or read-only for a while, or another node's."""

import errno

import pytest

from ottla.broker.upkeep.identity import META_PROPERTIES
from ottla.sim.kernel.spoiling import Spoiler
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.run import DIRECTORY

from .test_cluster_scenarios_elected import led, more_is_acknowledged, replica, running


def read_only(operation: str, path: str) -> None:
    if operation in ("write", "truncate", "create", "rename", "unlink"):
        raise OSError(errno.EROFS, "Read-only file system", path)


def test_a_leader_whose_disk_becomes_read_only_is_followed_by_another() -> None:
    """Its process is killed then, and can't start before the disk is writable again."""
    cluster = running(3)
    first = led(cluster)
    disk = cluster.hosts[first].disk
    disk.trouble = read_only
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.until(more_is_acknowledged(cluster))
    cluster.kill(first)
    with pytest.raises(OSError, match="Read-only file system"):
        cluster.begin(first)
    cluster.kill(first)
    disk.trouble = None
    cluster.begin(first)
    cluster.settle()


def test_a_node_that_stops_on_a_read_only_disk_lacks_nothing_when_it_comes_back() -> None:
    cluster = running(4)
    follower = next(node_id for node_id in cluster.isr() if node_id != cluster.leader())
    disk = cluster.hosts[follower].disk
    disk.trouble = read_only
    cluster.until(lambda: follower not in cluster.isr(), 3_000)
    cluster.leave(follower)
    cluster.until(lambda: not cluster.hosts[follower].up)
    disk.trouble = None
    cluster.until(more_is_acknowledged(cluster))
    cluster.settle()


def test_a_node_does_not_start_on_a_full_disk_and_lacks_nothing_when_there_is_room() -> None:
    cluster = running(5)
    first = led(cluster)
    disk = cluster.hosts[first].disk
    disk.capacity = disk.used
    cluster.until(lambda: cluster.leader() not in (first, None), 3_000)
    cluster.kill(first)
    cluster.begin(first)
    assert not cluster.hosts[first].up
    cluster.until(more_is_acknowledged(cluster))
    disk.capacity = None
    cluster.settle()


def test_a_copy_of_another_nodes_directory_with_its_number_changed_counts_as_incomplete() -> None:
    """It takes the place of the preferred leader's, and is older than the last acknowledged records."""
    cluster = running(6)
    first, copied, last = cluster.image.topics[TOPIC].partitions[0].replicas
    disk = cluster.hosts[copied].disk.clone(cluster.rng)
    path = f"{DIRECTORY}/{META_PROPERTIES}"
    disk.put(path, disk.content(path).replace(f"node.id={copied}".encode(), f"node.id={first}".encode()))
    cluster.until(more_is_acknowledged(cluster, 50))
    for node_id in cluster.up:
        cluster.kill(node_id)
    cluster.hosts[first].disk = disk
    for checker in cluster.checkers:
        checker.lost_power(first, in_sync_too=True)
    for node_id in (first, last):
        cluster.begin(node_id)
    cluster.run(3_000)
    assert cluster.leader() != first, "it lacks acknowledged records"
    cluster.settle()


def test_a_cluster_is_restored_from_copies_of_its_nodes_that_were_made_one_after_the_other() -> None:
    """No copy is of the time of another one, so no two of them agree with the metadata store."""
    cluster = ElectedCluster(9)
    cluster.checkers.clear()
    cluster.start()
    producer = cluster.produce(acks=1)
    spoilers = {
        node_id: Spoiler(host.disk, DIRECTORY, cluster.world.stream("copies"))
        for node_id, host in cluster.hosts.items()
    }

    def more() -> None:
        before = producer.acknowledged_count
        cluster.until(lambda: producer.acknowledged_count > before + 10 and len(cluster.isr()) == 3)

    more()
    committed = replica(cluster, led(cluster)).log.high_watermark
    for node_id, spoiler in spoilers.items():
        cluster.leave(node_id)
        cluster.until(lambda: not cluster.hosts[node_id].up)  # noqa: B023
        spoiler.back_up()
        cluster.begin(node_id)
        more()
    copy = cluster.store.back_up()
    more()
    producer.winding_down = True
    cluster.run(500)
    for node_id, spoiler in spoilers.items():
        cluster.kill(node_id)
        spoiler.restore(whole=True)
    cluster.restore_store(copy)
    for node_id in cluster.hosts:
        cluster.begin(node_id)
    cluster.until(lambda: cluster.leader() is not None and len(cluster.isr()) == 3)
    assert committed > 0
    assert min(replica(cluster, node_id).log.log_end_offset for node_id in cluster.hosts) >= committed
