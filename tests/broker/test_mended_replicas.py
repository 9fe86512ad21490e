"""A replica that has found damage cuts it off, copies the rest again, and counts only once it has every record."""

from pathlib import Path

import pytest

from ottla.broker.partitions.partition import Partition
from ottla.broker.upkeep.scrubs import FIRST_AFTER_MS
from ottla.log.answers import Damage, Isolation
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.harness.log.support import batch
from tests.harness.node_pair import NodePair

FETCH, ALTER_PARTITION = 1, 56


class Copies:
    """Partition t-0 with six records on two nodes, both in sync. Node 1 is the controller. The follower gets one batch
    with each fetch."""

    def __init__(self, directory: Path, leader: int, **settings: str) -> None:
        given = {"ottla_scrub_bytes_per_second": "0", "replica_fetch_max_bytes": "1", **settings}
        self.pair = NodePair(directory, **given)
        self.leader, self.copier = leader, 3 - leader
        topic = CreatableTopic("t", -1, -1, assignments=[CreatableReplicaAssignment(0, [leader, 3 - leader])])
        self.pair.ask(1, CreateTopicsRequest([topic]))
        self.append(6)
        self.catch_up()
        assert self.end == 6
        assert self.in_sync == 2

    @property
    def copy(self) -> Partition:
        return self.pair.stages[self.copier].node.replicas.by_name["t"].partitions[0]

    @property
    def end(self) -> int:
        return self.copy.log.log_end_offset

    @property
    def placed(self) -> PartitionRecord:
        return self.pair.stages[1].node.image.topics["t"].partitions[0]

    @property
    def in_sync(self) -> int:
        return len(self.placed.isr)

    @property
    def reports_losses(self) -> bool:
        membership = self.pair.stages[self.copier].node.membership
        assert membership is not None
        assert membership.record is not None
        return bool(membership.record.incomplete)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.pair.stages[self.leader].append("t")

    def find_damage(self) -> None:
        stage = self.pair.stages[self.copier]
        stage.node.failures.found_damage(self.copy, Damage("0.log", 0, 2, 3, "a bit is flipped"))
        stage.run()

    def fall_behind(self) -> None:
        """The follower lacks a record, and leaves the in-sync set."""
        self.pair.held.add(FETCH)
        self.append(1)
        self.pair.run(60_000)
        assert self.in_sync == 1

    def carry_fetch(self) -> None:
        """Carry over the fetch that was sent, and its answer if it is due, and hold back the fetch after it."""
        self.pair.held.discard(FETCH)
        self.pair._carry()
        self.pair.held.add(FETCH)
        self.pair.run(600)

    def catch_up(self) -> None:
        self.pair.held.clear()
        for _ in range(30):
            self.pair.run(100)


def test_a_mended_replica_does_not_join_by_the_end_that_it_had_before(tmp_path: Path) -> None:
    copies = Copies(tmp_path, leader=1)
    copies.pair.held.add(FETCH)
    copies.pair.run(1_000)
    assert copies.pair.stages[2].asks, "a fetch from offset 6 is on its way"
    copies.find_damage()
    copies.pair.settle()
    assert (copies.end, copies.in_sync, copies.reports_losses) == (2, 1, True)
    copies.carry_fetch()
    assert copies.in_sync == 1, "the log ends at offset 2"
    copies.catch_up()
    assert (copies.end, copies.in_sync, copies.reports_losses) == (6, 2, False)


def test_a_replica_with_an_epoch_that_no_leader_had_copies_these_records_again(tmp_path: Path) -> None:
    """A bit of the epoch in its only batch since the other ones is flipped, so no neighbour contradicts it."""
    copies = Copies(tmp_path, leader=1)
    copies.fall_behind()
    now = copies.pair.stages[copies.copier].now
    copies.copy.log.append_as_leader(batch(b"x"), now=now, leader_epoch=1 << 17)
    copies.pair.stages[copies.copier].restart()
    copies.catch_up()
    assert copies.end == 7
    assert copies.copy.log.latest_epoch == copies.copy.leader_epoch
    assert copies.in_sync == 2


