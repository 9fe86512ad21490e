"""Parks requests: tickets, their deadlines, their connections, and the four ways in which waiting ends.

Each ticket has a request, a deadline and a connection. The `ParkedWork` of the handler that parked the request knows
what the request waits for.

Invariant: a ticket is in `_waiting` exactly as long as its answer is owed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.broker.completions import Completions
from ottla.broker.effects import Close, Outbox, Part, Reply
from ottla.broker.observations.observations import Observations
from ottla.broker.observations.slowest import Awaited
from ottla.broker.partitions.partition import Partition
from ottla.broker.quotas import Throttle
from ottla.broker.requests import Request
from ottla.broker.schedule import Limits, Schedule, Timed
from ottla.machine import Millis, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, encode_response


class ParkedWork:
    """The work that continues a parked request when its waiting ends."""

    __slots__ = ()

    def awaits(self, request: Request) -> Awaited | None:
        """The reason for the wait; None if a long wait is no sign of slowness."""
        return None

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        """The deadline has passed: answer with what is available."""
        raise NotImplementedError

    def ready(self, now: Millis, ticket: Ticket) -> None:
        """Enough of the awaited data can be read: try again."""
        raise NotImplementedError

    def committed(self, now: Millis, ticket: Ticket, partition: Partition) -> None:
        """The request's append to `partition` is committed."""
        raise NotImplementedError

    def lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        """The request's append to `partition` may be lost: answer with this error. When this is called, the partition
        may be led again already."""
        raise NotImplementedError

    def abandon(self, ticket: Ticket) -> None:
        """The client has disconnected: remove the ticket wherever it was noted."""
        raise NotImplementedError

    def grew(self, size: int) -> bool:
        """`size` more bytes can be read; True when that is enough."""
        raise NotImplementedError


class Waiting:
    """One parked request."""

    __slots__ = ("deadline", "request", "work")

    def __init__(self, request: Request, deadline: Millis | None, work: ParkedWork) -> None:
        self.request = request
        self.deadline = deadline
        self.work = work


