"""Long answers in slices: a request whose work is more than a few milliseconds, done a piece at a time.

A handler writes such work as a generator that yields after each slice and returns the answer: a wire message, or parts
that are encoded already. The first slice is run at once, and short work is through with it; the rest goes on one slice
a tick, all such requests in turn, so that others are served in between. Slices are cut by what they look at, as the
broker has no clock of its own: `SLICE_STEPS` of what takes some ten microseconds each.

A request whose client is gone is dropped.

What a slice has seen may have changed by the next one: the handler looks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ottla.broker.requests import Parked, Part, Request
from ottla.broker.waiting import ParkedWork
from ottla.machine import Millis, Ticket
from ottla.protocol.wire import Encoded, Struct

if TYPE_CHECKING:
    from ottla.broker.node import Node

SLICE_STEPS = 200

Work: TypeAlias = Generator[None, None, Any]


class SlicedWork(ParkedWork):
    """One request and how far its work has come."""

    __slots__ = ("gone", "request", "ticket", "work")

    def __init__(self, request: Request, work: Work) -> None:
        self.request = request
        self.work = work
        self.ticket: Ticket = 0
        self.gone = False

    def expire(self, node: Node, now: Millis, ticket: Ticket) -> None:
        """It has no deadline: it ends by itself."""

    def abandon(self, node: Node, ticket: Ticket) -> None:
        self.gone = True


class Slices:
    """The requests of a node that are answered in slices."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._works: deque[SlicedWork] = deque()

    def begin(self, request: Request, work: Work, *, is_long: bool) -> Any:
        """The answer where the first slice was all there is, else Parked.

        A request that `is_long` begins behind the others, so that the first slices of many do not come all at once.
        """
        if not (is_long and self._works):
            try:
                next(work)
            except StopIteration as done:
                return done.value
        sliced = SlicedWork(request, work)
        sliced.ticket = self._node.park(request, None, sliced)
        self._works.append(sliced)
        return Parked(sliced.ticket)

    def deadline(self) -> Millis | None:
        return 0 if self._works else None

    def tick(self, now: Millis) -> None:
        """One slice of the request whose turn it is."""
        works = self._works
        while works and works[0].gone:
            works.popleft().work.close()
        if not works:
            return
        sliced = works.popleft()
        try:
            next(sliced.work)
        except StopIteration as done:
            answer: Any = done.value
            if isinstance(answer, list):
                self._node.reply(sliced.ticket, cast("list[Part]", answer))
            else:
                self._node.answer(sliced.ticket, answer)
        except Exception as error:
            context = sliced.request.context
            self._node.waiting.take(sliced.ticket)
            self._node.close_connection(context, "an error of the broker")
            self._node.fault(f"a long request of {context.client_host or 'the node itself'} failed", error)
        else:
            works.append(sliced)


def encoded(structs: Iterable[Struct], version: int) -> list[Any]:
    """The same structs as the bytes they will be in the answer, so that its encoding is not left to the last slice."""
    done: list[Any] = []
    for struct in structs:
        out = bytearray()
        struct.encode(out, version)
        done.append(Encoded(bytes(out)))
    return done
