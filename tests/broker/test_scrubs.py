"""A node scrubs its logs in the background: what is damaged is said once, and others are to lead it."""

import os
from pathlib import Path

import pytest

from ottla.broker.upkeep.damage_marks import DAMAGED_FILE
from ottla.broker.upkeep.scrubs import FIRST_AFTER_MS
from ottla.cli.main import main
from ottla.log.files import DiskFile
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.replica.copy_status import CopyStatus
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import NodeStage

AN_HOUR_MS = 3_600_000


def staged(tmp_path: Path, rate: int) -> NodeStage:
    stage = NodeStage(tmp_path / "node", ottla_scrub_bytes_per_second=str(rate))
    configs = [CreatableTopicConfig("segment.bytes", "1048576")]
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 2, 1, configs=configs)]))
    for index in range(2):
        for _ in range(3):
            stage.append("t", index)
            log = stage.node.replicas.by_name["t"].partitions[index].log
            log.roll(stage.now)
    return stage


def flip(stage: NodeStage, index: int, segment: int) -> None:
    partition = stage.node.replicas.by_name["t"].partitions[index]
    path = Path(f"{partition.log.segments[segment].path}.log")
    octets = bytearray(path.read_bytes())
    octets[-2] ^= 1
    path.write_bytes(octets)


def damage_notes(stage: NodeStage) -> list[str]:
    return [note for note in stage.notes if "is damaged" in note]


@pytest.mark.parametrize("rate", [1000, 1 << 20])
def test_a_damaged_segment_is_found_in_a_pass(tmp_path: Path, rate: int) -> None:
    stage = staged(tmp_path, rate)
    flip(stage, 1, 1)
    stage.run(FIRST_AFTER_MS - 1)
    assert not damage_notes(stage)
    stage.run(10_000)
    (note,) = damage_notes(stage)
    assert note.startswith("t-1 is damaged: ")
    assert "position 0, offset 1: the batch does not match its checksum" in note
    (partition,) = stage.node.failures.damaged
    assert partition.name == "t-1"
    assert partition.copy.status is CopyStatus.DAMAGED


def test_a_log_whose_file_is_too_short_for_a_reader_is_checked_at_once(tmp_path: Path) -> None:
    """Another process has cut the file: until this is known, each answer with its records ends with the connection."""
    stage = staged(tmp_path, 1 << 20)
    log = stage.node.replicas.by_name["t"].partitions[1].log
    asked_for = log.read(1, 1).slice
    assert asked_for is not None
    os.truncate(f"{log.segments[1].path}.log", 10)
    stage.node.unreadable(asked_for, OSError("a segment is shorter than its index says"))
    stage.run(1_000)
    (note,) = damage_notes(stage)
    assert note.startswith("t-1 is damaged: ")
    assert damaged_from(stage) == (1, True)


def test_an_index_that_another_process_removed_is_rebuilt(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1 << 20)
    path = Path(f"{stage.node.replicas.by_name['t'].partitions[1].log.segments[1].path}.timeindex")
    before = path.read_bytes()
    path.unlink()
    stage.run(FIRST_AFTER_MS + 10_000)
    assert [note for note in stage.notes if "rebuilt" in note] == [f"{path}: it was removed. Its indexes were rebuilt."]
    assert path.read_bytes() == before
    assert not damage_notes(stage)