class Parking:
    """All parked requests of a node; its answers go into the outbox. A `partitions.partition.Wakes`.

    `ready`: the tickets that `serve_ready` resumes; the node checks it after each call. `fault` receives unexpected
    exceptions: the connection of the request that caused one is closed.
    """

    def __init__(
        self,
        outbox: Outbox,
        schedule: Schedule,
        completions: Completions,
        throttle: Throttle,
        observations: Observations,
        fault: Callable[[str, Exception], None],
    ) -> None:
        self._outbox = outbox
        self._completions = completions
        self._throttle = throttle
        self._observations = observations
        self._fault = fault
        self._waiting: dict[Ticket, Waiting] = {}
        self._of_connection: dict[int, dict[Ticket, None]] = {}
        self._limits = Limits[Ticket](schedule, Timed.REQUESTS, self._expire, self._waiting)
        self.ready: dict[Ticket, None] = {}
        self._next_ticket: Ticket = 1

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, request: Request, deadline: Millis | None, work: ParkedWork) -> Ticket:
        """Keep the request for later. If the deadline passes first, `work.at_deadline` is called."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._waiting[ticket] = Waiting(request, deadline, work)
        self._of_connection.setdefault(request.identity.address.connection_id, {})[ticket] = None
        if deadline is not None:
            self._limits.add(ticket, deadline)
        return ticket

    def limit(self, ticket: Ticket, deadline: Millis) -> None:
        """Call `work.at_deadline` at that time too, if the ticket still exists."""
        self._limits.add(ticket, deadline)

    def request_of(self, ticket: Ticket) -> Request | None:
        waiting = self._waiting.get(ticket)
        return None if waiting is None else waiting.request

    def take(self, ticket: Ticket) -> Waiting | None:
        """The request behind this ticket, which from now on counts as answered; None if it already was."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            connection_id = waiting.request.identity.address.connection_id
            tickets = self._of_connection[connection_id]
            del tickets[ticket]
            if not tickets:
                del self._of_connection[connection_id]
        return waiting

    def of_connection(self, connection_id: int) -> list[Ticket]:
        return list(self._of_connection.get(connection_id, ()))

    # ---- answers ---------------------------------------------------------------------------------------------------

    def answer(self, now: Millis, ticket: Ticket, message: Any) -> None:
        """Answer a parked request with a wire message; a ticket whose client is gone is ignored."""
        waiting = self.take(ticket)
        if waiting is not None:
            request = waiting.request
            if request.take_answer(message):
                return
            self._throttle.charge_message(now, request, message)
            self._observations.answered(now, request, message)
            self._observations.waited(now, request, waiting.work.awaits(request))
            header = RequestHeader(request.api_key, request.version, request.correlation_id, request.client_id)
            self._outbox.add(Reply(ticket, request.identity.address.connection_id, [encode_response(header, message)]))

    def reply(self, ticket: Ticket, parts: list[Part]) -> None:
        """Answer a parked request with parts that are already encoded, and for which it was charged; no parts: there is
        no answer."""
        waiting = self.take(ticket)
        if waiting is not None and not waiting.request.take_answer(parts):
            self._outbox.add(Reply(ticket, waiting.request.identity.address.connection_id, parts))

    def give_up(self, ticket: Ticket, what: str, error: Exception) -> None:
        """An unexpected exception ended this request: close its connection."""
        waiting = self.take(ticket)
        if waiting is not None:
            address = waiting.request.identity.address
            self._outbox.add(Close(address.connection_id, "an error of the broker"))
            self._fault(f"{what} of {address.client_host or 'the node itself'} failed", error)

    # ---- how waiting ends ------------------------------------------------------------------------------------------

    def committed(self, ticket: Ticket, partition: Partition) -> None:
        """The offset that `ticket` waited for in `partition` is below the high watermark."""
        self._completions.add(self._committed, ticket, partition)

    def _committed(self, now: Millis, ticket: Ticket, partition: Partition) -> None:
        waiting = self._waiting.get(ticket)
        if waiting is not None:
            try:
                waiting.work.committed(now, ticket, partition)
            except Exception as error:
                self.give_up(ticket, "a waiting request", error)

    def grew(self, ticket: Ticket, size: int) -> None:
        """`size` more bytes are available to a parked fetch. Once they are enough, `serve_ready` resumes it."""
        waiting = self._waiting.get(ticket)
        if waiting is not None and waiting.work.grew(size):
            self.ready[ticket] = None

    def lost(self, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        """The append to `partition` that this ticket waited for may never be committed."""
        self._completions.add(self._lost, ticket, partition, error)

    def _lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        waiting = self._waiting.get(ticket)
        if waiting is not None:
            try:
                waiting.work.lost(now, ticket, partition, error)
            except Exception as unexpected:
                self.give_up(ticket, "a waiting request", unexpected)

    def disconnected(self, connection_id: int) -> None:
        """The connection is closed: drop its parked requests."""
        for ticket in self.of_connection(connection_id):
            waiting = self.take(ticket)
            if waiting is not None:
                waiting.work.abandon(ticket)
            self.ready.pop(ticket, None)

    def serve_ready(self, now: Millis) -> None:
        """Resume all parked requests that became ready, once for all appends."""
        while self.ready:
            ready, self.ready = self.ready, {}
            for ticket in ready:
                waiting = self._waiting.get(ticket)
                if waiting is not None:
                    try:
                        waiting.work.ready(now, ticket)
                    except Exception as error:
                        self.give_up(ticket, "a waiting request", error)

    def deadlines(self) -> list[tuple[Ticket, Millis]]:
        """The tickets with a deadline that has not passed yet, and the deadlines."""
        return list(self._limits)

    def _expire(self, now: Millis) -> None:
        """End the waiting of everything that is due, oldest first."""
        for ticket in self._limits.pop_all(now):
            waiting = self._waiting.get(ticket)
            if waiting is not None:
                try:
                    waiting.work.at_deadline(now, ticket)
                except Exception as error:
                    self.give_up(ticket, "a waiting request", error)
