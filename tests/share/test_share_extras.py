"""What Kafka lacks: dead letters that are not lost, a breaker, pause, delayed messages, records described."""

from pathlib import Path

import pytest

from ottla.broker.config.key import ConfigRefusedError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.record import Record, build_batch
from ottla.share.failures import RANGES_MAX, Failure, Failures
from tests.harness.share.share_stage import ACCEPT, REJECT, RELEASE, Member, ShareStage


def begun(stage: ShareStage, count: int = 10, *, headers: object = (), **overrides: str) -> Member:
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", **overrides)
    if count:
        stage.produce(count, headers=headers)
    return stage.member(topic)


def state(stage: ShareStage) -> tuple[int, int, int]:
    seen = stage.node.coordinators.share.describe(stage.now)[0]
    return seen.start_offset, seen.archiving, seen.dead_letters


# ---- dead letters --------------------------------------------------------------------------------------------------

DEAD = {"errors_deadletterqueue_topic_name": "dlq.jobs"}


def with_letters(stage: ShareStage, count: int = 10, partitions: int = 1, **overrides: str) -> Member:
    stage.topic("dlq.jobs", partitions, errors_deadletterqueue_group_enable="true")
    return begun(stage, count, headers=[("trace", b"t1")], **DEAD, **overrides)


def test_a_rejected_record_becomes_a_letter(stage: ShareStage) -> None:
    member = with_letters(stage)
    member.fetch()
    assert member.said((0, 9, [1, 1, 3, 1, 1, 1, 1, 1, 1, 3])) == 0
    assert state(stage) == (2, 2, 0)
    stage.run()
    assert state(stage) == (10, 0, 2)
    letters = stage.read("dlq.jobs")
    assert [(letter.key, letter.value, letter.timestamp_ms) for letter in letters] == [
        (b"k", b"2", stage.now),
        (b"k", b"9", stage.now),
    ]
    assert dict(letters[0].headers) == {
        "trace": b"t1",
        "__dlq.errors.topic": b"jobs",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"2",
        "__dlq.errors.group": b"g",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"Offset rejected by client.",
        "ottla-first-failure-ms": str(stage.now).encode(),
        "ottla-last-failure-ms": str(stage.now).encode(),
        "ottla-last-failure-member": member.name.encode(),
        "ottla-last-failure-client": b"stage",
    }


FAILURES = "ottla-first-failure-ms", "ottla-last-failure-ms"


def failures(stage: ShareStage) -> list[tuple[int | None, ...]]:
    """The first and last failure of each dead letter."""
    found = [dict(letter.headers) for letter in stage.read("dlq.jobs")]
    return [tuple(int(said[name] or b"") if name in said else None for name in FAILURES) for said in found]


def test_a_letter_says_when_its_record_failed_first_and_last(stage: ShareStage) -> None:
    member = with_letters(stage, 3, share_delivery_count_limit="2")
    member.fetch()
    times: list[int] = []
    for batch in ((0, 0, [RELEASE]), (1, 1, [RELEASE]), (2, 2, [RELEASE])):
        times.append(stage.now - stage.now % 1_000)
        member.said(batch)
        stage.run(3_700)
    member.fetch()
    stage.run(1_000)
    last = stage.now
    member.said((0, 2, [RELEASE]))
    stage.run()
    assert failures(stage) == [(first, last) for first in times]


def test_a_letter_lacks_the_times_that_a_new_leader_does_not_know(stage: ShareStage) -> None:
    member = begun(stage, 2, share_delivery_count_limit="2", **DEAD)
    member.fetch()
    member.said((0, 0, [REJECT]), (1, 1, [RELEASE]))
    stage.run()
    stage.restart()
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    again = stage.member(member.places[0][0])
    assert again.fetch() == [(1, 1, 2)]
    last = stage.now
    again.said((1, 1, [RELEASE]))
    stage.run(61_000)
    assert failures(stage) == [(None, None), (None, last)]


