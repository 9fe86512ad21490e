"""Many acknowledgements of one request are taken in slices: the same in the end, and others are served in between."""

from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ottla.broker.delivery import host, requests
from ottla.broker.schedule import AT_ONCE, Timed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from tests.harness.node_stage import Asked
from tests.harness.share.share_stage import ACCEPT, RELEASE, Member, ShareStage

PARTITIONS, RECORDS = 5, 4
Said: TypeAlias = dict[tuple[bytes, int], list[tuple[int, int, list[int]]]]


def begun(directory: Path) -> tuple[ShareStage, Member, bytes]:
    """A member that holds all records of all partitions."""
    stage = ShareStage(directory)
    topic_id = stage.topic(partitions=PARTITIONS)
    stage.configure("g", share_auto_offset_reset="earliest")
    for index in range(PARTITIONS):
        stage.produce(RECORDS, index=index)
    member = stage.member(topic_id, partitions=PARTITIONS)
    while sum(counts(stage, topic_id, "in_flight")) < PARTITIONS * RECORDS:
        member.ask()
        stage.run()
    return stage, member, topic_id


def counts(stage: ShareStage, topic_id: bytes, what: str) -> list[int]:
    """Of each share partition that the group has read."""
    hosted = (stage.node.coordinators.share.known("g", (topic_id, index)) for index in range(PARTITIONS))
    return [getattr(each.machine, what) for each in hosted if each is not None and each.machine is not None]


def all_of(topic_id: bytes) -> Said:
    """Every other record of every partition is accepted; of one partition too much is said."""
    said = {(topic_id, index): [(0, RECORDS - 1, [ACCEPT, RELEASE] * 2)] for index in range(PARTITIONS)}
    said[topic_id, 2] = [(0, RECORDS, [ACCEPT])]
    return said


def accepted(topic_id: bytes) -> Said:
    """Every record of every partition is."""
    return {(topic_id, index): [(0, RECORDS - 1, [ACCEPT])] for index in range(PARTITIONS)}


def acknowledge(member: Member, said: Said) -> Asked:
    topics: dict[bytes, list[AcknowledgePartition]] = {}
    for (topic_id, index), batches in said.items():
        made = [AcknowledgementBatch(*batch) for batch in batches]
        topics.setdefault(topic_id, []).append(AcknowledgePartition(index, made))
    asked = [AcknowledgeTopic(topic_id, parts) for topic_id, parts in topics.items()]
    request = ShareAcknowledgeRequest(member.group, member.name, member.epoch, False, asked)
    return member.stage.send(request, member.version, member.connection)


def told(asked: Asked) -> Any:
    assert asked.answered
    return [(part.partition_index, part.error_code) for topic in asked.answer.responses for part in topic.partitions]


def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "ACKNOWLEDGED_AT_ONCE", 1)


def test_many_acknowledgements_leave_the_others_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_stage, whole_member, whole_id = begun(tmp_path / "whole")
    whole = acknowledge(whole_member, all_of(whole_id))
    whole_stage.run()
    small_slices(monkeypatch)
    stage, member, topic_id = begun(tmp_path / "slices")
    asked = acknowledge(member, all_of(topic_id))
    served = 0
    while not asked.answered:
        assert stage.ask(ApiVersionsRequest("other", "1"), 3, connection=stage.connect()).error_code == 0
        served += 1
        stage.node.tick(stage.now)
        stage.settle()
    assert served >= (PARTITIONS - 1) * RECORDS
    assert told(asked) == told(whole)
    assert (2, ErrorCode.INVALID_REQUEST) in told(asked)
    for what in ("in_flight", "complete_count", "available_count"):
        assert counts(stage, topic_id, what) == counts(whole_stage, whole_id, what)


def test_a_fetch_that_acknowledges_much_is_answered_once_and_with_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_slices(monkeypatch)
    stage, member, topic_id = begun(tmp_path / "node")
    asked = member.ask(all_of(topic_id), wait_ms=1_000)
    assert not asked.answered
    stage.run()
    parts = [part for topic in asked.answer.responses for part in topic.partitions]
    assert sorted(part.partition_index for part in parts) == list(range(PARTITIONS))
    errors = {part.partition_index: part.acknowledge_error_code for part in parts}
    assert errors == {**dict.fromkeys(range(PARTITIONS), 0), 2: ErrorCode.INVALID_REQUEST}
    back = {part.partition_index: [each.first_offset for each in part.acquired_records] for part in parts}
    assert back == {index: [] if index == 2 else [1, 3] for index in range(PARTITIONS)}


def test_a_fetch_whose_time_is_over_waits_for_its_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_slices(monkeypatch)
    stage, member, topic_id = begun(tmp_path / "node")
    asked = member.ask(accepted(topic_id), wait_ms=5)
    stage.now += 10
    stage.run()
    assert asked.answered
    assert sum(counts(stage, topic_id, "in_flight")) == 0


def test_who_hangs_up_in_the_middle_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_slices(monkeypatch)
    stage, member, topic_id = begun(tmp_path / "node")
    acknowledge(member, accepted(topic_id))
    stage.hang_up(member.connection)
    stage.run()
    assert sum(counts(stage, topic_id, "in_flight")) == 0
    assert sum(counts(stage, topic_id, "available_count")) == (PARTITIONS - 1) * RECORDS
    assert stage.deadline_of(Timed.SHARE) != AT_ONCE


def test_a_topic_that_goes_in_the_middle_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_slices(monkeypatch)
    stage, member, topic_id = begun(tmp_path / "node")
    asked = acknowledge(member, accepted(topic_id))
    stage.delete("jobs")
    stage.run()
    assert dict(told(asked)[1:]) == dict.fromkeys(range(1, PARTITIONS), ErrorCode.UNKNOWN_TOPIC_ID)


def test_a_lock_that_ends_in_the_middle_refuses_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_slices(monkeypatch)
    stage, member, topic_id = begun(tmp_path / "node")
    asked = acknowledge(member, {(topic_id, 0): [(0, RECORDS - 1, [ACCEPT, RELEASE] * 2)]})
    assert not asked.answered
    stage.now += 60_000
    stage.run()
    assert told(asked) == [(0, ErrorCode.INVALID_RECORD_STATE)]
    assert counts(stage, topic_id, "in_flight")[0] == 0
    hosted = stage.node.coordinators.share.known("g", (topic_id, 0))
    assert hosted is not None
    assert hosted.machine is not None
    assert hosted.machine.start == 1, "what was taken before stands"


def test_what_a_member_held_comes_back_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, member, topic_id = begun(tmp_path / "node")
    monkeypatch.setattr(host, "RUNS_PER_STEP", 2)
    stage.node.tick(stage.now)
    before = sum(counts(stage, topic_id, "in_flight"))
    stage.node.disconnected(stage.now, member.connection)
    stages = [sum(counts(stage, topic_id, "in_flight"))]
    while stages[-1]:
        stage.node.tick(stage.now)
        stages.append(sum(counts(stage, topic_id, "in_flight")))
        assert len(stages) < 20
    assert before > stages[0] > stages[1] > 0
    assert sum(counts(stage, topic_id, "available_count")) == before