def test_a_single_node_writes_a_segment_again_that_another_process_has_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other replica has its records. Until the next pass, the command shows that it is missing."""
    stage = staged(tmp_path, 1 << 20)
    path = Path(f"{stage.node.replicas.by_name['t'].partitions[1].log.segments[1].path}.log")
    before = path.read_bytes()
    path.unlink()
    assert main(["log", "verify", str(stage.directory)]) == 1
    assert "t-1" in capsys.readouterr().out
    stage.run(FIRST_AFTER_MS + 10_000)
    (note,) = [note for note in stage.notes if "has removed this file while the node used it" in note]
    assert note.startswith(str(path))
    assert path.read_bytes() == before
    assert not damage_notes(stage)
    assert main(["log", "verify", str(stage.directory)]) == 0
    stage.restart(clean=False)
    log = stage.node.replicas.by_name["t"].partitions[1].log
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    assert damaged_from(stage) == (None, False)


def test_a_single_node_reports_a_removed_segment_that_it_has_not_open(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1 << 20)
    file = stage.node.replicas.by_name["t"].partitions[1].log.segments[1].file
    assert isinstance(file, DiskFile)
    file.let_go()
    Path(file.path).unlink()
    stage.run(FIRST_AFTER_MS + 10_000)
    (note,) = damage_notes(stage)
    assert note.endswith("another process has removed or replaced this file")


def damaged_from(stage: NodeStage, index: int = 1) -> tuple[int | None, bool]:
    partition = stage.node.replicas.by_name["t"].partitions[index]
    return partition.copy.damaged_from, partition.copy.is_reported


def test_damage_counts_after_a_restart_until_it_is_repaired(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1 << 20)
    flip(stage, 1, 1)
    stage.run(FIRST_AFTER_MS + 10_000)
    for clean in (True, False):
        stage.restart(clean=clean)
        assert damaged_from(stage) == (1, True)
        assert damaged_from(stage, 0) == (None, False)
    partition = stage.node.replicas.by_name["t"].partitions[1]
    stage.node.failures.mended(partition)
    stage.restart()
    assert damaged_from(stage) == (None, False)


def test_damage_below_the_start_of_the_log_is_forgotten(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1 << 20)
    flip(stage, 1, 1)
    stage.run(FIRST_AFTER_MS + 10_000)
    stage.node.replicas.by_name["t"].partitions[1].log.delete_records_before(2)
    stage.restart()
    assert damaged_from(stage) == (None, False)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_lost_its_first_segments_lacks_them_after_each_restart(clean: bool, tmp_path: Path) -> None:
    stage = staged(tmp_path, 0)
    stage.end(clean=clean)
    for file in Path(stage.directory, "t-1").glob("00000000000000000000.*"):
        file.unlink()
    stage.start()
    for _ in range(3):
        log = stage.node.replicas.by_name["t"].partitions[1].log
        assert (log.log_start_offset, damaged_from(stage)) == (1, (0, True))
        stage.restart(clean=clean)
    stage.node.replicas.by_name["t"].partitions[1].log.delete_records_before(2)
    for _ in range(2):
        stage.restart()
        assert damaged_from(stage) == (None, False)


def test_a_mark_of_damage_that_cannot_be_read_stops_no_start(tmp_path: Path) -> None:
    stage = staged(tmp_path, 0)
    stage.end()
    (Path(stage.directory) / DAMAGED_FILE).write_bytes(b"0\n1\nx y\n")
    stage.start()
    assert damaged_from(stage) == (None, False)
    assert any(DAMAGED_FILE in note for note in stage.notes)


def test_the_next_pass_begins_an_hour_later(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1 << 20)
    stage.run(FIRST_AFTER_MS + 10_000)
    flip(stage, 0, 0)
    stage.run(60_000)
    assert not damage_notes(stage)
    stage.run(AN_HOUR_MS)
    assert len(damage_notes(stage)) == 1
    stage.run(AN_HOUR_MS)
    assert len(damage_notes(stage)) == 1


def test_scrubbing_can_be_switched_off(tmp_path: Path) -> None:
    stage = staged(tmp_path, 0)
    flip(stage, 0, 0)
    stage.run(2 * AN_HOUR_MS)
    assert not damage_notes(stage)


def test_a_damaged_batch_that_a_new_replica_asks_for_is_said_on_both_nodes(tmp_path: Path) -> None:
    pair = NodePair(tmp_path, ottla_scrub_bytes_per_second="0")
    assignment = [CreatableReplicaAssignment(0, [1])]
    pair.ask(1, CreateTopicsRequest([CreatableTopic("t", -1, -1, assignments=assignment)]))
    leader = pair.stages[1]
    for _ in range(6):
        leader.append("t")
        leader.node.replicas.by_name["t"].partitions[0].log.roll(leader.now)
    flip(leader, 0, 3)
    wanted = [ReassignableTopic("t", [ReassignablePartition(0, [1, 2])])]
    pair.ask(1, AlterPartitionReassignmentsRequest(topics=wanted))
    pair.run(5_000)
    follower = pair.stages[2].node.replicas.by_name["t"].partitions[0].log
    assert follower.log_end_offset == 3
    (note,) = damage_notes(leader)
    assert "offset 3: the batch does not match its checksum" in note
    (said,) = [note for note in pair.stages[2].notes if "refused" in note]
    assert said.startswith("t-0 stops at offset 3: what its leader, node 1, sent is refused")
    assert leader.node.membership is not None
    assert leader.node.membership.record is not None
    assert len(leader.node.membership.record.incomplete) == 1
