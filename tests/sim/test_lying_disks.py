"""Stories of clusters whose disks lie: one node's files, or the metadata store, are not what they were.

The checkers look at every step, and in the end for every acknowledged record.
"""

import random
from dataclasses import replace

import pytest

from ottla.broker.cluster.elections import awaits_logs
from ottla.broker.cluster.membership import Membership
from ottla.broker.node import Node
from ottla.broker.replication.fetching import Fetching
from ottla.broker.topics.opening import Logs
from ottla.broker.upkeep.identity import StartRefusedError
from ottla.broker.upkeep.scrubs import Scrubs
from ottla.log.answers import DamagedLogError
from ottla.log.gaps import Gaps
from ottla.metadata.image import MetadataDelta, delta_since
from ottla.metadata.nodes import NodeState
from ottla.metadata.row_kinds import Row
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, partition_of
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.protocol.records.batch import iter_batches
from ottla.replica.copy_status import ReplicaCopy
from ottla.sim.clients.replicated import LogReader
from ottla.sim.kernel.disk import Disk, SimFile
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.spoiling import Spoiler
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import OFFSETS_PARTITIONS, ElectedCluster
from ottla.sim.workloads.replica_checkers import ReplicaChecker
from ottla.sim.workloads.run import DIRECTORY
from ottla.sim.workloads.spoiled_run import SCRUB_MS, SCRUBBING

from .test_cluster_scenarios_elected import acknowledged, more_is_acknowledged, running

LOOKED_AT_AFTER_A_STOP = 10_000
"""More than the bytes at the end of a log that a start checks."""
LOG = f"{DIRECTORY}/{TOPIC}-0/00000000000000000000.log"


def flip_near_the_end(cluster: ElectedCluster, node_id: int) -> None:
    disk = cluster.hosts[node_id].disk
    content = bytearray(disk.content(LOG))
    content[-200] ^= 4
    disk.put(LOG, bytes(content))


