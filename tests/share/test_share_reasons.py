"""The reasons that members give (ExplainShareRecords): kept until a record is done, shown, and in its dead letter."""

from typing import Any

import pytest

from ottla.broker.api.k10903_explain_share_records import RECORDS_MAX
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_share_partitions import DescribeSharePartitionsRequest
from ottla.protocol.messages.explain_share_records import (
    ExplainShareRecordsRequest,
    RequestPartition,
    RequestRecord,
    RequestTopic,
)
from ottla.protocol.private_requests import REASON_BYTES_MAX
from ottla.share.failures import RANGES_MAX, Failures, Reason
from ottla.share.failures import REASON_BYTES_MAX as ALL_BYTES_MAX
from ottla.share.partition import SharePartition
from ottla.share.settings import ShareSettings
from ottla.share.standing import StateBatch
from tests.harness.share.share_stage import ACCEPT, REJECT, RELEASE, Member, ShareStage

HELD_NOT, BAD, FULL = ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST, ErrorCode.THROTTLING_QUOTA_EXCEEDED
NAMES = "ottla-failure-reason", "ottla-failure-reason-delivery"


def begun(stage: ShareStage, count: int = 3, **overrides: str) -> Member:
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="dlq.jobs", **overrides)
    stage.produce(count)
    return stage.member(topic)


def explain(
    stage: ShareStage, *records: tuple[int, int, str], group: str = "g", topic: str = "jobs", **how: Any
) -> Any:
    """The answer to the reasons: (offset, delivery count, reason) of each."""
    part = RequestPartition(how.pop("index", 0), [RequestRecord(*each) for each in records])
    request = ExplainShareRecordsRequest(group, how.pop("member", None), [RequestTopic(topic, [part])])
    return stage.send(request).answer


def errors(answer: Any) -> list[int]:
    assert not answer.error_code, answer
    (part,) = answer.topics[0].partitions
    assert not part.error_code, part
    return [each.error_code for each in part.records]


def reasons(stage: ShareStage) -> list[tuple[str, ...]]:
    """The source offset of each dead letter, its reason, and the delivery that it explains."""
    found = [dict(letter.headers) for letter in stage.read("dlq.jobs")]
    names = ("__dlq.errors.offset", *NAMES)
    return [tuple((said[name] or b"").decode() for name in names if name in said) for said in found]


def described(stage: ShareStage, version: int = 1, *, with_reasons: bool = True) -> Any:
    request = DescribeSharePartitionsRequest("g", with_reasons=with_reasons)
    (topic,) = stage.send(request, version).answer.topics
    return topic.partitions[0]


def shown(stage: ShareStage) -> list[tuple[int, int, str | None, int]]:
    runs = described(stage).runs
    return [(each.first_offset, each.last_offset, each.reason, each.reason_delivery_count) for each in runs]


def test_a_dead_letter_has_the_reason_of_its_record(stage: ShareStage) -> None:
    member = begun(stage)
    member.fetch()
    assert errors(explain(stage, (0, 1, "no picture"), (2, 1, "too large"), member=member.name)) == [0, 0]
    assert member.said((0, 2, [REJECT, REJECT, REJECT])) == 0
    stage.run()
    assert reasons(stage) == [("0", "no picture", "1"), ("1",), ("2", "too large", "1")]


def test_the_last_reason_survives_a_release_and_a_later_failure_without_one(stage: ShareStage) -> None:
    member = begun(stage, 2, share_retry_backoff_ms="200", share_delivery_count_limit="3")
    member.fetch()
    assert errors(explain(stage, (0, 1, "busy"), (1, 1, "busy"))) == [0, 0]
    member.said((0, 1, [RELEASE]))
    assert shown(stage) == [(0, 1, "busy", 1)]
    stage.run(1_000)
    member.fetch()
    assert errors(explain(stage, (1, 2, "still busy"))) == [0]
    member.said((0, 1, [RELEASE]))
    assert shown(stage) == [(0, 0, "busy", 1), (1, 1, "still busy", 2)]
    stage.run(1_000)
    while acquired := member.fetch():
        ((first, last, _),) = acquired
        member.said((first, last, [RELEASE]))
    stage.run()
    assert reasons(stage) == [("0", "busy", "1"), ("1", "still busy", "2")]


