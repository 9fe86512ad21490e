"""Shards on a node: the way of a key, loading by slices, commits that wait for the disk, appends that fail."""

from typing import Any

import pytest

from ottla.broker.coordinators.shards import LOAD_SLICE_BYTES
from ottla.protocol.coordinator_records import partition_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.harness.groups.host_stage import HostStage
from tests.harness.other_writer import place

E = ErrorCode
SET, DELETE = 0, 1
BROKER = 4
# Of three partitions "g" and "j" have the same, "simple" and "g2" have others.


@pytest.fixture
def stage() -> HostStage:
    return HostStage()


def join(group: str = "g", member: str = "", instance: str | None = None) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol("range", b"\0\0\0\0\0\0\0\0\0\0")]
    return JoinGroupRequest(group, 10_000, 20_000, member, instance, "consumer", protocols)


def commit(offset: int, group: str = "g", metadata: str = "") -> OffsetCommitRequest:
    at = OffsetCommitRequestPartition(0, offset, -1, metadata)
    return OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic("t", partitions=[at])])


def committed(stage: HostStage, group: str = "g") -> int:
    topics = [OffsetFetchRequestTopics("t", partition_indexes=[0])]
    reply = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=topics)]), 9)
    assert reply.groups[0].error_code == E.NONE, E(reply.groups[0].error_code).name
    return reply.groups[0].topics[0].partitions[0].committed_offset


def error_of(reply: Any) -> ErrorCode:
    return ErrorCode(reply.topics[0].partitions[0].error_code)


def stable(stage: HostStage, group: str = "g") -> str:
    """A group with one static member; returns its id."""
    member = stage.ask(join(group, instance="i")).member_id
    assigned = [SyncGroupRequestAssignment(member, b"all")]
    reply = stage.ask(SyncGroupRequest(group, 1, member, "i", "consumer", "range", assigned))
    assert reply.assignment == b"all"
    return member


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("", 0),
        ("g", 3),
        ("simple", 26),
        ("group-1", 49),
        ("polygenelubricants", 0),
        ("grüße", 23),
        ("😀x", 39),
        ("消费组", 35),
        ("console-consumer-12345", 6),
    ],
)
def test_a_key_finds_the_partition_that_java_finds(key: str, partition: int) -> None:
    """Computed by Java: Math.abs(key.hashCode()) % 50, and 0 for the smallest int."""
    assert partition_of(key, 50) == partition


def test_before_anyone_looked_for_the_coordinator_there_is_none(stage: HostStage) -> None:
    assert error_of(stage.ask(commit(1), 9)) is E.NOT_COORDINATOR
    assert stage.ask(ListGroupsRequest()).groups == []
    found = stage.coordinate().coordinators[0]
    assert (found.error_code, found.host, found.port) == (E.NONE, "broker.example", 9092)
    assert error_of(stage.ask(commit(1), 9)) is E.NONE
    assert committed(stage) == 1


@pytest.mark.parametrize(("key_type", "error"), [(2, E.INVALID_REQUEST), (3, E.INVALID_REQUEST)])
def test_other_coordinators_are_refused(stage: HostStage, key_type: int, error: ErrorCode) -> None:
    from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest

    reply = stage.ask(FindCoordinatorRequest("x", key_type), 3)
    assert (reply.error_code, reply.node_id, reply.error_message) == (error, -1, error.message)


def test_groups_come_back_after_a_crash(stage: HostStage) -> None:
    stage.coordinate()
    member = stable(stage)
    stage.ask(commit(7, "simple"), 9)
    stage.restart(clean=False)
    stage.run()
    assert stage.ask(HeartbeatRequest("g", 1, member, "i")).error_code == E.NONE
    assert committed(stage, "simple") == 7
    stage.run(10_000)
    described = stage.ask(DescribeGroupsRequest(["g"])).groups[0]
    assert described.group_state == "Empty", "its session began anew at the restart, and then ended"


def test_several_shards_answer_one_request(stage: HostStage) -> None:
    """In the order of the request, whichever shard a group belongs to."""
    stage.coordinate()
    groups = [f"g{i}" for i in range(9)]
    assert len({partition_of(group, 3) for group in groups}) == 3
    for i, group in enumerate(groups):
        assert error_of(stage.ask(commit(i, group), 9)) is E.NONE
    described = stage.ask(DescribeGroupsRequest([*groups, "unknown"])).groups
    assert [group.group_id for group in described] == [*groups, "unknown"]
    assert sorted(group.group_id for group in stage.ask(ListGroupsRequest()).groups) == groups
    fetched = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None) for group in groups]), 9)
    assert [group.topics[0].partitions[0].committed_offset for group in fetched.groups] == list(range(9))
    deleted = stage.ask(DeleteGroupsRequest(groups))
    assert {result.error_code for result in deleted.results} == {E.NONE}
    assert stage.ask(ListGroupsRequest()).groups == []


