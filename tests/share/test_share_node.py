"""Share groups on a node, frame by frame: sessions, acquisition, acknowledgement, waiting, restarts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.delivery import loading
from ottla.broker.delivery import sessions as share_sessions
from ottla.broker.delivery.partitions import HostedState
from ottla.cli.serve import options_of, parser
from ottla.log.answers import Origin
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_share_group_state_summary as summary
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.records.control import EndTransactionMarker, build_marker_batch
from ottla.share.state import ShareStateShard
from tests.harness.node_stage import NOW
from tests.harness.other_writer import place
from tests.harness.share.share_stage import ACCEPT, GAP, REJECT, RELEASE, RENEW, Member, ShareStage

BROKER, GROUP = 4, 32


def earliest(stage: ShareStage, group: str = "g", **overrides: str) -> None:
    stage.configure(group, share_auto_offset_reset="earliest", **overrides)


def marker(producer_id: int, committed: bool) -> bytearray:
    return build_marker_batch(
        EndTransactionMarker(committed, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW
    )


def begun(stage: ShareStage, count: int = 10, **overrides: str) -> tuple[bytes, Member]:
    """A topic with one batch of records, and a member of a group that begins at the earliest."""
    topic = stage.topic()
    earliest(stage, **overrides)
    stage.produce(count)
    return topic, stage.member(topic)


# ---- acknowledging -------------------------------------------------------------------------------------------------


def test_records_are_acquired_acknowledged_and_gone(stage: ShareStage) -> None:
    topic, member = begun(stage)
    assert member.fetch() == [(0, 9, 1)]
    assert member.fetch([(0, 9, [ACCEPT])]) == []
    assert stage.node.coordinators.share.describe(stage.now)[0].start_offset == 10
    other = stage.member(topic)
    assert other.fetch() == []


def test_each_record_has_its_own_acknowledgement(stage: ShareStage) -> None:
    _, member = begun(stage)
    member.fetch()
    types = [ACCEPT, RELEASE, ACCEPT, REJECT, GAP, RELEASE, RELEASE, ACCEPT, ACCEPT, ACCEPT]
    assert member.fetch([(0, 9, types)]) == [(1, 1, 2), (5, 6, 2)]
    seen = stage.node.coordinators.share.describe(stage.now)[0]
    assert seen.acknowledged == {"gap": 1, "accept": 5, "release": 3, "reject": 1, "renew": 0}
    assert (seen.start_offset, seen.in_flight, seen.complete_count, seen.lag) == (1, 3, 6, 3)


def test_only_batches_with_acquired_records_are_sent(stage: ShareStage) -> None:
    _, member = begun(stage)
    for _ in range(9):
        stage.produce(10)
    everything = len(member.part(member.ask()).records)
    types = [RELEASE if i in (5, 95) else ACCEPT for i in range(100)]
    asked = member.ask([(0, 99, types)])
    assert member.acquired(asked) == [(5, 5, 2), (95, 95, 2)]
    assert len(member.part(asked).records) < everything / 4


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([(5, 4, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [1, 1])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [5])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [-1])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [RENEW])], ErrorCode.INVALID_REQUEST),
        ([(0, 4, [1]), (4, 5, [1])], ErrorCode.INVALID_REQUEST),
        ([(0, 10, [1])], ErrorCode.INVALID_REQUEST),
        ([(7, 9, [1]), (40, 41, [1])], ErrorCode.INVALID_REQUEST),
        ([(0, 9, [1])], ErrorCode.NONE),
    ],
)
def test_what_is_no_valid_acknowledgement_changes_nothing(
    stage: ShareStage, batches: list[tuple[int, int, list[int]]], error: ErrorCode
) -> None:
    _, member = begun(stage)
    member.fetch()
    assert member.said(*batches) == error
    assert stage.node.coordinators.share.describe(stage.now)[0].in_flight == (0 if error is ErrorCode.NONE else 10)


def test_nobody_acknowledges_for_another_or_twice(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch(records=5, exactly=True)
    other = stage.member(topic)
    assert other.fetch() == [(5, 9, 1)]
    assert other.said((4, 5, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    assert stage.node.coordinators.share.describe(stage.now)[0].members == {member.name: 5, other.name: 5}
    assert other.said((5, 9, [ACCEPT])) == 0
    assert other.said((5, 9, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    assert member.said((0, 4, [ACCEPT])) == 0
    assert member.said((0, 4, [ACCEPT])) == 0, "below the start offset nobody minds"


def test_a_partition_nobody_fetched_has_nothing_to_acknowledge(stage: ShareStage) -> None:
    topic = stage.topic(partitions=2)
    earliest(stage)
    member = stage.member(topic)
    member.fetch()
    member.places.reverse()
    member.places = [(topic, 1)]
    assert member.said((0, 0, [ACCEPT])) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    member.places = [(topic, 2)]
    assert member.said((0, 0, [ACCEPT])) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    member.places = [(bytes(16), 0)]
    assert member.said((0, 0, [ACCEPT])) == ErrorCode.UNKNOWN_TOPIC_ID


# ---- locks, limits, back-off ---------------------------------------------------------------------------------------


def test_a_lock_that_runs_out_gives_the_records_to_others(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    other = stage.member(topic)
    waiting = other.ask(wait_ms=40_000)
    stage.run(29_000)
    assert waiting.answer is None
    stage.run(1_100)
    assert other.acquired(waiting) == [(0, 9, 2)]
    assert member.said((0, 9, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    assert stage.node.coordinators.share.describe(stage.now)[0].lock_timeouts == 10


def test_renewing_keeps_the_lock(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    stage.run(20_000)
    assert member.said((0, 9, [RENEW]), renew=True) == 0
    stage.run(20_000)
    other = stage.member(topic)
    assert other.fetch() == []
    stage.run(11_000)
    assert other.fetch() == [(0, 9, 2)]


def test_a_renewing_fetch_must_not_ask_for_records(stage: ShareStage) -> None:
    _, member = begun(stage)
    member.fetch()
    assert member.ask([(0, 9, [RENEW])], renew=True).answer.error_code == ErrorCode.INVALID_REQUEST
    member.epoch -= 1
    asked = member.ask([(0, 9, [RENEW])], renew=True, records=0, max_bytes=0, min_bytes=0)
    assert member.part(asked).acknowledge_error_code == 0
    assert member.part(asked).records == b""


def test_renewing_may_be_forbidden(stage: ShareStage) -> None:
    _, member = begun(stage, share_renew_acknowledge_enable="false")
    member.fetch()
    assert member.said((0, 9, [RENEW]), renew=True) == ErrorCode.INVALID_REQUEST


def test_a_record_is_delivered_no_more_often_than_its_limit(stage: ShareStage) -> None:
    _, member = begun(stage, 1, share_delivery_count_limit="3")
    for attempt in range(1, 4):
        assert member.fetch([] if attempt == 1 else [(0, 0, [RELEASE])]) == [(0, 0, attempt)]
    assert member.fetch([(0, 0, [RELEASE])]) == []
    assert stage.node.coordinators.share.describe(stage.now)[0].start_offset == 1


def test_suspects_come_in_ever_smaller_slices_and_last_alone(stage: ShareStage) -> None:
    _, member = begun(stage, 500, share_delivery_count_limit="10")
    sizes: list[int] = []
    acks: list[tuple[int, int, list[int]]] = []
    for _ in range(10):
        got = member.fetch(acks, records=500)
        assert len(got) == 1
        first, last, count = got[0]
        sizes.append(last - first + 1)
        assert (first, count) == (0, len(sizes))
        acks = [(first, last, [RELEASE])]
    assert sizes == [500, 500, 500, 500, 500, 250, 125, 62, 31, 1]


def test_back_off_holds_released_records_back(stage: ShareStage) -> None:
    _, member = begun(stage, share_retry_backoff_ms="1000", share_retry_backoff_max_ms="3000")
    member.fetch()
    delays: list[int] = []
    for _ in range(4):
        waiting = member.ask([(0, 9, [RELEASE])], wait_ms=60_000)
        began = stage.now
        while waiting.answer is None:
            stage.run(10)
        delays.append(stage.now - began)
        got = member.acquired(waiting)
        assert got[0][0] == 0
        if got[0][1] < 9:
            break
    assert [round(delay, -2) for delay in delays] == [1000, 2000, 3000]


def test_back_off_begins_anew_after_a_restart(stage: ShareStage) -> None:
    """Nobody knows since when the record waited, and a crowd that comes back at once is what it is there against."""
    topic, member = begun(stage, 1, share_retry_backoff_ms="1000")
    member.fetch()
    assert member.said((0, 0, [RELEASE])) == 0
    stage.run(900)
    stage.restart(clean=False)
    again = stage.member(topic)
    assert again.fetch() == []
    stage.run(900)
    assert again.fetch() == []
    stage.run(100)
    assert again.fetch() == [(0, 0, 2)]


def test_a_stuck_record_does_not_stop_the_partition(stage: ShareStage) -> None:
    """Kafka's window is a span: it would end after share.partition.max.record.locks offsets."""
    topic, member = begun(stage, 1, share_partition_max_record_locks="100")
    assert member.fetch() == [(0, 0, 1)]
    busy = stage.member(topic)
    acks: list[tuple[int, int, list[int]]] = []
    for _ in range(20):
        first = stage.produce(100)
        assert busy.fetch(acks) == [(first, first + 99, 1)]
        acks = [(first, first + 99, [ACCEPT])]
    busy.fetch(acks)
    seen = stage.node.coordinators.share.describe(stage.now)[0]
    assert (seen.start_offset, seen.end_offset, seen.in_flight, seen.runs) == (0, 2001, 1, 2)


