"""Transactions whose coordinator is another node: what is asked of it, and that nothing waits for a timer meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.coordinators.shards import partition_of
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.records.record import Record, build_batch
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import Asked, NodeStage

TOPIC = "t"
COORDINATOR, LEADER = 1, 2


def make_pair(directory: Path) -> NodePair:
    """A topic that node 2 leads, and the coordinators' topics on both."""
    pair = NodePair(
        directory,
        transaction_state_log_num_partitions="4",
        transaction_state_log_replication_factor="1",
        transaction_state_log_min_isr="1",
        offsets_topic_num_partitions="4",
        offsets_topic_replication_factor="1",
    )
    placed = CreatableTopic(TOPIC, -1, -1, [CreatableReplicaAssignment(0, [LEADER])])
    pair.ask(COORDINATOR, CreateTopicsRequest(topics=[placed]))
    for kind in (0, 1):
        pair.ask(COORDINATOR, FindCoordinatorRequest(key_type=kind, coordinator_keys=["any"]), 4)
        pair.run(1_000)
    return pair


def coordinated_by(pair: NodePair, topic: str, node_id: int) -> str:
    """A name whose partition of this coordinator's topic that node leads."""
    led = pair.stages[1].node.image.topics[topic].partitions
    return next(name for name in map(str, range(100)) if led[partition_of(name, len(led))].leader == node_id)


def send(stage: NodeStage, ticks: list[int], message: Any, version: int) -> Asked:
    """Send this, and note from now on when the node's timer had something to do."""
    tick = stage.node.tick

    def counted(now: int) -> None:
        ticks.append(now)
        tick(now)

    stage.node.tick = counted  # type: ignore[method-assign]
    return stage.send(message, version)


@pytest.mark.parametrize("what", ["produce", "offsets"])
def test_what_another_node_coordinates_waits_for_no_timer(tmp_path: Path, what: str) -> None:
    pair = make_pair(tmp_path)
    name = coordinated_by(pair, TRANSACTION_STATE_TOPIC, COORDINATOR)
    group = coordinated_by(pair, CONSUMER_OFFSETS_TOPIC, LEADER)
    producer = pair.ask(COORDINATOR, InitProducerIdRequest(name, 60_000), 5)
    assert producer.error_code == E.NONE
    whose = producer.producer_id, producer.producer_epoch
    stage, ticks = pair.stages[LEADER], list[int]()
    if what == "produce":
        batch = build_batch(
            [Record(timestamp_ms=stage.now, value=b"v")],
            producer_id=whose[0],
            producer_epoch=whose[1],
            base_sequence=0,
            transactional=True,
        )
        data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])]
        asked = send(stage, ticks, ProduceRequest(name, -1, 1_000, data), 12)
    else:
        offsets = [TxnOffsetCommitRequestTopic(TOPIC, [TxnOffsetCommitRequestPartition(0, 5)])]
        asked = send(stage, ticks, TxnOffsetCommitRequest(name, group, *whose, topics=offsets), 5)
    assert not asked.answered, "the other node is asked first"
    pair.settle()
    assert asked.answered
    assert not ticks
    answer = asked.answer
    told = answer.responses[0].partition_responses[0] if what == "produce" else answer.topics[0].partitions[0]
    assert told.error_code == E.NONE
