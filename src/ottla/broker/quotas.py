"""Charges requests for what clients use of a node, in one place, before the answer is encoded.

A throttled client gets its answer at once, with the throttle time. Nothing more is read from its connection until that
time has passed. `Quotas` (`client_quotas`) holds the quotas themselves. A node has none, and charges nothing, while the
cluster has none.

Sources: KIP-13, KIP-124, KIP-219; Kafka's ClientQuotaManager.java, ClientRequestQuotaManager.java, KafkaApis.scala.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Identity
from ottla.broker.effects import Mute, Outbox
from ottla.broker.requests import Request
from ottla.machine import Millis
from ottla.protocol.apis import ApiKey

_OF_LOGIN: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
"""Kafka charges nothing for these either. A node of the cluster is not known before they are served."""


class Quotas(Protocol):
    """Decides which clients are above their quota."""

    def charge(self, now: Millis, channel: Channel, client_id: str, *, produced: int, fetched: int) -> int:
        """Charge the sender for one request: the bytes that it produces, or that its answer returns to a consumer.

        Sets the channel's `charged_as`: `spent` is called only if there is one.

        Returns how many milliseconds the client is throttled, because of these bytes or of the time that its requests
        have taken; 0 if it is within its quotas.
        """
        ...

    def uncharge(self, now: Millis, channel: Channel, client_id: str, *, fetched: int) -> None:
        """These bytes do not leave: a throttled fetch is answered without records."""
        ...

    def spent(self, now: Millis, channel: Channel, micros: int) -> None:
        """Serving the last request of this connection took this long; work done after it had to wait is not counted."""
        ...

    def mutated(self, now: Millis, identity: Identity, client_id: str, partitions: int, *, strict: bool) -> int:
        """Charge the sender for partitions that are to be created or deleted.

        Returns how many milliseconds the client is throttled. If `strict`, and the client is above its quota already,
        nothing is counted and the change must be refused.
        """
        ...

    def fetched_max(self, channel: Channel, client_id: str) -> int | None:
        """The most bytes for which a fetch can ever be within its quota; None if it has no quota."""
        ...


class Throttle:
    """Charges requests, and mutes the connections of clients that have used too much."""

    __slots__ = ("_outbox", "quotas")

    def __init__(self, outbox: Outbox) -> None:
        self.quotas: Quotas | None = None
        self._outbox = outbox

    def charge(
        self, now: Millis, channel: Channel, client_id: str | None, *, produced: int = 0, fetched: int = 0
    ) -> int:
        """For how many milliseconds the client behind this request is throttled; asked once for each request."""
        if self.quotas is None:
            return 0
        throttle_ms = self.quotas.charge(now, channel, client_id or "", produced=produced, fetched=fetched)
        if throttle_ms > 0:
            self._mute(now, channel, throttle_ms)
        return throttle_ms

    def charge_fetch(self, now: Millis, channel: Channel, client_id: str | None, fetched: int) -> int:
        """As `charge`, for a fetch that is answered without records if it is throttled."""
        throttle_ms = self.charge(now, channel, client_id, fetched=fetched)
        if throttle_ms and self.quotas is not None:
            self.quotas.uncharge(now, channel, client_id or "", fetched=fetched)
        return throttle_ms

    def fetched_max(self, channel: Channel, client_id: str | None, wanted: int) -> int:
        """How many of the bytes that are wanted a fetch may be answered with."""
        most = None if self.quotas is None else self.quotas.fetched_max(channel, client_id or "")
        return wanted if most is None else min(wanted, most)

    def charge_appended(self, now: Millis, request: Request) -> None:
        """Charge a request for the bytes that it has produced, before it is answered.

        Later requests of its client are served meanwhile, but not once it is throttled.
        """
        request.throttled_until = now + self.charge(now, request.channel, request.client_id, produced=request.produced)
        request.produced = 0

    def charge_message(self, now: Millis, request: Request, message: Any) -> None:
        """As `charge`, for a request that is answered with this message, which reports the throttle time if it can.

        The time is longer if the message already has one, because of what the request has changed here or at the
        controller.
        """
        told_ms = getattr(message, "throttle_time_ms", None)
        if self.quotas is None and not told_ms and request.throttled_until <= now:
            return
        if request.api_key in _OF_LOGIN:
            return
        throttle_ms = self.charge(now, request.channel, request.client_id, produced=request.produced)
        throttle_ms = max(throttle_ms, request.throttled_until - now)
        if told_ms is None:
            return
        if told_ms > throttle_ms:
            self._mute(now, request.channel, told_ms)
        elif throttle_ms:
            message.throttle_time_ms = throttle_ms

    def _mute(self, now: Millis, channel: Channel, throttle_ms: int) -> None:
        channel.mute(True)
        channel.record.throttled_ms += throttle_ms
        self._outbox.add(Mute(channel.identity.address.connection_id, now + throttle_ms))

    def mutations(self, request: Request, strict_since: int = 0) -> Mutations:
        """The partition mutations of this request, to be charged. `strict_since`: the first version that knows
        THROTTLING_QUOTA_EXCEEDED."""
        return Mutations(self, request, strict=request.version >= strict_since)


class Mutations:
    """Charges one request for the partitions that it creates and deletes, on the controller.

    `throttle_ms`: how long its client is throttled because of them, for the answer.
    """

    __slots__ = ("_charged", "_request", "_strict", "_throttle", "throttle_ms")

    def __init__(self, throttle: Throttle, request: Request, *, strict: bool) -> None:
        self._throttle = throttle
        self._request = request
        self._strict = strict
        self._charged: set[str | bytes] = set()
        self.throttle_ms = 0

    def allows(self, now: Millis, topic: str | bytes, partitions: int) -> bool:
        """Count this many partitions of the topic. False if the client is above its quota and must be refused.

        A topic that is planned again is counted once.
        """
        quotas = self._throttle.quotas
        if quotas is None or topic in self._charged:
            return True
        request = self._request
        wait_ms = quotas.mutated(now, request.identity, request.client_id, partitions, strict=self._strict)
        self.throttle_ms = max(self.throttle_ms, wait_ms)
        if wait_ms and self._strict:
            return False
        self._charged.add(topic)
        return True
