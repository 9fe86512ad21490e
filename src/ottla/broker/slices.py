"""Serves long requests in slices, so that no request blocks the node for more than a few milliseconds.

A handler writes such work as a generator that yields after each slice and returns the answer: a wire message, or parts
that are encoded already. The first slice runs at once, and is all that short work needs. The rest runs one slice per
tick, round-robin over all such requests, so that other requests are served in between. The broker has no clock, so
slices are cut by the number of steps: `SLICE_STEPS` steps of some ten microseconds each.

Independent parts of the work, such as one group or topic among thousands, may be a `SubRequest`: a request of its own
that a handler serves like any other, perhaps through a coordinator. The work yields it and is sent its answer. A change
of the metadata is a `Change`: the work yields it and is sent what its plan returned, however long the store takes. The
plan gets DeadlineExceededError if the request has to be answered earlier.

A request whose client is gone is dropped, unless it `outlives` its client. A piece that is in progress then is dropped
or continued in the same way.

The state that one slice has read may have changed by the next one: the handler must check it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from struct import pack_into
from typing import Any, TypeAlias, cast

from ottla.broker.cluster.metadata import Change, Metadata
from ottla.broker.completions import Completions
from ottla.broker.effects import Parked, Part
from ottla.broker.observations.slowest import Awaited
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.requests import Request
from ottla.broker.schedule import Backlog, Schedule, Timed
from ottla.machine import Millis, Ticket
from ottla.protocol.framing import RequestHeader, encode_response
from ottla.protocol.wire import Encoded, Message, Struct, write_array_length, write_uvarint

SLICE_STEPS = 200


class SubRequest(Request):
    """A part of a request, with a body of its own. `serve` answers it at once, or parks it for `Parking.answer`.

    One that `is_light` is not a slice of its own. If it is answered at once, the work continues in the same slice. If
    it is answered later, perhaps by another node, a completion continues the work.
    """

    __slots__ = ("is_light", "serve", "whole")

    def __init__(self, request: Request, body: Any, serve: Callable[[Request], Any], *, is_light: bool = False) -> None:
        super().__init__(
            request.channel,
            request.api_key,
            request.version,
            request.correlation_id,
            request.client_id,
            request.now,
            body,
            identity=request.identity,
            tries=request.tries,
        )
        self.begun = request.begun
        self.serve = serve
        self.is_light = is_light
        self.whole: SlicedWork

    def take_answer(self, message: Any) -> bool:
        """A parked piece has its answer: resume the work that it belongs to."""
        self.whole.reply = message
        self.whole.go_on()
        return True


Work: TypeAlias = Generator[SubRequest | Change | None, Any, Any]


class SlicedWork(ParkedWork):
    """One request and the state of its work. `reply`: the answer to the last piece, or the result of the last change;
    `error`: why there is none."""

    __slots__ = ("_resume", "error", "gone", "is_light", "outlives", "reply", "request", "ticket", "work")

    def __init__(self, request: Request, work: Work, resume: Callable[[SlicedWork], None], outlives: bool) -> None:
        self._resume = resume
        self.request = request
        self.work = work
        self.outlives = outlives
        self.reply: Any = None
        self.error: Exception | None = None
        self.ticket: Ticket = 0
        self.gone = False
        self.is_light = False
        """The piece that it waits for is."""

    def awaits(self, request: Request) -> Awaited | None:
        return Awaited.WORK

    def go_on(self) -> None:
        """The last piece has completed."""
        self._resume(self)

    def change_ended(self, now: Millis, result: Any) -> None:
        self.reply = result
        self._resume(self)

    def change_failed(self, now: Millis, error: Exception) -> None:
        self.error = error
        self._resume(self)

    def abandon(self, ticket: Ticket) -> None:
        self.gone = not self.outlives


class Slices:
    """The requests of a node that are answered in slices."""

    def __init__(self, parking: Parking, schedule: Schedule, completions: Completions, metadata: Metadata) -> None:
        self._parking = parking
        self._completions = completions
        self._metadata = metadata
        self._works = Backlog[SlicedWork](schedule, Timed.SLICES, self._serve_next)

    def begin(self, request: Request, work: Work, *, is_long: bool, outlives: bool = False) -> Any:
        """Returns the answer if the first slice completed the work, otherwise Parked.

        A request that `is_long` is queued behind the others, so that the first slices of many do not all run at once.
        One that `outlives` its client runs to its end.
        """
        sliced = SlicedWork(request, work, self._go_on, outlives)
        goes_on = True
        if not (is_long and self._works):
            try:
                goes_on = self._step(request.now, sliced)
            except StopIteration as done:
                return done.value
        sliced.ticket = self._parking.park(request, None, sliced)
        if goes_on:
            self._works.append(sliced)
        return Parked(sliced.ticket)

    def _step(self, now: Millis, sliced: SlicedWork) -> bool:
        """The next slice; whether the one after it may follow. False: its piece or change waits for something."""
        reply, sliced.reply = sliced.reply, None
        error, sliced.error = sliced.error, None
        piece = sliced.work.send(reply) if error is None else sliced.work.throw(error)
        while piece is not None:
            if not isinstance(piece, SubRequest):
                self._metadata.change(now, piece, sliced, sliced.request.answer_by)
                return False
            piece.now = now
            piece.whole = sliced
            answer = piece.serve(piece)
            if isinstance(answer, Parked):
                sliced.is_light = piece.is_light
                return False
            if not piece.is_light:
                sliced.reply = answer
                break
            piece = sliced.work.send(answer)
        return True

    def _go_on(self, sliced: SlicedWork) -> None:
        """The last piece of this work has completed."""
        if sliced.is_light:
            sliced.is_light = False
            self._completions.add(self._run, sliced)
        else:
            self._works.append(sliced)

    def each(self, request: Request, serve: Callable[[Request], Any], asked: str, answered: str) -> Any:
        """Serve a request whose elements are independent; many of them in slices: see `in_pieces`."""
        if len(getattr(request.body, asked) or ()) <= SLICE_STEPS:
            return serve(request)
        return self.begin(request, in_pieces(request, serve, asked, answered), is_long=True)

    def each_partition(
        self,
        request: Request,
        serve: Callable[[Request], Any],
        asked: tuple[str, str] = ("topics", "partitions"),
        answered: tuple[str, str] = ("topics", "partitions"),
    ) -> Any:
        """The same of topics with partitions: see `topics_in_pieces`."""
        if steps_of(getattr(request.body, asked[0]) or (), asked[1]) <= SLICE_STEPS:
            return serve(request)
        return self.begin(request, topics_in_pieces(request, serve, asked, answered), is_long=True)

    def _serve_next(self, now: Millis) -> None:
        """Run one slice of the request whose turn it is."""
        while self._works:
            if self._run(now, self._works.popleft()):
                return

    def _run(self, now: Millis, sliced: SlicedWork) -> bool:
        """Run the next slice, and answer if it was the last. False if the client is gone."""
        if sliced.gone:
            sliced.work.close()
            return False
        try:
            goes_on = self._step(now, sliced)
        except StopIteration as done:
            answer: Any = done.value
            if isinstance(answer, list):
                self._parking.reply(sliced.ticket, cast("list[Part]", answer))
            else:
                self._parking.answer(now, sliced.ticket, answer)
        except Exception as error:
            self._parking.give_up(sliced.ticket, "a long request", error)
        else:
            if goes_on:
                self._works.append(sliced)
        return True


def encoded(structs: Iterable[Struct], version: int) -> list[Any]:
    """The same structs as the bytes they will be in the answer, so that its encoding is not left to the last slice."""
    done: list[Any] = []
    for struct in structs:
        out = bytearray()
        struct.encode(out, version)
        done.append(Encoded(bytes(out)))
    return done


NO_ELEMENTS = (b"\x00\x00\x00\x00", b"\x01\x00")
"""The end of a struct whose last field is an empty array, before the flexible versions and in them."""


def answer_of_parts(
    request: Request, empty: Message, flexible: bool, count: int, structs: Sequence[bytes]
) -> list[Part]:
    """The parts of an answer that ends with a list of so many structs. Nothing is copied, however much it is.

    `empty`: the answer without them; `structs`: they, encoded, one or more in each part.
    """
    header = RequestHeader(request.api_key, request.version, request.correlation_id, request.client_id)
    head = encode_response(header, empty)[: -len(NO_ELEMENTS[flexible])]
    tail = b"\x00" if flexible else b""
    if flexible:
        write_uvarint(head, count + 1)
    else:
        write_array_length(head, count)
    pack_into(">i", head, 0, len(head) + sum(map(len, structs)) + len(tail) - 4)
    return [head, *structs, tail]


class EncodedStructs:
    """Replaces, in a message, a list of structs by their encoding, which is built some structs at a time."""

    __slots__ = ("_count", "_parts", "_version")

    def __init__(self, version: int) -> None:
        self._version = version
        self._count = 0
        self._parts: list[Encoded] = []

    def add(self, structs: Iterable[Struct]) -> None:
        out = bytearray()
        for struct in structs:
            struct.encode(out, self._version)
            self._count += 1
        self._parts.append(Encoded(bytes(out)))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Encoded]:
        return iter(self._parts)


def in_pieces(request: Request, serve: Callable[[Request], Any], asked: str, answered: str) -> Work:
    """The answer to a request whose elements are independent, a slice of them at a time.

    `asked` and `answered`: the lists of the request and of the answer. All other fields of the answer are the last
    piece's.
    """
    elements: list[Any] = getattr(request.body, asked)
    answer: Any = None
    done: list[Any] = []
    for first in range(0, len(elements), SLICE_STEPS):
        body = copy(request.body)
        setattr(body, asked, elements[first : first + SLICE_STEPS])
        answer = yield SubRequest(request, body, serve)
        done += encoded(getattr(answer, answered), request.version)
    setattr(answer, answered, done)
    return answer


def topics_in_pieces(
    request: Request, serve: Callable[[Request], Any], asked: tuple[str, str], answered: tuple[str, str]
) -> Work:
    """As `in_pieces`, for topics whose partitions are independent too; each topic is answered once, in its place.

    `asked` and `answered`: the names of the lists of topics and of their partitions.
    """
    answer: Any = None
    told = EncodedStructs(request.version)
    for some in _runs(getattr(request.body, asked[0]), asked[1]):
        whole: Any = None
        ready = EncodedStructs(request.version)
        for topics in some:
            body = copy(request.body)
            setattr(body, asked[0], topics)
            answer = yield SubRequest(request, body, serve)
            topics = getattr(answer, answered[0])
            if len(some) == 1:
                told.add(topics)
            elif topics:
                whole = topics[0]
                ready.add(getattr(whole, answered[1]))
        if whole is not None:
            setattr(whole, answered[1], ready)
            told.add((whole,))
    setattr(answer, answered[0], told)
    return answer


def _runs(topics: list[Any], within: str) -> Generator[list[list[Any]], None, None]:
    """The topics some at a time, each time with one list of them; a topic that is too large alone, in several parts."""
    some: list[Any] = []
    steps = 0
    for topic in topics:
        size = 1 + len(getattr(topic, within))
        if some and steps + size > SLICE_STEPS:
            yield [some]
            some, steps = [], 0
        if size > SLICE_STEPS:
            yield list(_parts_of(topic, within))
        else:
            some.append(topic)
            steps += size
    if some:
        yield [some]


def _parts_of(topic: Any, within: str) -> Generator[list[Any], None, None]:
    partitions = getattr(topic, within)
    for first in range(0, len(partitions), SLICE_STEPS):
        part = copy(topic)
        setattr(part, within, partitions[first : first + SLICE_STEPS])
        yield [part]


def steps_of(topics: Iterable[Any], within: str = "partitions") -> int:
    """The amount of work in a request that names topics with partitions. `within`: the name of the list of these."""
    return sum(1 + len(getattr(topic, within)) for topic in topics)


def cut(topics: Iterable[Any], steps: int) -> Generator[list[Any], None, None]:
    """The same topics with their `partitions` in runs of some `steps`; a topic with more becomes several topics."""
    some: list[Any] = []
    left = steps
    for topic in topics:
        first = 0
        while first < max(1, len(topic.partitions)):
            part = copy(topic)
            part.partitions = topic.partitions[first : first + left]
            some.append(part)
            first += left
            left -= 1 + len(part.partitions)
            if left <= 0:
                yield some
                some, left = [], steps
    if some:
        yield some


def encoded_in_slices(structs: Iterable[Struct], version: int) -> Generator[None, Any, Any]:
    """As `encoded`, a slice at a time; each struct is created only when it is encoded."""
    done = EncodedStructs(version)
    rest = iter(structs)
    while some := list(islice(rest, SLICE_STEPS)):
        done.add(some)
        if len(some) == SLICE_STEPS:
            yield
    return done


def encoded_topics(topics: Iterable[Any], version: int, within: str = "partitions") -> Generator[None, Any, Any]:
    """As `encoded`, for topics with a list of partitions, a slice at a time. `within`: the name of that list."""
    done = EncodedStructs(version)
    steps = 0
    for topic in topics:
        partitions: list[Any] = getattr(topic, within)
        ready = EncodedStructs(version)
        for first in range(0, len(partitions), SLICE_STEPS):
            some = partitions[first : first + SLICE_STEPS]
            ready.add(some)
            steps += len(some)
            if steps >= SLICE_STEPS:
                steps = 0
                yield
        setattr(topic, within, ready)
        done.add((topic,))
        steps += 1
        if steps >= SLICE_STEPS:
            steps = 0
            yield
    return done
