"""Work that makes directories and files lets others have their turn, however slow the disk is.

Each directory takes a millisecond of a clock that the test reads; no call of the node may take much more of it than a
slice. What such work comes to is the same as in one go.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.log.cost import SLICE_US
from ottla.log.files import DiskFiles
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import NodeStage

PARTITIONS = 60
DIRECTORY_US = 1_000
TURN_US = 2 * (SLICE_US + DIRECTORY_US)
"""A call may end one slice and begin another."""


class SlowDisk(DiskFiles):
    """Says how long it has worked, as a stopwatch."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.turns: list[int] = []
        """How long each call of a node took."""

    def __call__(self) -> int:
        return self.made * DIRECTORY_US

    def makedirs(self, path: str) -> None:
        super().makedirs(path)
        self.made += 1

    @contextmanager
    def watching(self, stage: NodeStage) -> Iterator[None]:
        """Note how long each call of this node takes."""
        node = stage.node
        with pytest.MonkeyPatch.context() as patch:
            for name in ("receive", "tick", "take_effects", "answered"):
                patch.setattr(node, name, self._timed(getattr(node, name)))
            yield

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = self()
            try:
                return call(*given)
            finally:
                self.turns.append(self() - began)

        return timed

    def check(self) -> None:
        assert sum(self.turns) == PARTITIONS * DIRECTORY_US
        assert max(self.turns) <= TURN_US


def ends(stage: NodeStage, topic: str = "t") -> list[int]:
    return [partition.log.log_end_offset for partition in stage.node.replicas.by_name[topic].partitions.values()]


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


@pytest.fixture
def stage(tmp_path: Path, disk: SlowDisk) -> NodeStage:
    stage = NodeStage(tmp_path, files=disk, stopwatch=disk)
    stage.create("t", PARTITIONS)
    assert not (tmp_path / "t-0").exists(), "a partition that was never written has no files"
    return stage


def test_markers_of_partitions_that_were_never_written(stage: NodeStage, disk: SlowDisk) -> None:
    stage.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 4)
    producer = stage.ask(InitProducerIdRequest("tx", 60_000), 5)
    whose = "tx", producer.producer_id, producer.producer_epoch
    stage.ask(AddPartitionsToTxnRequest(*whose, [AddPartitionsToTxnTopic("t", [*range(PARTITIONS)])]), 3)
    stage.run()
    with disk.watching(stage):
        assert stage.ask(EndTxnRequest(*whose, False), 3).error_code == E.NONE
        stage.run(1_000)
    disk.check()
    assert ends(stage) == [1] * PARTITIONS
    again = stage.ask(InitProducerIdRequest("tx", 60_000), 5)
    assert again.error_code == E.NONE, "all markers are written"


def test_a_produce_for_partitions_that_were_never_written(stage: NodeStage, disk: SlowDisk) -> None:
    parts = [
        PartitionProduceData(index, build_batch([Record(timestamp_ms=stage.now, value=b"v")]))
        for index in range(PARTITIONS)
    ]
    with disk.watching(stage):
        answer = stage.ask(ProduceRequest(None, -1, 1_000, [TopicProduceData("t", partition_data=parts)]), 9)
    disk.check()
    assert [part.error_code for part in answer.responses[0].partition_responses] == [E.NONE] * PARTITIONS
    assert ends(stage) == [1] * PARTITIONS


class Followed:
    """Two nodes: the first one leads what the second one has yet to copy."""

    def __init__(self, directory: Path, disk: SlowDisk) -> None:
        self.disk = disk
        self.pair = NodePair(directory, files=disk, stopwatch=disk)
        self.leader, self.follower = self.pair.stages[1], self.pair.stages[2]
        self.pair.away.add(1)  # the second node's fetch waits on its way
        placed = [CreatableReplicaAssignment(index, [1, 2]) for index in range(PARTITIONS)]
        self.pair.ask(1, CreateTopicsRequest(topics=[CreatableTopic("t", -1, -1, placed)]))
        for index in range(PARTITIONS):
            self.leader.append("t", index, value=b"%d" % index)
        answered = self.follower.node.answered

        def lent(now: int, token: int, answer: Any) -> None:
            """The frame is the shell's, which fills it anew."""
            frame = answer if not isinstance(answer, bytes) else bytearray(answer)
            answered(now, token, frame)
            if isinstance(frame, bytearray):
                frame[:] = bytes(len(frame))

        self.follower.node.answered = lent  # type: ignore[method-assign]

    def meet(self) -> None:
        self.pair.away.clear()
        self.pair.settle()


def test_a_follower_of_partitions_that_were_never_written(tmp_path: Path, disk: SlowDisk) -> None:
    followed = Followed(tmp_path, disk)
    with disk.watching(followed.follower):
        followed.meet()
        followed.pair.run(1_000)
    disk.check()
    assert ends(followed.follower) == [1] * PARTITIONS
    for index in range(PARTITIONS):
        copied, original = (
            stage.node.replicas.by_name["t"].partitions[index].log.segments[0].file.read(0, 1 << 16)
            for stage in (followed.follower, followed.leader)
        )
        assert bytes(copied) == bytes(original)


def test_what_is_left_of_an_answer_is_void_once_the_topic_is_gone(tmp_path: Path, disk: SlowDisk) -> None:
    followed = Followed(tmp_path, disk)
    tick = followed.follower.node.tick
    followed.follower.node.tick = lambda now: None  # type: ignore[method-assign]
    followed.pair.away.clear()
    while not any(ends(followed.follower)):
        assert followed.pair._carry(), "nothing more is carried over"
    assert not all(ends(followed.follower))
    followed.follower.node.tick = tick  # type: ignore[method-assign]
    followed.leader.delete("t")
    followed.pair.settle()
    followed.pair.run(1_000)
    assert "t" not in followed.follower.node.replicas.by_name
    followed.follower.node.replication.check()
