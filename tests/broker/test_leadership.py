"""What follows when the cluster agrees on another leader, or on this one in a new epoch."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.k02_list_offsets import DEBUGGING
from ottla.broker.partitions.partition import Partition
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from tests.harness import other_writer
from tests.harness.node_stage import NodeStage

BATCH = bytes(build_batch([Record(0, 1_800_000_000_000, b"k", b"v")]))


@pytest.fixture(params=["page-cache", "fsync"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> NodeStage:
    made = NodeStage(tmp_path, ottla_durability=request.param)
    made.create("t", 2, {})
    return made


def place(stage: NodeStage, index: int, **changes: Any) -> None:
    other_writer.place(stage.node, stage.store, stage.now, "t", index, **changes)


BEFORE_RACKS = 10
"""A version of Fetch whose consumers are served by leaders only (ReplicaManager.fetchMessages)."""


def produce(stage: NodeStage, index: int = 0) -> ProduceRequest:
    topic_id = stage.node.image.topics["t"].id
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData("t", topic_id, [PartitionProduceData(index, BATCH)])]
    )


def fetch(stage: NodeStage, index: int = 0, epoch: int = -1, max_wait_ms: int = 0) -> FetchRequest:
    asked = FetchPartition(index, epoch, 0, partition_max_bytes=1000)
    topic = FetchTopic("t", stage.node.image.topics["t"].id, [asked])
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic])


def produced(answer: Any) -> tuple[int, int, int]:
    part = answer.responses[0].partition_responses[0]
    return part.error_code, part.current_leader.leader_id, part.current_leader.leader_epoch


def fetched(answer: Any) -> tuple[int, int, int]:
    part = answer.responses[0].partitions[0]
    leader = part.current_leader
    return (part.error_code, -1, -1) if leader is None else (part.error_code, leader.leader_id, leader.leader_epoch)


def listed(stage: NodeStage, index: int, epoch: int = -1) -> int:
    return found(stage, index, epoch)[0]


def found(stage: NodeStage, index: int, epoch: int = -1, timestamp: int = -1, replica_id: int = -1) -> tuple[int, int]:
    topic = ListOffsetsTopic("t", [ListOffsetsPartition(index, epoch, timestamp)])
    part = stage.ask(ListOffsetsRequest(replica_id, topics=[topic])).topics[0].partitions[0]
    return part.error_code, part.offset


def test_who_asks_a_node_that_leads_no_more_is_told_who_does(stage: NodeStage) -> None:
    place(stage, 0, leader=7, leader_epoch=1, replicas=(1, 7), isr=(1, 7))
    assert produced(stage.send(produce(stage)).answer) == (E.NOT_LEADER_OR_FOLLOWER, 7, 1)
    assert fetched(stage.send(fetch(stage), BEFORE_RACKS).answer)[0] == E.NOT_LEADER_OR_FOLLOWER
    assert fetched(stage.send(fetch(stage)).answer) == (E.NONE, -1, -1), "it is read at a follower (KIP-392)"
    assert fetched(stage.send(fetch(stage, epoch=0)).answer) == (E.FENCED_LEADER_EPOCH, 7, 1)
    assert fetched(stage.send(fetch(stage, epoch=2)).answer)[0] == E.UNKNOWN_LEADER_EPOCH
    assert [listed(stage, 0, epoch) for epoch in (-1, 0, 1, 2)] == [
        E.NOT_LEADER_OR_FOLLOWER,
        E.FENCED_LEADER_EPOCH,
        E.NOT_LEADER_OR_FOLLOWER,
        E.UNKNOWN_LEADER_EPOCH,
    ]
    assert listed(stage, 1) == E.NONE
    place(stage, 0, leader=1, leader_epoch=2)
    assert [listed(stage, 0, epoch) for epoch in (1, 2)] == [E.FENCED_LEADER_EPOCH, E.NONE]
    assert stage.node.replicas.by_name["t"].partitions[0].log.latest_epoch == 2


def test_a_partition_that_is_nowhere_near_has_a_leader_all_the_same(stage: NodeStage) -> None:
    place(stage, 0, leader=7, leader_epoch=1, replicas=(7,), isr=(7,))
    assert [p.name for p in stage.node.replicas] == ["t-1"]
    assert produced(stage.send(produce(stage)).answer) == (E.NOT_LEADER_OR_FOLLOWER, 7, 1)
    assert fetched(stage.send(fetch(stage, epoch=9)).answer) == (E.NOT_LEADER_OR_FOLLOWER, 7, 1)
    place(stage, 1, leader=7, leader_epoch=1, replicas=(7,), isr=(7,))
    assert list(stage.node.replicas) == []
    assert listed(stage, 1) == E.NOT_LEADER_OR_FOLLOWER
    assert listed(stage, 2) == E.UNKNOWN_TOPIC_OR_PARTITION


def follow(stage: NodeStage) -> Partition:
    """Node 7 leads t-0; two records are committed, and this replica has a third one."""
    for _ in range(2):
        stage.append("t", 0)
    stage.settle()
    place(stage, 0, leader=7, leader_epoch=1, replicas=(1, 7), isr=(1, 7))
    partition = stage.node.replicas.by_name["t"].partitions[0]
    batch = bytearray(BATCH)
    batch[:8] = (2).to_bytes(8)
    partition.log.append_as_follower(memoryview(batch), now=stage.now, leader_epoch=1)
    return partition


def test_a_debugging_client_asks_any_replica_of_its_whole_log(stage: NodeStage) -> None:
    """Its replica id is -2, as in Kafka; nobody else is told what is not committed."""
    assert found(stage, 0, replica_id=DEBUGGING) == (E.NONE, 0)
    follow(stage)
    assert found(stage, 0) == (E.NOT_LEADER_OR_FOLLOWER, -1)
    asked = partial(found, stage, 0, replica_id=DEBUGGING)
    assert asked() == (E.NONE, 3)
    assert asked(timestamp=-2) == (E.NONE, 0)
    assert asked(timestamp=0) == (E.NONE, 0)
    assert asked(epoch=0)[0] == E.FENCED_LEADER_EPOCH
    place(stage, 0, leader=1, leader_epoch=2)
    partition = stage.node.replicas.by_name["t"].partitions[0]
    assert partition.log.high_watermark == 2, "the other replica has yet to say what it has"
    assert (listed(stage, 0), asked()) == (E.OFFSET_NOT_AVAILABLE, (E.NONE, 3))


def lag(stage: NodeStage) -> tuple[int, bool]:
    (result,) = stage.ask(DescribeLogDirsRequest([DescribableLogDirTopic("t", [0])])).results
    part = result.topics[0].partitions[0]
    return part.offset_lag, part.is_future_key


def test_a_follower_says_how_far_it_is_behind(stage: NodeStage) -> None:
    """By the high watermark that its leader last said."""
    assert lag(stage) == (0, False)
    partition = follow(stage)
    assert lag(stage) == (-1, False), "the leader has said nothing yet"
    for high_watermark, expected in ((2, 0), (3, 0), (9, 6)):
        partition.advance_as_follower(high_watermark)
        assert lag(stage) == (expected, False)
    partition.log.durability.failed = "the disk"
    assert lag(stage) == (-1, False), "it does not follow any more"
    partition.log.durability.failed = None
    place(stage, 0, leader=1, leader_epoch=2)
    assert lag(stage) == (0, False)


def test_who_waits_for_records_is_told_at_once(stage: NodeStage) -> None:
    """Also who may go on reading here, at what is a follower now."""
    with_racks = stage.send(fetch(stage, max_wait_ms=10_000))
    asked = stage.send(fetch(stage, max_wait_ms=10_000), BEFORE_RACKS, connection=stage.connect())
    place(stage, 0, leader=7, leader_epoch=1)
    stage.settle()
    assert fetched(asked.answer)[0] == E.NOT_LEADER_OR_FOLLOWER
    assert fetched(with_racks.answer) == (E.NONE, -1, -1)
    asked = stage.send(fetch(stage, index=1, max_wait_ms=10_000))
    place(stage, 1, leader=1, leader_epoch=1)
    stage.settle()
    assert fetched(asked.answer) == (E.NONE, -1, -1)


def test_who_waits_for_a_commit_is_told_at_once(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path, ottla_durability="fsync")
    stage.create("t", 1, {})
    stage.hold_syncs = True
    asked = stage.send(produce(stage))
    place(stage, 0, leader=7, leader_epoch=1)
    stage.settle()
    assert produced(asked.answer) == (E.NOT_LEADER_OR_FOLLOWER, 7, 1)
    stage.hold_syncs = False
    stage.settle()
    place(stage, 0, leader=1, leader_epoch=2)
    assert fetched(stage.send(fetch(stage)).answer) == (E.NONE, -1, -1)


def test_a_replica_that_was_given_up_leaves_nothing_behind(stage: NodeStage) -> None:
    stage.append("t", 0)
    stage.settle()
    place(stage, 0, leader=7, leader_epoch=1, replicas=(7,), isr=(7,))
    stage.run(1000)
    assert not (stage.directory / "t-0").exists()
    place(stage, 0, leader=1, leader_epoch=2, replicas=(7, 1), isr=(7, 1))
    assert stage.node.replicas.by_name["t"].partitions[0].log.log_end_offset == 0


def test_a_higher_partition_epoch_alone_disturbs_nobody(stage: NodeStage) -> None:
    asked = stage.send(fetch(stage, max_wait_ms=10_000))
    place(stage, 0, isr=(1,))
    stage.settle()
    assert not asked.answered
    assert stage.node.replicas.by_name["t"].partitions[0].partition_epoch == 1
    grown = CreatePartitionsRequest(topics=[CreatePartitionsTopic("t", 3, None)])
    assert stage.ask(grown).results[0].error_code == E.NONE
    assert len(stage.node.replicas.by_name["t"].partitions) == 3