def test_no_more_records_are_held_than_the_limit(stage: ShareStage) -> None:
    topic, member = begun(stage, 1, share_partition_max_record_locks="100")
    for _ in range(200):
        stage.produce(1)
    assert member.fetch() == [(0, 99, 1)]
    other = stage.member(topic)
    waiting = other.ask(wait_ms=1000)
    assert waiting.answer is None
    member.said((0, 9, [ACCEPT]))
    assert other.acquired(waiting) == [(100, 109, 1)]


# ---- how much ------------------------------------------------------------------------------------------------------


def test_batches_are_taken_whole_or_records_counted(stage: ShareStage) -> None:
    topic, member = begun(stage, 7)
    for _ in range(3):
        stage.produce(7)
    assert member.fetch(records=10) == [(0, 13, 1)]
    assert member.fetch(records=3, exactly=True) == [(14, 16, 1)]
    assert member.fetch(records=3) == [(17, 20, 1)]
    assert member.fetch(records=500, exactly=True) == [(21, 27, 1)]
    assert stage.member(topic).fetch() == []


def test_acquired_ranges_end_where_batches_end(stage: ShareStage) -> None:
    _, member = begun(stage, 7)
    for _ in range(3):
        stage.produce(7)
    assert member.fetch(batch_size=10) == [(0, 13, 1), (14, 27, 1)]
    assert member.fetch([(0, 27, [RELEASE])], batch_size=1) == [(0, 6, 2), (7, 13, 2), (14, 20, 2), (21, 27, 2)]