def cut(cluster: ElectedCluster, node_id: int) -> None:
    disk = cluster.hosts[node_id].disk
    content = disk.content(LOG)
    disk.put(LOG, content[: len(content) // 2])


def lose_directory(cluster: ElectedCluster, node_id: int) -> None:
    disk = cluster.hosts[node_id].disk
    for path in disk.files():
        if path.startswith(f"{DIRECTORY}/{TOPIC}-0/"):
            disk.put(path, None)
    disk.drop_empty_directories()


HARM = {"flip": flip_near_the_end, "cut": cut, "lose": lose_directory}


def spoiled(harm: str) -> None:
    """Three nodes die at once, the files of node 1 are spoiled, and node 1 starts first."""
    cluster = running(7)
    spoiler = Spoiler(cluster.hosts[1].disk, DIRECTORY, random.Random(1))
    if harm.startswith("restore"):
        cluster.kill(1)
        spoiler.back_up()
        cluster.begin(1)
        cluster.until(lambda: cluster.states() == {NodeState.ACTIVE} and cluster.is_whole())
    elif harm.startswith("hot copy"):
        spoiler.back_up()
    cluster.until(more_is_acknowledged(cluster, 100))
    for node_id in cluster.hosts:
        cluster.kill(node_id)
    if harm.startswith(("restore", "hot copy")):
        spoiler.restore(whole=not harm.endswith("over"))
    else:
        cluster.hosts[1].disk.settle_everything()
        HARM[harm](cluster, 1)
    for checker in cluster.checkers:
        checker.lost_power(1, in_sync_too=True)
    cluster.begin(1)
    cluster.run(3_000)
    assert cluster.leader() != 1, "it may lack what was acknowledged"
    cluster.settle()


@pytest.mark.parametrize("harm", [*HARM, "restore", "restore over", "hot copy", "hot copy over"])
def test_a_node_whose_disk_lies_starts_first_and_leads_nothing(harm: str) -> None:
    spoiled(harm)


def test_a_node_without_others_starts_with_a_hot_copy() -> None:
    cluster = ElectedCluster(7, nodes=1, min_isr=1)
    cluster.start()
    cluster.produce(acks=1)
    cluster.until(more_is_acknowledged(cluster, 20))
    spoiler = Spoiler(cluster.hosts[1].disk, DIRECTORY, random.Random(1))
    spoiler.back_up()
    cluster.kill(1)
    spoiler.restore(whole=True)
    for checker in cluster.checkers:
        checker.lost_power(1, in_sync_too=True)
    cluster.begin(1)
    cluster.until(more_is_acknowledged(cluster, 20))
    assert any("was restored or copied" in line for line in cluster.world.trace.lines)
    cluster.settle()


def test_a_node_that_stops_before_its_loss_was_seen_reports_it_again() -> None:
    """Its row says at once that it leaves. The controller is gone, which no other node knows before the lease ends."""
    cluster = ElectedCluster(7, by_locks=False)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.until(more_is_acknowledged(cluster, 100))
    assert cluster.image.controller is not None
    spoilt = next(node_id for node_id in cluster.hosts if node_id != cluster.image.controller.node_id)
    for node_id in cluster.hosts:
        cluster.kill(node_id)
    cluster.hosts[spoilt].disk.settle_everything()
    lose_directory(cluster, spoilt)
    for checker in cluster.checkers:
        checker.lost_power(spoilt, in_sync_too=True)
    cluster.begin(spoilt)
    incarnation = cluster.following.incarnation_of(spoilt)
    row = f"{spoilt}"
    cluster.until(lambda: cluster.image.nodes[row].incarnation == incarnation)
    assert cluster.image.nodes[row].incomplete
    cluster.leave(spoilt)
    cluster.until(lambda: cluster.image.nodes[row].state is NodeState.LEAVING)
    cluster.run(1_000)  # its checkpoint of high watermarks is that of the empty log by now
    cluster.kill(spoilt)
    cluster.begin(spoilt)
    cluster.run(5_000)
    assert cluster.leader() != spoilt, "it has lost all records"
    cluster.settle()


@pytest.mark.parametrize("with_store", [False, True])
def test_a_removed_replica_leads_nothing_if_the_disk_of_the_leader_is_from_before_its_removal(with_store: bool) -> None:
    """Only the leader knew that the last records were committed: the follower died before its next fetch. It also holds
    if the metadata store is as old as the disk and names the removed replica as in sync, as the leader notices that its
    directory was copied while it ran."""
    cluster = running(8)
    cluster.until(cluster.is_whole)
    leader = cluster.leader()
    assert leader is not None
    removed, follower = sorted({1, 2, 3} - {leader})
    spoiler, backup = Spoiler(cluster.hosts[leader].disk, DIRECTORY, random.Random(1)), cluster.store.back_up()
    spoiler.back_up()
    cluster.kill(removed)
    cluster.until(lambda: removed not in cluster.isr())
    cluster.until(more_is_acknowledged(cluster, 50))
    for node_id in (leader, follower):
        cluster.kill(node_id)
    spoiler.restore(whole=True)
    if with_store:
        cluster.restore_store(backup)
    for checker in cluster.checkers:
        checker.lost_power(leader, in_sync_too=True)
    for node_id in (leader, removed):
        cluster.begin(node_id)
    cluster.run(3_000)
    assert cluster.leader() is None, "only the follower has all acknowledged records"
    cluster.begin(follower)
    cluster.settle()


def test_the_node_that_was_away_starts_first_on_an_older_metadata_store() -> None:
    """By the older store it is in sync; it has seen a newer one."""
    cluster = running(8)
    cluster.until(cluster.is_whole)
    store = cluster.store
    backup = store.back_up()
    cluster.kill(3)
    cluster.until(lambda: 3 not in cluster.isr())
    cluster.begin(3)
    cluster.until(cluster.is_whole)
    cluster.kill(1)
    cluster.until(lambda: 1 not in cluster.isr())
    cluster.until(more_is_acknowledged(cluster, 50))
    for node_id in (2, 3):
        cluster.kill(node_id)
    cluster.restore_store(backup)
    cluster.begin(1)
    cluster.run(3_000)
    assert cluster.leader() is None, "the others may have more"
    before = acknowledged(cluster)
    for node_id in (2, 3):
        cluster.begin(node_id)
    cluster.settle()
    assert acknowledged(cluster) > before


def test_a_node_that_saw_no_lost_commit_leads_nothing_alone_on_an_older_metadata_store() -> None:
    """Node 3 can't notice that the store was restored: it was down before the backup was made."""
    cluster = running(8)
    cluster.until(cluster.is_whole)
    backup = cluster.store.back_up()
    cluster.kill(3)
    cluster.until(lambda: 3 not in cluster.isr())
    cluster.until(more_is_acknowledged(cluster, 50))
    for node_id in (1, 2):
        cluster.kill(node_id)
    cluster.restore_store(backup)
    cluster.begin(3)
    cluster.run(3_000)
    assert cluster.leader() is None, "the others may have more"
    for node_id in (1, 2):
        cluster.begin(node_id)
    cluster.settle()


def test_a_leader_that_only_the_lost_commits_knew_shares_its_epoch_with_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was alone, so it has acknowledged nothing. The two nodes that start first have not seen that it led. Nodes of
    an earlier version do not say that they were killed: one of them leads."""
    monkeypatch.setattr(Membership, "_has_ended_cleanly", lambda *_, **__: True)
    cluster = running(8)
    cluster.until(cluster.is_whole)
    cluster.kill(3)
    cluster.until(lambda: 3 not in cluster.isr())
    cluster.kill(2)
    backup = cluster.store.back_up()
    cluster.until(lambda: cluster.leader() == 1 and cluster.isr() == (1,))
    cluster.produce(acks=1)
    cluster.run(1_000)
    cluster.kill(1)
    cluster.restore_store(backup)
    for node_id in (2, 3):
        cluster.begin(node_id)
    cluster.until(more_is_acknowledged(cluster, 20), 30_000)
    cluster.begin(1)
    cluster.settle()


def test_two_leaders_of_which_only_one_store_knows_have_different_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each led alone after both were down, the first one by commits that a restore has lost. They are of an earlier
    version, too."""
    monkeypatch.setattr(Membership, "_has_ended_cleanly", lambda *_, **__: True)
    cluster = ElectedCluster(7, nodes=2)
    cluster.start()
    producer = cluster.produce(acks=1)

    def led_alone(node_id: int) -> None:
        for each in cluster.hosts:
            cluster.kill(each)
        cluster.begin(node_id)
        cluster.until(lambda: cluster.leader() == node_id)
        before = producer.acknowledged_count
        cluster.until(lambda: producer.acknowledged_count > before + 10)
        cluster.kill(node_id)

    cluster.until(lambda: producer.acknowledged_count > 20 and cluster.is_whole())
    backup = cluster.store.back_up()
    led_alone(2)
    cluster.restore_store(backup)
    led_alone(1)
    cluster.settle()


def replaced_by_a_copy() -> tuple[ElectedCluster, Host]:
    """The leader stands still until another node leads; a copy of its directory then starts in its place."""
    cluster = ElectedCluster(7, by_locks=False)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.produce(acks=1)
    cluster.until(more_is_acknowledged(cluster, 100))
    replaced = cluster.leader()
    assert replaced is not None
    old = cluster.hosts[replaced]
    assert old.life is not None
    old.life.pause()
    cluster.until(lambda: cluster.leader() not in (None, replaced))
    cluster.until(more_is_acknowledged(cluster, 50))
    cluster.begin_elsewhere(replaced, old.disk.clone(old.stream("copy")))
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE} and cluster.is_whole())
    return cluster, old


