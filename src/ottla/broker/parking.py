"""Requests that wait for something: tickets, their deadlines, their connections.

Knows: which request a ticket stands for, when it must be answered at the latest, and which tickets a lost connection
leaves behind. Does not know: what the request waits for; that stands in `Waiting.what`, an object of the handler that
parked it.

Invariant: a ticket is in `_waiting` exactly as long as its answer is owed. The heap may hold tickets that were answered
before their deadline; they are dropped when they reach its top, and swept when they outnumber the living.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.machine import Millis, Ticket

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.partitions.partition import Partition


class ParkedWork:
    """What a handler leaves behind with a parked request: how to go on when something happens."""

    __slots__ = ()

    def expire(self, node: Node, now: Millis, ticket: Ticket) -> None:
        """The deadline has come, or what was waited for is there: answer now."""
        raise NotImplementedError

    def abandon(self, node: Node, ticket: Ticket) -> None:
        """The client is gone: forget the ticket wherever it was noted."""
        raise NotImplementedError

    def committed(self, node: Node, ticket: Ticket, partition: Partition) -> None:
        """What was appended to `partition` is committed."""
        raise NotImplementedError

    def grew(self, size: int) -> bool:
        """`size` more bytes can be fetched; True when that is enough."""
        raise NotImplementedError


class Waiting:
    """One parked request."""

    __slots__ = ("deadline", "request", "what")

    def __init__(self, request: Request, deadline: Millis | None, what: ParkedWork) -> None:
        self.request = request
        self.deadline = deadline
        self.what = what


class WaitingRoom:
    """All parked requests of a node."""

    def __init__(self) -> None:
        self._waiting: dict[Ticket, Waiting] = {}
        self._of_connection: dict[int, dict[Ticket, None]] = {}
        self._deadlines: list[tuple[Millis, Ticket]] = []
        self._next_ticket: Ticket = 1

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, request: Request, deadline: Millis | None, what: ParkedWork) -> Ticket:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = Waiting(request, deadline, what)
        self._of_connection.setdefault(request.context.identity, {})[ticket] = None
        if deadline is not None:
            heappush(self._deadlines, (deadline, ticket))
            if len(self._deadlines) > 1024 and len(self._deadlines) > 2 * len(self._waiting):
                self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
                heapify(self._deadlines)
        return ticket

    def get(self, ticket: Ticket) -> Waiting | None:
        return self._waiting.get(ticket)

    def take(self, ticket: Ticket) -> Waiting | None:
        """The request behind this ticket, which from now on counts as answered; None if it already was."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            identity = waiting.request.context.identity
            tickets = self._of_connection[identity]
            del tickets[ticket]
            if not tickets:
                del self._of_connection[identity]
        return waiting

    def of_connection(self, identity: int) -> list[Ticket]:
        return list(self._of_connection.get(identity, ()))

    def deadlines(self) -> list[tuple[Ticket, Millis]]:
        """Who waits for a deadline that has not come yet, and which."""
        return [(ticket, deadline) for deadline, ticket in self._deadlines if ticket in self._waiting]

    def deadline(self) -> Millis | None:
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._waiting:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def due(self, now: Millis) -> list[Ticket]:
        """Tickets whose deadline has come, oldest first. They stay parked until they are taken."""
        found: list[Ticket] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            ticket = heappop(deadlines)[1]
            if ticket in self._waiting:
                found.append(ticket)
        return found