def test_bytes_are_limited_but_one_batch_always_comes(stage: ShareStage) -> None:
    _, member = begun(stage, 50)
    stage.produce(50)
    assert member.fetch(max_bytes=1) == [(0, 49, 1)]
    assert member.fetch(max_bytes=1) == [(50, 99, 1)]


def test_partitions_take_turns(stage: ShareStage) -> None:
    topic = stage.topic(partitions=3)
    earliest(stage)
    for index in range(3):
        stage.produce(10, index=index)
    member = stage.member(topic, partitions=3)
    firsts = set()
    for _ in range(3):
        asked = member.ask(records=1)
        firsts |= {i for i in range(3) if member.part(asked, i) is not None and member.part(asked, i).acquired_records}
    assert firsts == {0, 1, 2}


# ---- waiting -------------------------------------------------------------------------------------------------------


def test_a_waiting_fetch_is_woken_by_a_record_and_only_one_is(stage: ShareStage) -> None:
    topic, _ = begun(stage, 1)
    members = [stage.member(topic) for _ in range(8)]
    assert members[0].fetch() == [(0, 0, 1)]
    waiting = [member.ask(wait_ms=1000) for member in members]
    for i in range(8):
        stage.produce(1)
        assert [asked.answer is not None for asked in waiting] == [True] * (i + 1) + [False] * (7 - i)
        assert members[i].acquired(waiting[i]) == [(i + 1, i + 1, 1)]


def test_a_waiting_fetch_hears_in_the_end_that_there_is_nothing(stage: ShareStage) -> None:
    _, member = begun(stage)
    member.fetch()
    waiting = member.ask(wait_ms=500)
    stage.run(499)
    assert waiting.answer is None
    stage.run(1)
    assert member.acquired(waiting) == []