def test_few_ranges_of_failures_are_remembered() -> None:
    kept = Failures(100)
    for number in range(RANGES_MAX):
        kept.note(5_500, 102 + 2 * number, 103 + 2 * number)
    known = [each for each in kept.within(90, 100 + 4 * RANGES_MAX) if each[2] != Failure()]
    assert known[0] == (102, 103, Failure(5_000))
    assert len(known) <= RANGES_MAX // 2 + 1
    kept.forget_below(103)
    none, known_one = Failure(), Failure(5_000)
    assert list(kept.within(100, 106)) == [(100, 103, none), (103, 104, none), (104, 105, known_one), (105, 106, none)]


def test_letters_wait_until_a_new_leader_knows_what_is_committed(stage: ShareStage) -> None:
    """Its high watermark may lag behind the one that its predecessor gave records by."""
    member = with_letters(stage)
    member.fetch()
    assert member.said((0, 9, [1, 1, 3, 1, 1, 1, 1, 1, 1, 3])) == 0
    log = stage.node.replicas.by_name["jobs"].partitions[0].log
    log.offsets.high_watermark, committed = 0, log.high_watermark
    stage.run(5_000)
    assert (state(stage), stage.read("dlq.jobs")) == ((2, 2, 0), [])
    log.offsets.high_watermark = committed
    stage.run(60_000)
    assert [letter.value for letter in stage.read("dlq.jobs")] == [b"2", b"9"]


def test_a_record_delivered_too_often_becomes_a_letter(stage: ShareStage) -> None:
    member = with_letters(stage, 1, share_delivery_count_limit="2")
    member.fetch()
    assert member.fetch([(0, 0, [RELEASE])]) == [(0, 0, 2)]
    stage.run(31_000)
    (letter,) = stage.read("dlq.jobs")
    assert dict(letter.headers)["__dlq.errors.message"] == b"Offset delivery count exceeded the threshold."
    assert dict(letter.headers)["__dlq.errors.delivery.count"] == b"2"
    assert state(stage) == (1, 0, 1)


def test_a_letter_may_say_only_where_the_record_stood(stage: ShareStage) -> None:
    member = with_letters(stage, 1, errors_deadletterqueue_copy_record_enable="false")
    member.fetch()
    member.said((0, 0, [REJECT]))
    stage.run()
    (letter,) = stage.read("dlq.jobs")
    assert (letter.key, letter.value) == (None, None)
    assert dict(letter.headers)["__dlq.errors.offset"] == b"0"
    assert "trace" not in dict(letter.headers)


def test_letters_wait_for_their_topic_and_are_not_lost_by_a_restart(stage: ShareStage) -> None:
    member = begun(stage, **DEAD)
    member.fetch()
    member.said((0, 9, [REJECT]))
    stage.run(5_000)
    assert state(stage) == (0, 10, 0)
    assert any("no dead-letter topic dlq.jobs" in note for note in stage.notes)
    stage.restart(clean=False)
    topic = member.places[0][0]
    other = stage.member(topic)
    assert other.fetch() == []
    stage.run(70_000)
    assert state(stage) == (0, 10, 0)
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    stage.run(31_000)
    assert [letter.value for letter in stage.read("dlq.jobs")] == [str(i).encode() for i in range(10)]
    assert {dict(letter.headers)["__dlq.errors.message"] for letter in stage.read("dlq.jobs")} == {
        b"Offset rejected by client."
    }
    assert state(stage) == (10, 0, 10)


def test_a_topic_must_agree_to_take_letters(stage: ShareStage) -> None:
    stage.topic("dlq.jobs")
    member = begun(stage, 1, **DEAD)
    member.fetch()
    member.said((0, 0, [REJECT]))
    stage.run(5_000)
    assert state(stage) == (0, 1, 0)
    topic = stage.node.image.topics["dlq.jobs"]
    stage.change(stage.node.topics.configuring(topic, {"errors.deadletterqueue.group.enable": "true"}))
    stage.run(31_000)
    assert state(stage) == (1, 0, 1)


def test_the_topic_is_made_where_the_node_may(tmp_path: Path) -> None:
    stage = ShareStage(tmp_path, {"errors.deadletterqueue.auto.create.topics.enable": "true"})
    member = begun(stage, 2, **DEAD)
    member.fetch()
    member.said((0, 1, [REJECT]))
    stage.run()
    assert len(stage.read("dlq.jobs")) == 2


