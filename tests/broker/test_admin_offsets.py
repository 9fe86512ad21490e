"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs, DescribeProducers, InitProducerId."""

from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.harness.node_stage import NodeStage


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node")
    create(stage, "t", 2)
    return stage


def create(stage: NodeStage, name: str, partitions: int = 1, **configs: str) -> None:
    chosen = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    assert stage.ask(CreateTopicsRequest([CreatableTopic(name, partitions, 1, [], chosen)])).topics[0].error_code == 0


def ten_records(stage: NodeStage) -> int:
    """Ten records in t-0, one batch each, a second apart; returns the first one's timestamp."""
    first = stage.now - 20_000
    for index in range(10):
        stage.append("t", timestamp=first + 1000 * index)
    return first


def offset(
    stage: NodeStage, timestamp: int, *, index: int = 0, epoch: int = -1, isolation: int = 0, version: int = 11
) -> tuple[int, int, int, int]:
    asked = ListOffsetsTopic("t", [ListOffsetsPartition(index, epoch, timestamp)])
    (topic,) = stage.ask(ListOffsetsRequest(-1, isolation, [asked]), version).topics
    (answer,) = topic.partitions
    return answer.error_code, answer.timestamp, answer.offset, answer.leader_epoch


def test_the_ends_and_the_times(stage: NodeStage) -> None:
    first = ten_records(stage)
    assert offset(stage, -1) == (0, -1, 10, 0)
    assert offset(stage, -1, isolation=1) == (0, -1, 10, 0)
    assert offset(stage, -2) == offset(stage, -4) == (0, -1, 0, 0)
    assert offset(stage, -3) == (0, first + 9000, 9, 0)
    assert offset(stage, -5) == offset(stage, -6) == (0, -1, -1, -1)
    assert offset(stage, 0) == (0, first, 0, 0)
    assert offset(stage, first + 4500) == (0, first + 5000, 5, 0)
    assert offset(stage, first + 9001) == (0, -1, -1, -1)


def test_an_empty_partition_has_ends_and_nothing_else(stage: NodeStage) -> None:
    assert offset(stage, -1, index=1) == offset(stage, -2, index=1) == (0, -1, 0, 0)
    assert offset(stage, -3, index=1) == offset(stage, 5, index=1) == (0, -1, -1, -1)