def test_min_bytes_are_waited_for(stage: ShareStage) -> None:
    topic = stage.topic()
    member = stage.member(topic)
    member.fetch()
    waiting = member.ask(wait_ms=1000, min_bytes=300)
    stage.produce(1)
    assert waiting.answer is None
    stage.produce(10)
    stage.produce(10)
    assert member.acquired(waiting) == [(0, 20, 1)]
    late = member.ask(wait_ms=1000, min_bytes=3000)
    stage.produce(1)
    stage.run(1000)
    assert member.acquired(late) == [(21, 21, 1)]


def test_a_release_wakes_another_member(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    other = stage.member(topic)
    waiting = other.ask(wait_ms=10_000)
    assert member.said((3, 4, [RELEASE])) == 0
    assert other.acquired(waiting) == [(3, 4, 2)]


# ---- sessions ------------------------------------------------------------------------------------------------------


def test_sessions_are_held_to_their_epochs(stage: ShareStage) -> None:
    _, member = begun(stage)
    assert member.ask(epoch=1).answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=0).answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(epoch=-1).answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.ask([(0, 0, [ACCEPT])]).answer.error_code == ErrorCode.INVALID_REQUEST
    member.epoch = 0
    member.fetch()
    assert member.ask(epoch=2).answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge((0, 9, [ACCEPT]), epoch=7).answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.said((0, 9, [ACCEPT])) == 0


def test_who_has_no_name_gets_nothing(stage: ShareStage) -> None:
    topic, _ = begun(stage)
    assert Member(stage, "g", "", [(topic, 0)]).ask().answer.error_code == ErrorCode.INVALID_REQUEST
    assert Member(stage, "g", "x" * 37, [(topic, 0)]).ask().answer.error_code == ErrorCode.INVALID_REQUEST
    assert Member(stage, "", "x", [(topic, 0)]).ask().answer.error_code == ErrorCode.INVALID_REQUEST


def test_epochs_wrap(stage: ShareStage) -> None:
    _, member = begun(stage)
    member.fetch()
    session = stage.node.coordinators.share.sessions.get("g", member.name)
    assert session is not None
    session.epoch = member.epoch = (1 << 31) - 1
    member.fetch()
    member.epoch = 1
    assert member.fetch() == []