PREFIX = "errors.deadletterqueue.topic.name.prefix"


@pytest.mark.parametrize("name", ["morgue", "dlq.a b", "dlq." + 249 * "x", "."])
def test_a_name_that_cannot_take_letters_is_refused(stage: ShareStage, name: str) -> None:
    with pytest.raises(ConfigRefusedError, match=r"errors\.deadletterqueue\.topic\.name"):
        stage.configure("g", errors_deadletterqueue_topic_name=name)
    for prefix in ("a b", 300 * "x"):
        with pytest.raises(ConfigRefusedError, match=r"topic\.name\.prefix"):
            stage.change(stage.node.settings.altering_broker("", {PREFIX: prefix}))


def test_the_cause_is_told_each_time_that_it_is_another(stage: ShareStage) -> None:
    said = stage.notes
    said.clear()
    member = begun(stage, 1, **DEAD)
    member.fetch()
    member.said((0, 0, [REJECT]))
    stage.run(70_000)
    stage.topic("dlq.jobs")
    stage.run(70_000)
    assert said == [
        "dead letters of g wait: there is no dead-letter topic dlq.jobs",
        "dead letters of g wait: dlq.jobs does not have errors.deadletterqueue.group.enable=true",
    ]


def test_a_name_without_the_prefix_takes_nothing(stage: ShareStage) -> None:
    """It was legal when it was set."""
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    member = begun(stage, 1, **DEAD)
    stage.change(stage.node.settings.altering_broker("", {PREFIX: "letters."}))
    stage.configure("g", share_record_lock_duration_ms="20000")
    member.fetch()
    member.said((0, 0, [REJECT]))
    stage.run(2_000)
    assert state(stage) == (0, 1, 0)
    stage.configure("g", errors_deadletterqueue_topic_name="")
    stage.run(31_000)
    assert state(stage)[0] == 1, "without a topic the records are simply archived"


def test_letters_are_let_go_only_when_they_are_on_the_disk(tmp_path: Path) -> None:
    stage = ShareStage(tmp_path, {"ottla.durability": "fsync"})
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    member = begun(stage, 3, **DEAD)
    assert member.acquired(member.ask(wait_ms=1000)) == [(0, 2, 1)]
    member.said((0, 2, [REJECT]))
    stage.hold_syncs = True
    stage.run()
    assert state(stage) == (0, 3, 0)
    assert stage.node.replicas.by_name["dlq.jobs"].partitions[0].log.log_end_offset == 3
    stage.hold_syncs = False
    stage.sync()
    stage.run()
    assert state(stage) == (3, 0, 3)


def test_a_full_disk_under_the_letters_delays_them(stage: ShareStage) -> None:
    member = with_letters(stage, 3)
    member.fetch()
    log = stage.node.replicas.by_name["dlq.jobs"].partitions[0].log
    log.durability.failed = "no room"
    member.said((0, 2, [REJECT]))
    stage.run(10_000)
    assert state(stage) == (0, 3, 0)
    log.durability.failed = None
    stage.run(31_000)
    assert state(stage) == (3, 0, 3)


def test_many_letters_are_written_in_steps(stage: ShareStage) -> None:
    member = with_letters(stage, 1000, partitions=3)
    member.fetch(records=1000)
    member.said((0, 999, [REJECT]))
    stage.run()
    assert [letter.value for letter in stage.read("dlq.jobs", 0)] == [str(i).encode() for i in range(1000)]
    assert state(stage) == (1000, 0, 1000)


def test_a_letter_too_large_for_its_topic_says_where_the_record_stood(stage: ShareStage) -> None:
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true", max_message_bytes="500")
    member = begun(stage, 0, **DEAD)
    small, large = Record(-1, stage.now, b"a", b"x"), Record(-1, stage.now, b"b", bytes(2000))
    stage.put(build_batch([small, large]))
    member.fetch()
    member.said((0, 1, [REJECT]))
    stage.run()
    assert [(letter.key, letter.value) for letter in stage.read("dlq.jobs")] == [(b"a", b"x"), (b"b", None)]
    assert state(stage)[0] == 2