def test_a_node_whose_copy_has_taken_its_place_leads_no_more() -> None:
    cluster, old = replaced_by_a_copy()
    assert old.life is not None
    node = old.life.node
    assert isinstance(node, Node)
    ends = {partition.name: partition.log.log_end_offset for partition in node.replicas}
    old.life.resume()
    cluster.until(more_is_acknowledged(cluster, 100))
    cluster.run(3_000)
    assert node.leadership.suspended
    led = {partition.name: partition.log.log_end_offset for partition in node.replicas if partition.leads}
    assert led.items() <= ends.items()
    cluster.settle()


def hears_late_that_it_was_given_up() -> None:
    """The replaced process learns that the cluster had given it up, and finds the row of its successor."""
    cluster, old = replaced_by_a_copy()
    assert old.life is not None
    node = old.life.node
    assert isinstance(node, Node)
    generation, replaced = node.image.generation + 1, str(node.node_id)
    fenced = Row(replace(node.image.nodes[replaced], state=NodeState.FENCED), generation)
    old.life.resume()
    old.life.enter(node.changed, MetadataDelta(generation, {f"nodes/{replaced}": fenced}))
    cluster.run(3_000)
    cluster.settle()


def test_a_node_whose_copy_has_taken_its_place_does_not_register_again() -> None:
    hears_late_that_it_was_given_up()


