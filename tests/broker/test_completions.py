"""Completions are delivered after the call that queued them, first in, first out, and not too many at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker import completions as module
from ottla.broker.completions import Completions
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import NODE_REQUEST
from ottla.broker.schedule import AT_ONCE, Schedule, Timed, Timer
from ottla.protocol.framing import RequestHeader, encode_response
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tests.harness.node_stage import Ended, NodeStage


def raising(what: str, error: Exception) -> None:
    raise error


class Stage:
    """A schedule, its completions, and what was delivered."""

    def __init__(self, faults: list[str] | None = None) -> None:
        self.schedule = Schedule(raising)
        self.delivered: list[tuple[int, Any]] = []
        self.completions = Completions(
            self.schedule, raising if faults is None else lambda what, _: faults.append(what)
        )

    def note(self, now: int, what: Any) -> None:
        self.delivered.append((now, what))

    def ended(self, now: int, left: int) -> None:
        """A completion that queues another one."""
        self.note(now, left)
        if left:
            self.completions.add(self.ended, left - 1)
            assert self.delivered[-1] == (now, left), "it was delivered within another delivery"

    def fail(self, now: int) -> None:
        raise ValueError("unexpected")

    def names(self) -> list[Any]:
        return [what for _, what in self.delivered]


def test_a_completion_waits_for_the_end_of_the_call() -> None:
    stage = Stage()
    stage.completions.add(stage.note, "first")
    stage.completions.add(stage.note, "second")
    assert stage.delivered == []
    stage.completions.deliver(7)
    assert stage.delivered == [(7, "first"), (7, "second")]
    stage.completions.check()


def test_what_a_completion_queues_is_delivered_behind_those_that_wait() -> None:
    stage = Stage()
    stage.completions.add(stage.ended, 2)
    stage.completions.add(stage.note, "other")
    stage.completions.deliver(1)
    assert stage.names() == [2, "other", 1, 0]


def test_an_unexpected_exception_ends_its_own_completion_only() -> None:
    faults: list[str] = []
    stage = Stage(faults)
    stage.completions.add(stage.fail)
    stage.completions.add(stage.note, "next")
    stage.completions.deliver(1)
    assert faults == ["Stage.fail failed"]
    assert stage.names() == ["next"]


def test_the_rest_of_many_waits_for_a_timer_and_stays_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELIVERED_AT_ONCE", 3)
    stage = Stage()
    for number in range(5):
        stage.completions.add(stage.note, number)
    stage.completions.deliver(1)
    assert stage.names() == [0, 1, 2]
    stage.completions.add(stage.note, "later")
    stage.completions.deliver(1)  # another call of the host: it waits behind the rest
    assert stage.names() == [0, 1, 2]
    stage.completions.check()
    assert stage.schedule.deadline() == AT_ONCE
    stage.schedule.tick(2, stage.completions.deliver)
    assert stage.delivered[3:] == [(2, 3), (2, 4), (2, "later")]
    assert stage.schedule.deadline() is None


def test_a_timer_finds_what_an_earlier_one_has_completed() -> None:
    """A request whose deadline and whose answer fall into the same tick gets the answer."""
    stage = Stage()
    completing = Timer(stage.schedule, Timed.METADATA, lambda now: stage.completions.add(stage.note, "answer"))
    late = Timer(stage.schedule, Timed.PEERS, lambda now: stage.note(now, "deadline"))
    completing.set(5)
    late.set(5)
    stage.schedule.tick(5, stage.completions.deliver)
    assert stage.names() == ["answer", "deadline"]


# ---- the parts of a node -------------------------------------------------------------------------------------------


class Replies(CoordinatorRequest):
    """A request to a coordinator; `answers`: those that were given."""

    def __init__(self) -> None:
        super().__init__([])
        self.answers = 0

    def finish(self, request: Any) -> None:
        self.answers += 1


class Asker:
    """Has asked a node."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def answered(self, now: int, answer: object) -> None:
        self.answers.append(answer)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[NodeStage]:
    stage = NodeStage(tmp_path)
    yield stage
    stage.check()


def test_a_change_without_a_commit_ends_after_the_call(stage: NodeStage) -> None:
    ended = Ended()
    stage.node.metadata.change(stage.now, lambda now: iter_of("done"), ended)
    with pytest.raises(ValueError, match="not enough values"):
        ended.result()
    stage.node.completions.deliver(stage.now)
    assert ended.result() == "done"


def iter_of(result: str) -> Any:
    """A plan that writes nothing."""
    return result
    yield


def test_a_change_that_has_no_time_left_fails_after_the_call(stage: NodeStage) -> None:
    ended = Ended()
    stage.node.metadata.change(stage.now, lambda now: iter_of("done"), ended, until=stage.now)
    stage.node.completions.deliver(stage.now)
    assert ended.result() == "done", "it needed no store"


def test_a_coordinator_answers_after_the_call(stage: NodeStage) -> None:
    asked = Replies()
    stage.node.coordinators.groups.submit(stage.now, NODE_REQUEST, asked)
    assert not asked.answers
    stage.settle()
    assert asked.answers == 1


def test_a_request_that_its_own_call_completes_is_answered_by_receive(stage: NodeStage) -> None:
    answer = stage.send(ListGroupsRequest())
    assert answer.answered, "no effect and no tick was needed"
    assert isinstance(answer.answer, ListGroupsResponse)


def test_the_node_answers_itself_after_the_call(stage: NodeStage) -> None:
    asker = Asker()
    stage.node.peers.ask(stage.now, stage.node.node_id, FindCoordinatorRequest(key="g"), asker)
    assert not asker.answers
    stage.settle()
    assert len(asker.answers) == 1


def fetched(records: bytes) -> FetchResponse:
    return FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData(records=records)])])


def test_an_answer_that_waits_behind_others_keeps_its_own_copy(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The I/O host reads the next frame into the same memory."""
    monkeypatch.setattr(module, "DELIVERED_AT_ONCE", 1)
    asker, other = Asker(), Asker()
    for number in range(3):
        stage.node.completions.add(other.answered, number)
    stage.node.completions.deliver(stage.now)
    assert other.answers == [0]
    stage.node.peers.ask(stage.now, 7, FetchRequest(), asker)
    stage.settle()
    token = stage.asks[0].token
    header = RequestHeader(FetchRequest.API_KEY, FetchRequest.MAX_VERSION, token)
    frame = bytearray(encode_response(header, fetched(b"records")))[4:]
    stage.node.answered(stage.now, token, memoryview(frame))
    frame[:] = bytes(len(frame))
    assert asker.answers == []
    stage.run()
    assert other.answers == [0, 1, 2]
    assert bytes(asker.answers[0].responses[0].partitions[0].records) == b"records"
