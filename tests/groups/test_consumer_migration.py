"""Classic groups that become consumer groups and back while their members live."""

from struct import pack
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.protocol.messages.consumer_protocol_subscription import TopicPartition as Owned
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.harness.groups.consumer_stage import ConsumerStage


class Classic:
    """One member of the classic protocol as its client keeps it: cooperative, so it says what it owns."""

    def __init__(self, stage: ConsumerStage, instance_id: str | None = None) -> None:
        self.stage = stage
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: list[int] = []
        self.ticket = 0

    def post_join(self) -> None:
        """Ask to join; the answer may come later."""
        if not self.member_id and self.instance_id is None:
            self.member_id = self.stage.reply(self._join(), 9).member_id
        self.ticket = self.stage.ask(self._join(), 9)

    def _join(self) -> JoinGroupRequest:
        said = ConsumerProtocolSubscription(["t"], owned_partitions=[Owned("t", self.owned)] if self.owned else [])
        metadata = bytearray(pack(">h", 1))
        said.encode(metadata, 1)
        protocol = JoinGroupRequestProtocol("cooperative-sticky", bytes(metadata))
        return JoinGroupRequest("g", 30_000, 60_000, self.member_id, self.instance_id, "consumer", [protocol])

    def joined(self) -> Any:
        answer: Any = self.stage.answers[self.ticket]
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self, assignments: dict[str, list[int]] | None = None) -> ErrorCode:
        rows = [SyncGroupRequestAssignment(each, assignment(some)) for each, some in (assignments or {}).items()]
        answer = self.stage.reply(
            SyncGroupRequest("g", self.generation, self.member_id, self.instance_id, "consumer", "cooperative-sticky",
                             rows), 5)  # fmt: skip
        if answer.error_code == ErrorCode.NONE:
            read, _ = ConsumerProtocolAssignment.decode(answer.assignment, 2, 1)
            self.owned = [index for part in read.assigned_partitions for index in part.partitions]
        return ErrorCode(answer.error_code)

    def beat(self) -> ErrorCode:
        asked = HeartbeatRequest("g", self.generation, self.member_id, self.instance_id)
        return ErrorCode(self.stage.reply(asked, 4).error_code)

    def leave(self) -> ErrorCode:
        asked = LeaveGroupRequest("g", members=[MemberIdentity(self.member_id, self.instance_id)])
        return ErrorCode(self.stage.reply(asked, 5).members[0].error_code)

    def go_on(self) -> None:
        """What a client does at its next heartbeat."""
        if self.beat() is ErrorCode.REBALANCE_IN_PROGRESS:
            self.post_join()
            self.joined()
            self.sync()


def assignment(partitions: list[int]) -> bytes:
    out = bytearray(pack(">h", 1))
    ConsumerProtocolAssignment([TopicPartition("t", partitions)]).encode(out, 1)
    return bytes(out)


def kinds(stage: ConsumerStage) -> list[str]:
    return [each.group_type for each in stage.reply(ListGroupsRequest(), 5).groups]


def alone(stage: ConsumerStage, **more: Any) -> Classic:
    """A classic group of one, which owns all of `t`."""
    member = Classic(stage, **more)
    member.post_join()
    stage.tick(200)
    member.joined()
    assert member.sync({member.member_id: [0, 1, 2, 3]}) is ErrorCode.NONE
    return member


def settle(stage: ConsumerStage, *classic: Classic) -> None:
    for _ in range(6):
        stage.tick(10)
        for each in classic:
            each.go_on()
        for name in tuple(stage.players):
            stage.beat(name)


def test_a_classic_group_goes_over_and_comes_back_while_its_members_live() -> None:
    stage = ConsumerStage(t=4)
    old = alone(stage)
    assert kinds(stage) == ["classic"]
    new = stage.join("new")
    assert kinds(stage) == ["consumer"]
    assert new.owned == set(), "the old one has them"
    settle(stage, old)
    assert sorted(old.owned + [index for _, index in new.owned]) == [0, 1, 2, 3]
    assert (len(old.owned), len(new.owned)) == (2, 2)
    assert stage.described().group_state == "Stable"
    stage.check()
    stage.restart()
    settle(stage, old)
    stage.leave("new")
    stage.tick(0)
    assert kinds(stage) == ["classic"]
    assert old.beat() in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
    old.post_join()
    old.joined()
    assert old.sync({old.member_id: [0, 1, 2, 3]}) is ErrorCode.NONE
    assert old.owned == [0, 1, 2, 3]
    assert old.beat() is ErrorCode.NONE
    stage.check()


