"""What a fetch may hold: bytes in an answer, partitions in sessions."""

from pathlib import Path

import pytest

from ottla.broker.fetch import sessions as fetch_sessions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.harness.node_stage import CHANNEL, NodeStage

VALUE = bytes(1000)


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node", fetch_max_bytes="5000")
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 6, 1)]))
    for index in range(6):
        for _ in range(3):
            stage.append("t", index, value=VALUE)
    return stage


def fetch(
    stage: NodeStage,
    partitions: int,
    *,
    max_bytes: int = 2**31 - 1,
    partition_bytes: int = 1 << 20,
    min_bytes: int = 0,
    session: tuple[int, int] = (0, -1),
    first: int = 0,
) -> FetchResponse:
    asked = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=partition_bytes)
        for index in range(first, first + partitions)
    ]
    request = FetchRequest(
        max_wait_ms=1000,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic="t", partitions=asked)] if asked else [],
    )
    return stage.ask(request, 12)


def records_in(answer: FetchResponse) -> list[int]:
    return [len(part.records or b"") for topic in answer.responses for part in topic.partitions]


@pytest.mark.parametrize(("asked", "allowed"), [(2**31 - 1, 5000), (3500, 3500), (7000, 5000)])
def test_the_answer_holds_what_the_request_and_the_node_allow(stage: NodeStage, asked: int, allowed: int) -> None:
    sizes = records_in(fetch(stage, 6, max_bytes=asked))
    assert allowed - 1100 < sum(sizes) <= allowed
    assert len(sizes) == 6


def test_the_first_batch_comes_however_large_it_is(stage: NodeStage) -> None:
    stage.ask(CreateTopicsRequest([CreatableTopic("large", 1, 1)]))
    sizes = records_in(fetch(stage, 6, max_bytes=10))
    assert [size > 1000 for size in sizes] == [True, False, False, False, False, False]


def test_who_waits_for_more_than_an_answer_holds_waits_no_longer_than_until_it_is_full(stage: NodeStage) -> None:
    (batch,) = records_in(fetch(stage, 1, max_bytes=1))
    assert sum(records_in(fetch(stage, 6, min_bytes=1 << 20, max_bytes=2 * batch))) == 2 * batch


def sessions(stage: NodeStage) -> fetch_sessions.FetchSessions:
    found = stage.node.fetch_sessions
    found.check()
    return found


def test_partitions_in_sessions_are_bounded_and_the_largest_go_first(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    assert fetch(stage, 11, session=(0, 0)).session_id == 0
    assert len(sessions(stage)) == 0
    large = fetch(stage, 6, session=(0, 0)).session_id
    small = fetch(stage, 4, session=(0, 0)).session_id
    assert large
    assert small
    assert fetch(stage, 6, session=(0, 0)).session_id == 0, "no larger one is there that could go"
    assert fetch(stage, 2, session=(0, 0)).session_id, "the large one goes"
    assert fetch(stage, 0, session=(large, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetch(stage, 0, session=(small, 1)).error_code == 0
    assert len(sessions(stage)) == 2


def test_a_session_that_grows_out_of_bounds_ends(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    session = fetch(stage, 6, session=(0, 0)).session_id
    assert fetch(stage, 4, first=6, session=(session, 1)).error_code == 0
    assert fetch(stage, 1, first=10, session=(session, 2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions(stage)) == 0


def test_a_session_ends_with_its_connection(stage: NodeStage) -> None:
    session = fetch(stage, 2, session=(0, 0)).session_id
    stage.node.disconnected(stage.now, CHANNEL.identity.address.connection_id)
    assert len(sessions(stage)) == 0
    assert fetch(stage, 0, session=(session, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