def test_a_record_that_is_accepted_has_no_reason_left(stage: ShareStage) -> None:
    member = begun(stage)
    member.fetch()
    explain(stage, (1, 1, "busy"))
    member.said((1, 2, [RELEASE]))
    member.fetch()
    member.said((1, 1, [ACCEPT]))
    hosted = stage.node.coordinators.share.hosted_of("g")[0]
    assert hosted.machine is not None
    assert all(each.reason is None for _, _, each in hosted.machine.failures.within(0, 3))
    assert [each[:3] for each in shown(stage)] == [(0, 0, None), (2, 2, None)]


def test_only_a_delivery_that_a_member_has_acquired_can_be_explained(stage: ShareStage) -> None:
    member = begun(stage)
    assert errors(explain(stage, (0, 1, "early"))) == [HELD_NOT]
    member.fetch()
    wrong = (0, 2, "wrong delivery"), (3, 1, "beyond"), (-1, 1, "below"), (0, 0, "no delivery")
    assert errors(explain(stage, *wrong)) == [HELD_NOT] * 4
    assert errors(explain(stage, (0, 1, "x"), member="another")) == [HELD_NOT]
    assert errors(explain(stage, (0, 1, "x"), group="other")) == [HELD_NOT]
    assert errors(explain(stage, (0, 1, ""), (0, 1, "é" * (REASON_BYTES_MAX // 2) + "x"))) == [BAD, BAD]
    assert errors(explain(stage, (0, 1, "é" * (REASON_BYTES_MAX // 2)))) == [0]
    member.said((0, 0, [RELEASE]))
    assert errors(explain(stage, (0, 1, "late"))) == [HELD_NOT]
    member.fetch()
    assert errors(explain(stage, (0, 1, "of the delivery before"))) == [HELD_NOT]
    assert errors(explain(stage, (0, 2, "of this one"))) == [0]


def test_a_request_that_makes_no_sense_is_refused(stage: ShareStage) -> None:
    member = begun(stage)
    member.fetch()
    assert explain(stage, *[(0, 1, "x")] * (RECORDS_MAX + 1)).error_code == BAD
    partitions = [RequestPartition(index) for index in range(RECORDS_MAX + 1)]
    assert stage.send(ExplainShareRecordsRequest("g", None, [RequestTopic("t", partitions)])).answer.error_code == BAD
    assert explain(stage, (0, 1, "x"), group="").error_code == BAD
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert explain(stage, (0, 1, "x"), topic="none").topics[0].partitions[0].error_code == unknown
    assert explain(stage, (0, 1, "x"), index=7).topics[0].partitions[0].error_code == unknown


def test_another_principal_can_not_explain_what_a_member_has_acquired(
    stage: ShareStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.broker.client_identity import Principal

    member = begun(stage)
    member.fetch()
    session = stage.node.coordinators.share.sessions.get("g", member.name)
    assert session is not None
    monkeypatch.setattr(session, "principal", Principal("User", "ada"))
    assert errors(explain(stage, (0, 1, "x"))) == [HELD_NOT]


def test_the_most_frequent_reasons_of_late_are_counted(stage: ShareStage) -> None:
    member = begun(stage, 6)
    member.fetch()
    explain(stage, *((offset, 1, "busy") for offset in range(4)), (4, 1, "broken"), (5, 1, "accepted after all"))
    member.said((0, 5, [RELEASE, RELEASE, REJECT, REJECT, REJECT, ACCEPT]))
    found = [(each.text, each.failure_count, each.last_ms) for each in described(stage).reasons]
    assert found == [("busy", 4, stage.now), ("broken", 1, stage.now)]


def test_reasons_are_shown_only_if_the_request_wants_them(stage: ShareStage) -> None:
    member = begun(stage)
    member.fetch()
    explain(stage, (0, 1, "busy"))
    member.said((0, 0, [RELEASE]))
    for part in (described(stage, with_reasons=False), described(stage, 0)):
        assert (part.reasons, [each.reason for each in part.runs]) == ([], [None, None])


def test_reasons_are_gone_after_a_restart_and_the_record_is_not(stage: ShareStage) -> None:
    member = begun(stage, 1)
    member.fetch()
    explain(stage, (0, 1, "busy"))
    member.said((0, 0, [RELEASE]))
    stage.run()
    stage.restart()
    again = stage.member(member.places[0][0])
    assert again.fetch() == [(0, 0, 2)]
    assert shown(stage) == [(0, 0, None, -1)]
    again.said((0, 0, [REJECT]))
    stage.run()
    assert reasons(stage) == [("0",)]


def test_reasons_stay_when_a_leader_reads_the_state_again() -> None:
    settings = ShareSettings(backoff_ms=1_000, dead_letters=True)
    before = SharePartition(settings, 0)
    before.acquire(10, "m", 0, 3)
    for offset, text in ((0, "busy"), (1, "busy"), (2, "accepted")):
        assert before.explain(offset, 1, text)
    before.acknowledge(2_500, "m", [(0, 2, bytes([RELEASE, RELEASE, ACCEPT]))])
    for write in before.take_writes():
        before.persisted(write)
    backs = before.backs()
    after = SharePartition(settings, 0, [StateBatch(0, 1, 0, 1), StateBatch(2, 2, 2, 1)], 2_500)
    after.resume(2_500, backs, before.failures.recent)
    after.check()
    assert backs == after.backs()
    assert list(after.failures.recent) == [(2_500, "busy", 2)]
    assert [(low, high, each.first_failed, each.reason) for low, high, each in after.failures.within(0, 3)] == [
        (0, 2, 2_000, Reason("busy", 1)),
        (2, 3, None, None),
    ]
    other = SharePartition(settings, 0, [StateBatch(0, 1, 0, 2)], 2_500)  # delivered by another node meanwhile
    other.resume(2_500, backs)
    assert [each.reason for _, _, each in other.failures.within(0, 3)] == [None]


def test_few_bytes_of_reasons_are_kept() -> None:
    kept = Failures(0)
    texts = [str(number).rjust(1_000, ".") for number in range(ALL_BYTES_MAX // 1_000)]
    for offset, text in enumerate(texts):
        assert kept.explain(offset, offset + 1, Reason(text, 1))
    end = len(texts)
    assert not kept.explain(end, end + 1, Reason("x" * 1_000, 1))
    assert kept.explain(end, end + 1, Reason(texts[0], 1)), "a text that is known needs no room"
    kept.check()
    kept.forget(1, 2)
    assert kept.explain(1, 2, Reason("x" * 1_000, 1)), "one has become free"
    kept.check()


def test_few_ranges_of_reasons_are_kept(stage: ShareStage) -> None:
    kept = Failures(0)
    said = [kept.explain(2 * number, 2 * number + 1, Reason("busy", 1)) for number in range(RANGES_MAX)]
    assert said.index(False) == pytest.approx(RANGES_MAX // 2, abs=2)
    member = begun(stage)
    member.fetch()
    hosted = stage.node.coordinators.share.hosted_of("g")[0]
    assert hosted.machine is not None
    hosted.machine.failures = kept
    assert errors(explain(stage, (1, 1, "another"))) == [FULL]
    assert member.said((0, 2, [REJECT])) == 0, "the acknowledgement needs no reason"


def test_a_dead_letter_that_is_too_large_with_its_reason_goes_without_it(stage: ShareStage) -> None:
    """So that it is not refused for ever."""
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true", max_message_bytes="700")
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="dlq.jobs")
    stage.produce(2)
    member = stage.member(topic)
    member.fetch()
    assert errors(explain(stage, (0, 1, "x" * REASON_BYTES_MAX), (1, 1, "short"))) == [0, 0]
    member.said((0, 1, [REJECT]))
    stage.run(1_000)
    assert reasons(stage) == [("0",), ("1", "short", "1")]
