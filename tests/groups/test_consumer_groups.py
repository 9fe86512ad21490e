"""Consumer groups: members, epochs, reconciliation, offsets, and what Kafka's coordinator once got wrong."""

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.harness.groups.consumer_stage import ConsumerStage, places


def numbers(stage: ConsumerStage) -> dict[str, list[int]]:
    return {member: [index for _, index in places] for member, places in stage.owners().items()}


# ---- members come and go -------------------------------------------------------------------------------------------


def test_a_lone_member_gets_everything_with_its_first_heartbeat() -> None:
    stage = ConsumerStage(t=4)
    player = stage.join("a")
    assert player.epoch == 2
    assert len(player.owned) == 4
    assert stage.described().group_state == "Stable"
    stage.check()


def test_a_second_member_gets_its_half_once_the_first_has_let_go() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    newcomer = stage.join("b")
    assert newcomer.owned == set()
    first = stage.beat("a")
    assert len(first.assigned) == 2
    assert stage.beat("b").owned == set(), "the first has not said that it let go"
    stage.beat("a")
    assert len(stage.beat("b").owned) == 2
    assert stage.described().group_state == "Stable"
    stage.check()


def test_what_a_member_leaves_goes_to_the_others() -> None:
    stage = ConsumerStage(t=4)
    for member in "ab":
        stage.join(member)
    stage.rest()
    answer = stage.leave("a")
    assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, -1)
    stage.rest()
    assert numbers(stage) == {"b": [0, 1, 2, 3]}


def test_a_silent_member_is_out_after_its_session() -> None:
    stage = ConsumerStage(t=4)
    for member in "ab":
        stage.join(member)
    stage.rest()
    for _ in range(11):
        stage.tick(5_000)
        stage.beat("b")
    assert numbers(stage) == {"b": [0, 1, 2, 3]}
    assert stage.beat("a").answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    stage.rest()
    assert numbers(stage) == {"b": [0, 1], "a": [2, 3]} or sorted(map(len, numbers(stage).values())) == [2, 2]


def test_a_member_that_keeps_what_it_must_let_go_is_out_after_its_rebalance_timeout() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    stage.join("b")
    stage.beat("a")
    for _ in range(13):
        stage.tick(5_000)
        if "a" in stage.owners():
            stage.beat("a", lets_go=False)
        stage.beat("b")
    assert numbers(stage) == {"b": [0, 1, 2, 3]}


def test_more_partitions_and_new_topics_are_assigned() -> None:
    stage = ConsumerStage(t=2)
    stage.join("a", "t", "later")
    stage.topic("t", 4)
    stage.rest()
    assert len(stage.players["a"].owned) == 4
    stage.topic("later", 3)
    stage.rest()
    assert len(stage.players["a"].owned) == 7
    stage.delete_topic("t")
    stage.rest()
    assert len(stage.players["a"].owned) == 3


def test_assignments_are_made_in_steps_and_without_anybody_asking() -> None:
    stage = ConsumerStage(t=6)
    stage.timing(assignment_interval_ms=1_000)
    for member in "abc":
        stage.join(member)
    described = stage.described()
    assert (described.group_epoch, described.assignment_epoch, described.group_state) == (4, 2, "Assigning")
    stage.tick(999)
    assert stage.described().assignment_epoch == 2
    stage.tick(1)
    assert stage.described().assignment_epoch == 4
    stage.rest()
    assert sorted(map(len, numbers(stage).values())) == [2, 2, 2]


def test_the_range_assignor_is_used_where_most_ask_for_it() -> None:
    stage = ConsumerStage(t=5)
    for member in ("x", "y"):
        request = stage.join(member).request("g")
        request.server_assignor, request.member_epoch = "range", stage.players[member].epoch
        stage.players[member].hear(stage.reply(request))
    stage.rest()
    assert stage.described().assignor_name == "range"
    stage.join("z")
    stage.rest()
    assert numbers(stage) == {"x": [0, 1], "y": [2, 3], "z": [4]}


# ---- how soon a member is to come back -----------------------------------------------------------------------------


def test_a_member_with_something_to_do_comes_back_soon_and_one_at_rest_later() -> None:
    stage = ConsumerStage(t=4)
    moving = stage.join("a").answer.heartbeat_interval_ms
    stage.tick(2_000)
    resting = stage.beat("a").answer.heartbeat_interval_ms
    assert moving < resting < 5_000
    stage.around.heartbeating = lambda: 10_000  # type: ignore[method-assign]
    assert stage.beat("a").answer.heartbeat_interval_ms == 5_000


# ---- epochs --------------------------------------------------------------------------------------------------------


def beat(stage: ConsumerStage, member: str, epoch: int, **more: object) -> ErrorCode:
    return ErrorCode(stage.reply(ConsumerGroupHeartbeatRequest("g", member, epoch, **more)).error_code)  # type: ignore[arg-type]


