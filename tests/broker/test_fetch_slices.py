"""Fetches of more partitions than one turn has room for: the same answers as in one go, and nothing is missed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import k01_fetch
from ottla.broker.effects import Parked, Part, Reply
from ottla.broker.fetch import answer as fetch_answer
from ottla.broker.schedule import Timed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.harness.node_stage import CHANNEL, NodeStage

PARTITIONS = 7
BY_NAME, BY_ID = 12, 17


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    made = NodeStage(tmp_path / "node")
    for name in ("t", "u"):
        made.create(name, PARTITIONS, {})
    for index in (1, 4):
        made.append("t", index)
        made.append("t", index)
    made.append("u", 0)
    return made


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (k01_fetch, fetch_answer):
        monkeypatch.setattr(module, "PARTITIONS_AT_ONCE", 2)


def fetch(stage: NodeStage, version: int, topics: Mapping[str, Sequence[int]], **how: Any) -> FetchRequest:
    asked: list[FetchTopic] = []
    for name, indexes in topics.items():
        parts = [FetchPartition(index, fetch_offset=0, partition_max_bytes=1 << 20) for index in indexes]
        known = stage.node.image.topics.get(name)
        asked.append(
            FetchTopic(topic=name, topic_id=bytes(15) + b"\1" if known is None else known.id, partitions=parts)
        )
    how = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1, **how}
    return FetchRequest(topics=asked, **how)


EVERYTHING = {"t": range(PARTITIONS), "u": range(PARTITIONS)}
MIXED = {"t": (1, 99, 3, 4, 1), "nosuch": (0, 1, 2), "u": (0, 5, 6)}


def receive(stage: NodeStage, request: FetchRequest, version: int) -> Parked:
    """As a server has it read beside its loop."""
    frame = memoryview(encode_request(RequestHeader(1, version, 7, "stage"), request))[4:]
    parked = stage.node.receive(stage.now, CHANNEL, frame, stage.node.decode(frame))
    assert isinstance(parked, Parked)
    return parked


def answer_of(parts: Sequence[Part], version: int) -> Any:
    whole = b"".join(bytes(part) if isinstance(part, bytes | bytearray | memoryview) else part.read() for part in parts)
    return decode_response(1, version, memoryview(whole)[4:])[1]


def in_slices(stage: NodeStage, request: FetchRequest, version: int) -> Any:
    return answer_of(stage.in_slices(receive(stage, request, version)), version)


@pytest.mark.parametrize("topics", [EVERYTHING, MIXED], ids=["everything", "mixed"])
@pytest.mark.parametrize("version", [4, 7, BY_NAME, BY_ID])
def test_the_answer_is_the_same_as_in_one_go(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, version: int, topics: Mapping[str, Sequence[int]]
) -> None:
    whole = stage.ask(fetch(stage, version, topics), version)
    for module in (k01_fetch, fetch_answer):
        monkeypatch.setattr(module, "PARTITIONS_AT_ONCE", 2)
    assert in_slices(stage, fetch(stage, version, topics), version) == whole


@pytest.mark.usefixtures("slices")
def test_no_more_bytes_are_sent_than_are_asked_for(stage: NodeStage) -> None:
    answer = in_slices(stage, fetch(stage, BY_NAME, EVERYTHING, max_bytes=100), BY_NAME)
    sizes = [len(part.records or b"") for topic in answer.responses for part in topic.partitions]
    assert 0 < sum(sizes) <= 100
    assert len(sizes) == 2 * PARTITIONS


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_a_session_is_opened_and_read_on(stage: NodeStage, version: int) -> None:
    begun = in_slices(stage, fetch(stage, version, EVERYTHING, session_epoch=0), version)
    assert begun.session_id
    assert sum(len(topic.partitions) for topic in begun.responses) == 2 * PARTITIONS
    named = {"t": (1, 4), "u": (0,)}
    following = fetch(stage, version, named, session_id=begun.session_id, session_epoch=1)
    for topic in following.topics:
        for part in topic.partitions:
            part.fetch_offset = 2 if topic.topic == "t" else 1
    answer = in_slices(stage, following, version)
    assert answer.responses == []
    stage.append("u", 6)
    forgotten = ForgottenTopic(topic="t", topic_id=stage.node.image.topics["t"].id, partitions=list(range(PARTITIONS)))
    later = FetchRequest(
        max_bytes=1 << 20,
        session_id=begun.session_id,
        session_epoch=2,
        topics=[],
        forgotten_topics_data=[forgotten],
    )
    answer = in_slices(stage, later, version)
    assert [part.partition_index for topic in answer.responses for part in topic.partitions] == [6]
    wrong = fetch(stage, version, EVERYTHING, session_id=begun.session_id, session_epoch=9)
    assert in_slices(stage, wrong, version).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    stage.node.fetch_sessions.check()


def caught_up(stage: NodeStage, **how: Any) -> FetchRequest:
    request = fetch(stage, BY_NAME, EVERYTHING, max_wait_ms=500, **how)
    for topic in request.topics:
        for part in topic.partitions:
            led = stage.node.replicas.get(topic.topic, part.partition)
            assert led is not None
            part.fetch_offset = led.log.log_end_offset
    return request


def replies(stage: NodeStage) -> list[Reply]:
    while stage.deadline_of(Timed.SLICES) is not None:
        stage.node.tick(stage.now)
    return [each for each in stage.node.take_effects(stage.now) if isinstance(each, Reply)]


def records_in(reply: Reply) -> list[tuple[str, int]]:
    answer = answer_of(reply.parts, BY_NAME)
    return [
        (topic.topic, part.partition_index) for topic in answer.responses for part in topic.partitions if part.records
    ]


@pytest.mark.usefixtures("slices")
def test_who_waits_is_woken_by_an_append(stage: NodeStage) -> None:
    receive(stage, caught_up(stage), BY_NAME)
    assert replies(stage) == []
    stage.append("u", 3)
    stage.node.take_effects(stage.now)
    (reply,) = replies(stage)
    assert records_in(reply) == [("u", 3)]
    assert len(stage.node.parking) == 0


@pytest.mark.usefixtures("slices")
def test_who_waits_is_answered_in_time(stage: NodeStage) -> None:
    receive(stage, caught_up(stage), BY_NAME)
    assert replies(stage) == []
    stage.now += 500
    stage.node.tick(stage.now)
    (reply,) = replies(stage)
    assert records_in(reply) == []


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("min_bytes", [1, 1 << 20])
def test_what_comes_while_the_others_are_read_is_not_slept_over(stage: NodeStage, min_bytes: int) -> None:
    receive(stage, caught_up(stage, min_bytes=min_bytes), BY_NAME)
    for _ in range(12):
        stage.node.tick(stage.now)
    stage.append("t", 0)  # which was read by then
    found = replies(stage)
    if min_bytes == 1:
        assert records_in(found[0]) == [("t", 0)]
    else:
        assert found == []
        assert len(stage.node.parking) == 2, "the request and its wait"


@pytest.mark.usefixtures("slices")
def test_who_is_gone_is_not_watched_for(stage: NodeStage) -> None:
    for ticks in (3, 40):
        receive(stage, caught_up(stage), BY_NAME)
        for _ in range(ticks):
            stage.node.tick(stage.now)
        stage.node.disconnected(stage.now, CHANNEL.identity.address.connection_id)
        assert replies(stage) == []
        assert len(stage.node.parking) == 0
        stage.append("t", 0)
        assert replies(stage) == []
