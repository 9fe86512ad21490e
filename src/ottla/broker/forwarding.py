"""Forwards requests that only the controller serves, returns its answers, and has the controller create missing topics.

Specs declare which APIs are forwarded (`Forwarding`). A request travels in an envelope with its client's identity. It
waits while there is no controller. It is sent again if it is lost on the way, or if another node becomes the controller
before it is done. The controller serves its own clients itself, and forwards what it cannot finish because it was
deposed. So no client gets NOT_CONTROLLER, as with Kafka's brokers, which forward even within one process.

Each attempt has a name of its own. So a topic that an earlier attempt created is reported as created, where Kafka
reports TOPIC_ALREADY_EXISTS. Other effects of an earlier attempt are reported as the controller finds them: a topic
that does not exist, an election that is not needed. A request that runs out of time is answered REQUEST_TIMED_OUT,
because its outcome is unknown.

The node needs some topics itself, for coordinators or dead letters. If this node is the controller it creates them;
otherwise it asks the controller. Work that waits for such a topic resumes once this node's image has it.

Sources: Kafka's ForwardingManager.scala, AutoTopicCreationManager.scala; KIP-590.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any, Final, cast

from ottla.broker.cluster.envelopes import wrapped
from ottla.broker.cluster.members import NOBODY, Members
from ottla.broker.cluster.metadata import AwaitsChange, Metadata, Planned
from ottla.broker.cluster.peers import TIMEOUT_MS, Peers
from ottla.broker.completions import Completions
from ottla.broker.config.values import Settings
from ottla.broker.effects import Parked
from ottla.broker.observations.slowest import Awaited
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.requests import NODE_REQUEST, Request
from ottla.broker.schedule import KeyedTimers, Schedule, Timed
from ottla.broker.slices import Slices, SubRequest, Work
from ottla.broker.topics.new_topic import NewTopic, new_internal
from ottla.broker.topics.topics import Topics
from ottla.machine import Millis, Ticket, Unanswered
from ottla.metadata.store import StoreError
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.framing import decode_response
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.envelope import EnvelopeResponse
from ottla.protocol.wire import Message, Struct

RETRY_MS: Final = 50
NOT_ANSWERED: Final = "no controller has answered in time; whether it will be done is not known"
MAKING_MS: Final = 10_000
"""How long the node waits for a topic that the controller is to create, in milliseconds."""


class ForwardedRequest(ParkedWork):
    """One request on its way to the controller; a `cluster.peers.Asker`."""

    __slots__ = ("_forwarding", "request", "ticket", "tries")

    def __init__(self, forwarding: Forwarding, request: Request) -> None:
        self._forwarding = forwarding
        self.request = request
        self.tries = list(request.tries)
        self.ticket: Ticket = 0

    def awaits(self, request: Request) -> Awaited | None:
        return Awaited.CONTROLLER

    def answered(self, now: Millis, answer: Any) -> None:
        self._forwarding.answered(now, self, answer)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        self._forwarding.give_up(now, self)

    def abandon(self, ticket: Ticket) -> None:
        """Do nothing: the controller may already have the request."""


class _Creation:
    """Topics that the controller was asked for; a `cluster.peers.Asker`."""

    def __init__(self, forwarding: Forwarding, names: list[str]) -> None:
        self._forwarding = forwarding
        self._names = names

    def answered(self, now: Millis, answer: object) -> None:
        self._forwarding.asked_for(now, self._names, answer)


class _Wanted:
    """A topic that some work on this node waits for. `why_not`: the controller's last error."""

    __slots__ = ("awaits", "give_up_at", "topic", "why_not")

    def __init__(self, topic: NewTopic, give_up_at: Millis) -> None:
        self.topic = topic
        self.give_up_at = give_up_at
        self.awaits: list[AwaitsChange] = []
        self.why_not = "no controller has answered"


class _AwaitedTopic(ParkedWork):
    """Work that resumes once a topic exists; an `AwaitsChange`."""

    __slots__ = ("_parking", "_ticket")

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._ticket: Ticket = 0

    def begin(self, forwarding: Forwarding, wanted: NewTopic, piece: Request) -> Parked:
        """Ask for the topic. The piece is answered with None, or with the StoreError that explains why there is
        none."""
        self._ticket = self._parking.park(piece, None, self)
        forwarding.make(piece.now, wanted, self)
        return Parked(self._ticket)

    def change_ended(self, now: Millis, result: Any) -> None:
        self._parking.answer(now, self._ticket, None)

    def change_failed(self, now: Millis, error: Exception) -> None:
        self._parking.answer(now, self._ticket, error)

    def abandon(self, ticket: Ticket) -> None:
        raise AssertionError("the node's own work has no client that could leave")


