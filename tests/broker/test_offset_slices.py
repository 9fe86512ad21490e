"""Offsets of many partitions of one group: committed at once, read as of one moment, deleted some at a time."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.broker import slices
from ottla.broker.api import group_calls, k08_offset_commit, k09_offset_fetch, k47_offset_delete
from ottla.broker.effects import Parked
from ottla.broker.schedule import Timed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.wire import ZERO_UUID, Message
from tests.harness.node_stage import CHANNEL, NodeStage

PARTITIONS = 100
BATCH_BYTES = 5_000
"""Room for some 60 offsets, or 260 tombstones."""


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    made = NodeStage(tmp_path / "node", message_max_bytes=str(BATCH_BYTES))
    made.ask(CreateTopicsRequest([CreatableTopic(name, PARTITIONS, 1) for name in ("t", "u", "v", "w")]))
    made.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    return made


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slices, group_calls, k08_offset_commit, k47_offset_delete):
        monkeypatch.setattr(module, "SLICE_STEPS", 3)


def committing(name: str, indexes: Iterable[int], metadata: str | None = None) -> OffsetCommitRequestTopic:
    partitions = [OffsetCommitRequestPartition(index, 5 + index, -1, metadata) for index in indexes]
    return OffsetCommitRequestTopic(name, ZERO_UUID, partitions)


@pytest.mark.usefixtures("small_slices")
def test_a_long_commit_is_there_after_a_restart(stage: NodeStage) -> None:
    topics = [committing("t", range(20)), committing("nosuch", range(3)), committing("u", (1, 999, 2), "m")]
    topics.append(committing("t", (30, 31), "x" * 5_000))
    answer = stage.ask(OffsetCommitRequest("g", -1, topics=topics), 8)
    assert errors(answer) == {
        "nosuch": dict.fromkeys(range(3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        "u": {1: 0, 2: 0, 999: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        "t": {**dict.fromkeys(range(20), 0), **dict.fromkeys((30, 31), ErrorCode.OFFSET_METADATA_TOO_LARGE)},
    }
    assert committed(stage) == {"t": list(range(20)), "u": [1, 2]}
    (shard,) = stage.node.coordinators.groups.shards()
    image = shard.image()
    stage.restart()
    stage.run()
    assert committed(stage) == {"t": list(range(20)), "u": [1, 2]}
    (shard,) = stage.node.coordinators.groups.shards()
    assert shard.image() == image


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize(
    ("group", "generation", "count", "error"),
    [
        ("g", -1, PARTITIONS, ErrorCode.UNKNOWN_SERVER_ERROR),
        ("g", 7, 10, ErrorCode.ILLEGAL_GENERATION),
        ("g", 7, PARTITIONS, ErrorCode.ILLEGAL_GENERATION),
    ],
    ids=["too-large", "refused", "refused-and-too-large"],
)
def test_a_long_commit_counts_whole_or_not_at_all(
    stage: NodeStage, group: str, generation: int, count: int, error: ErrorCode
) -> None:
    topics = [committing("t", range(count)), committing("u", range(count))]
    answer = stage.ask(OffsetCommitRequest(group, generation, topics=topics), 8)
    assert errors(answer) == {name: dict.fromkeys(range(count), error) for name in ("t", "u")}
    assert committed(stage) == {}
    assert stage.ask(OffsetCommitRequest(group, -1, topics=[committing("t", (1,))]), 8).topics[0].partitions


def commit(stage: NodeStage, name: str, indexes: Iterable[int]) -> None:
    answer = stage.ask(OffsetCommitRequest("g", -1, topics=[committing(name, indexes)]), 8)
    assert {part.error_code for part in answer.topics[0].partitions} == {0}


def committed(stage: NodeStage) -> dict[str, list[int]]:
    answer = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 8)
    return {topic.name: [part.partition_index for part in topic.partitions] for topic in answer.groups[0].topics}


def delete(stage: NodeStage, topics: Mapping[str, Iterable[int]], group: str = "g") -> Any:
    asked = [
        OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index) for index in indexes])
        for name, indexes in topics.items()
    ]
    return stage.ask(OffsetDeleteRequest(group, asked))


def errors(answer: Any) -> dict[str, dict[int, int]]:
    found = {
        topic.name: {part.partition_index: part.error_code for part in topic.partitions} for topic in answer.topics
    }
    assert len(found) == len(answer.topics), "a topic is there twice"
    return found


MIXED = {"nosuch": range(5), "t": (1, 2, 999, 3, -1), "u": range(7), "v": (8,), "never": (0,)}


def test_more_offsets_are_deleted_than_fit_into_a_batch(stage: NodeStage) -> None:
    names = ("t", "u", "v", "w")
    for name in names:
        for first in range(0, PARTITIONS, 50):
            commit(stage, name, range(first, first + 50))
    answer = delete(stage, {name: range(PARTITIONS) for name in names})
    assert answer.error_code == 0
    assert errors(answer) == {name: dict.fromkeys(range(PARTITIONS), 0) for name in names}
    assert committed(stage) == {}
    assert not [note for note in stage.notes if "starts over" in note]


def test_what_is_deleted_in_slices_is_what_one_request_deletes(
    stage: NodeStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t", "u"):
        commit(stage, name, range(9))
    whole, left = errors(delete(stage, MIXED)), committed(stage)
    for name in ("t", "u"):
        commit(stage, name, range(9))
    for module in (slices, group_calls, k08_offset_commit, k47_offset_delete):
        monkeypatch.setattr(module, "SLICE_STEPS", 3)
    assert errors(delete(stage, MIXED)) == whole
    assert committed(stage) == left == {"t": [0, 4, 5, 6, 7, 8], "u": [7, 8]}


@pytest.mark.usefixtures("small_slices")
def test_an_error_of_the_group_is_all_that_is_said(stage: NodeStage) -> None:
    answer = delete(stage, MIXED, "nobody")
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


def offsets(topics: Iterable[Any]) -> dict[str, dict[int, tuple[int, int]]]:
    return {
        topic.name: {part.partition_index: (part.committed_offset, part.error_code) for part in topic.partitions}
        for topic in topics
    }


def all_of(version: int, *, require_stable: bool = False) -> OffsetFetchRequest:
    if version >= 8:
        groups = [OffsetFetchRequestGroup("g", topics=None)]
        return OffsetFetchRequest(groups=groups, require_stable=require_stable)
    return OffsetFetchRequest("g", topics=None, require_stable=require_stable)


def explicit(version: int) -> OffsetFetchRequest:
    asked = {"t": [*range(20), 99], "nosuch": [0, 1], "u": [1, 2, 1_000]}
    if version >= 8:
        topics = [OffsetFetchRequestTopics(name, ZERO_UUID, indexes) for name, indexes in asked.items()]
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, topics=topics) for name in ("none", "g", "no")])
    return OffsetFetchRequest("g", topics=[OffsetFetchRequestTopic(name, indexes) for name, indexes in asked.items()])


@pytest.mark.parametrize("version", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("make", [all_of, explicit])
def test_what_is_read_in_slices_is_what_one_request_reads(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, version: int, make: Callable[[int], OffsetFetchRequest]
) -> None:
    if version == 1 and make is all_of:
        pytest.skip("version 1 has no null")
    commit(stage, "t", range(30))
    commit(stage, "u", (1, 2))
    whole = stage.ask(make(version), version)
    for module in (slices, k09_offset_fetch):
        monkeypatch.setattr(module, "SLICE_STEPS", 3)
    assert stage.ask(make(version), version) == whole
    topics = whole.topics if version < 8 else next(each for each in whole.groups if each.group_id == "g").topics
    assert offsets(topics)["t"][7] == (12, 0)


def test_all_offsets_are_those_of_one_moment(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(stage, "t", range(30))
    monkeypatch.setattr(k09_offset_fetch, "SLICE_STEPS", 3)
    frame = encode_request(RequestHeader(9, 8, 7, "stage"), all_of(8))
    parked = stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:])
    assert isinstance(parked, Parked)
    stage.node.tick(stage.now)
    monkeypatch.undo()
    later = [OffsetCommitRequestPartition(index, 999, -1, None) for index in range(40)]
    stage.ask(OffsetCommitRequest("g", -1, topics=[OffsetCommitRequestTopic("t", ZERO_UUID, later)]), 8)
    whole = b"".join(bytes(cast(bytes, part)) for part in stage.in_slices(parked))
    _, answer = decode_response(9, 8, memoryview(whole)[4:])
    assert offsets(answer.groups[0].topics) == {"t": {index: (5 + index, 0) for index in range(30)}}


def unknown_ids() -> tuple[list[OffsetFetchRequestTopics], int]:
    return [OffsetFetchRequestTopics("", n.to_bytes(16), [0]) for n in range(1, 301)], 10


def no_partitions() -> tuple[list[OffsetFetchRequestTopics], int]:
    return [OffsetFetchRequestTopics("t", ZERO_UUID, [])] * 300, 8


@pytest.mark.parametrize("made", [unknown_ids, no_partitions])
def test_topics_of_which_nothing_is_told_are_looked_at_in_slices(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, made: Callable[[], tuple[list[OffsetFetchRequestTopics], int]]
) -> None:
    topics, version = made()
    monkeypatch.setattr(k09_offset_fetch, "SLICE_STEPS", 10)
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])
    ticks = 0
    parked = stage.node.receive(stage.now, CHANNEL, memoryview(encode_request(RequestHeader(9, version), asked))[4:])
    assert isinstance(parked, Parked)
    while stage.deadline_of(Timed.SLICES) is not None:
        stage.node.tick(stage.now)
        ticks += 1
    assert ticks >= len(topics) // 10


@pytest.mark.parametrize("topics", [None, [OffsetFetchRequestTopics("t", ZERO_UUID, [0] * 300)]])
def test_a_member_is_told_when_its_epoch_is_not_the_groups_however_much_it_asks_for(
    stage: NodeStage, topics: list[OffsetFetchRequestTopics] | None
) -> None:
    stage.ask(ConsumerGroupHeartbeatRequest("g", "m", 0, None, None, 10_000, ["t"], None, None, []), 1)
    asked = OffsetFetchRequestGroup("g", "m", 77, topics)
    answer = stage.ask(OffsetFetchRequest(groups=[asked]), 9)
    assert answer.groups[0].error_code == ErrorCode.STALE_MEMBER_EPOCH


def test_a_small_group_shows_all_its_offsets_at_once(stage: NodeStage) -> None:
    commit(stage, "t", range(30))
    frame = encode_request(RequestHeader(9, 8, 7, "stage"), all_of(8))
    assert isinstance(stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:]), list)


def ticks_of(stage: NodeStage, request: Message, version: int) -> int:
    """The turns of the node after the first one, until the request is answered."""
    frame = encode_request(RequestHeader(request.API_KEY, version), request)
    stage.node.receive(stage.now, CHANNEL, memoryview(frame)[4:])
    ticks = 0
    while stage.deadline_of(Timed.SLICES) is not None:
        stage.node.tick(stage.now)
        ticks += 1
    return ticks


def test_many_small_groups_need_few_turns(stage: NodeStage) -> None:
    names = [f"group-{number}" for number in range(60)]
    for name in names:
        topic = OffsetCommitRequestTopic("t", ZERO_UUID, [OffsetCommitRequestPartition(0, 5, -1, None)])
        stage.ask(OffsetCommitRequest(name, -1, topics=[topic]), 8)
    listed = {each.group_id for each in stage.ask(ListGroupsRequest(), 5).groups}
    assert listed >= set(names)
    assert ticks_of(stage, ListGroupsRequest(), 5) == 0
    asked = [OffsetFetchRequestGroup(name, topics=None) for name in names]
    assert 60 // 20 - 1 <= ticks_of(stage, OffsetFetchRequest(groups=asked), 8) <= 4
