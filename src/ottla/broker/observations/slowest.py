"""Keeps the slowest requests of the last minutes, and what each waited for.

Requests that wait because nothing is available are not slow: a fetch without records, a share fetch, a member whose
group rebalances.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from ottla.broker.observations.two_periods import KEPT, TwoPeriods
from ottla.broker.requests import Request
from ottla.machine import Millis, WallMillis
from ottla.protocol.apis import ApiKey

SLOW_MS: Final = 10
"""A faster request is not kept."""
TEXT_MAX: Final = 100
WAIT_FOR_MEMBERS: Final = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
"""APIs whose requests wait for other members of a group."""


class Awaited(IntEnum):
    """Reasons for a request to wait. The values are those of the wire."""

    WORK = 0
    """Its own work, in turns with that of other clients."""
    REPLICAS = 1
    """The other in-sync replicas (acks=all)."""
    DISK = 2
    """An fsync."""
    MIN_BYTES = 3
    """More records, although some were available (fetch.min.bytes)."""
    COORDINATOR = 4
    """A coordinator's records, which had to be committed first."""
    CONTROLLER = 5
    """A change of the cluster's metadata, or an answer of another node."""
    PASSWORDS = 6
    """The threads that compute salted passwords, or the keys of an authorization server."""


class Slow(NamedTuple):
    """A slow request: `took_ms` from its arrival to its answer."""

    took_ms: int
    number: int
    at_ms: WallMillis
    api_key: int
    client_id: str
    principal: str
    host: str
    awaited: Awaited


class Slowest(TwoPeriods[Slow]):
    """The slowest requests of a node."""

    __slots__ = ("least_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.least_ms = SLOW_MS
        """A request that took less is not among the slowest."""

    def note(self, now: Millis, at_ms: WallMillis, request: Request, took_ms: int, awaited: Awaited) -> None:
        """A request is answered that took at least `least_ms`."""
        self.turn(now)
        if took_ms < self.least_ms:
            return
        slow = Slow(
            took_ms,
            self.number,
            at_ms,
            request.api_key,
            request.client_id[:TEXT_MAX],
            str(request.identity.principal)[:TEXT_MAX],
            request.identity.address.client_host[:TEXT_MAX],
            awaited,
        )
        self.keep(slow)
        if len(self.present) == KEPT:
            self.least_ms = max(SLOW_MS, self.present[0].took_ms)

    def turn(self, now: Millis) -> bool:
        """Begin the next period if the present one is over, and return whether it was."""
        is_next = super().turn(now)
        if is_next:
            self.least_ms = SLOW_MS
        return is_next