def test_too_many_letters_pause_the_group(stage: ShareStage) -> None:
    member = with_letters(stage, 10, share_delivery_paused_above_dead_letters_per_minute="3")
    member.fetch(records=5, exactly=True)
    member.said((0, 2, [REJECT]))
    stage.run()
    assert member.fetch(records=2, exactly=True) == [(5, 6, 1)]
    member.said((3, 4, [REJECT]))
    stage.run()
    assert stage.node.coordinators.share.describe(stage.now)[0].paused
    configs = stage.node.settings.of_group("g")
    assert configs["share.delivery.paused"] == "true"
    assert configs["share.delivery.paused.by"] == "the breaker: more than 3 dead letters within a minute"
    assert 0 <= stage.now - int(configs["share.delivery.paused.since.ms"]) < 60_000
    assert member.fetch() == []
    assert len(stage.read("dlq.jobs")) == 5
    stage.configure("g", share_delivery_paused="false")
    assert member.fetch() == [(7, 9, 1)]


# ---- pause and resume ----------------------------------------------------------------------------------------------


def test_a_paused_group_gets_nothing_and_may_acknowledge(stage: ShareStage) -> None:
    member = begun(stage)
    assert member.fetch(records=5, exactly=True) == [(0, 4, 1)]
    stage.configure("g", share_delivery_paused="true")
    waiting = member.ask([(0, 4, [ACCEPT])], wait_ms=10_000)
    stage.produce(1)
    stage.run(5_000)
    assert waiting.answer is None
    stage.configure("g", share_delivery_paused="false")
    assert member.acquired(waiting) == [(5, 10, 1)]


def test_since_when_and_by_whom_a_group_is_paused_is_kept_while_it_is(stage: ShareStage) -> None:
    def noted() -> tuple[str | None, str | None]:
        configs = stage.node.settings.of_group("g")
        return configs.get("share.delivery.paused.since.ms"), configs.get("share.delivery.paused.by")

    stage.node.wall_clock_is(stage.now, 3_600_000)
    stage.configure("g", share_delivery_paused="TRUE")
    since = str(stage.node.wall.at(stage.now))
    assert noted() == (since, "the stage")
    stage.run(1_000)
    stage.configure("g", share_delivery_paused="true", share_delivery_paused_by="somebody else")
    assert noted() == (since, "the stage"), "the broker keeps it"
    stage.configure("g", share_delivery_paused="false")
    assert noted() == (None, None)
    stage.configure("g", share_delivery_paused_by="nobody")
    assert noted() == (None, None)


# ---- delayed messages ----------------------------------------------------------------------------------------------


def delayed(stage: ShareStage, *headers: tuple[str, bytes] | None, compression: str = "none") -> None:
    records = [Record(-1, stage.now, None, b"v", () if header is None else [header]) for header in headers]
    stage.put(build_batch(records, compression=compression))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_headers_hold_records_back(stage: ShareStage, compression: str) -> None:
    member = begun(stage, 0, share_delayed_delivery_enable="true")
    at = str(stage.now + 2000).encode()
    delayed(stage, None, ("ottla-delay-ms", b"1000"), ("ottla-deliver-at", at), None, compression=compression)
    delayed(stage, None, ("ottla-delay-ms", b"soon"), ("ottla-deliver-at", b"1"), compression=compression)
    assert member.fetch() == [(0, 0, 1), (3, 3, 1), (4, 6, 1)]
    waiting = member.ask(wait_ms=1500)
    stage.run(999)
    assert waiting.answer is None
    stage.run(21)
    assert member.acquired(waiting) == [(1, 1, 1)]
    stage.run(1000)
    assert member.fetch([(0, 1, [ACCEPT]), (3, 6, [ACCEPT])]) == [(2, 2, 1)]


def test_who_did_not_opt_in_sees_no_delay(stage: ShareStage) -> None:
    member = begun(stage, 0)
    delayed(stage, ("ottla-delay-ms", b"1000"))
    assert member.fetch() == [(0, 0, 1)]