def test_what_a_lost_answer_gave_or_took_is_told_again_until_the_member_says_that_it_owns_it() -> None:
    """librdkafka gives up an answer that takes longer than the interval, and does not ask again for what it had."""
    stage = ConsumerStage(t=4)

    def told(member: str) -> set[tuple[bytes, int]] | None:
        """What a heartbeat is answered that says no more than that the member is there."""
        answer = stage.reply(ConsumerGroupHeartbeatRequest("g", member, stage.players[member].epoch))
        return None if answer.assignment is None else places(answer.assignment.topic_partitions)

    stage.join("a")
    stage.join("b")
    kept = told("a")
    assert kept is not None
    assert (len(kept), told("a")) == (2, None)
    stage.tick(1_000)
    assert (told("a"), told("a")) == (kept, None)
    stage.players["a"].owned = kept
    stage.beat("a")
    stage.tick(1_000)
    assert told("a") is None
    given = told("b")
    assert given is not None
    assert (len(given), told("b")) == (2, None)
    stage.tick(1_000)
    assert (told("b"), told("b")) == (given, None)
    stage.players["b"].owned = stage.players["b"].assigned = given
    stage.beat("b")
    stage.tick(1_000)
    assert told("b") is None


def test_what_a_lost_answer_gave_is_told_by_another_coordinator_too() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    quiet = ConsumerGroupHeartbeatRequest("g", "a", stage.players["a"].epoch)
    stage.restart()
    assert stage.reply(quiet).assignment is None
    stage.tick(1_000)
    assert stage.reply(quiet).assignment is not None


def test_epochs_that_are_not_the_members_are_fenced() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    stage.join("b")
    stage.rest()
    epoch = stage.players["a"].epoch
    assert beat(stage, "a", epoch + 1) == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(stage, "a", epoch - 1) == ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it owns"
    assert beat(stage, "a", epoch - 1, topic_partitions=[]) == ErrorCode.NONE, "the answer may have been lost"
    assert beat(stage, "nobody", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    other = ConsumerGroupHeartbeatRequest("unknown", "a", 3)
    assert stage.reply(other).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_19233_a_member_may_begin_again_at_epoch_0() -> None:
    stage = ConsumerStage(t=4)
    player = stage.join("a")
    stage.join("b")
    stage.rest()
    epoch = player.epoch
    player.begin_again()
    stage.beat("a")
    assert player.epoch == epoch
    assert len(player.owned) == 2


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ConsumerGroupHeartbeatRequest("g", "", 0), "MemberId can't be empty."),
        (ConsumerGroupHeartbeatRequest("", "a", 0), "GroupId can't be empty."),
        (ConsumerGroupHeartbeatRequest("g", "a", 0, ""), "InstanceId can't be empty."),
        (ConsumerGroupHeartbeatRequest("g", "a", 0, None, " "), "RackId can't be empty."),
        (ConsumerGroupHeartbeatRequest("g", "a", 0), "RebalanceTimeoutMs must be provided in first request."),
        (
            ConsumerGroupHeartbeatRequest("g", "a", 0, rebalance_timeout_ms=1),
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            ConsumerGroupHeartbeatRequest("g", "a", 0, rebalance_timeout_ms=1, topic_partitions=[]),
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (ConsumerGroupHeartbeatRequest("g", "a", -2), "InstanceId can't be null."),
        (ConsumerGroupHeartbeatRequest("g", "a", -3), "MemberEpoch is invalid."),
    ],
)
def test_a_heartbeat_that_says_too_little(request_: ConsumerGroupHeartbeatRequest, message: str) -> None:
    answer = ConsumerStage(t=1).reply(request_)
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, message)


def test_an_assignor_that_is_not_there() -> None:
    stage = ConsumerStage(t=1)
    assert beat(stage, "a", 0, server_assignor="sticky", rebalance_timeout_ms=1, topic_partitions=[],
                subscribed_topic_names=["t"]) == ErrorCode.UNSUPPORTED_ASSIGNOR  # fmt: skip


def test_a_full_group_takes_no_other_member() -> None:
    stage = ConsumerStage(t=1)
    stage.timing(members_max=1)
    stage.join("a")
    error = beat(stage, "b", 0, rebalance_timeout_ms=1, topic_partitions=[], subscribed_topic_names=["t"])
    assert error == ErrorCode.GROUP_MAX_SIZE_REACHED
    stage.rest("a")


# ---- static members ------------------------------------------------------------------------------------------------