def test_a_large_log_is_loaded_in_slices(stage: HostStage) -> None:
    """Meanwhile clients are told to wait, but members keep believing that all is well."""
    stage.coordinate()
    member = stable(stage)
    for i in range(3 * LOAD_SLICE_BYTES // 4_000):
        assert error_of(stage.ask(commit(i, "j", "x" * 4_000), 9)) is E.NONE
        stage.ask(commit(i, "g2", "x" * 4_000), 9)
    last = i
    stage.restart(clean=False)
    assert error_of(stage.ask(commit(0, "j"), 9)) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert stage.ask(HeartbeatRequest("g", 1, member, "i")).error_code == E.NONE
    assert stage.ask(ListGroupsRequest()).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
    assert stage.node.deadline() is not None
    stage.run()
    assert committed(stage, "j") == last
    assert committed(stage, "g2") == last
    assert stage.ask(HeartbeatRequest("g", 1, member, "i")).error_code == E.NONE


def test_answers_wait_for_the_disk_where_durability_asks_for_it() -> None:
    stage = HostStage(ottla_durability="fsync")
    stage.coordinate()
    stage.hold_syncs = True
    first = stage.send(commit(1), 9)
    second = stage.send(commit(2), 9)
    assert not first.answered
    assert not second.answered
    assert not stage.send(DescribeGroupsRequest(["g"])).answered, "a reader must not see what may be lost"
    connection = stage.connect()
    gone = stage.send(commit(3), 9, connection)
    stage.hang_up(connection)
    while stage.syncs:
        stage.sync()
        stage.settle()
    assert error_of(first.answer) is E.NONE
    assert error_of(second.answer) is E.NONE
    assert not gone.answered
    stage.hold_syncs = False
    stage.run()
    assert len(stage.node.parking) == 0
    found = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 9)
    assert found.groups[0].topics[0].partitions[0].committed_offset == 3


def test_an_fsync_that_fails_takes_the_coordinator_along() -> None:
    stage = HostStage(ottla_durability="fsync")
    stage.coordinate()
    parked = stage.ask(join())
    assert parked.error_code == E.MEMBER_ID_REQUIRED
    waiting = stage.send(join(member=parked.member_id))
    stage.hold_syncs = True
    first = stage.send(commit(1, "j"), 9)
    stage.sync(failed="Input/output error")
    stage.settle()
    assert error_of(first.answer) is E.NOT_COORDINATOR
    assert waiting.answer.error_code == E.NOT_COORDINATOR
    second = stage.send(commit(2, "j"), 9)  # it starts over from what is left of its log
    assert not second.answered
    stage.sync()
    stage.settle()
    assert error_of(second.answer) is E.NONE
    stage.hold_syncs = False
    stage.restart(clean=False)
    stage.run()
    assert committed(stage, "j") == 2


def test_a_full_disk_is_not_the_coordinators_end(stage: HostStage) -> None:
    """The append fails, whoever waits is told to look elsewhere, and with room the coordinator goes on."""
    stage.coordinate()
    assert error_of(stage.ask(commit(1), 9)) is E.NONE
    member = stage.ask(join("g")).member_id
    waiting = stage.send(join("g", member))
    assert not waiting.answered
    stage.disk.capacity = stage.disk.used
    assert error_of(stage.ask(commit(2, "j"), 9)) is E.NOT_COORDINATOR
    stage.settle()
    assert waiting.answer.error_code == E.NOT_COORDINATOR
    assert stage.ask(HeartbeatRequest("g", 1, member)).error_code == E.UNKNOWN_MEMBER_ID
    stage.disk.capacity = None
    assert committed(stage) == 1
    assert error_of(stage.ask(commit(2), 9)) is E.NONE
    stage.restart(clean=False)
    stage.run()
    assert committed(stage) == 2
    assert any("starts over" in note for note in stage.notes)


def test_a_topic_takes_its_offsets_along(stage: HostStage) -> None:
    stage.coordinate()
    stage.ask(commit(5), 9)
    topic = stage.node.image.topics.get("t")
    assert topic is not None
    stage.change(stage.node.topics.deleting([topic]))
    stage.run()
    stage.create("t", 2, {})
    assert committed(stage) == -1
    reply = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 9)
    assert reply.groups[0].topics == []
    stage.restart(clean=False)
    stage.run()
    assert committed(stage) == -1


def test_without_its_topic_the_coordinator_is_gone(stage: HostStage) -> None:
    stage.coordinate()
    member = stage.ask(join()).member_id
    waiting = stage.send(join(member=member))
    topic = stage.node.image.topics.get("__consumer_offsets")
    assert topic is not None
    stage.change(stage.node.topics.deleting([topic]))
    stage.settle()
    assert waiting.answer.error_code == E.NOT_COORDINATOR
    assert stage.ask(HeartbeatRequest("g", 1, member)).error_code == E.NOT_COORDINATOR
    stage.run()
    stage.coordinate()
    assert stage.ask(HeartbeatRequest("g", 1, member)).error_code == E.UNKNOWN_MEMBER_ID


