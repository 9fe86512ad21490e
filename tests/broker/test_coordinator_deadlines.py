"""A coordinator whose decisions are not committed says so in time, and what is committed later counts all the same."""

from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStateData,
    PartitionData,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.harness.node_stage import NodeStage

TIMEOUT_MS = 700


def commit(offset: int) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(0, offset)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
    return OffsetCommitRequest("g", generation_id_or_member_epoch=-1, member_id="", topics=topics)


def committed(stage: NodeStage) -> int:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", None, -1, topics)])
    return int(stage.ask(asked, 9).groups[0].topics[0].partitions[0].committed_offset)


def stage_of(tmp_path: Path) -> NodeStage:
    """A node that commits by fsync, with a topic and a coordinator that is loaded."""
    stage = NodeStage(tmp_path, ottla_durability="fsync", offsets_commit_timeout_ms=str(TIMEOUT_MS))
    stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)]))
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    assert stage.ask(commit(1), 9).topics[0].partitions[0].error_code == E.NONE
    return stage


def test_a_commit_that_nothing_commits_is_answered_in_time(tmp_path: Path) -> None:
    stage = stage_of(tmp_path)
    stage.hold_syncs = True
    waiting = stage.send(commit(2), 9)
    stage.run(TIMEOUT_MS - 1)
    assert not waiting.answered
    stage.run(1)
    assert waiting.answer.topics[0].partitions[0].error_code == E.COORDINATOR_NOT_AVAILABLE
    stage.hold_syncs = False
    stage.run(100)
    assert committed(stage) == 2, "the next one who asks is told what there is"


def test_what_is_committed_in_time_is_answered_once(tmp_path: Path) -> None:
    stage = stage_of(tmp_path)
    stage.hold_syncs = True
    first = stage.send(commit(2), 9)
    stage.run(TIMEOUT_MS // 2)
    stage.hold_syncs = False
    stage.run(0)
    assert first.answer.topics[0].partitions[0].error_code == E.NONE
    stage.run(2 * TIMEOUT_MS)
    assert committed(stage) == 2


def initializing(topic_id: bytes) -> InitializeShareGroupStateRequest:
    return InitializeShareGroupStateRequest("g", [InitializeStateData(topic_id, [PartitionData(0, 1, 0)])])


OTHERS = ["offsets.commit.timeout.ms", "share.coordinator.write.timeout.ms", "request.timeout.ms"]


@pytest.mark.parametrize("setting", OTHERS)
def test_each_coordinator_has_a_timeout_of_its_own(tmp_path: Path, setting: str) -> None:
    settings: dict[str, Any] = {
        other.replace(".", "_"): str(TIMEOUT_MS if other == setting else 10 * TIMEOUT_MS) for other in OTHERS
    }
    stage = NodeStage(tmp_path, ottla_durability="fsync", **settings)
    (made,) = stage.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)])).topics
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    stage.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]))
    stage.ask(InitProducerIdRequest("tx", 60_000))
    stage.ask(initializing(made.topic_id))
    stage.hold_syncs = True
    waiting = {
        "offsets.commit.timeout.ms": stage.send(commit(2), 9),
        "share.coordinator.write.timeout.ms": stage.send(initializing(made.topic_id)),
        "request.timeout.ms": stage.send(InitProducerIdRequest("tx", 60_000)),
    }
    stage.run(TIMEOUT_MS)
    assert [each for each, asked in waiting.items() if asked.answered] == [setting]