@pytest.mark.slow("tests/sim/test_lying_disks.py::test_the_checkers_notice_damage_that_no_scrub_reports")
def test_the_checkers_notice_a_node_that_registers_over_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "_is_replaced", lambda *_: False)
    monkeypatch.setattr(Membership, "_is_overtaken", lambda *_: False)
    with pytest.raises(InvariantError):
        hears_late_that_it_was_given_up()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_torn_end_and_a_lost_directory_leave_a_leader(restarts: bool) -> None:
    """The only two replicas in sync are killed at once: one in the middle of an append, and the other loses its log."""
    cluster = running(7)
    cluster.until(more_is_acknowledged(cluster, 50))
    cluster.kill(3)
    cluster.until(lambda: 3 not in cluster.isr())
    cluster.until(more_is_acknowledged(cluster, 50))
    for node_id in (1, 2):
        cluster.kill(node_id)
        cluster.hosts[node_id].disk.settle_everything()
    torn = cluster.hosts[1].disk
    torn.put(LOG, torn.content(LOG) + bytes(range(1, 20)))
    lose_directory(cluster, 2)
    for checker in cluster.checkers:
        checker.lost_power(2, in_sync_too=True)
        checker.lost_power(1, in_sync_too=True)
    cluster.begin(1)
    if restarts:  # it is down when the partition begins to wait, and its row still reports the torn end
        cluster.until(lambda: (cluster.image.topics[TOPIC].id, 0) in cluster.image.nodes["1"].incomplete)
        cluster.kill(1)
    cluster.begin(2)
    cluster.until(lambda: awaits_logs(cluster.image.topics[TOPIC].partitions[0]))
    assert cluster.leader() is None, "node 3 may have more"
    if restarts:
        cluster.begin(1)
    cluster.begin(3)
    cluster.settle()


def test_a_partition_that_can_not_be_opened_is_put_aside_and_copied_again() -> None:
    cluster = running(10)
    cluster.until(more_is_acknowledged(cluster, 50))
    cluster.kill(1)
    disk = cluster.hosts[1].disk
    disk.settle_everything()
    records = disk.content(LOG)
    disk.put(f"{DIRECTORY}/{TOPIC}-0/partition.metadata", b"not what it was")
    for checker in cluster.checkers:
        checker.liars.add(1)
        checker.lost_power(1, in_sync_too=True)
    cluster.begin(1)
    cluster.until(lambda: any(path.startswith(f"{DIRECTORY}/{TOPIC}-0.") for path in disk.files()), 30_000)
    cluster.until(cluster.is_whole, 30_000)
    (put_aside,) = [path for path in disk.files() if "-stray/" in path and path.endswith(".log")]
    assert disk.content(put_aside) == records
    cluster.until(more_is_acknowledged(cluster, 20))
    cluster.settle()