class Forwarding:
    """The requests of one node that are with the controller. `refused(request, error, sentence)`: the answer to one
    that is not done."""

    def __init__(
        self,
        metadata: Metadata,
        members: Members,
        topics: Topics,
        peers: Peers,
        parking: Parking,
        schedule: Schedule,
        completions: Completions,
        slices: Slices,
        settings: Settings,
        refused: Callable[[Request, ErrorCode, str], Any],
    ) -> None:
        self._metadata = metadata
        self._members = members
        self._topics = topics
        self._peers = peers
        self._parking = parking
        self._completions = completions
        self._slices = slices
        self._settings = settings
        self._refused = refused
        self._sent = 0
        self._resting = KeyedTimers[Ticket](schedule, Timed.FORWARDING, self._send_again)
        self._waiting: dict[Ticket, ForwardedRequest] = {}
        self._creating: set[str] = set()
        self._wanted: dict[str, _Wanted] = {}
        self._ask_again = KeyedTimers[str](schedule, Timed.FORWARDING, self._ask_for_topics)

    # ---- requests of clients ---------------------------------------------------------------------------------------

    def serve(self, request: Request, handle: Callable[[Request], Any]) -> Any:
        """Serve a client's request on the controller. If this node is deposed meanwhile, forward the request."""
        return self._slices.begin(request, self._serving(request, handle), is_long=False)

    def _serving(self, request: Request, handle: Callable[[Request], Any]) -> Work:
        claim = self._metadata.image.controller
        request.tries = (self._new_attempt(),)
        answer = yield SubRequest(request, request.body, handle, is_light=True)
        if self._metadata.image.controller != claim and _names_former_controller(_read(answer, request.version)):
            answer = yield SubRequest(request, request.body, self.forward, is_light=True)
        return answer

    def forward(self, request: Request) -> Parked:
        """Hand the request on; its answer is parked for."""
        forwarded = ForwardedRequest(self, request)
        forwarded.ticket = self._parking.park(request, request.answer_by, forwarded)
        self._waiting[forwarded.ticket] = forwarded
        self._send(request.now, forwarded)
        return Parked(forwarded.ticket)

    def answered(self, now: Millis, forwarded: ForwardedRequest, answer: Any) -> None:
        """Handle the outcome of a forwarded request. If it is lost, the request is sent again a little later."""
        if forwarded.ticket not in self._waiting:
            return
        request = forwarded.request
        if isinstance(answer, EnvelopeResponse) and answer.response_data is not None and not answer.error_code:
            try:
                _, answer = decode_response(request.api_key, request.version, answer.response_data)
            except MalformedFrameError as error:
                answer = Unanswered(str(error))
        if isinstance(answer, EnvelopeResponse):
            forwarded.tries.pop()  # this attempt had no effect
        if isinstance(answer, Unanswered | EnvelopeResponse) or _names_former_controller(answer):
            self._rest(now, forwarded)
        else:
            del self._waiting[forwarded.ticket]
            self._parking.answer(now, forwarded.ticket, answer)

    def give_up(self, now: Millis, forwarded: ForwardedRequest) -> None:
        """Its time is up."""
        del self._waiting[forwarded.ticket]
        self._resting.cancel(forwarded.ticket)
        answer = self._refused(forwarded.request, ErrorCode.REQUEST_TIMED_OUT, NOT_ANSWERED)
        self._parking.answer(now, forwarded.ticket, answer)

    @property
    def _controller_id(self) -> int:
        """The node id of the controller; `NOBODY` also if the controller was an earlier incarnation of this node."""
        controller_id = self._members.controller_id
        is_gone = controller_id == self._members.node_id and not self._members.is_controller
        return NOBODY if is_gone else controller_id

    def _send(self, now: Millis, forwarded: ForwardedRequest) -> None:
        if self._controller_id == NOBODY:
            self._rest(now, forwarded)
        else:
            forwarded.tries.append(self._new_attempt())
            self._peers.ask(now, self._controller_id, wrapped(forwarded.request, forwarded.tries), forwarded)

    def _new_attempt(self) -> str:
        """The name of an attempt to have a request done, see `Request.tries`."""
        self._sent += 1
        return f"{self._members.incarnation}-{self._sent}"

    def _rest(self, now: Millis, forwarded: ForwardedRequest) -> None:
        if self._parking.request_of(forwarded.ticket) is None:  # its client has disconnected
            del self._waiting[forwarded.ticket]
            return
        self._resting.set(forwarded.ticket, now + RETRY_MS)

    # ---- topics ----------------------------------------------------------------------------------------------------

    def create(self, now: Millis, wanted: Iterable[NewTopic], for_client: Request | None = None) -> None:
        """Ask the controller for these topics, on behalf of the client whose request needs them, if there is one.

        No request waits for the result. A topic with a pending request is not requested again.
        """
        new = [topic for topic in wanted if topic.name not in self._creating]
        if not new or self._controller_id == NOBODY or self._members.may_know_lost_topics:
            return
        names = [topic.name for topic in new]
        self._creating.update(names)
        message: Any = CreateTopicsRequest(topics=[_creatable(topic) for topic in new], timeout_ms=TIMEOUT_MS)
        if for_client is not None:
            key, version = CreateTopicsRequest.API_KEY, CreateTopicsRequest.MAX_VERSION
            client, client_id = for_client.channel, for_client.client_id
            message = wrapped(Request(client, key, version, 0, client_id, now, message, identity=for_client.identity))
        self._peers.ask(now, self._controller_id, message, _Creation(self, names))

    def make(self, now: Millis, topic: NewTopic, awaits: AwaitsChange) -> None:
        """Have this topic created if it does not exist. `awaits` is notified as of a change, with StoreError if
        creation fails."""
        if self._members.is_controller or topic.name in self._metadata.image.topics:
            self._metadata.change(now, partial(self._making, topic), awaits)
            return
        wanted = self._wanted.setdefault(topic.name, _Wanted(topic, now + MAKING_MS))
        wanted.awaits.append(awaits)
        self._ask_for(now, wanted)

    def making_internal(self, name: str) -> Generator[Any, Any, None]:
        """The step of a longer work that creates one of the broker's own topics. Raises StoreError."""
        if self._members.is_controller:
            yield partial(self._topics.creating_internal, name=name)
            return
        topic = new_internal(self._settings, name)
        failed = yield SubRequest(NODE_REQUEST, None, partial(_AwaitedTopic(self._parking).begin, self, topic))
        if failed is not None:
            raise failed

    def _making(self, topic: NewTopic, now: Millis) -> Planned:
        if topic.name not in self._metadata.image.topics:
            yield from self._topics.creating_on_demand(now, [topic])

    def _ask_for(self, now: Millis, wanted: _Wanted) -> None:
        self.create(now, [wanted.topic])
        self._ask_again.set(wanted.topic.name, now + RETRY_MS)

    def asked_for(self, now: Millis, names: list[str], answer: object) -> None:
        """Handle the controller's answer about wanted topics. Whether they exist now, the image shows."""
        self._creating.difference_update(names)
        told = _read(answer, answer.MAX_VERSION).topics if isinstance(answer, CreateTopicsResponse) else ()
        for each in told:
            wanted = self._wanted.get(each.name or "")
            if wanted is not None and each.error_code:
                wanted.why_not = each.error_message or ErrorCode(each.error_code).message

    def topics_changed(self, names: Iterable[str]) -> None:
        """The image has news of these topics: resume the work that waits for one of them."""
        for name in names:
            if name in self._wanted and name in self._metadata.image.topics:
                self._ask_again.cancel(name)
                for awaits in self._wanted.pop(name).awaits:
                    self._completions.add(awaits.change_ended, None)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _send_again(self, now: Millis) -> None:
        while (ticket := self._resting.pop(now)) is not None:
            self._send(now, self._waiting[ticket])

    def _ask_for_topics(self, now: Millis) -> None:
        while (name := self._ask_again.pop(now)) is not None:
            wanted = self._wanted[name]
            if now < wanted.give_up_at:
                self._ask_for(now, wanted)
                continue
            del self._wanted[name]
            failed = StoreError(f"the topic {name} is not there yet: {wanted.why_not}")
            for awaits in wanted.awaits:
                self._completions.add(awaits.change_failed, failed)


def _names_former_controller(answer: Any) -> bool:
    """Whether the answer, or a part of it, is NOT_CONTROLLER: another node has become the controller meanwhile."""
    structs: list[Any] = [answer]
    while structs:
        struct = structs.pop()
        if getattr(struct, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
            return True
        for name in struct.__slots__:
            value = getattr(struct, name)
            if isinstance(value, list):
                structs += (each for each in cast("list[Any]", value) if isinstance(each, Struct))
    return False


def _read(answer: Message, version: int) -> Any:
    """The same answer as a client decodes it. Parts of an answer that this node gave as the controller may be encoded
    already."""
    out = bytearray()
    answer.encode(out, version)
    return answer.decode(memoryview(out), 0, version)[0]


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        topic.name,
        -1 if topic.assignments else topic.partitions,
        -1 if topic.assignments else topic.replication_factor,
        [CreatableReplicaAssignment(index, list(replicas)) for index, replicas in enumerate(topic.assignments)],
        [CreatableTopicConfig(name, value) for name, value in topic.overrides.items()],
    )