def test_a_replica_whose_cut_finds_damage_leaves_the_in_sync_set_until_it_has_all_records(tmp_path: Path) -> None:
    """Another process has overwritten the file of an in-sync follower. The first to read it is a cut of a record above
    the high watermark, which the leader lacks."""
    copies = Copies(tmp_path, leader=1)
    log, stage = copies.copy.log, copies.pair.stages[copies.copier]
    log.append_as_leader(batch(b"x"), now=stage.now, leader_epoch=copies.copy.leader_epoch)
    found = log.read(3, 1 << 20, Isolation.LOG_END).slice
    assert found is not None
    segment = Path(found.file.path)
    segment.write_bytes(segment.read_bytes()[: found.position] + bytes(found.length))
    before = copies.placed.partition_epoch
    stage.node.replication.taken_back(stage.now, copies.copy)  # it fetches from its present end
    copies.catch_up()
    assert copies.placed.partition_epoch == before + 2, "it left the in-sync replicas, and joined them again"
    assert (copies.end, copies.in_sync, copies.reports_losses) == (6, 2, False)


def test_a_replica_that_does_not_count_is_mended_without_news_of_its_topic(tmp_path: Path) -> None:
    copies = Copies(tmp_path, leader=1)
    copies.fall_behind()
    copies.find_damage()
    assert copies.end == 2
    copies.catch_up()
    assert (copies.end, copies.in_sync, copies.reports_losses) == (7, 2, False)


@pytest.mark.parametrize("arrives_while_reported", [True, False])
def test_a_proposal_is_decided_before_a_replica_that_it_counts_on_is_mended(
    arrives_while_reported: bool, tmp_path: Path
) -> None:
    copies = Copies(tmp_path, leader=2)
    copies.fall_behind()
    copies.pair.held.add(ALTER_PARTITION)
    copies.carry_fetch()
    while copies.end < 7:
        copies.carry_fetch()
    copies.carry_fetch()
    assert copies.pair.stages[2].asks, "the leader proposes that the follower joins"
    copies.find_damage()
    before = copies.placed
    for _ in range(2 * (not arrives_while_reported)):
        copies.carry_fetch()
    copies.pair.held.discard(ALTER_PARTITION)
    copies.pair.settle()
    assert copies.placed is before, f"the log ends at offset {copies.end}"
    copies.catch_up()
    assert (copies.end, copies.in_sync, copies.reports_losses) == (7, 2, False)


def test_a_replica_is_not_cut_before_its_row_reports_the_damage(tmp_path: Path) -> None:
    """Until then the controller may accept a proposal that counts on the end that the log had before."""
    copies = Copies(tmp_path, leader=1)
    copies.fall_behind()
    stage = copies.pair.stages[copies.copier]
    stage.node.failures.found_damage(copies.copy, Damage("0.log", 0, 2, 3, "a bit is flipped"))
    stage.node.replication.look_at_damage(stage.now)
    assert (copies.end, copies.reports_losses) == (6, False)
    stage.run()
    assert (copies.end, copies.reports_losses) == (2, True)


def test_an_index_beside_a_damaged_batch_is_rebuilt_once_that_is_cut_off(tmp_path: Path) -> None:
    """The next pass begins an hour later."""
    copies = Copies(tmp_path, leader=1, ottla_scrub_bytes_per_second="1000000", log_index_interval_bytes="0")
    copies.copy.log.segments[-1].flush_indexes()
    found = copies.copy.log.read(4, 1 << 20).slice
    assert found is not None
    segment = Path(found.file.path)
    octets = bytearray(segment.read_bytes())
    octets[found.position + found.length - 2] ^= 1
    segment.write_bytes(octets)
    index = segment.with_suffix(".timeindex")
    assert index.exists()
    index.unlink()
    copies.pair.run(FIRST_AFTER_MS + 10_000)
    copies.catch_up()
    notes = copies.pair.stages[copies.copier].notes
    assert any("t-0 is damaged" in note for note in notes)
    assert index.exists()
    assert any("Its indexes were rebuilt" in note for note in notes), notes
    assert (copies.end, copies.in_sync) == (6, 2)
