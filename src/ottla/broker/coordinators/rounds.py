"""Requests that ask coordinators in several rounds, each question depending on the answers before.

Knows how a round is sent on its way and how the next one begins when it is back, at once or later. Does not know the
questions: a handler writes them as a generator that yields `Round`s, is given their replies, and returns the answer.

    def work(node, request):
        (group,) = yield Round(node.groups, [(index, call)])
        states = yield Round(node.share_state, calls)
        return Answer(...)

A round that has begun goes on to the last one even when the client is gone, so that nothing is left half done.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

from ottla.broker.coordinators.shards import CoordinatorRequest, ShardHost
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.requests import NODE_ITSELF, Parked, Request, Session
from ottla.machine import Call, Millis, Ticket


class Round(NamedTuple):
    """Calls to shards of one host; the replies come back in the same order."""

    host: ShardHost
    calls: Sequence[tuple[int, Call]]


Work: TypeAlias = Generator[Round, list[Any], Any]


class _RoundRequest(CoordinatorRequest):
    """The calls of one round on their way."""

    __slots__ = ("asked",)

    def __init__(self, calls: Sequence[tuple[int, Call]], asked: Rounds) -> None:
        super().__init__(calls)
        self.asked = asked

    def answer_when_whole(self, now: Millis) -> None:
        if not self.missing and not self.on_its_way and self.asked.parking.take(self.ticket) is not None:
            self.asked.resume(now, self.replies)

    def finish(self, request: Request) -> list[Any]:
        return self.replies


class Rounds(ParkedWork):
    """One client's request and how far its work has come."""

    __slots__ = ("_request", "_ticket", "_work", "parking")

    def __init__(self, parking: Parking, request: Request, work: Work) -> None:
        self.parking = parking
        self._request = request
        self._work = work
        self._ticket: Ticket = 0

    def begin(self) -> Any:
        """The answer where every reply was there at once, else Parked."""
        self._ticket = self.parking.park(self._request, None, self)
        done, answer = self._run(self._request.now, None)
        if done and self.parking.take(self._ticket) is not None:
            return answer
        return Parked(self._ticket)

    def resume(self, now: Millis, replies: list[Any]) -> None:
        """A round that took longer is back."""
        done, answer = self._run(now, replies)
        if done:
            self.parking.answer(now, self._ticket, answer)

    def _run(self, now: Millis, replies: list[Any] | None) -> tuple[bool, Any]:
        request = self._request
        internal = Request(Session(NODE_ITSELF), request.api_key, request.version, 0, None, now, request.body)
        while True:
            try:
                step = next(self._work) if replies is None else self._work.send(replies)
            except StopIteration as done:
                return True, done.value
            replies = []
            if step.calls:
                reply = step.host.submit(now, internal, _RoundRequest(step.calls, self))
                if isinstance(reply, Parked):
                    return False, None
                replies = reply

    def abandon(self, ticket: Ticket) -> None:
        """The work goes on; its answer reaches nobody."""


def ask_in_rounds(parking: Parking, request: Request, work: Work) -> Any:
    """Let `work` answer the request."""
    return Rounds(parking, request, work).begin()
