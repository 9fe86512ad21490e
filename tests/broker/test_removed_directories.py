"""Another process removes a partition's directory or a segment while its node runs: the replica is copied again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.partitions.partition import Partition
from ottla.log.files import DiskFile
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.replica.copy_status import CopyStatus
from tests.harness.log.support import batch
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import NOW, NodeStage

SMALL_SEGMENTS: dict[str, Any] = {"log_index_interval_bytes": "0", "log_index_size_max_bytes": "36"}


class Copies:
    """Partition t-0 with three records on two nodes, both in sync, in segments of a few batches. Node 1 leads."""

    def __init__(self, directory: Path, *, scrub_ms: int = 3_600_000) -> None:
        self.pair = NodePair(directory, ottla_scrub_interval_ms=str(scrub_ms), **SMALL_SEGMENTS)
        topic = CreatableTopic("t", -1, -1, assignments=[CreatableReplicaAssignment(0, [1, 2])])
        self.pair.ask(1, CreateTopicsRequest([topic]))
        self.acknowledged = 0
        self.append(3)
        self.settle()
        assert self.are_in_sync

    @property
    def placed(self) -> PartitionRecord:
        return self.pair.stages[1].node.image.topics["t"].partitions[0]

    def partition(self, node_id: int) -> Partition:
        return self.pair.stages[node_id].node.replicas.by_name["t"].partitions[0]

    def append(self, count: int) -> None:
        """Write so many records to the leader; it may refuse them."""
        for _ in range(count):
            data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, bytearray(batch(b"v", at=NOW)))])]
            answer = self.pair.ask(self.placed.leader, ProduceRequest(None, -1, 30_000, data), 9)
            self.acknowledged += not answer.responses[0].partition_responses[0].error_code

    def settle(self) -> None:
        for _ in range(60):
            self.pair.run(500)
            if self.are_in_sync:
                return

    @property
    def are_in_sync(self) -> bool:
        """Whether both nodes are in sync, with every acknowledged record in the files of their directories."""
        for node_id in (1, 2):
            partition = self.partition(node_id)
            log = partition.log
            stored = sum(file.stat().st_size for file in Path(log.directory).glob("*.log"))
            if log.log_end_offset < self.acknowledged or stored != log.size_bytes or not stored:
                return False
            if self.pair.stages[node_id].node.failures.damaged or partition.copy.status is not CopyStatus.COMPLETE:
                return False
        return sorted(self.placed.isr) == [1, 2]


def remove(directory: str) -> None:
    shutil.rmtree(directory)


def move(directory: str) -> None:
    Path(directory).rename(f"{directory}.moved")


@pytest.mark.parametrize("harm", [remove, move])
@pytest.mark.parametrize("node_id", [1, 2])
def test_a_replica_is_copied_again_once_a_write_fails(
    node_id: int, harm: Callable[[str], None], tmp_path: Path
) -> None:
    copies = Copies(tmp_path)
    harm(copies.partition(node_id).log.directory)
    copies.append(6)
    copies.settle()
    assert copies.acknowledged >= 6
    assert copies.are_in_sync
    assert copies.placed.leader != node_id
    copies.append(6)
    copies.settle()
    assert copies.are_in_sync
    copies.pair.stages[node_id].restart()
    copies.settle()
    assert copies.are_in_sync


def test_a_replica_without_writes_is_copied_again_once_it_is_scrubbed(tmp_path: Path) -> None:
    copies = Copies(tmp_path, scrub_ms=5_000)
    remove(copies.partition(1).log.directory)
    copies.settle()
    assert copies.are_in_sync
    assert copies.placed.leader == 2


def older(path: str) -> None:
    """An older copy takes the place of the file."""
    Path(f"{path}.older").write_bytes(Path(path).read_bytes()[:-1])
    Path(f"{path}.older").replace(path)


@pytest.mark.parametrize("harm", [os.unlink, older])
@pytest.mark.parametrize("at", [0, -1])
def test_a_segment_that_is_gone_is_copied_again_once_it_is_scrubbed(
    at: int, harm: Callable[[str], None], tmp_path: Path
) -> None:
    copies = Copies(tmp_path, scrub_ms=5_000)
    copies.append(6)
    copies.settle()
    segment = copies.partition(1).log.segments[at]
    assert segment.size
    assert isinstance(segment.file, DiskFile)
    segment.file.let_go()  # otherwise a removed file is written again from the open one
    harm(f"{segment.path}.log")
    assert not copies.are_in_sync
    copies.settle()
    assert copies.are_in_sync
    (note,) = [note for note in copies.pair.stages[1].notes if "t-0 is damaged: " in note]
    assert note.endswith("another process has removed or replaced this file")
    copies.append(3)
    copies.pair.stages[1].restart(clean=False)
    copies.settle()
    assert copies.are_in_sync


def test_a_segment_that_is_gone_is_copied_again_once_a_read_fails(tmp_path: Path) -> None:
    """The node has not opened it since its start, or has closed its descriptor to open others."""
    copies = Copies(tmp_path)
    stage, partition = copies.pair.stages[1], copies.partition(1)
    path = partition.log.segments[0].file.path
    os.unlink(path)
    stage.node.failures.read_failed(partition, FileNotFoundError(f"{path} is gone"))
    copies.settle()
    assert copies.are_in_sync
    assert copies.placed.leader == 2


def test_a_failed_fsync_does_not_keep_a_replica_from_being_copied(tmp_path: Path) -> None:
    copies = Copies(tmp_path)
    log = copies.partition(2).log
    remove(log.directory)
    log.durability.doubt("syncing failed")
    copies.pair.stages[2].node.failures.storage_failed(copies.pair.stages[2].now, copies.partition(2), "no directory")
    copies.settle()
    assert copies.are_in_sync


def test_a_directory_that_the_disk_does_not_show_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Copies(tmp_path).partition(2).log
    monkeypatch.setattr(log.files, "exists", lambda _: False)
    assert not log.is_gone
    move(log.directory)
    assert log.is_gone


def test_the_only_replica_stays_as_it_is(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", **SMALL_SEGMENTS)
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    for _ in range(3):
        stage.append("t")
    log = stage.node.replicas.by_name["t"].partitions[0].log
    remove(log.directory)
    data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, bytearray(batch(b"v", at=NOW)))])]
    for _ in range(6):
        stage.ask(ProduceRequest(None, -1, 30_000, data), 9)
    stage.run(60_000)
    assert log.log_end_offset >= 3
    assert log.read(0, 1).slice is not None
    assert stage.node.failures.takes_nothing(stage.node.replicas.by_name["t"].partitions[0])
    (note,) = [note for note in stage.notes if "is damaged" in note]
    assert note.endswith("another process has removed this directory")