def test_a_group_that_goes_over_again_at_once_takes_nothing_from_who_has_not_joined_again() -> None:
    """The old member still has all it had before the first one of the new protocol came and went."""
    stage = ConsumerStage(t=4)
    old = alone(stage)
    stage.join("new")
    stage.leave("new")
    assert kinds(stage) == ["classic"]
    again = stage.join("again")
    assert kinds(stage) == ["consumer"]
    assert again.owned == set(), "the old one has them"
    settle(stage, old)
    assert sorted(old.owned + [index for _, index in again.owned]) == [0, 1, 2, 3]


def test_committed_offsets_stay_and_generations_are_epochs() -> None:
    stage = ConsumerStage(t=4)
    old = alone(stage)
    assert stage.commit(old.member_id, old.generation, offset=7) == ErrorCode.NONE
    stage.join("new")
    settle(stage, old)
    assert stage.fetch() == (ErrorCode.NONE, 7)
    assert stage.commit(old.member_id, old.generation, partition=old.owned[0]) == ErrorCode.NONE
    assert stage.commit(old.member_id, old.generation + 1) == ErrorCode.ILLEGAL_GENERATION


def test_a_classic_member_joins_a_consumer_group() -> None:
    stage = ConsumerStage(t=4)
    stage.join("new")
    stage.rest()
    old = Classic(stage)
    old.post_join()
    old.joined()
    assert old.sync() is ErrorCode.NONE
    assert old.owned == []
    settle(stage, old)
    assert len(old.owned) == 2
    types = {member.member_id: member.member_type for member in stage.described().members}
    assert types == {"new": 1, old.member_id: 0}
    assert old.leave() is ErrorCode.NONE
    stage.rest()
    assert len(stage.players["new"].owned) == 4
    stage.check()


def test_who_waits_in_a_classic_group_is_told_to_join_again() -> None:
    stage = ConsumerStage(t=4)
    old = alone(stage)
    late = Classic(stage)
    late.post_join()
    assert late.ticket not in stage.answers
    stage.join("new")
    answer: Any = stage.answers[late.ticket]
    assert answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    late.post_join()
    late.joined()
    late.sync()
    settle(stage, old, late)
    assert sorted(old.owned + late.owned + [index for _, index in stage.players["new"].owned]) == [0, 1, 2, 3]
    stage.check()


@pytest.mark.parametrize(("policy", "up", "down"), [("upgrade", True, False), ("downgrade", False, True),
                                                    ("disabled", False, False)])  # fmt: skip
def test_the_policy_says_which_way(policy: str, up: bool, down: bool) -> None:
    stage = ConsumerStage(t=4)
    old = alone(stage)
    stage.timing(migration_policy=policy)
    asked = ConsumerGroupHeartbeatRequest("g", "new", 0, None, None, 60_000, ["t"], None, None, [])
    answer = stage.reply(asked)
    assert (answer.error_code == ErrorCode.NONE) == up
    if not up:
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        stage.timing(migration_policy="bidirectional")
        stage.join("new")
        stage.timing(migration_policy=policy)
    else:
        stage.join("new")
    settle(stage, old)
    stage.leave("new")
    stage.tick(0)
    assert kinds(stage) == ["classic" if down else "consumer"]
    stage.check()


def test_a_classic_member_that_does_not_join_again_is_out() -> None:
    stage = ConsumerStage(t=4)
    old = alone(stage)
    stage.join("new")
    for _ in range(14):
        old.beat()
        stage.tick(5_000)
        stage.beat("new")
    stage.rest()
    assert len(stage.players["new"].owned) == 4
    assert old.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_classic_member_comes_back() -> None:
    stage = ConsumerStage(t=4)
    stage.join("new")
    stage.rest()
    old = Classic(stage, "one")
    old.post_join()
    old.joined()
    old.sync()
    settle(stage, old)
    had = old.owned
    again = Classic(stage, "one")
    again.post_join()
    again.joined()
    again.sync()
    assert again.owned == had
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID
    settle(stage, again)
    stage.check()


def test_another_protocol_type_and_a_custom_assignor_are_refused() -> None:
    stage = ConsumerStage(t=4)
    stage.join("new")
    asked = JoinGroupRequest("g", 30_000, 60_000, "", None, "connect", [JoinGroupRequestProtocol("range", b"\0\0")])
    assert stage.reply(asked, 3).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    malformed = JoinGroupRequest("g", 30_000, 60_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"")])
    assert stage.reply(malformed, 3).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
