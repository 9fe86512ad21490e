"""A coordinator whose decisions are not committed says so in time, and what is committed later counts all the same."""

from pathlib import Path

from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.node_stage import NodeStage

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
