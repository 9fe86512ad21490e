"""What a leader answers its followers, and what acks=all waits for."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.parking import ParkedWork
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import NODE_REQUEST
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.store import Put
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from tests.harness import other_writer
from tests.harness.node_stage import Asked, NodeStage

BATCH = bytes(build_batch([Record(0, 1_800_000_000_000, b"k", b"v")]))
NODE = None
"""In place of a client id: the connection is that of a node."""


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    """Node 1 leads t-0 in epoch 1; nodes 2 and 3 follow, and two must be in sync."""
    made = NodeStage(tmp_path)
    made.create("t", 1, {"min.insync.replicas": "2"})
    made.append("t", 0)
    made.settle()
    rows = [Put(f"{NODE_PREFIX}{node_id}", NodeRecord("host", 9).encode()) for node_id in (1, 2, 3)]
    made.store.commit(rows)
    made.node.changed(made.now, delta_since(made.store, made.node.image))
    place(made, leader=1, leader_epoch=1, replicas=(1, 2, 3), isr=(1, 2, 3))
    return made


def place(stage: NodeStage, **changes: Any) -> None:
    other_writer.place(stage.node, stage.store, stage.now, "t", 0, **changes)


def partition_of(stage: NodeStage) -> Partition:
    return stage.node.replicas.by_name["t"].partitions[0]


def send(stage: NodeStage, message: Any, client_id: str | None) -> Asked:
    asked = Asked(message, None)
    header = RequestHeader(asked.api_key, asked.version, 7, client_id)
    asked.frame = memoryview(bytearray(encode_request(header, message)))[4:]
    stage.hand_in(asked, of_node=client_id is NODE)
    return asked


def fetch(
    stage: NodeStage,
    offset: int,
    *,
    node_id: int = 2,
    client_id: str | None = NODE,
    epoch: int = 1,
    last_epoch: int = -1,
    broker_epoch: int | None = None,
    max_wait_ms: int = 0,
) -> Asked:
    known = stage.node.image.nodes.get(str(node_id))
    if broker_epoch is None:
        broker_epoch = -1 if known is None else known.broker_epoch
    asked = FetchPartition(0, epoch, offset, last_epoch, 0, 1 << 20)
    topic = FetchTopic(topic_id=stage.node.image.topics["t"].id, partitions=[asked])
    state = ReplicaState(node_id, broker_epoch)
    body = FetchRequest(None, -1, state, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic])
    return send(stage, body, client_id)


def part_of(asked: Asked) -> Any:
    return asked.answer.responses[0].partitions[0]


def produce(stage: NodeStage, acks: int = -1) -> Asked:
    topic_id = stage.node.image.topics["t"].id
    data = [TopicProduceData("t", topic_id, [PartitionProduceData(0, BATCH)])]
    return stage.send(ProduceRequest(acks=acks, timeout_ms=1000, topic_data=data))


def produced(asked: Asked) -> tuple[int, int]:
    part = asked.answer.responses[0].partition_responses[0]
    return part.error_code, part.base_offset


def test_acks_all_waits_for_everybody_in_sync(stage: NodeStage) -> None:
    asked = produce(stage)
    assert not asked.answered
    assert part_of(fetch(stage, 1)).records
    fetch(stage, 2)
    assert not asked.answered
    fetch(stage, 2, node_id=3)
    assert produced(asked) == (E.NONE, 1)
    assert part_of(fetch(stage, 2, max_wait_ms=0)).high_watermark == 2


def test_acks_1_waits_for_nobody(stage: NodeStage) -> None:
    assert produced(produce(stage, acks=1)) == (E.NONE, 1)
    assert partition_of(stage).log.high_watermark == 1


def test_an_answer_that_comes_too_late_is_a_time_out_and_the_record_stays(stage: NodeStage) -> None:
    asked = produce(stage)
    stage.run(1000)
    assert produced(asked) == (E.REQUEST_TIMED_OUT, -1)
    assert partition_of(stage).log.log_end_offset == 2


def test_a_follower_that_waits_is_told_of_what_is_not_committed(stage: NodeStage) -> None:
    waiting = fetch(stage, 1, max_wait_ms=10_000)
    reader = stage.send(
        FetchRequest(
            max_wait_ms=10_000,
            min_bytes=1,
            topics=[FetchTopic("t", stage.node.image.topics["t"].id, [FetchPartition(0, -1, 1, -1, -1, 1 << 20)])],
        )
    )
    produce(stage, acks=1)
    assert part_of(waiting).records
    assert not reader.answered
    fetch(stage, 2)
    fetch(stage, 2, node_id=3)
    stage.settle()
    assert part_of(reader).records


class GoesOn(ParkedWork):
    """What a coordinator does whose last record is committed: it appends the next one."""

    def __init__(self, stage: NodeStage) -> None:
        self.stage = stage

    def committed(self, now: int, ticket: int, partition: Partition) -> None:
        self.stage.append("t", 0)


def test_a_follower_is_told_of_what_its_own_fetch_has_led_to(stage: NodeStage) -> None:
    stage.append("t", 0)
    fetch(stage, 2)
    partition = partition_of(stage)
    partition.wait_for_commit(2, stage.node.parking.park(NODE_REQUEST, None, GoesOn(stage)))
    assert partition.log.high_watermark == 1
    waiting = fetch(stage, 2, node_id=3, max_wait_ms=10_000)
    assert partition.log.log_end_offset == 3
    assert part_of(waiting).records, "it would wait for the next record, or for half a second"


@pytest.mark.parametrize(("client_id", "node_id"), [("ottla-node", 2), ("ottla-node:", 2), ("somebody", 2), (NODE, 7)])
def test_strangers_are_no_followers(stage: NodeStage, client_id: str | None, node_id: int) -> None:
    """Nor is a node that has no replica."""
    asked = produce(stage)
    for epoch, error in ((1, E.UNKNOWN_LEADER_EPOCH), (-1, E.NOT_LEADER_OR_FOLLOWER)):
        answer = part_of(fetch(stage, 1, node_id=node_id, client_id=client_id, epoch=epoch))
        assert answer.error_code == error
        assert not answer.records
    for each in (2, 3):
        fetch(stage, 2, node_id=each, client_id="somebody")
    assert not asked.answered


def test_an_earlier_life_of_a_follower_moves_nothing(stage: NodeStage) -> None:
    asked = produce(stage)
    fetch(stage, 2)
    fetch(stage, 2, node_id=3, broker_epoch=0)
    assert not asked.answered


def test_a_fetch_that_diverges_is_no_progress(stage: NodeStage) -> None:
    """KAFKA-13141."""
    asked = produce(stage)
    fetch(stage, 2, node_id=3)
    answer = part_of(fetch(stage, 3, last_epoch=0))
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
    assert not asked.answered
    followers = partition_of(stage).followers
    assert followers is not None
    assert followers.followers[2].end_offset == -1


def test_too_few_in_sync_before_and_after(stage: NodeStage) -> None:
    """What was appended meanwhile stays, and is not promised (KAFKA-15583)."""
    asked = produce(stage)
    fetch(stage, 2)
    place(stage, isr=(1,))
    stage.settle()
    assert not asked.answered, "the high watermark stands"
    refused = produce(stage)
    assert produced(refused) == (E.NOT_ENOUGH_REPLICAS, -1)
    assert refused.answer.responses[0].partition_responses[0].log_start_offset == 0
    assert produced(produce(stage, acks=1)) == (E.NONE, 2)
    place(stage, isr=(1, 2))
    fetch(stage, 3)
    assert produced(asked) == (E.NONE, 1)


def test_two_in_sync_are_enough(stage: NodeStage) -> None:
    asked = produce(stage)
    fetch(stage, 2)
    place(stage, isr=(1, 2))
    stage.settle()
    assert produced(asked) == (E.NONE, 1)
    asked = produce(stage)
    followers = partition_of(stage).followers
    assert followers is not None
    fetch(stage, 3)
    assert produced(asked) == (E.NONE, 2)


def test_who_waits_hears_that_another_leads(stage: NodeStage) -> None:
    asked, waiting = produce(stage), fetch(stage, 2, max_wait_ms=10_000)
    place(stage, leader=2, leader_epoch=2)
    stage.settle()
    assert produced(asked)[0] == E.NOT_LEADER_OR_FOLLOWER
    assert part_of(waiting).error_code == E.FENCED_LEADER_EPOCH
    assert partition_of(stage).followers is None
    assert stage.asks, "it follows the new leader"


def test_a_follower_is_told_where_the_log_ends(stage: NodeStage) -> None:
    produce(stage, acks=1)
    topic = [ListOffsetsTopic("t", [ListOffsetsPartition(0, 1, -1)])]
    for client_id, offset in ((NODE, 2), ("somebody", 1)):
        asked = send(stage, ListOffsetsRequest(2, topics=topic), client_id)
        assert asked.answer.topics[0].partitions[0].offset == offset