def test_a_flipped_bit_in_a_directorys_node_id_is_mended_and_another_nodes_directory_is_refused() -> None:
    """Nodes 1 and 3 differ in one bit as well."""
    cluster = running(10)
    path = f"{DIRECTORY}/meta.properties"
    for node_id in (1, 3):
        cluster.kill(node_id)
        cluster.hosts[node_id].disk.settle_everything()
    disk = cluster.hosts[3].disk
    whole = disk.content(path)
    disk.put(path, whole.replace(b"node.id=3", b"node.id=1"))
    cluster.begin(3)
    assert b"node.id=3" in disk.content(path)
    cluster.kill(3)
    cluster.hosts[1].disk = disk
    with pytest.raises(StartRefusedError, match="belongs to node 3, not to node 1"):
        cluster.begin(1)


def test_a_coordinator_with_a_damaged_log_gives_way_and_copies_it_again() -> None:
    """Its node is the preferred leader, and in sync again before anybody reads the damage."""
    cluster = running(9)
    index = partition_of("group", OFFSETS_PARTITIONS)
    first = cluster.image.topics[CONSUMER_OFFSETS_TOPIC].partitions[index].replicas[0]
    disk, log = cluster.hosts[first].disk, f"{DIRECTORY}/{CONSUMER_OFFSETS_TOPIC}-{index}/00000000000000000000.log"
    cluster.until(lambda: disk.files().get(log, 0) > LOOKED_AT_AFTER_A_STOP, 60_000)
    cluster.leave(first)
    cluster.until(lambda: not cluster.hosts[first].up)
    disk.settle_everything()
    content = bytearray(disk.content(log))
    content[100] ^= 1
    disk.put(log, bytes(content))
    for checker in cluster.checkers:
        checker.liars.add(first)
        checker.lost_power(first, in_sync_too=True)
    cluster.begin(first)
    cluster.until(cluster.is_whole)

    def led(node_id: int) -> bool:
        cluster.ask(1, ElectLeadersRequest(0, None))
        placed = cluster.image.partition(CONSUMER_OFFSETS_TOPIC, index)
        return placed is not None and (placed.leader == node_id) and node_id in placed.isr

    cluster.until(lambda: led(first))
    cluster.run(500)
    placed = cluster.image.partition(CONSUMER_OFFSETS_TOPIC, index)
    assert placed is not None
    assert placed.leader not in (-1, first), "the damage was met by its coordinator"
    cluster.settle()


def test_a_replaced_process_that_had_not_registered_yet_leaves_the_place_to_its_successor() -> None:
    cluster = ElectedCluster(7, by_locks=False)
    cluster.start()
    assert cluster.image.controller is not None
    replaced = next(node_id for node_id in cluster.hosts if node_id != cluster.image.controller.node_id)
    old = cluster.hosts[replaced]
    cluster.kill(replaced)
    cluster.begin(replaced)
    assert old.life is not None
    assert old.store is not None
    old.store.is_cut = True
    cluster.run(100)
    old.life.pause()
    cluster.run(3_000)
    cluster.begin_elsewhere(replaced, old.disk.clone(old.stream("copy")))
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE})
    incarnation = cluster.image.nodes[f"{replaced}"].incarnation
    old.store.heal()
    old.life.resume()
    cluster.run(3_000)
    assert cluster.image.nodes[f"{replaced}"].incarnation == incarnation
    cluster.settle()


def test_no_leader_takes_a_replaced_process_for_its_successor() -> None:
    """The process knows the row of its successor, and has more than the successor, which stands still in sync."""
    cluster = ElectedCluster(7, by_locks=False)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.until(more_is_acknowledged(cluster, 20))
    assert cluster.image.controller is not None
    busy = {cluster.leader(), cluster.image.controller.node_id}
    replaced = next(node_id for node_id in cluster.hosts if node_id not in busy)
    old = cluster.hosts[replaced]
    assert old.life is not None
    old.life.pause()
    cluster.until(lambda: replaced not in cluster.isr())
    cluster.begin_elsewhere(replaced, old.disk.clone(old.stream("copy")))
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE} and cluster.is_whole())
    new = cluster.hosts[replaced].life
    assert new is not None
    new.pause()
    old.life.resume()
    assert isinstance(old.life.node, Node)
    old.life.enter(old.life.node.changed, delta_since(cluster.store, old.life.node.image))
    cluster.run(1_000)
    assert replaced in cluster.isr()
    new.resume()
    cluster.settle()


