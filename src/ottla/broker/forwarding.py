"""Requests that only the controller serves: handed on to it, and its answer handed back.

Knows which APIs these are. A request waits while there is no controller, and is sent again where it is lost on the
way; what the first one did is then told as it stands: a topic that is there, an election that is not needed. When the
time is up the connection is closed, which every client takes for what it is: nobody knows what became of the request.

Source: Kafka's ForwardingManager.scala, which wraps the request in an Envelope (58); nodes here trust each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ottla.broker.cluster.members import NOBODY, Members
from ottla.broker.cluster.peers import TIMEOUT_MS, Peers
from ottla.broker.effects import Close, Outbox
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.requests import Parked, Request
from ottla.broker.topics.new_topic import NewTopic
from ottla.machine import Millis, Ticket, Unanswered
from ottla.machine.timers import Timers
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

FORWARDED: Final = frozenset((19, 20, 37, 43, 45, 46, 64))
"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders, the moves of replicas, UnregisterBroker."""
RETRY_MS: Final = 50


class ForwardedRequest(ParkedWork):
    """One request on its way to the controller; a `cluster.peers.Asker`."""

    __slots__ = ("_forwarding", "request", "ticket")

    def __init__(self, forwarding: Forwarding, request: Request) -> None:
        self._forwarding = forwarding
        self.request = request
        self.ticket: Ticket = 0

    def answered(self, now: Millis, answer: Any) -> None:
        self._forwarding.answered(now, self, answer)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        self._forwarding.give_up(self)

    def abandon(self, ticket: Ticket) -> None:
        """It goes on: the controller may have it already."""


class _Creation:
    """Topics that somebody has asked for by naming them; whatever comes of it, they ask again."""

    def __init__(self, under_way: set[str], names: list[str]) -> None:
        self._under_way = under_way
        self._names = names

    def answered(self, now: Millis, answer: object) -> None:
        self._under_way.difference_update(self._names)


class Forwarding:
    """The requests of one node that are with the controller."""

    def __init__(self, members: Members, peers: Peers, parking: Parking, outbox: Outbox) -> None:
        self._members = members
        self._peers = peers
        self._parking = parking
        self._outbox = outbox
        self._resting: Timers[Ticket] = Timers()
        self._waiting: dict[Ticket, ForwardedRequest] = {}
        self._creating: set[str] = set()

    def takes(self, api_key: int) -> bool:
        """Whether a request of this API is the controller's, and another node is that."""
        return api_key in FORWARDED and not self._members.is_controller

    def forward(self, request: Request) -> Parked:
        """Hand the request on; its answer is parked for."""
        forwarded = ForwardedRequest(self, request)
        forwarded.ticket = self._parking.park(request, request.now + TIMEOUT_MS, forwarded)
        self._waiting[forwarded.ticket] = forwarded
        self._send(request.now, forwarded)
        return Parked(forwarded.ticket)

    def create(self, now: Millis, wanted: Iterable[NewTopic]) -> None:
        """Ask the controller for these topics; nobody waits for them, and one that is asked for is not asked for again
        before the answer."""
        new = [topic for topic in wanted if topic.name not in self._creating]
        if not new or self._members.controller_id == NOBODY:
            return
        names = [topic.name for topic in new]
        self._creating.update(names)
        message = CreateTopicsRequest(topics=[_creatable(topic) for topic in new], timeout_ms=TIMEOUT_MS)
        self._peers.ask(now, self._members.controller_id, message, _Creation(self._creating, names))

    def answered(self, now: Millis, forwarded: ForwardedRequest, answer: Any) -> None:
        """What came of it; where that is nothing it is sent again a little later."""
        if forwarded.ticket not in self._waiting:
            return
        if isinstance(answer, Unanswered):
            self._rest(now, forwarded)
        else:
            del self._waiting[forwarded.ticket]
            self._parking.answer(now, forwarded.ticket, answer)

    def give_up(self, forwarded: ForwardedRequest) -> None:
        """Its time is up."""
        del self._waiting[forwarded.ticket]
        self._resting.cancel(forwarded.ticket)
        self._parking.take(forwarded.ticket)
        self._outbox.add(Close(forwarded.request.session.address.identity, "no controller has answered"))

    def _send(self, now: Millis, forwarded: ForwardedRequest) -> None:
        controller_id, request = self._members.controller_id, forwarded.request
        if controller_id == NOBODY or (controller_id == self._members.node_id and not self._members.is_controller):
            self._rest(now, forwarded)
        else:
            self._peers.ask(now, controller_id, request.body, forwarded, request.version)

    def _rest(self, now: Millis, forwarded: ForwardedRequest) -> None:
        if self._parking.request_of(forwarded.ticket) is None:  # its client is gone
            del self._waiting[forwarded.ticket]
            return
        self._resting.set(forwarded.ticket, now + RETRY_MS)
        self._outbox.deadline_moved = True

    def deadline(self) -> Millis | None:
        return self._resting.deadline()

    def tick(self, now: Millis) -> None:
        while (ticket := self._resting.pop(now)) is not None:
            self._send(now, self._waiting[ticket])


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        topic.name,
        -1 if topic.assignments else topic.partitions,
        -1 if topic.assignments else topic.replication_factor,
        [CreatableReplicaAssignment(index, list(replicas)) for index, replicas in enumerate(topic.assignments)],
        [CreatableTopicConfig(name, value) for name, value in topic.overrides.items()],
    )