def test_a_new_session_keeps_what_is_held_and_a_good_bye_releases_it(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    member.epoch = 0
    assert member.fetch() == []
    assert stage.node.coordinators.share.describe(stage.now)[0].members == {member.name: 10}
    member.close()
    assert member.ask(epoch=0).answer.error_code == 0
    member.close()
    other = stage.member(topic)
    assert other.fetch(records=5, exactly=True) == [(0, 4, 2)]
    asked = other.ask([(0, 3, [ACCEPT])], epoch=-1)
    assert other.part(asked).acknowledge_error_code == 0
    assert len(stage.node.coordinators.share.sessions) == 0
    assert stage.member(topic).fetch(records=1)[0][0] == 4


def test_a_lost_connection_releases_at_once(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    other = stage.member(topic)
    waiting = other.ask(wait_ms=1000)
    member.vanish()
    assert other.acquired(waiting) == [(0, 9, 2)]
    assert member.ask().answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_waiting_member_that_vanishes_gets_nothing(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch([])
    member.said((0, 9, [ACCEPT]))
    gone = stage.member(topic)
    gone.ask(wait_ms=10_000)
    waiting = member.ask(wait_ms=10_000)
    gone.vanish()
    stage.produce(3)
    assert member.acquired(waiting) == [(10, 12, 1)]


def test_sessions_are_limited(tmp_path: Path) -> None:
    stage = ShareStage(tmp_path, {"group.share.max.share.sessions": "2"})
    topic, member = begun(stage)
    member.fetch()
    stage.member(topic).fetch()
    third = stage.member(topic)
    assert third.ask().answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    member.close()
    third.epoch = 0
    assert third.fetch() == [(0, 9, 2)]


def test_partitions_in_sessions_are_bounded_and_the_largest_go_first(
    stage: ShareStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX", 10)
    topic = stage.topic(partitions=12)
    assert stage.member(topic, partitions=11).ask().answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    large, small = stage.member(topic, partitions=6), stage.member(topic, partitions=4)
    assert large.ask().answer.error_code == small.ask().answer.error_code == 0
    late = stage.member(topic, partitions=6)
    assert late.ask().answer.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED, "no larger one is there to go"
    assert stage.member(topic, partitions=2).ask().answer.error_code == 0
    assert large.ask().answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert small.ask().answer.error_code == 0
    stage.node.coordinators.share.check()


def test_a_session_that_grows_out_of_bounds_ends(stage: ShareStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "PARTITIONS_MAX", 3)
    topic = stage.topic(partitions=5)
    member = stage.member(topic, partitions=2)
    assert member.ask().answer.error_code == 0
    ended = [(0, 0, [ACCEPT])]
    assert member.ask({(topic, 2): ended}).answer.error_code == 0
    assert member.ask({(topic, 3): ended}).answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert len(stage.node.coordinators.share.sessions) == 0


def test_forgotten_partitions_are_not_read(stage: ShareStage) -> None:
    topic = stage.topic(partitions=2)
    earliest(stage)
    member = stage.member(topic, partitions=2)
    member.fetch()
    member.ask(forget=((topic, 1),))
    stage.produce(5, index=1)
    asked = member.ask()
    assert member.part(asked, 1) is None
    stage.produce(5, index=0)
    assert member.acquired(member.ask()) == [(0, 4, 1)]


# ---- where a group begins, what the log does -----------------------------------------------------------------------


def test_a_group_begins_where_its_config_says(stage: ShareStage) -> None:
    topic = stage.topic()
    stage.produce(5)
    stage.now += 3_600_000
    stage.produce(5)
    stage.now += 60_000
    assert stage.member(topic, "latest").fetch() == []
    earliest(stage, "earliest")
    assert stage.member(topic, "earliest").fetch()[0][0] == 0
    stage.configure("duration", share_auto_offset_reset="by_duration:PT10M")
    assert stage.member(topic, "duration").fetch() == [(5, 9, 1)]
    stage.configure("short", share_auto_offset_reset="by_duration:PT1S")
    assert stage.member(topic, "short").fetch() == []
    stage.produce(1)
    assert stage.member(topic, "latest").fetch() == [(10, 10, 1)], "the first look decided"


def test_a_beginning_is_remembered(stage: ShareStage) -> None:
    topic = stage.topic()
    stage.produce(5)
    assert stage.member(topic).fetch() == []
    stage.restart()
    stage.produce(5)
    stage.restart(clean=False)
    assert stage.member(topic).fetch() == [(5, 9, 1)]


def test_deleted_records_are_not_waited_for(stage: ShareStage) -> None:
    topic, member = begun(stage)
    stage.produce(10)
    member.fetch(records=5, exactly=True)
    partition = stage.node.replicas.get("jobs", 0)
    assert partition is not None
    partition.log.delete_records_before(12)
    other = stage.member(topic)
    assert other.fetch() == [(12, 19, 1)]
    assert member.said((0, 4, [ACCEPT])) == 0
    assert stage.node.coordinators.share.describe(stage.now)[0].start_offset == 12


def test_holes_and_markers_are_passed_over(stage: ShareStage) -> None:
    topic, member = begun(stage, 3)
    stage.put(marker(5, True), origin=Origin.COORDINATOR)
    stage.produce(2)
    partition = stage.node.replicas.get("jobs", 0)
    assert partition is not None
    assert member.fetch() == [(0, 2, 1), (4, 5, 1)]
    assert member.fetch([(0, 2, [ACCEPT]), (4, 5, [ACCEPT])]) == []
    stage.put(marker(5, True), origin=Origin.COORDINATOR)
    assert member.fetch() == []
    assert stage.node.coordinators.share.describe(stage.now)[0].start_offset == 7
    assert topic


@pytest.mark.parametrize("committed", [True, False])
def test_isolation(stage: ShareStage, committed: bool) -> None:
    topic = stage.topic()
    earliest(stage, "dirty")
    earliest(stage, "clean", share_isolation_level="read_committed")
    stage.produce(2)
    stage.produce(3, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    stage.produce(1)
    clean, dirty = stage.member(topic, "clean"), stage.member(topic, "dirty")
    assert dirty.fetch() == [(0, 5, 1)]
    assert clean.fetch() == [(0, 1, 1)]
    waiting = clean.ask(wait_ms=1000)
    stage.put(marker(7, committed), origin=Origin.COORDINATOR)
    assert clean.acquired(waiting) == ([(2, 5, 1)] if committed else [(5, 5, 1)])


# ---- topics that change --------------------------------------------------------------------------------------------


def test_a_topic_that_goes_and_comes_back_is_another_one(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    waiting = member.ask(wait_ms=10_000)
    stage.delete("jobs")
    stage.settle()
    assert member.stage is stage
    part = waiting.answer.responses[0].partitions[0]
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert stage.node.coordinators.share.describe(stage.now) == []
    again = stage.topic()
    stage.produce(4)
    stage.run(1)
    assert stage.member(again).fetch() == [(0, 3, 1)]
    assert again != topic
    kept = [
        key
        for shard in stage.node.coordinators.share_state.shards()
        if isinstance(shard, ShareStateShard)
        for key in shard.known()
    ]
    assert [key.topic_id for key in kept] == [again]


def test_a_new_leader_epoch_loads_share_partitions_anew(stage: ShareStage) -> None:
    _, member = begun(stage)
    assert member.fetch() == [(0, 9, 1)]
    assert member.fetch([(0, 4, [ACCEPT])]) == []
    waiting = member.ask(wait_ms=10_000)
    place(stage.node, stage.store, stage.now, "jobs", 0, leader=7, leader_epoch=1, replicas=(1, 7), isr=(1, 7))
    stage.settle()
    part = waiting.answer.responses[0].partitions[0]
    assert (part.error_code, part.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 7)
    assert stage.node.coordinators.share.describe(stage.now) == []
    place(stage.node, stage.store, stage.now, "jobs", 0, leader=1, leader_epoch=2)
    assert member.fetch() == [(5, 9, 1)], "nothing was persisted of who held what"
    place(stage.node, stage.store, stage.now, "jobs", 0, leader=1, leader_epoch=3)
    assert member.fetch() == [(5, 9, 1)]


class Unsearched(dict[Any, Any]):
    """A table in which a key is looked up and nothing is searched."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all share partitions were searched")


def test_a_topic_that_goes_costs_what_it_had(stage: ShareStage) -> None:
    """Not what all other topics of the node have."""
    topic, member = begun(stage)
    member.fetch()
    stage.member(stage.topic("other")).fetch()
    host = stage.node.coordinators.share
    host._hosted = Unsearched(host._hosted)
    stage.delete("other")
    host._hosted = {key: host._hosted[key] for key in host._of_group["g"]}
    assert [key.topic_id for key in host._hosted] == [topic]


def test_added_partitions_are_read(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.places = [(topic, 0), (topic, 1)]
    asked = member.ask()
    assert member.part(asked, 1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stage.change(stage.node.topics.growing(stage.node.image.topics["jobs"], 2))
    stage.produce(2, index=1)
    assert member.acquired(member.ask(), 1) == [(0, 1, 1)]


# ---- restarts and the disk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_acknowledged_survives_and_what_was_held_comes_back(stage: ShareStage, clean: bool) -> None:
    topic, member = begun(stage)
    member.fetch()
    types = [ACCEPT, RELEASE, RELEASE, REJECT, ACCEPT]
    assert member.said((0, 4, types)) == 0
    stage.restart(clean=clean)
    assert member.ask().answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    again = stage.member(topic)
    assert again.fetch() == [(1, 2, 2), (5, 9, 1)]
    assert again.said((1, 9, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    assert again.said((1, 2, [ACCEPT]), (5, 9, [ACCEPT])) == 0
    stage.restart(clean=clean)
    assert stage.member(topic).fetch() == []


def test_an_acknowledgement_is_answered_when_it_is_on_the_disk(tmp_path: Path) -> None:
    patient = {"offsets.commit.timeout.ms": "60000", "share.coordinator.write.timeout.ms": "60000"}
    stage = ShareStage(tmp_path, {"ottla.durability": "fsync", **patient})
    topic, member = begun(stage)
    assert member.acquired(member.ask(wait_ms=1000)) == [(0, 9, 1)], "loading took two fsyncs"
    stage.hold_syncs = True
    asked = member.acknowledge((0, 4, [ACCEPT]), (5, 5, [RELEASE]))
    assert asked.answer is None
    other = stage.member(topic)
    assert other.fetch() == [], "neither done nor available yet"
    member.connection = stage.connect()  # on the other one this would wait for the first
    assert member.said((0, 0, [ACCEPT])) == ErrorCode.INVALID_RECORD_STATE
    stage.run(40_000)
    stage.hold_syncs = False
    stage.sync()
    stage.settle()
    assert asked.answer.responses[0].partitions[0].error_code == 0
    assert other.fetch() == [(5, 9, 2)]


def test_an_acknowledgement_that_can_not_be_written_may_be_repeated(stage: ShareStage) -> None:
    _, member = begun(stage)
    member.fetch()
    partition = next(
        p for p in stage.node.replicas.by_name["__share_group_state"].partitions.values() if p.log.log_end_offset
    )
    before, partition.log.durability.failed = partition.log.failed, "no room"
    assert member.said((0, 4, [ACCEPT])) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.node.coordinators.share.describe(stage.now)[0].members == {member.name: 10}
    partition.log.durability.failed = before
    assert member.said((0, 4, [ACCEPT])) == 0


def test_a_fetch_waits_for_its_acknowledgements(tmp_path: Path) -> None:
    stage = ShareStage(tmp_path, {"ottla.durability": "fsync"})
    _, member = begun(stage)
    assert member.acquired(member.ask(wait_ms=1000)) == [(0, 9, 1)]
    stage.hold_syncs = True
    asked = member.ask([(0, 4, [ACCEPT]), (5, 9, [RELEASE])], wait_ms=100)
    stage.run(500)
    assert asked.answer is None
    stage.hold_syncs = False
    stage.sync()
    stage.run()
    assert member.acquired(asked) == [(5, 9, 2)]
    assert member.part(asked).acknowledge_error_code == 0


def test_state_is_pruned_and_still_there_after_a_restart(tmp_path: Path) -> None:
    stage = ShareStage(
        tmp_path,
        {
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.snapshot.update.records.per.snapshot": "5",
            "share.coordinator.state.topic.prune.interval.ms": "1000",
        },
    )
    topic, member = begun(stage, 1)
    member.fetch()
    acks: list[tuple[int, int, list[int]]] = []
    for i in range(1, 60):
        stage.produce(1)
        assert member.fetch(acks) == [(i, i, 1)]
        acks = [(i, i, [ACCEPT])]
    stage.run(2000)
    log = stage.node.replicas.by_name["__share_group_state"].partitions[0].log
    assert log.log_start_offset > 20
    stage.restart()
    assert stage.member(topic).fetch() == [(0, 0, 1), (59, 59, 1)]


# ---- the coordinator over the wire ---------------------------------------------------------------------------------


def test_the_summary_says_where_a_group_is(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    member.said((0, 1, [ACCEPT]), (5, 6, [ACCEPT]))
    parts = [summary.PartitionData(0, 0), summary.PartitionData(1, 0)]
    topics = [summary.ReadStateSummaryData(topic, parts), summary.ReadStateSummaryData(bytes(16), parts[:1])]
    asked = stage.send(summary.ReadShareGroupStateSummaryRequest("g", topics))
    found = {(bytes(t.topic_id), p.partition): p for t in asked.answer.results for p in t.partitions}
    good = found[(topic, 0)]
    assert (good.error_code, good.start_offset, good.delivery_complete_count) == (0, 2, 2)
    assert found[(topic, 1)].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found[(bytes(16), 0)].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_version_1_member_is_served(stage: ShareStage) -> None:
    _, member = begun(stage)
    member.version = 1
    assert member.fetch(records=3) == [(0, 9, 1)]
    assert member.said((0, 9, [ACCEPT])) == 0


@pytest.mark.parametrize("loses_start", [False, True])
def test_acknowledgements_of_lost_records_do_not_count_for_those_that_follow(
    stage: ShareStage, loses_start: bool
) -> None:
    """A power cut took the log's end; the share state was on the disk already."""
    topic, member = begun(stage)
    member.fetch()
    assert member.said((0, 9, [ACCEPT]) if loses_start else (5, 9, [ACCEPT])) == 0
    partition = stage.node.replicas.get("jobs", 0)
    assert partition is not None
    partition.log.truncate_to(0, now=stage.now)
    stage.restart(clean=False)
    stage.produce(4)
    stage.produce(8)
    stage.restart()
    again = stage.member(topic)
    assert again.fetch() == [(0, 11, 1)]
    assert again.said((0, 3, [ACCEPT])) == 0
    stage.restart()
    assert stage.member(topic).fetch() == [(4, 11, 1)]


def test_a_fetch_is_bounded_by_the_node_too(tmp_path: Path) -> None:
    """The first batch comes however large it is."""
    stage = ShareStage(tmp_path, {"fetch.max.bytes": "1024"})
    topic = stage.topic()
    earliest(stage)
    for _ in range(3):
        stage.produce(100)
    assert stage.member(topic).fetch(max_bytes=2**31 - 1) == [(0, 99, 1)]
    stage.node.coordinators.share.check()


# ---- many partitions -----------------------------------------------------------------------------------------------


def test_a_session_of_many_partitions_is_loaded_some_at_a_time(
    stage: ShareStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "LOADS_AT_ONCE", 3)
    turns = [0]
    loader = stage.node.coordinators.share._loader
    begin, tick = loader._begin, stage.node.tick

    def counted(now: int, hosted: Any) -> None:
        turns[-1] += 1
        begin(now, hosted)

    def turn(now: int) -> None:
        turns.append(0)
        tick(now)

    monkeypatch.setattr(loader, "_begin", counted)
    monkeypatch.setattr(stage.node, "tick", turn)
    topic = stage.topic(partitions=10)
    earliest(stage)
    stage.produce(1, index=9)
    member = stage.member(topic, partitions=10)
    asked = member.ask(wait_ms=1_000)
    stage.run(1)
    assert member.acquired(asked, 9) == [(0, 0, 1)]
    assert sum(turns) == 20, "each is asked for, begun, and asked for again"
    assert max(turns) == 6


def test_what_was_dropped_stays_dropped_and_the_next_fetch_hosts_another(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch()
    share = stage.node.coordinators.share
    hosted = share.known("g", (topic, 0))
    assert hosted is not None
    machine = hosted.machine
    assert machine is not None
    assert hosted.state is HostedState.READY
    share.forget(stage.now, "g")
    assert hosted.state is HostedState.DROPPED
    assert hosted.machine is None
    with pytest.raises(AssertionError, match="dropped -> ready"):
        hosted.begin(machine, 0)
    member.fetch()
    other = share.known("g", (topic, 0))
    assert other is not None
    assert (other.state, other.number) == (HostedState.READY, hosted.number + 1)


def test_what_is_loaded_for_a_fetch_answers_it_one_partition_at_a_time(stage: ShareStage) -> None:
    """As Kafka's state arrives; librdkafka's tests 0172 and 0179 count on it. What is loaded comes all at once."""
    topic = stage.topic(partitions=3)
    earliest(stage)
    for index in range(3):
        stage.produce(10, index=index)
    member, other = (stage.member(topic, partitions=3) for _ in range(2))

    def acquired(who: Member) -> list[int]:
        (answered,) = who.ask(wait_ms=1000).answer.responses
        return sorted(part.partition_index for part in answered.partitions if part.acquired_records)

    (first,) = acquired(member)
    assert acquired(member) == sorted({0, 1, 2} - {first})
    for index in range(3):
        stage.produce(10, index=index)
    assert acquired(other) == [0, 1, 2]


@pytest.mark.parametrize("is_set", [False, True])
def test_a_properties_file_may_let_groups_have_shorter_locks(tmp_path: Path, is_set: bool) -> None:
    """The bounds for groups can be set at a start only, as in Kafka: no client may change them."""
    bounds = {"group.share.min.record.lock.duration.ms": "1000", "group.share.record.lock.duration.ms": "2000"}
    config = tmp_path / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in bounds.items() if is_set))
    options, _ = options_of(parser().parse_args(["--config", str(config)]))
    stage = ShareStage(tmp_path / "node", options.settings)
    topic = stage.topic()
    asked = stage.member(topic).ask()
    assert asked.answer.acquisition_lock_timeout_ms == (2000 if is_set else 30_000)
    assert altered(stage, GROUP, "g", "share.record.lock.duration.ms", "3000") == (
        ErrorCode.NONE if is_set else ErrorCode.INVALID_CONFIG
    )
    if is_set:
        assert stage.member(topic).ask().answer.acquisition_lock_timeout_ms == 3000
    for name, value in bounds.items():
        assert altered(stage, BROKER, "1", name, value) == ErrorCode.INVALID_REQUEST


def altered(stage: ShareStage, kind: int, resource: str, name: str, value: str) -> int:
    asked = AlterConfigsResource(kind, resource, [AlterableConfig(name, 0, value)])
    (answer,) = stage.ask(IncrementalAlterConfigsRequest([asked])).responses
    return int(answer.error_code)
