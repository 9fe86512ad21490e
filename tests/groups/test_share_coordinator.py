"""Members of share groups: heartbeats, epochs, sessions, topics that change, and what replay gives."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.groups.metadata_view import ShareGroupConfig
from ottla.groups.settings import GroupSettings
from ottla.groups.share.admin import AddShares, AskShares, BeginDeletion, EndDeletion
from ottla.groups.share.group import Share
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, decode_record
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from tests.harness.groups.group_stage import QUICK
from tests.harness.groups.membership_stage import ShareStage, assigned

HEARTBEAT_MS, SESSION_MS = 5_000, 45_000


@pytest.fixture
def stage() -> ShareStage:
    return ShareStage(t=4)


# ---- joining, staying, leaving -------------------------------------------------------------------------------------


def test_the_first_heartbeat_brings_the_assignment(stage: ShareStage) -> None:
    answer = stage.join("a")
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 1, HEARTBEAT_MS)
    assert assigned(answer) == [0, 1, 2, 3]
    assert assigned(stage.go_on("a")) is None, "nothing has changed"
    stage.check()


def test_joining_is_written_as_kafka_writes_it(stage: ShareStage) -> None:
    stage.join("a")
    (batch,) = stage.log
    kinds = [type(decode_record(CONSUMER_OFFSETS_TOPIC, r.key, r.value)[1]).__name__ for r in batch.records]
    assert kinds == [
        "ShareGroupMemberMetadataValue",
        "ShareGroupMetadataValue",
        "ShareGroupTargetAssignmentMemberValue",
        "ShareGroupTargetAssignmentMetadataValue",
        "ShareGroupCurrentMemberAssignmentValue",
        "ShareGroupStatePartitionMetadataValue",
    ]


def test_others_hear_of_a_newcomer_at_their_next_heartbeat(stage: ShareStage) -> None:
    stage.join("a")
    second = stage.join("b")
    assert len(assigned(second) or []) == 2
    told = stage.go_on("a")
    assert sorted((assigned(told) or []) + (assigned(second) or [])) == [0, 1, 2, 3]
    assert told.member_epoch == second.member_epoch == 2
    stage.check()


def test_members_beyond_the_partitions_share_them(stage: ShareStage) -> None:
    stage.topic("one", 1)
    for n in range(16):
        assert assigned(stage.join(f"m{n}", "one")) == [0]
    assert set(map(tuple, stage.owners().values())) == {(("one", 0),)}


def test_a_member_that_has_not_heard_the_answer_may_say_its_earlier_epoch(stage: ShareStage) -> None:
    stage.join("a")
    stage.join("b")
    stage.go_on("a")
    again = stage.beat("a", 1)
    assert (again.error_code, again.member_epoch) == (ErrorCode.NONE, 2)
    assert stage.beat("a", 7).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_may_begin_again_at_any_time(stage: ShareStage) -> None:
    for name in "abc":
        stage.join(name)
    stage.go_on("a")
    again = stage.beat("a", 0, ["t"])
    assert again.error_code == ErrorCode.NONE
    assert assigned(again) is not None
    assert len(stage.owners()) == 3


def test_a_full_heartbeat_is_answered_in_full(stage: ShareStage) -> None:
    epoch = stage.join("a").member_epoch
    assert assigned(stage.beat("a", epoch, ["t"])) == [0, 1, 2, 3]


def test_leaving(stage: ShareStage) -> None:
    stage.join("a")
    stage.join("b")
    left = stage.beat("a", -1)
    assert (left.error_code, left.member_id, left.member_epoch) == (ErrorCode.NONE, "a", -1)
    assert stage.beat("a", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stage.tick(HEARTBEAT_MS)
    assert assigned(stage.go_on("b")) == [0, 1, 2, 3]
    stage.beat("b", -1)
    (described,) = stage.reply(ShareGroupDescribeRequest(["g"])).groups
    assert (described.group_state, described.members) == ("Empty", [])
    stage.check()


def test_a_silent_member_is_out_after_its_session(stage: ShareStage) -> None:
    stage.join("a")
    stage.join("b")
    for _ in range(8):
        stage.tick(HEARTBEAT_MS)
        stage.go_on("b")
    assert set(stage.owners()) == {"a", "b"}
    stage.tick(SESSION_MS - 8 * HEARTBEAT_MS)
    assert set(stage.owners()) == {"b"}
    assert stage.beat("a", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stage.tick(1000)
    assert assigned(stage.go_on("b")) == [0, 1, 2, 3]
    stage.check()


def test_a_changed_subscription_is_obeyed_at_once(stage: ShareStage) -> None:
    stage.topic("u", 2)
    epoch = stage.join("a").member_epoch
    answer = stage.beat("a", epoch, ["u"])
    assert (answer.member_epoch, assigned(answer)) == (epoch + 1, [0, 1])
    assert stage.owners() == {"a": [("u", 0), ("u", 1)]}
    stage.check()


def test_rack_and_names_stay_as_they_were_where_a_heartbeat_says_nothing(stage: ShareStage) -> None:
    stage.beat("a", 0, ["t", "t"], rack="r1")
    stage.go_on("a")
    (described,) = stage.reply(ShareGroupDescribeRequest(["g"])).groups
    (member,) = described.members
    assert (member.rack_id, member.subscribed_topic_names) == ("r1", ["t"])
    assert (member.client_id, member.client_host) == ("c", "/127.0.0.1")
    assert (described.assignor_name, described.group_epoch, described.assignment_epoch) == ("simple", 1, 1)


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "member", "epoch", "topics", "rack"),
    [
        ("g", "", 0, ["t"], None),
        ("", "a", 0, ["t"], None),
        ("g", "a", 0, None, None),
        ("g", "a", 0, [], None),
        ("g", "a", -2, ["t"], None),
        ("g", "a", 0, ["t"], ""),
    ],
)
def test_heartbeats_that_make_no_sense(
    stage: ShareStage, group: str, member: str, epoch: int, topics: list[str] | None, rack: str | None
) -> None:
    assert stage.beat(member, epoch, topics, group, rack).error_code == ErrorCode.INVALID_REQUEST
    assert not stage.log


def test_unknown_groups_and_members(stage: ShareStage) -> None:
    assert stage.beat("a", 1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.beat("a", -1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    stage.join("a")
    assert stage.beat("b", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_is_full(stage: ShareStage) -> None:
    stage.around.timing = ShareGroupConfig(members_max=2)
    stage.join("a")
    stage.join("b")
    assert stage.beat("c", 0, ["t"]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.go_on("a").error_code == ErrorCode.NONE
    stage.beat("a", -1)
    stage.join("c")


def test_records_that_fit_no_batch_are_refused_and_nothing_is_kept() -> None:
    stage = ShareStage(GroupSettings(batch_size_max=300), t=100)
    assert stage.beat("a", 0, ["t"]).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not stage.log
    stage.tick(2 * SESSION_MS)
    stage.check()


def test_names_of_classic_groups_are_taken_and_the_other_way_round(stage: ShareStage) -> None:
    stage.join("a", group="queue")
    protocols = [JoinGroupRequestProtocol("range", b"")]
    joining = JoinGroupRequest("queue", 10_000, 10_000, "", None, "consumer", protocols)
    assert stage.reply(joining, 9).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stage.reply(HeartbeatRequest("queue", 1, "m"), 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    described = stage.reply(DescribeGroupsRequest(["queue"]), 6).groups[0]
    assert (described.error_code, described.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    stage.ask(JoinGroupRequest("classic", 10_000, 10_000, "", None, "consumer", protocols), 3)
    stage.tick(10)
    assert stage.beat("a", 0, ["t"], "classic").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.reply(ShareGroupDescribeRequest(["classic"])).groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.reply(OffsetCommitRequest("queue"), 9).topics == []
    stage.check()


# ---- topics --------------------------------------------------------------------------------------------------------


def test_partitions_are_added_under_a_live_group(stage: ShareStage) -> None:
    stage.join("a")
    stage.topic("t", 6)
    stage.tick(HEARTBEAT_MS)
    assert assigned(stage.go_on("a")) == [0, 1, 2, 3, 4, 5]
    (share,) = stage.reply(AskShares("g")).shares.initialized
    assert share.partitions == (0, 1, 2, 3, 4, 5)
    stage.check()


def test_a_topic_comes_after_its_subscribers(stage: ShareStage) -> None:
    answer = stage.join("a", "later")
    assert assigned(answer) == []
    stage.topic("later", 1)
    stage.tick(HEARTBEAT_MS)
    assert assigned(stage.go_on("a")) == [0]


def test_a_topic_is_deleted_and_made_again(stage: ShareStage) -> None:
    stage.join("a")
    stage.delete_topic("t")
    assert stage.reply(AskShares("g")).shares.initialized == ()
    stage.tick(HEARTBEAT_MS)
    assert assigned(stage.go_on("a")) == []
    stage.topic("t", 2)
    stage.tick(HEARTBEAT_MS)
    assert assigned(stage.go_on("a")) == [0, 1]
    (share,) = stage.reply(AskShares("g")).shares.initialized
    assert share.topic_id == stage.around.topics["t"][0]
    stage.check()


def test_assignments_wait_for_their_interval_but_newcomers_do_not(stage: ShareStage) -> None:
    stage.around.timing = ShareGroupConfig(assignment_interval_ms=10_000)
    stage.join("a")
    stage.topic("t", 6)
    stage.tick(HEARTBEAT_MS)
    assert assigned(stage.go_on("a")) is None
    assert len(assigned(stage.join("b")) or []) == 3
    stage.topic("t", 8)
    stage.tick(HEARTBEAT_MS)
    stage.go_on("a")
    stage.tick(HEARTBEAT_MS)
    assert len(assigned(stage.go_on("a")) or []) == 4


def test_a_member_that_names_the_epoch_before_is_told_again_what_a_lost_answer_had(stage: ShareStage) -> None:
    epoch = stage.join("a").member_epoch
    stage.join("b")
    stage.tick(HEARTBEAT_MS)
    lost, again = stage.beat("a", epoch), stage.beat("a", epoch)
    assert lost.member_epoch == again.member_epoch > epoch
    assert assigned(lost) == assigned(again)
    assert assigned(stage.beat("a", again.member_epoch)) is None
    stage.check()


# ---- lost connections ----------------------------------------------------------------------------------------------


def test_the_partitions_of_a_dead_worker_are_taken_over_after_one_heartbeat(stage: ShareStage) -> None:
    stage.join("a")
    stage.join("b")
    stage.go_on("a")
    stage.tick(HEARTBEAT_MS)
    stage.lose("a")
    assert assigned(stage.go_on("b")) == [0, 1, 2, 3]
    assert set(stage.owners()) == {"a", "b"}, "a member it stays until its session ends"
    back = stage.go_on("a")
    assert back.error_code == ErrorCode.NONE
    stage.tick(HEARTBEAT_MS)
    for name in "baba":
        stage.go_on(name)
    assert sorted(map(len, stage.owners().values())) == [2, 2]
    stage.check()


def test_a_newcomer_gets_what_a_lost_member_had(stage: ShareStage) -> None:
    stage.join("a")
    stage.lose("a")
    assert assigned(stage.join("b")) == [0, 1, 2, 3]
    stage.lose("nobody")
    stage.lose("a", group="nothing")
    stage.check()


# ---- administration ------------------------------------------------------------------------------------------------


def test_listing(stage: ShareStage) -> None:
    stage.join("a")
    (listed,) = stage.reply(ListGroupsRequest([], ["Share"]), 5).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g", "share", "Stable", "share",
    )  # fmt: skip
    assert stage.reply(ListGroupsRequest(["empty"], []), 5).groups == []
    assert stage.reply(ListGroupsRequest([], ["classic"]), 5).groups == []


def test_deletion_leaves_nothing(stage: ShareStage) -> None:
    stage.join("a")
    assert stage.reply(DeleteGroupsRequest(["g"]), 2).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    stage.beat("a", -1)
    assert stage.reply(DeleteGroupsRequest(["g"]), 2).results[0].error_code == ErrorCode.NONE
    assert stage.reply(ListGroupsRequest(), 5).groups == []
    assert stage.reply(DeleteGroupsRequest(["g"]), 2).results[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    stage.check()
    living = {r.key: r.value for batch in stage.log for r in batch.records}
    assert set(living.values()) == {None}, "every key of the group ends in a tombstone"


def test_shares_are_added_and_deleted_in_two_steps(stage: ShareStage) -> None:
    topic_id = stage.around.topics["t"][0]
    added = stage.reply(AddShares("new", (Share(topic_id, "t", (0, 2)),)))
    assert (added.error, added.epoch) == (ErrorCode.NONE, 0)
    assert stage.reply(AskShares("new")).shares.known(topic_id) == (0, 2)
    before = stage.reply(BeginDeletion("new", (topic_id,))).shares
    assert before.known(topic_id) == (0, 2)
    during = stage.reply(AskShares("new")).shares
    assert (during.initialized, during.deleting) == ((), ((topic_id, "t"),))
    stage.restart()
    stage.reply(EndDeletion("new", (topic_id,)))
    assert stage.reply(AskShares("new")).shares.deleting == ()
    stage.check()


def test_shares_of_a_live_group_are_not_touched(stage: ShareStage) -> None:
    stage.join("a")
    assert stage.reply(AddShares("g", ())).error == ErrorCode.NON_EMPTY_GROUP
    assert stage.reply(BeginDeletion("g", None)).error == ErrorCode.NON_EMPTY_GROUP
    assert stage.reply(BeginDeletion("none", None)).error == ErrorCode.GROUP_ID_NOT_FOUND


# ---- restart -------------------------------------------------------------------------------------------------------


def test_members_go_on_after_a_restart(stage: ShareStage) -> None:
    stage.join("a")
    stage.join("b")
    stage.restart()
    answer = stage.go_on("a")
    assert len(assigned(answer) or []) == 2
    stage.tick(SESSION_MS - 1)
    assert set(stage.owners()) == {"a", "b"}, "sessions begin anew"
    stage.tick(1)
    assert stage.owners() == {}
    stage.check()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_the_log_gives_the_same_again(seed: int) -> None:
    """Random members, topics, time and restarts: invariants after every step, replay at the end; then all is read."""
    chance = random.Random(seed)
    stage = ShareStage(QUICK, t=3)
    epochs: dict[str, int] = {}
    for _ in range(60):
        name = f"m{chance.randrange(5)}"
        match chance.randrange(10):
            case 0 | 1 | 2:
                names = chance.choice((["t"], ["t", "u"], ["u"]))
                answer = stage.beat(name, 0, names)
            case 3:
                answer = stage.beat(name, -1)
            case 4:
                stage.tick(chance.choice((10, 2_000, 20_000)))
                continue
            case 5:
                stage.lose(name)
                continue
            case 6:
                stage.topic(*chance.choice((("t", 5), ("u", 2), ("u", 4))))
                continue
            case 7 if "u" in stage.around.topics:
                stage.delete_topic("u")
                continue
            case 8 if chance.random() < 0.3:
                stage.restart()
                continue
            case _:
                answer = stage.beat(name, epochs.get(name, 1), chance.choice((None, ["t"])))
        if answer.error_code == ErrorCode.NONE:
            epochs[name] = answer.member_epoch
    stage.check()
    stage.restart()
    stage.join("z", "t")
    for _ in range(3):
        stage.tick(1_000)
        for name in list(stage.owners()):
            stage.go_on(name)
    read = {place for owned in stage.owners().values() for place in owned}
    assert {place for place in read if place[0] == "t"} == {("t", n) for n in range(stage.around.topics["t"][1])}
