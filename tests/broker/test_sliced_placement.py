"""A change of the metadata that concerns many partitions: they follow in slices, and others are served in between."""

from dataclasses import replace
from pathlib import Path

import pytest

from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.row_kinds import encoded
from ottla.metadata.store import Delete, Put
from ottla.metadata.topics import TopicRecord, key_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from tests.harness.node_stage import NodeStage

PARTITIONS = 5
BATCH = bytes(build_batch([Record(0, 1_800_000_000_000, b"k", b"v")]))


class Stopwatch:
    """Lets each slice end after one step."""

    def __init__(self) -> None:
        self.us = 0

    def __call__(self) -> int:
        self.us += 4_000
        return self.us


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    return NodeStage(tmp_path, stopwatch=Stopwatch())


def creation(name: str, timeout_ms: int = 30_000) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name, PARTITIONS, 1)], timeout_ms=timeout_ms)


def here(stage: NodeStage, name: str = "t") -> list[int]:
    """The partitions that have a replica here."""
    local = stage.node.replicas.by_name.get(name)
    return [] if local is None else list(local.partitions)


def produce(stage: NodeStage, index: int, name: str = "t") -> int:
    data = PartitionProduceData(index, BATCH)
    answer = stage.send(ProduceRequest(None, 1, 1_000, [TopicProduceData(name, partition_data=[data])]), 12).answer
    return int(answer.responses[0].partition_responses[0].error_code)


def commit(stage: NodeStage, record: TopicRecord) -> None:
    """Another writer changes the topic, and the node is told."""
    stage.store.commit([Put(f"{NODE_PREFIX}2", NodeRecord("host", 9).encode()), Put(key_of("t"), encoded(record))])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    stage.settle()


def led_by_node_2(stage: NodeStage) -> TopicRecord:
    record = stage.node.image.topics["t"].record
    changed = {"leader": 2, "leader_epoch": 9, "partition_epoch": 9, "replicas": (1, 2), "isr": (1, 2)}
    return replace(record, partitions=tuple(replace(placed, **changed) for placed in record.partitions))


def test_a_client_has_its_answer_when_the_whole_topic_can_be_used(stage: NodeStage) -> None:
    asked = stage.send(creation("t"))
    for placed in range(1, PARTITIONS):
        assert here(stage) == list(range(placed))
        assert not asked.answered
        assert produce(stage, 0) == E.NONE
        assert produce(stage, PARTITIONS - 1) == E.NOT_LEADER_OR_FOLLOWER
        stage.slice()
    stage.run()
    assert asked.answer.topics[0].error_code == E.NONE
    assert [produce(stage, index) for index in range(PARTITIONS)] == [E.NONE] * PARTITIONS


def test_a_client_that_cannot_wait_has_its_answer_earlier(stage: NodeStage) -> None:
    asked = stage.send(creation("t", timeout_ms=10))
    stage.now += 10
    stage.node.tick(stage.now)
    stage.settle()
    assert asked.answer.topics[0].error_code == E.NONE
    assert len(here(stage)) < PARTITIONS
    stage.run()
    assert here(stage) == list(range(PARTITIONS))
    assert stage.ask(creation("t")).topics[0].error_code == E.TOPIC_ALREADY_EXISTS


def test_a_partition_counts_as_led_by_nobody_until_it_has_followed(stage: NodeStage) -> None:
    stage.ask(creation("t"))
    commit(stage, led_by_node_2(stage))
    last = stage.node.replicas.by_name["t"].partitions[PARTITIONS - 1]
    assert last.leads, "its turn has not come"
    assert produce(stage, last.index) == E.NOT_LEADER_OR_FOLLOWER
    assert stage.node.leadership.is_in_doubt("t", last.index)
    stage.run()
    assert not last.leads
    assert not stage.node.leadership.is_in_doubt("t", last.index)
    assert produce(stage, last.index) == E.NOT_LEADER_OR_FOLLOWER


def test_a_node_says_how_far_it_has_followed(stage: NodeStage) -> None:
    def said() -> int:
        return int(stage.ask(ApiVersionsRequest("test", "1"), 4).finalized_features_epoch)

    before = said()
    asked = stage.send(creation("t"))
    assert said() == before < stage.node.image.generation
    stage.run()
    assert asked.answered
    assert said() == stage.node.image.generation


@pytest.mark.parametrize("returns", [False, True])
def test_a_topic_may_be_deleted_before_all_of_it_is_here(stage: NodeStage, returns: bool) -> None:
    asked = stage.send(creation("t"))
    row = stage.node.image.topics["t"]
    stage.store.commit([Delete(key_of("t"), row.version)])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert here(stage) == []
    if returns:
        commit(stage, replace(row.record, topic_id=bytes(15) + b"\x01"))
    stage.run()
    assert asked.answered
    assert here(stage) == (list(range(PARTITIONS)) if returns else [])
    assert not stage.node.replicas.behind