def test_a_static_members_successor_inherits_its_place() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a", instance="one")
    stage.join("b", instance="two")
    stage.rest()
    had = numbers(stage)["a"]
    assert stage.leave("a", epoch=-2).member_epoch == -2
    stage.rest("b")
    assert numbers(stage)["b"] != [0, 1, 2, 3], "its place is kept"
    stage.join("c", instance="one")
    stage.rest()
    assert numbers(stage) == {"b": numbers(stage)["b"], "c": had}
    stage.check()


def test_an_instance_id_that_is_held_is_refused_and_one_that_was_lost_is_fenced() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a", instance="one")
    again = dict(rebalance_timeout_ms=1, topic_partitions=[], subscribed_topic_names=["t"])
    assert beat(stage, "b", 0, instance_id="one", **again) == ErrorCode.UNRELEASED_INSTANCE_ID
    stage.leave("a", epoch=-2)
    assert beat(stage, "b", 0, instance_id="one", **again) == ErrorCode.NONE
    assert beat(stage, "a", 2, instance_id="one") == ErrorCode.FENCED_INSTANCE_ID
    assert beat(stage, "a", 1, instance_id="three") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_does_not_come_back_is_out_after_its_session() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a", instance="one")
    stage.leave("a", epoch=-2)
    stage.tick(45_000)
    assert stage.described().group_state == "Empty"
    stage.check()


# ---- regular expressions -------------------------------------------------------------------------------------------


def test_a_regular_expression_stands_for_topics_also_new_ones() -> None:
    pytest.importorskip("re2")
    stage = ConsumerStage(orders=2, old_orders=2, clicks=1)
    stage.join("a", regex="orders.*")
    stage.rest()
    assert numbers(stage) == {"a": [0, 1]}, "whole names"
    stage.topic("orders-eu", 3)
    stage.tick(1_000)
    stage.rest()
    assert len(stage.players["a"].owned) == 5
    stage.delete_topic("orders")
    stage.tick(1_000)
    stage.rest()
    assert len(stage.players["a"].owned) == 3
    stage.check()


def test_names_and_an_expression_are_read_together_and_apart() -> None:
    pytest.importorskip("re2")
    stage = ConsumerStage(orders=2, clicks=1)
    player = stage.join("a", "clicks", regex="ord.*")
    stage.rest()
    assert len(player.owned) == 3
    player.regex, player.says_all = "", True
    stage.rest()
    assert len(player.owned) == 1
    stage.join("b", regex="ord.*")
    stage.rest()
    assert len(stage.players["b"].owned) == 2
    stage.leave("b")
    stage.check()
    group = stage.shard.consumer.of("g")
    assert group is not None
    assert group.resolved == {}


def test_what_a_member_may_not_see_is_not_matched() -> None:
    pytest.importorskip("re2")
    stage = ConsumerStage(orders=2, salaries=1)
    stage.hidden.add("salaries")
    stage.join("a", regex=".*")
    stage.rest()
    assert len(stage.players["a"].owned) == 2
    stage.hidden.clear()
    for _ in range(16):
        stage.tick(40_000)
        stage.beat("a")
    stage.rest()
    assert len(stage.players["a"].owned) == 3, "the expression is matched anew now and then"


@pytest.mark.parametrize("regex", ["(", "(?=x)", "a{5000}", "a" * 5_000])
def test_an_expression_that_re2_does_not_take(regex: str) -> None:
    pytest.importorskip("re2")
    answer = ConsumerStage(t=1).reply(
        ConsumerGroupHeartbeatRequest("g", "a", 0, None, None, 60_000, None, regex, None, [])
    )
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.error_message.startswith("SubscribedTopicRegex `")


# ---- what Kafka's coordinator once got wrong -----------------------------------------------------------------------


def test_16147_what_is_given_back_before_it_was_let_go_of_stays_owned() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    stage.join("b")
    stage.beat("a", lets_go=False)  # is to let go of two
    stage.leave("b")  # and is to have them again
    stage.tick(10)
    keeper = stage.players["a"]
    keeper.assigned = set(keeper.owned)
    keeper.owned -= {place for place in keeper.owned if place[1] > 1}
    stage.rest("a")
    assert numbers(stage) == {"a": [0, 1, 2, 3]}
    stage.join("c")
    assert stage.players["c"].owned == set(), "a has them"
    stage.check()


def test_19449_what_a_member_has_not_let_go_of_is_not_held_by_another() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    stage.join("b")
    stage.beat("a", lets_go=False)
    stage.leave("b")
    stage.tick(10)
    stage.beat("a")
    described = stage.described()
    assert described.group_state == "Stable"
    assert len(stage.players["a"].owned) == 4


