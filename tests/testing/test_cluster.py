"""The cluster for users' tests: what its methods refuse, and nodes that are killed or cut off from each other."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

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


def test_a_node_that_is_no_member_is_refused_in_a_sentence(cluster: EmbeddedCluster) -> None:
    calls: list[Callable[[int], Any]] = [
        cluster.kill,
        cluster.start_node,
        cluster.stop_node,
        cluster.pause,
        cluster.resume,
        cluster.runs,
        cluster.address_of,
        cluster.active,
        lambda node: cluster.partition([node]),
        lambda node: cluster.partition([1], [node]),
        lambda node: EmbeddedCluster(racks={node: "a"}),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"The cluster has no node 7: it has nodes 1, 2 and 3\."):
            call(7)
    with pytest.raises(ValueError, match="at least one group"):
        cluster.partition()
    with pytest.raises(ValueError, match="Node 1 is in more than one group"):
        cluster.partition([1], [1, 2])
    for count in (0, -1):
        with pytest.raises(ValueError, match="at least 1 node"):
            EmbeddedCluster(nodes=count)
    with pytest.raises(ValueError, match="names no store for nodes 2 and 3"):
        EmbeddedCluster(metadata={1: "a"})


def test_a_cluster_that_is_not_started_says_so() -> None:
    cluster = EmbeddedCluster()
    with pytest.raises(RuntimeError, match="has no address yet"):
        cluster.address_of(1)
    with pytest.raises(RuntimeError, match="has not been started"):
        cluster.start_node(1)
    with pytest.raises(RuntimeError, match="No node can answer"):
        cluster.active()
    cluster.stop()


def test_a_node_that_runs_is_not_started_again(cluster: EmbeddedCluster) -> None:
    before = cluster._running[1].pid
    with pytest.raises(RuntimeError, match="Node 1 already runs"):
        cluster.start_node(1)
    with pytest.raises(RuntimeError, match="already started"):
        cluster.start()
    assert cluster._running[1].pid == before


def test_the_leader_is_found_and_killed_and_the_next_one_is_found(healed: EmbeddedCluster) -> None:
    healed.wait_in_sync("t", timeout_s=30)
    writes, leader = producer(healed), healed.leader_of("t")
    assert leader == seen(healed)[0]
    healed.kill(leader)
    for call in (healed.kill, healed.stop_node, healed.pause, healed.resume, healed.active):
        with pytest.raises(RuntimeError, match=rf"Node {leader} does not run\. `start_node\({leader}\)` starts it\."):
            call(leader)
    assert healed.leader_of("t") not in (leader, -1)
    writes.produce("t", b"after")
    assert writes.flush(30) == 0
    names = re.escape(f"t-0 has replicas 1, 2, 3, in sync {', '.join(str(n) for n in healed.nodes if n != leader)}")
    with pytest.raises(TimeoutError, match=names):
        healed.wait_in_sync("t", timeout_s=0)
    healed.start_node(leader)
    healed.wait_in_sync()


def test_coordinators_are_found(cluster: EmbeddedCluster) -> None:
    assert cluster.coordinator_of("readers") in cluster.nodes
    assert cluster.coordinator_of(transactional_id="mover") in cluster.nodes
    with pytest.raises(ValueError, match="a group or a transactional id"):
        cluster.coordinator_of()


def test_what_does_not_exist_is_waited_for_no_longer_than_asked(cluster: EmbeddedCluster) -> None:
    with pytest.raises(TimeoutError, match=r"no running node leads absent-0"):
        cluster.leader_of("absent", timeout_s=0)
    with pytest.raises(TimeoutError, match="there is no topic absent"):
        cluster.wait_in_sync("absent", timeout_s=0)


def test_a_start_that_fails_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)Node 1 did not start.*no\.such\.setting"):
        EmbeddedCluster(nodes=2, directory=tmp_path, settings={"no.such.setting": 1}).start()
    assert nodes_with(tmp_path) == []


def test_a_start_that_is_refused_or_interrupted_leaves_no_process(tmp_path: Path) -> None:
    with EmbeddedCluster(nodes=1, directory=tmp_path / "one") as one:
        with pytest.raises(RuntimeError, match="did not start"):
            EmbeddedCluster(nodes=1, directory=tmp_path / "one").start()  # its directory is in use
        assert len(nodes_with(tmp_path)) == 1
        assert one.active() == [1]

        class Interrupted(EmbeddedCluster):
            def wait_until_active(self, timeout_s: float = 0) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Interrupted(nodes=1, directory=tmp_path / "two").start()
        assert len(nodes_with(tmp_path)) == 1
    assert nodes_with(tmp_path) == []


def nodes_with(directory: Path) -> list[str]:
    """The processes of nodes below this directory, watchdogs left out."""
    found: list[str] = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if "serve" in words and any(word.startswith(str(directory)) for word in words):
            found.append(process.name)
    return found
