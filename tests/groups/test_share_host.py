"""Share groups on a node: answers that wait for an fsync, work in several rounds, crashes between them."""

from typing import Any

from ottla.broker.api.share_offsets import question
from ottla.groups.shard import GroupShard
from ottla.groups.share.admin import AskShares, BeginDeletion
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.harness.groups.host_stage import HostStage
from tests.harness.node_stage import Asked


def started(**settings: str) -> HostStage:
    stage = HostStage(**settings)
    stage.coordinate()
    stage.run(10)
    return stage


def beat(stage: HostStage, epoch: int, member: str = "m", connection: int | None = None) -> Any:
    topics = ["t"] if epoch == 0 else None
    return stage.ask(ShareGroupHeartbeatRequest("g", member, epoch, None, topics), connection=connection)


def alter(stage: HostStage, offset: int) -> Asked:
    part = AlterShareGroupOffsetsRequestPartition(0, offset)
    return stage.send(AlterShareGroupOffsetsRequest("g", [AlterShareGroupOffsetsRequestTopic("t", [part])]))


def start_offset(stage: HostStage) -> int:
    asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup("g", None)])
    (group,) = stage.ask(asked).groups
    assert group.error_code == ErrorCode.NONE, group.error_message
    return group.topics[0].partitions[0].start_offset


def shard(stage: HostStage) -> GroupShard:
    (found,) = [each for each in stage.node.coordinators.groups.shards() if isinstance(each, GroupShard) and each.share]
    return found


def assigned(answer: Any) -> list[int]:
    return [index for part in answer.assignment.topic_partitions for index in part.partitions]


def test_joining_and_living_through_a_restart() -> None:
    stage = started()
    assert assigned(beat(stage, 0)) == [0, 1]
    stage.restart(clean=False)
    stage.run(10)
    again = beat(stage, 1)
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.NONE, 1, None)


def test_an_answer_waits_for_the_fsync_that_covers_it() -> None:
    stage = started(ottla_durability="fsync")
    stage.hold_syncs = True
    asked = stage.send(ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"]))
    assert not asked.answered
    stage.sync()
    stage.settle()
    assert assigned(asked.answer) == [0, 1]


def test_work_in_rounds_is_answered_when_the_last_one_is_durable() -> None:
    stage = started(ottla_durability="fsync")
    stage.hold_syncs = True
    asked = alter(stage, 5)
    assert not asked.answered
    rounds = 0
    while not asked.answered:
        for _ in tuple(stage.syncs):
            stage.sync()
        stage.run()
        rounds += 1
    assert rounds == 2, "one fsync for the group's record, one for the share coordinator's"
    assert asked.answer.responses[0].partitions[0].error_code == ErrorCode.NONE
    assert start_offset(stage) == 5


def test_work_in_rounds_goes_on_when_its_client_is_gone() -> None:
    stage = started(ottla_durability="fsync")
    stage.hold_syncs = True
    alter(stage, 5)
    stage.hang_up(1)
    stage.hold_syncs = False
    while stage.syncs:
        stage.sync()
        stage.run()
    assert start_offset(stage) == 5
    assert len(stage.node.parking) == 0


def test_a_fsync_that_fails_between_rounds_is_told_and_leaves_nobody_waiting() -> None:
    stage = started(ottla_durability="fsync")
    stage.hold_syncs = True
    asked = alter(stage, 5)
    stage.sync("No space left on device")
    stage.run()
    assert asked.answer.error_code == ErrorCode.NOT_COORDINATOR
    assert len(stage.node.parking) == 0


def test_a_deletion_that_a_crash_broke_off_is_finished_by_the_next_one() -> None:
    stage = started()
    alter(stage, 5)
    index, call = question(stage.node, BeginDeletion("g", None))
    stage.node.coordinators.groups.tell(stage.now, "g", call)
    stage.restart(clean=False)
    stage.run(10)
    found = shard(stage).share.of("g")
    assert found is not None
    assert [name for _, name in found.shares.deleting] == ["t"]
    assert stage.ask(DeleteGroupsRequest(["g"])).results[0].error_code == ErrorCode.NONE
    assert [each.image() for each in stage.node.coordinators.share_state.shards() if each.image()] == []  # type: ignore[attr-defined]
    assert index == stage.node.coordinators.groups.partition_for("g")
    beat(stage, 0)
    assert start_offset(stage) == -1, "a later group of that name begins anew"


def test_a_lost_connection_is_told_to_the_group() -> None:
    stage = started(**{"group.share.assignment.interval.ms": "0"})
    first, other, second = (stage.connect() for _ in range(3))
    beat(stage, 0, "a", first)
    beat(stage, 0, "b", other)
    beat(stage, 1, "a", second)
    stage.hang_up(first)
    found = shard(stage).share.of("g")
    assert found is not None
    assert not found.absent, "the member had moved to another connection"
    stage.hang_up(second)
    assert list(found.absent) == ["a"]
    assert assigned(beat(stage, 2, "b", other)) == [0, 1]
    beat(stage, -1, "b", other)
    stage.hang_up(other)
    stage.node.coordinators.share_members.check()
    assert list(found.members) == ["a"]


def test_a_deleted_topic_leaves_the_group_and_the_share_coordinator() -> None:
    stage = started()
    alter(stage, 5)
    stage.run()
    topic = stage.node.image.topics.get("t")
    assert topic is not None
    stage.change(stage.node.topics.deleting([topic]))
    stage.run()
    found = shard(stage).share.of("g")
    assert found is not None
    assert list(found.shares.topics()) == []
    assert not any(each.image() for each in stage.node.coordinators.share_state.shards())  # type: ignore[attr-defined]


def test_coordinators_of_share_partitions_are_found() -> None:
    stage = started()

    def error(key: str, version: int = 6) -> ErrorCode:
        answer = stage.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), version)
        return ErrorCode(answer.coordinators[0].error_code)

    good = "g:0123456789abcdefABCDEF:0"
    assert error(good) == ErrorCode.NONE
    assert error("a:b:0123456789abcdefABCDEF:7") == ErrorCode.NONE
    assert stage.node.image.topics.get("__share_group_state") is not None
    for bad in ("g", "g:0:0", ":0123456789abcdefABCDEF:0", "g:0123456789abcdefABCDEF:x", ""):
        assert error(bad) == ErrorCode.INVALID_REQUEST, bad
    assert error(good, 5) == ErrorCode.INVALID_REQUEST


def test_describing_several_groups_in_the_order_asked() -> None:
    stage = started()
    beat(stage, 0)
    described = stage.ask(ShareGroupDescribeRequest(["x", "g", "x"])).groups
    assert [group.group_id for group in described] == ["x", "g", "x"]
    assert [group.group_state for group in described] == ["", "Stable", ""]
    index, call = question(stage.node, AskShares("g"))
    assert call.body == AskShares("g")
    assert index == stage.node.coordinators.groups.partition_for("g")