def test_a_delay_survives_a_restart(stage: ShareStage) -> None:
    member = begun(stage, 0, share_delayed_delivery_enable="true")
    delayed(stage, None, ("ottla-delay-ms", b"60000"), None)
    assert member.fetch() == [(0, 0, 1), (2, 2, 1)]
    assert member.said((0, 0, [ACCEPT]), (2, 2, [ACCEPT])) == 0
    stage.restart()
    again = stage.member(member.places[0][0])
    assert again.fetch() == []
    stage.run(60_000)
    assert again.fetch() == [(1, 1, 1)]


def test_a_record_limit_counts_what_is_not_held_back(stage: ShareStage) -> None:
    member = begun(stage, 0, share_delayed_delivery_enable="true")
    delayed(stage, None, ("ottla-delay-ms", b"1000"), None, None, None)
    assert member.fetch(records=2, exactly=True) == [(0, 0, 1), (2, 2, 1)]
    assert member.fetch(records=2, exactly=True) == [(3, 4, 1)]
    stage.run(1020)
    assert member.fetch() == [(1, 1, 1)]


# ---- described -----------------------------------------------------------------------------------------------------


def test_who_holds_what_is_described(stage: ShareStage) -> None:
    member = begun(stage)
    member.fetch(records=4, exactly=True)
    stage.run(7000)
    other = stage.member(member.places[0][0])
    other.fetch()
    seen = stage.node.coordinators.share.describe(stage.now, "g")[0]
    assert (seen.topic, seen.partition, seen.in_flight, seen.lag) == ("jobs", 0, 10, 10)
    assert seen.members == {member.name: 4, other.name: 6}
    assert stage.node.coordinators.share.describe(stage.now, "nobody") == []
    assert other.said((4, 9, [ACCEPT])) == ErrorCode.NONE


# ---- the wall clock ------------------------------------------------------------------------------------------------

HOUR_MS = 3_600_000


def set_wall_clock(stage: ShareStage, by_ms: int) -> None:
    """Somebody sets the wall clock; the shell tells the node when it notices."""
    stage.node.wall_clock_is(stage.now, stage.node.wall.ahead_ms + by_ms)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, 15_000, HOUR_MS])
def test_a_lock_ends_when_it_should_whoever_sets_the_wall_clock(stage: ShareStage, by_ms: int) -> None:
    member = begun(stage, 3)
    assert member.fetch() == [(0, 2, 1)]
    set_wall_clock(stage, by_ms)
    stage.run(29_000)
    assert member.fetch() == []
    stage.run(2_000)
    assert member.fetch() == [(0, 2, 2)]


def test_a_delayed_message_is_due_by_the_wall_clock(stage: ShareStage) -> None:
    member = begun(stage, 0, share_delayed_delivery_enable="true")
    delayed(stage, ("ottla-delay-ms", str(2 * HOUR_MS).encode()))
    assert member.fetch() == []
    set_wall_clock(stage, HOUR_MS)
    stage.run(HOUR_MS - 1_000)
    assert member.fetch() == []
    set_wall_clock(stage, -HOUR_MS)
    stage.run(2_000)
    assert member.fetch() == []
    stage.run(HOUR_MS - 2_000)
    assert member.fetch() == []
    stage.run(2_000)
    assert member.fetch() == [(0, 0, 1)]


def test_a_letter_whose_record_is_from_the_future_is_written_all_the_same(stage: ShareStage) -> None:
    """The clock was an hour ahead when the record came; the dead-letter topic refuses such timestamps."""
    set_wall_clock(stage, 2 * HOUR_MS)
    member = with_letters(stage, 1)
    stage.put(build_batch([Record(-1, stage.now + 2 * HOUR_MS, b"k", b"ahead")]))
    assert member.fetch() == [(0, 1, 1)]
    set_wall_clock(stage, -2 * HOUR_MS)
    assert member.said((0, 1, [REJECT, REJECT])) == 0
    stage.run()
    assert [(letter.value, letter.timestamp_ms - stage.now) for letter in stage.read("dlq.jobs")] == [
        (b"0", 0),
        (b"ahead", 0),
    ]