@pytest.mark.parametrize(("timestamp", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_special_times_came_one_by_one(stage: NodeStage, timestamp: int, since: int) -> None:
    assert offset(stage, timestamp, version=since - 1)[0] == E.UNSUPPORTED_VERSION
    assert offset(stage, timestamp, version=since)[0] == 0
    assert offset(stage, -7)[0] == E.UNSUPPORTED_VERSION


def test_epochs_are_compared_before_anything_is_told(stage: NodeStage) -> None:
    stage.restart()
    assert offset(stage, -1, epoch=0)[0] == E.FENCED_LEADER_EPOCH
    assert offset(stage, -1, epoch=1) == (0, -1, 0, 1)
    assert offset(stage, -1, epoch=2)[0] == E.UNKNOWN_LEADER_EPOCH
    assert offset(stage, -1, index=9)[0] == E.UNKNOWN_TOPIC_OR_PARTITION
    assert offset(stage, -1, isolation=7)[0] == E.UNKNOWN_SERVER_ERROR


def test_a_partition_asked_for_twice_is_refused(stage: NodeStage) -> None:
    asked = [ListOffsetsPartition(0, -1, -1), ListOffsetsPartition(0, -1, -2), ListOffsetsPartition(1, -1, -1)]
    (topic,) = stage.ask(ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", asked)])).topics
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(0, E.INVALID_REQUEST), (1, 0)]


def test_what_no_fsync_covers_yet_is_not_told(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", ottla_durability="fsync")
    create(stage, "t")
    stage.settle()
    stage.hold_syncs = True
    stage.append("t")
    assert offset(stage, -1) == (0, -1, 0, 0)
    assert offset(stage, -3) == (0, -1, -1, -1)
    stage.hold_syncs = False
    stage.settle()
    assert offset(stage, -1) == (0, -1, 1, 0)
    assert offset(stage, -3)[2] == 0
    stage.append("t")
    stage.stop()
    stage.restart(clean=False)
    stage.settle()
    assert offset(stage, -1) == (0, -1, 2, 1)


def test_latest_waits_for_the_high_watermark_of_its_epoch(tmp_path: Path) -> None:
    """Where a new leader has not committed what it found, latest would be older than what was told before (KIP-320)."""
    stage = NodeStage(tmp_path / "node", ottla_durability="fsync")
    create(stage, "t")
    stage.append("t")
    stage.restart(clean=False)
    partition = stage.node.replicas.get("t", 0)
    assert partition is not None
    partition.log.offsets.high_watermark = 0
    assert offset(stage, -1)[0] == E.OFFSET_NOT_AVAILABLE
    assert offset(stage, -1, version=4)[0] == E.LEADER_NOT_AVAILABLE
    assert offset(stage, 0)[0] == E.OFFSET_NOT_AVAILABLE
    assert offset(stage, -2)[0] == 0
    partition.synced(stage.now, 1)
    assert offset(stage, -1) == (0, -1, 1, 1)


# ---- OffsetForLeaderEpoch ------------------------------------------------------------------------------------------


def epoch_end(stage: NodeStage, leader_epoch: int, *, index: int = 0, current: int = -1) -> tuple[int, int, int]:
    asked = OffsetForLeaderTopic("t", [OffsetForLeaderPartition(index, current, leader_epoch)])
    answer = stage.ask(OffsetForLeaderEpochRequest(-1, [asked])).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


def test_epochs_end_where_the_next_one_began(stage: NodeStage) -> None:
    for records in (2, 0, 3):
        for _ in range(records):
            stage.append("t")
        stage.restart()
    assert epoch_end(stage, 0) == (0, 0, 2)
    assert epoch_end(stage, 1) == (0, 0, 2)
    assert epoch_end(stage, 2) == (0, 2, 5)
    assert epoch_end(stage, 3) == (0, 3, 5)
    assert epoch_end(stage, 4) == epoch_end(stage, -1) == (0, -1, -1)
    assert epoch_end(stage, 0, current=2)[0] == E.FENCED_LEADER_EPOCH
    assert epoch_end(stage, 0, current=4)[0] == E.UNKNOWN_LEADER_EPOCH
    assert epoch_end(stage, 0, index=7)[0] == E.UNKNOWN_TOPIC_OR_PARTITION


# ---- DeleteRecords -------------------------------------------------------------------------------------------------


def delete_before(stage: NodeStage, where: int, topic: str = "t", index: int = 0) -> tuple[int, int]:
    asked = DeleteRecordsTopic(topic, [DeleteRecordsPartition(index, where)])
    result = stage.ask(DeleteRecordsRequest([asked])).topics[0].partitions[0]
    return result.error_code, result.low_watermark


def test_the_log_start_moves_up_and_never_down(stage: NodeStage) -> None:
    ten_records(stage)
    assert delete_before(stage, 3) == (0, 3)
    assert delete_before(stage, 1) == (0, 3)
    assert offset(stage, -2)[2] == 3
    assert delete_before(stage, 11) == delete_before(stage, -2) == (E.OFFSET_OUT_OF_RANGE, -1)
    assert delete_before(stage, -1) == (0, 10)
    assert delete_before(stage, -1, index=1) == (0, 0)
    stage.run(1000)
    stage.restart()
    assert offset(stage, -2)[2] == offset(stage, -1)[2] == 10


def test_a_partition_named_twice_gets_the_last_offset(stage: NodeStage) -> None:
    ten_records(stage)
    asked = [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, offset)]) for offset in (4, 5)]
    (topic,) = stage.ask(DeleteRecordsRequest(asked)).topics
    assert [(p.error_code, p.low_watermark) for p in topic.partitions] == [(0, 5)]


