"""Stories of disks that are not damaged: they are full or read-only for a while, or another node's."""

import errno

import pytest

from ottla.broker.upkeep.identity import META_PROPERTIES
from ottla.sim.workloads.run import DIRECTORY

from .test_cluster_scenarios_elected import led, more_is_acknowledged, running


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
    """The other node was ahead of the one whose place the copy takes, then fell behind."""
    cluster = running(6)
    copy = cluster.hosts[1].disk.clone(cluster.rng)
    path = f"{DIRECTORY}/{META_PROPERTIES}"
    copy.put(path, copy.content(path).replace(b"node.id=1", b"node.id=2"))
    cluster.until(more_is_acknowledged(cluster, 50))
    for node_id in cluster.up:
        cluster.kill(node_id)
    cluster.hosts[2].disk = copy
    for checker in cluster.checkers:
        checker.lost_power(2, in_sync_too=True)
    for node_id in (2, 3):
        cluster.begin(node_id)
    cluster.run(3_000)
    assert cluster.leader() != 2, "it lacks acknowledged records"
    cluster.settle()