def test_19974_a_partition_is_never_owned_by_two_members_of_one_epoch() -> None:
    """Others join and leave while a member still has what it is to let go of."""
    stage = ConsumerStage(t=6)
    stage.join("a")
    stage.join("b")
    stage.beat("a", lets_go=False)
    stage.join("c")
    stage.beat("b")
    stage.leave("b")
    stage.join("d")
    stage.beat("a", lets_go=False)
    stage.beat("c")
    owned = [place for player in stage.players.values() for place in player.owned]
    assert len(owned) == len(set(owned))
    stage.rest()
    assert sorted(map(len, numbers(stage).values())) == [2, 2, 2]


def test_20442_a_group_left_empty_is_assigned_to() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    stage.leave("a")
    described = stage.described()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Empty", 3, 3)
    assert stage.join("b").epoch == 4
    stage.check()


# ---- offsets -------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_with_the_members_epoch() -> None:
    stage = ConsumerStage(t=4)
    stage.join("a")
    assert stage.commit("a", 2, offset=7) == ErrorCode.NONE
    assert stage.fetch("a", 2) == (ErrorCode.NONE, 7)
    assert stage.fetch() == (ErrorCode.NONE, 7)
    assert stage.commit("a", 3) == ErrorCode.STALE_MEMBER_EPOCH
    assert stage.fetch("a", 3)[0] == ErrorCode.STALE_MEMBER_EPOCH
    assert stage.commit("nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.fetch("nobody", 1)[0] == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.commit("a", 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert stage.commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    stage.leave("a")
    assert stage.commit("", -1, offset=9) == ErrorCode.NONE
    stage.check()


def test_a_commit_from_before_a_rebalance_counts_for_what_the_member_had_then() -> None:
    """KIP-1251: the epoch that a partition was given in decides, not the member's present one."""
    stage = ConsumerStage(t=4)
    stage.join("a")
    stage.join("b")
    stage.rest()
    first, epoch = numbers(stage)["a"][0], stage.players["a"].epoch
    newly = numbers(stage)["b"][0]
    assert epoch > 2
    assert stage.commit("a", 2, partition=first) == ErrorCode.NONE
    assert stage.commit("a", 2, partition=newly) == ErrorCode.STALE_MEMBER_EPOCH
    assert stage.commit("b", stage.players["b"].epoch - 1, partition=newly) == ErrorCode.STALE_MEMBER_EPOCH


def test_offsets_of_a_topic_that_is_read_are_not_deleted() -> None:
    stage = ConsumerStage(t=1, u=1)
    stage.join("a")
    stage.commit("a", 2)

    def delete(topic: str) -> ErrorCode:
        body = OffsetDeleteRequest("g", [OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(0)])])
        return ErrorCode(stage.reply(body, 0).topics[0].partitions[0].error_code)

    assert delete("t") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete("u") == ErrorCode.NONE
    stage.leave("a")
    assert delete("t") == ErrorCode.NONE
    assert stage.fetch() == (ErrorCode.NONE, -1)


def test_offsets_expire_once_nobody_reads_the_topic_and_the_empty_group_goes_with_the_last() -> None:
    stage = ConsumerStage(t=1)
    stage.join("a")
    stage.commit("a", 2)
    week = 7 * 24 * 3_600_000
    for _ in range(week // 40_000 + 20):
        stage.tick(40_000)
        stage.beat("a")
    assert stage.fetch() == (ErrorCode.NONE, 1)
    stage.leave("a")
    stage.tick(600_000)
    assert stage.fetch() == (ErrorCode.NONE, -1)
    assert stage.described().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    stage.check()


# ---- administration ------------------------------------------------------------------------------------------------


def test_a_consumer_group_is_listed_and_deleted() -> None:
    stage = ConsumerStage(t=1)
    stage.join("a")
    stage.commit("a", 2)
    (listed,) = stage.reply(ListGroupsRequest(types_filter=["Consumer"]), 5).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g", "consumer", "Stable", "consumer")  # fmt: skip
    assert stage.reply(ListGroupsRequest(types_filter=["classic"]), 5).groups == []

    def delete() -> ErrorCode:
        return ErrorCode(stage.reply(DeleteGroupsRequest(["g"]), 2).results[0].error_code)

    assert delete() == ErrorCode.NON_EMPTY_GROUP
    stage.leave("a")
    assert delete() == ErrorCode.NONE
    assert delete() == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.fetch() == (ErrorCode.NONE, -1)
    stage.check()


# ---- a classic group that is empty gives way -----------------------------------------------------------------------


def test_offsets_that_were_committed_without_a_group_become_the_consumer_groups() -> None:
    stage = ConsumerStage(t=1)
    assert stage.commit("", -1, offset=5) == ErrorCode.NONE
    stage.join("a")
    assert stage.fetch("a", 2) == (ErrorCode.NONE, 5)
    assert [each.group_type for each in stage.reply(ListGroupsRequest(), 5).groups] == ["consumer"]
    stage.restart()
    stage.check()
    assert stage.fetch() == (ErrorCode.NONE, 5)
