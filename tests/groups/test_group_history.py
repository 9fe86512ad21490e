"""Checks that a node remembers why groups rebalanced."""

from typing import Any

from ottla.groups.history import CHANGES_MAX, GROUP_ID_MAX, KEPT, TEXT_MAX, Cause, Change, GroupHistory
from ottla.machine import WallMillis
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.harness.groups.consumer_stage import ConsumerStage
from tests.harness.groups.group_stage import Stage
from tests.harness.groups.membership_stage import ShareStage

SESSION_MS, REBALANCE_MS = 10_000, 30_000


class _Classic:
    """A stage on which classic members join."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.parked: dict[str, int] = {}

    def request(self, member: str, metadata: bytes, instance: str | None, reason: str | None) -> JoinGroupRequest:
        protocols = [JoinGroupRequestProtocol("range", metadata)]
        return JoinGroupRequest("g", SESSION_MS, REBALANCE_MS, member, instance, "consumer", protocols, reason)

    def join(
        self,
        client: str,
        member: str = "",
        *,
        metadata: bytes = b"\0",
        instance: str | None = None,
        reason: str | None = None,
    ) -> str:
        """Send a JoinGroup; returns the member id, which a new member learns from its first answer."""
        ticket = self.stage.ask(self.request(member, metadata, instance, reason), 8, client)
        if not member and instance is None:
            member = self.answer(ticket).member_id
            ticket = self.stage.ask(self.request(member, metadata, instance, reason), 8, client)
        self.parked[client] = ticket
        self.stage.tick(0)
        return member

    def answer(self, ticket: int) -> Any:
        return self.stage.answers[ticket]

    def sync(self, *clients: str) -> None:
        """These members ask for their assignments; the leader makes them."""
        answers = [self.answer(self.parked[client]) for client in clients]
        for each in sorted(answers, key=lambda answer: answer.member_id != answer.leader):
            assigned = [SyncGroupRequestAssignment(each.member_id, b"")] if each.member_id == each.leader else []
            self.stage.ask(SyncGroupRequest("g", each.generation_id, each.member_id, assignments=assigned), 3)

    def beat(self, client: str) -> None:
        answer = self.answer(self.parked[client])
        self.stage.ask(HeartbeatRequest("g", answer.generation_id, answer.member_id), 3)

    @property
    def changes(self) -> list[Change]:
        self.stage.history.check()
        return list(self.stage.history.of("g"))


def _stable() -> tuple[_Classic, str, str]:
    """A Stable group of the clients a, which leads, and b."""
    group = _Classic()
    a = group.join("a")
    group.sync("a")
    b = group.join("b")
    group.join("a", a)
    group.sync("a", "b")
    return group, a, b


def _who(changes: list[Change]) -> list[tuple[Cause, str]]:
    return [(each.cause, each.client_id) for each in changes]


def test_a_join_is_remembered_with_the_member_its_host_and_its_reason() -> None:
    group = _Classic()
    member = group.join("a", reason="started")
    at = WallMillis(group.stage.now)
    assert group.changes == [Change(at, 0, Cause.JOINED, member, "a", "/127.0.0.1", "started", REBALANCE_MS)]


def test_members_that_rejoin_a_rebalance_are_not_its_cause() -> None:
    group, _, _ = _stable()
    assert _who(group.changes) == [(Cause.JOINED, "a"), (Cause.JOINED, "b")]
    assert [each.generation for each in group.changes] == [0, 1]


def test_a_member_that_leaves_is_remembered_with_its_reason() -> None:
    group, _, b = _stable()
    poll = "consumer poll timeout has expired."
    group.stage.ask(LeaveGroupRequest("g", members=[MemberIdentity(b, None, poll)]), 5)
    left = group.changes[-1]
    assert (left.cause, left.client_id, left.reason) == (Cause.LEFT, "b", poll)


def test_a_session_that_ends_is_a_cause() -> None:
    group, _, _ = _stable()
    group.stage.tick(SESSION_MS // 2)
    group.beat("a")
    group.stage.tick(SESSION_MS // 2)
    assert _who(group.changes)[2:] == [(Cause.SESSION, "b")]


def test_a_member_that_does_not_rejoin_is_a_rebalance_timeout() -> None:
    group, a, b = _stable()
    group.join("a", a, metadata=b"\1")
    for _ in range(4):  # b sends heartbeats, but does not join
        group.stage.tick(REBALANCE_MS // 4)
        group.beat("b")
    causes = _who(group.changes)[2:]
    assert causes == [(Cause.SUBSCRIPTION, "a"), (Cause.REBALANCE_TIMEOUT, "b")]
    assert group.changes[-1].member_id == b
    assert group.changes[-1].timeout_ms == REBALANCE_MS


def test_a_member_that_does_not_sync_is_a_rebalance_timeout() -> None:
    group, a, _ = _stable()
    group.join("a", a, metadata=b"\1")
    group.join("b", group.answer(group.parked["b"]).member_id)
    group.sync("a")
    for _ in range(4):
        group.stage.tick(REBALANCE_MS // 4)
        group.beat("a")
        group.beat("b")
    assert _who(group.changes)[3:] == [(Cause.REBALANCE_TIMEOUT, "b")]


def test_a_leader_that_joins_again_unchanged_is_a_cause_of_its_own() -> None:
    group, a, _ = _stable()
    group.join("a", a, reason="topics have changed")
    assert _who(group.changes)[2:] == [(Cause.LEADER, "a")]
    assert group.changes[-1].reason == "topics have changed"


def test_a_static_member_that_comes_back_is_remembered() -> None:
    group = _Classic()
    group.join("a", instance="one")
    group.sync("a")
    group.join("a", instance="one")
    assert _who(group.changes) == [(Cause.JOINED, "a"), (Cause.RETURNED, "a")]


# ---- consumer groups -----------------------------------------------------------------------------------------------


def test_a_consumer_group_remembers_joins_leaves_and_sessions() -> None:
    stage = ConsumerStage(t=4)
    for member in ("a", "b", "c"):
        stage.join(member)
    stage.rest()
    stage.leave("b")
    stage.rest("a")
    timeout_ms = stage.around.timing.session_timeout_ms
    stage.tick(timeout_ms - 1)
    stage.beat("a")
    stage.tick(1_000)
    found = [(each.cause, each.member_id) for each in stage.history.of("g")]
    joined = [(Cause.JOINED, member) for member in ("a", "b", "c")]
    assert found == [*joined, (Cause.LEFT, "b"), (Cause.SESSION, "c")]
    stage.history.check()


def test_a_member_that_keeps_revoked_partitions_is_a_rebalance_timeout() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    stage.rest()
    stage.join("b")
    for _ in range(130):
        stage.tick(500)
        if "a" in stage.shard.consumer.of("g").members:  # type: ignore[union-attr]
            stage.beat("a", lets_go=False)
        stage.beat("b")
    assert (Cause.REBALANCE_TIMEOUT, "a") in [(each.cause, each.member_id) for each in stage.history.of("g")]


def test_new_partitions_and_subscriptions_are_causes() -> None:
    stage = ConsumerStage(t=2, u=2)
    stage.join("a")
    stage.rest()
    stage.topic("t", 3)
    stage.rest()
    stage.players["a"].topics = ("t", "u")
    stage.players["a"].says_all = True
    stage.rest()
    causes = [each.cause for each in stage.history.of("g")]
    assert causes == [Cause.JOINED, Cause.PARTITIONS, Cause.SUBSCRIPTION]


def test_a_refused_heartbeat_leaves_nothing() -> None:
    stage = ConsumerStage(t=2)
    stage.reply(ConsumerGroupHeartbeatRequest("g", "a", 7, topic_partitions=[]))
    assert not len(stage.history)


# ---- share groups --------------------------------------------------------------------------------------------------


def test_a_share_group_remembers_who_joined_left_or_was_lost() -> None:
    stage = ShareStage(t=4, u=1)
    for member in ("a", "b", "c"):
        stage.join(member)
    stage.beat("b", -1)
    stage.lose("a")
    stage.go_on("a")
    stage.topic("t", 5)
    stage.go_on("a")
    stage.beat("a", stage.shard.share.of("g").members["a"].member_epoch, ["t", "u"])  # type: ignore[union-attr]
    stage.tick(stage.around.timing.session_timeout_ms - 1)
    stage.go_on("a")
    stage.tick(1)
    found = [(each.cause, each.member_id) for each in stage.history.of("g")]
    assert found == [
        (Cause.JOINED, "a"),
        (Cause.JOINED, "b"),
        (Cause.JOINED, "c"),
        (Cause.LEFT, "b"),
        (Cause.DISCONNECTED, "a"),
        (Cause.RECONNECTED, "a"),
        (Cause.PARTITIONS, ""),
        (Cause.SUBSCRIPTION, "a"),
        (Cause.SESSION, "c"),
    ]
    assert {each.timeout_ms for each in stage.history.of("g")} == {-1}
    stage.history.check()


# ---- bounds --------------------------------------------------------------------------------------------------------


class _Member:
    def __init__(self, text: str) -> None:
        self.member_id = self.client_id = self.client_host = text
        self.rebalance_timeout_ms = 1


def test_each_group_keeps_its_last_changes() -> None:
    history = GroupHistory()
    for generation in range(KEPT + 5):
        history.note(WallMillis(generation), "g", generation, Cause.JOINED)
    assert [each.generation for each in history.of("g")] == list(range(5, KEPT + 5))
    history.check()


def test_the_group_that_changed_last_is_kept_longest() -> None:
    history = GroupHistory()
    history.note(WallMillis(0), "kept", 0, Cause.JOINED)
    for number in range(2 * CHANGES_MAX):
        history.note(WallMillis(0), f"g{number}", 0, Cause.JOINED, _Member("x" * 5_000), "y" * 5_000)
        if number % 1_000 == 0:
            history.note(WallMillis(0), "kept", number, Cause.LEFT)
    history.check()
    assert len(history) == CHANGES_MAX
    assert len(history.of("kept")) > 1
    newest = history.of(f"g{2 * CHANGES_MAX - 1}")[0]
    assert max(map(len, (newest.member_id, newest.client_id, newest.host, newest.reason))) == TEXT_MAX


def test_a_group_with_an_endless_name_is_not_remembered() -> None:
    history = GroupHistory()
    history.note(WallMillis(0), "g" * (GROUP_ID_MAX + 1), 0, Cause.JOINED)
    assert not len(history)