def test_records_that_may_not_go_stay(stage: NodeStage) -> None:
    create(stage, "compacted", cleanup_policy="compact")
    create(stage, "both", cleanup_policy="compact,delete")
    create(stage, "kept", cleanup_policy="")
    stage.change(stage.node.topics.creating_internal(stage.now, "__consumer_offsets"))
    assert delete_before(stage, 0, "compacted") == (E.POLICY_VIOLATION, -1)
    assert delete_before(stage, 0, "both") == (0, 0)
    assert delete_before(stage, 0, "kept") == (0, 0)
    assert delete_before(stage, 0, "__consumer_offsets") == (E.INVALID_TOPIC_EXCEPTION, -1)
    assert delete_before(stage, 0, "none") == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)


# ---- what partitions are like --------------------------------------------------------------------------------------


def test_log_directories_are_measured(stage: NodeStage) -> None:
    ten_records(stage)

    def sizes(topics: list[DescribableLogDirTopic] | None) -> dict[str, list[tuple[int, bool]]]:
        (result,) = stage.ask(DescribeLogDirsRequest(topics)).results
        assert result.log_dir == str(stage.directory)
        assert result.total_bytes >= result.usable_bytes > 0
        return {t.name: [(p.partition_index, p.partition_size > 0) for p in t.partitions] for t in result.topics}

    assert sizes(None) == {"t": [(0, True), (1, False)]}
    assert sizes([DescribableLogDirTopic("t", [1, 7]), DescribableLogDirTopic("none", [0])]) == {"t": [(1, False)]}
    assert sizes([]) == sizes([DescribableLogDirTopic("t", [])]) == {}


def test_producers_are_described(stage: NodeStage) -> None:
    stage.append("t", timestamp=stage.now, producer_id=9, producer_epoch=3, base_sequence=0)
    stage.append("t", timestamp=stage.now, producer_id=9, producer_epoch=3, base_sequence=1)
    asked = [TopicRequest("t", [0, 1, 7]), TopicRequest("none", [0]), TopicRequest("a b", [0])]
    first, unknown, bad = stage.ask(DescribeProducersRequest(asked)).topics
    assert [(p.error_code, len(p.active_producers)) for p in first.partitions] == [
        (0, 1),
        (0, 0),
        (E.UNKNOWN_TOPIC_OR_PARTITION, 0),
    ]
    producer = first.partitions[0].active_producers[0]
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (9, 3, 1)
    assert (producer.last_timestamp, producer.coordinator_epoch, producer.current_txn_start_offset) == (
        stage.now,
        -1,
        -1,
    )
    assert unknown.partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert bad.partitions[0].error_code == E.INVALID_TOPIC_EXCEPTION


def producer_id(
    stage: NodeStage, transactional_id: str | None = None, known: tuple[int, int] = (-1, -1)
) -> tuple[int, int, int]:
    answer = stage.ask(InitProducerIdRequest(transactional_id, 1000, *known), 5)
    return answer.error_code, answer.producer_id, answer.producer_epoch


def test_producer_ids_are_fresh_across_lives(stage: NodeStage) -> None:
    assert [producer_id(stage) for _ in range(2)] == [(0, 0, 0), (0, 1, 0)]
    assert producer_id(stage, known=(1, 0)) == (0, 2, 0)
    stage.restart(clean=False)
    assert producer_id(stage) == (0, 1000, 0)


def test_producers_that_ask_wrongly_get_none(stage: NodeStage) -> None:
    assert producer_id(stage, "") == (E.INVALID_REQUEST, -1, -1)
    assert producer_id(stage, known=(5, -1)) == producer_id(stage, known=(-1, 0)) == (E.INVALID_REQUEST, -1, -1)


def test_deleting_records_does_not_hurry_the_retention_of_the_others(stage: NodeStage) -> None:
    for _ in range(10):
        stage.append("t", timestamp=1_000)
    assert delete_before(stage, 3) == (0, 3)
    stage.run(20_000)
    assert offset(stage, -2)[2] == 3
    stage.run(400_000)
    assert offset(stage, -2)[2] == 10