def cut_beneath(cluster: ElectedCluster, node_id: int) -> None:
    disk = cluster.hosts[node_id].disk
    content = disk.content(LOG)
    disk.overwrite(LOG, content[: len(content) // 2])


def flip_beneath(cluster: ElectedCluster, node_id: int) -> None:
    disk = cluster.hosts[node_id].disk
    content = bytearray(disk.content(LOG))
    content[200] ^= 4
    disk.overwrite(LOG, bytes(content))


def remove(cluster: ElectedCluster, node_id: int) -> None:
    cluster.hosts[node_id].disk.put(LOG, None)


def replace_by_older(cluster: ElectedCluster, node_id: int) -> None:
    disk = cluster.hosts[node_id].disk
    content = disk.content(LOG)
    disk.put(LOG, content[: len(content) // 2])


BENEATH = {
    "flip": flip_beneath,
    "cut": cut_beneath,
    "lose": lose_directory,
    "remove": remove,
    "replace": replace_by_older,
}


def assert_files_are_whole(cluster: ElectedCluster, node_id: int) -> None:
    """Every segment of every log is in its file."""
    disk = cluster.hosts[node_id].disk
    for partition in cluster.node(node_id).replicas:
        for segment in partition.log.segments:
            assert len(disk.content(f"{segment.path}.log")) == segment.size, segment.path


def copy_earlier_over(cluster: ElectedCluster, node_id: int) -> None:
    """Put an earlier copy of the newest segment over it; the next batch comes behind a gap."""
    disk = cluster.hosts[node_id].disk
    content = disk.content(LOG)
    places = [position for _, position in iter_batches(content)]
    disk.overwrite(LOG, content[: places[len(places) // 2]])


def spoiled_beneath(harm: str, *, leads: bool) -> None:
    """The files of a node are spoiled while it runs; each log is scrubbed once after that."""
    cluster = ElectedCluster(7, settings=SCRUBBING)
    cluster.start()
    cluster.produce(idempotent=True)
    cluster.read()
    cluster.until(more_is_acknowledged(cluster, 50))
    leader = cluster.leader()
    assert leader is not None
    spoilt = leader if leads else min({1, 2, 3} - {leader})
    cluster.hosts[spoilt].disk.settle_everything()
    for checker in cluster.checkers:
        checker.liars.add(spoilt)
        checker.lost_power(spoilt, in_sync_too=True)
    BENEATH[harm](cluster, spoilt)
    cluster.until(more_is_acknowledged(cluster, 50))
    cluster.run(2 * SCRUB_MS)
    cluster.settle()
    assert_files_are_whole(cluster, spoilt)
    cluster.kill(spoilt)
    cluster.begin(spoilt)
    cluster.settle()


NOTICED_TOO = pytest.mark.slow("tests/sim/test_lying_disks.py::test_the_checkers_notice_damage_that_no_scrub_reports")
SPOILED_TOO = pytest.mark.slow(
    "tests/sim/test_lying_disks.py::test_files_that_are_spoiled_beneath_a_node_are_copied_again"
)


@pytest.mark.parametrize(
    ("harm", "leads"),
    [
        ("flip", False),
        ("lose", True),
        pytest.param("flip", True, marks=SPOILED_TOO),
        pytest.param("cut", False, marks=SPOILED_TOO),
        pytest.param("cut", True, marks=SPOILED_TOO),
        pytest.param("lose", False, marks=SPOILED_TOO),
        pytest.param("remove", True, marks=SPOILED_TOO),
        pytest.param("replace", False, marks=SPOILED_TOO),
    ],
)
def test_files_that_are_spoiled_beneath_a_node_are_copied_again(harm: str, leads: bool) -> None:
    spoiled_beneath(harm, leads=leads)


@pytest.mark.parametrize("harm", ["flip", pytest.param("cut", marks=NOTICED_TOO)])
def test_the_checkers_notice_damage_that_no_scrub_reports(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scrubs, "start", lambda *_: None)
    with pytest.raises((InvariantError, DamagedLogError)):
        spoiled_beneath(harm, leads=False)


def test_only_a_comparison_with_the_directory_notices_files_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "is_in_place", lambda _: True)
    with pytest.raises((AssertionError, FileNotFoundError)):
        spoiled_beneath("replace", leads=False)


def replaced_beneath_and_killed() -> None:
    """An earlier copy of the newest segment is put over it; the node appends behind it and is killed. When it is in
    sync again, all others die."""
    cluster = running(7)
    leader = cluster.leader()
    assert leader is not None
    spoilt = min({1, 2, 3} - {leader})
    cluster.hosts[spoilt].disk.settle_everything()
    for checker in cluster.checkers:
        checker.liars.add(spoilt)
        checker.lost_power(spoilt, in_sync_too=True)
    copy_earlier_over(cluster, spoilt)
    cluster.until(more_is_acknowledged(cluster, 20))
    cluster.kill(spoilt)
    cluster.begin(spoilt)
    cluster.until(lambda: cluster.states() == {NodeState.ACTIVE} and cluster.is_whole())
    for node_id in {1, 2, 3} - {spoilt}:
        cluster.kill(node_id)
    cluster.run(3_000)
    for node_id in {1, 2, 3} - {spoilt}:
        cluster.begin(node_id)
    cluster.settle()


def test_a_start_notices_an_earlier_copy_that_the_node_has_appended_to() -> None:
    replaced_beneath_and_killed()


def test_the_checkers_notice_a_gap_that_counts_as_one_of_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gaps, "is_damage", lambda *_: False)
    with pytest.raises(InvariantError):
        replaced_beneath_and_killed()


def compare_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node counts as stopped cleanly."""
    monkeypatch.setattr(Membership, "_has_ended_cleanly", lambda *_, **__: True)


def trust_every_log(monkeypatch: pytest.MonkeyPatch) -> None:
    compare_no_logs(monkeypatch)
    monkeypatch.setattr(Logs, "copy_of", lambda *_: ReplicaCopy())


@pytest.mark.parametrize("harm", HARM)
def test_the_checkers_notice_a_node_that_trusts_its_log(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trust_every_log(monkeypatch)
    monkeypatch.setattr(Fetching, "_may_refuse", lambda *_: False)
    with pytest.raises((InvariantError, AssertionError)):
        spoiled(harm)


def test_the_checkers_notice_a_hot_copy_that_counts_as_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    compare_no_logs(monkeypatch)
    monkeypatch.setattr(Disk, "identity", lambda *_: "same")
    monkeypatch.setattr(Fetching, "_may_refuse", lambda *_: False)
    with pytest.raises((InvariantError, AssertionError)):
        spoiled("hot copy")


def test_a_replica_that_refuses_to_be_cut_leads_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a node leads that lacks acknowledged records, and does not know it, the others keep them."""
    trust_every_log(monkeypatch)
    monkeypatch.setattr(ReplicaChecker, "_look_at_new_leader", lambda *_: None)
    monkeypatch.setattr(LogReader, "_ended", lambda *_: True)
    cluster = running(7)
    cluster.until(more_is_acknowledged(cluster, 100))
    for node_id in cluster.hosts:
        cluster.kill(node_id)
    cluster.hosts[1].disk.settle_everything()
    cut(cluster, 1)
    for checker in cluster.checkers:
        checker.lost_power(1, in_sync_too=True)
    for node_id in cluster.hosts:
        cluster.begin(node_id)
    cluster.settle()