def test_a_coordinator_goes_and_comes_with_the_leadership(stage: HostStage) -> None:
    stage.coordinate()
    stage.ask(commit(5), 9)
    member = stage.ask(join()).member_id
    waiting = stage.send(join(member=member))
    index = stage.node.coordinators.groups.partition_for("g")

    def led_by(leader: int, epoch: int) -> None:
        led = {"leader": leader, "leader_epoch": epoch, "replicas": (1, 7), "isr": (leader,)}
        place(stage.node, stage.store, stage.now, "__consumer_offsets", index, **led)

    led_by(7, 1)
    stage.settle()
    assert waiting.answer.error_code == E.NOT_COORDINATOR
    assert stage.ask(HeartbeatRequest("g", 1, member)).error_code == E.NOT_COORDINATOR
    assert index not in stage.node.coordinators.groups.active()
    led_by(1, 2)
    stage.run()
    assert committed(stage) == 5
    stage.ask(commit(6), 9)
    led_by(1, 3)
    stage.run()
    assert committed(stage) == 6
    log = stage.node.replicas.by_name["__consumer_offsets"].partitions[index].log
    assert [log.end_offset_for(epoch)[0] for epoch in (0, 2, 3)] == [0, 2, 3]


def test_a_lost_connection_leaves_nothing_behind(stage: HostStage) -> None:
    stage.coordinate()
    member = stage.ask(join()).member_id
    connection = stage.connect()
    stage.send(join(member=member), connection=connection)
    stage.hang_up(connection)
    assert len(stage.node.parking) == 0
    stage.run(1)
    stage.node.coordinators.groups.check()
    again = stage.ask(join(member=member))
    assert again.generation_id == 1, "the member is still one and has only to ask again"


def test_partitions_without_records_cost_nothing() -> None:
    stage = HostStage(offsets_topic_num_partitions="50")
    stage.coordinate()
    assert stage.node.coordinators.groups.active() == []
    stage.ask(commit(1), 9)
    assert stage.node.coordinators.groups.active() == [partition_of("g", 50)]
    stage.restart(clean=False)
    assert stage.node.coordinators.groups.active() == [partition_of("g", 50)]


def test_offsets_by_topic_id(stage: HostStage) -> None:
    """Version 10: unknown ids are refused one by one, and answers carry ids."""
    stage.coordinate()
    topic = stage.node.image.topics.get("t")
    assert topic is not None
    at = [OffsetCommitRequestPartition(0, 5), OffsetCommitRequestPartition(2, 5)]
    stranger = bytes([9]) * 16
    asked = [OffsetCommitRequestTopic("", topic.id, at), OffsetCommitRequestTopic("", stranger, at[:1])]
    reply = stage.ask(OffsetCommitRequest("g", topics=asked), 10)
    found = {t.topic_id: [(p.partition_index, p.error_code) for p in t.partitions] for t in reply.topics}
    assert found == {
        topic.id: [(2, E.UNKNOWN_TOPIC_OR_PARTITION), (0, E.NONE)],
        stranger: [(0, E.UNKNOWN_TOPIC_ID)],
    }
    topics = [OffsetFetchRequestTopics("", topic.id, [0]), OffsetFetchRequestTopics("", stranger, [0])]
    fetched = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)]), 10)
    found = {t.topic_id: [(p.committed_offset, p.error_code) for p in t.partitions] for t in fetched.groups[0].topics}
    assert found == {topic.id: [(5, E.NONE)], stranger: [(-1, E.UNKNOWN_TOPIC_ID)]}
    everything = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 10)
    assert [t.topic_id for t in everything.groups[0].topics] == [topic.id]


def test_a_commit_may_be_as_large_as_the_log_accepts_now() -> None:
    """A shard that is loaded follows a change of message.max.bytes."""
    stage = HostStage(message_max_bytes="2000")
    stage.coordinate()
    large = commit(1, metadata="x" * 3_000)
    assert error_of(stage.ask(large, 8)) == E.UNKNOWN_SERVER_ERROR
    for operation, expected in ((SET, E.NONE), (DELETE, E.UNKNOWN_SERVER_ERROR)):
        change = AlterableConfig("message.max.bytes", operation, "10000")
        asked = IncrementalAlterConfigsRequest([AlterConfigsResource(BROKER, "", [change])])
        assert stage.ask(asked, 1).responses[0].error_code == E.NONE
        assert error_of(stage.ask(large, 8)) == expected
        assert committed(stage) == 1
