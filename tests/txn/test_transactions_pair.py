"""Transactions whose coordinator is another node: what is asked of it, and that nothing waits for a timer meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from ottla.log.log import Log
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, partition_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.messages.end_txn import EndTxnRequest
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


class Producer:
    """A transactional producer of the second version, whose transactions this node coordinates."""

    def __init__(self, pair: NodePair, coordinator: int) -> None:
        self.pair, self.coordinator = pair, coordinator
        self.name = coordinated_by(pair, TRANSACTION_STATE_TOPIC, coordinator)
        answer = pair.ask(coordinator, InitProducerIdRequest(self.name, 600_000), 5)
        assert answer.error_code == E.NONE
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def request(self, topic: str) -> ProduceRequest:
        """One record for the first partition of the topic."""
        batch = build_batch(
            [Record(timestamp_ms=self.pair.stages[COORDINATOR].now, value=b"v")],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=0,
            transactional=True,
        )
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])]
        return ProduceRequest(self.name, 1, 1_000, data)

    def write(self, node_id: int, topic: str) -> None:
        """To the leader, which asks the coordinator first."""
        answer = self.pair.ask(node_id, self.request(topic), 12)
        assert answer.responses[0].partition_responses[0].error_code == E.NONE

    def end(self) -> None:
        answer = self.pair.ask(self.coordinator, EndTxnRequest(self.name, self.id, self.epoch, True), 5)
        assert answer.error_code == E.NONE


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
    group = coordinated_by(pair, CONSUMER_OFFSETS_TOPIC, LEADER)
    producer = Producer(pair, COORDINATOR)
    stage, ticks = pair.stages[LEADER], list[int]()
    if what == "produce":
        asked = send(stage, ticks, producer.request(TOPIC), 12)
    else:
        offsets = [TxnOffsetCommitRequestTopic(TOPIC, [TxnOffsetCommitRequestPartition(0, 5)])]
        commit = TxnOffsetCommitRequest(producer.name, group, producer.id, producer.epoch, topics=offsets)
        asked = send(stage, ticks, commit, 5)
    assert not asked.answered, "the other node is asked first"
    pair.settle()
    assert asked.answered
    assert not ticks
    answer = asked.answer
    told = answer.responses[0].partition_responses[0] if what == "produce" else answer.topics[0].partitions[0]
    assert told.error_code == E.NONE


def replicated(pair: NodePair, needs: int) -> Log:
    """The leader's log of a topic with replicas on both nodes, led by the first, which needs so many in sync."""
    topic = CreatableTopic("replicated", -1, -1, [CreatableReplicaAssignment(0, [COORDINATOR, LEADER])])
    topic.configs = [CreatableTopicConfig("min.insync.replicas", str(needs))]
    pair.ask(COORDINATOR, CreateTopicsRequest(topics=[topic]))
    pair.run(1_000)
    partition = pair.stages[COORDINATOR].node.replicas.get("replicated", 0)
    assert partition is not None
    return partition.log


def test_a_marker_that_waits_for_a_follower_delays_no_other_transaction(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    log = replicated(pair, needs=1)
    waiting, other = Producer(pair, LEADER), Producer(pair, COORDINATOR)
    waiting.write(COORDINATOR, "replicated")
    pair.held.add(ApiKey.FETCH)
    waiting.end()
    assert log.high_watermark < log.log_end_offset, "the follower does not have the marker"
    other.write(LEADER, TOPIC)
    assert log.last_stable_offset == 0
    pair.held.clear()
    pair.run(1_000)
    assert log.last_stable_offset == log.log_end_offset


def test_a_partition_with_too_few_replicas_refuses_its_marker_until_there_are_more(tmp_path: Path) -> None:
    """A marker that was appended would wait for a replica, and its successors would follow it into the log."""
    pair = make_pair(tmp_path)
    log = replicated(pair, needs=2)
    producer = Producer(pair, LEADER)
    pair.held.add(ApiKey.FETCH)
    producer.write(COORDINATOR, "replicated")
    pair.run(60_000)
    placed = pair.stages[COORDINATOR].node.image.partition("replicated", 0)
    assert placed is not None
    assert placed.isr == (COORDINATOR,)
    end = log.log_end_offset
    producer.end()
    pair.run(60_000)
    assert log.log_end_offset == end
    pair.held.clear()
    pair.run(5_000)
    assert log.last_stable_offset == log.log_end_offset == end + 1
