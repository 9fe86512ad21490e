"""Charges requests for what clients use of a node, in one place: before the answer is encoded.

Knows how a client is told that it is throttled, and made to wait: the answer leaves at once and says for how long, and
nothing more is read from the connection until then. Does not know any quota: that is the business of `Quotas`
(`client_quotas`). A node has none as long as the cluster has none, and charges nothing then.

Sources: KIP-13, KIP-124, KIP-219; Kafka's ClientQuotaManager.java, ClientRequestQuotaManager.java, KafkaApis.scala.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.effects import Mute, Outbox
from ottla.broker.requests import Request, Session
from ottla.machine import Millis


class Quotas(Protocol):
    """Says who has used too much."""

    def charge(self, now: Millis, session: Session, client_id: str, *, produced: int, fetched: int) -> int:
        """Count one request, and the bytes that it produces or that its answer has for a consumer, for who sent it.

        Returns for how many milliseconds that client is throttled, because of these bytes or because of the time that
        its requests have taken; 0 where it is within its quotas.
        """
        ...

    def uncharge(self, now: Millis, session: Session, client_id: str, *, fetched: int) -> None:
        """These bytes do not leave: a throttled fetch is answered without records."""
        ...

    def spent(self, now: Millis, session: Session, micros: int) -> None:
        """Serving the last request of this session took so long; what it does once it had to wait is not counted."""
        ...

    def fetched_max(self, session: Session, client_id: str) -> int | None:
        """The most bytes for which a fetch can ever be within its quota; None where it has none."""
        ...


class Throttle:
    """Charges requests, and mutes the connections of clients that have used too much."""

    __slots__ = ("_outbox", "quotas")

    def __init__(self, outbox: Outbox) -> None:
        self.quotas: Quotas | None = None
        self._outbox = outbox

    def charge(
        self, now: Millis, session: Session, client_id: str | None, *, produced: int = 0, fetched: int = 0
    ) -> int:
        """For how many milliseconds the client behind this request is throttled; asked once for each request."""
        if self.quotas is None:
            return 0
        throttle_ms = self.quotas.charge(now, session, client_id or "", produced=produced, fetched=fetched)
        if throttle_ms > 0:
            self._outbox.add(Mute(session.address.identity, now + throttle_ms))
        return throttle_ms

    def charge_fetch(self, now: Millis, session: Session, client_id: str | None, fetched: int) -> int:
        """As `charge`, for a fetch that is answered without records where it is throttled."""
        throttle_ms = self.charge(now, session, client_id, fetched=fetched)
        if throttle_ms and self.quotas is not None:
            self.quotas.uncharge(now, session, client_id or "", fetched=fetched)
        return throttle_ms

    def fetched_max(self, session: Session, client_id: str | None, wanted: int) -> int:
        """How many of the bytes that are wanted a fetch may be answered with."""
        most = None if self.quotas is None else self.quotas.fetched_max(session, client_id or "")
        return wanted if most is None else min(wanted, most)

    def charge_message(self, now: Millis, request: Request, message: Any) -> None:
        """As `charge`, for a request that is answered with this message, which says for how long where it can."""
        throttle_ms = self.charge(now, request.session, request.client_id, produced=request.produced)
        if throttle_ms and hasattr(message, "throttle_time_ms"):
            message.throttle_time_ms = throttle_ms
