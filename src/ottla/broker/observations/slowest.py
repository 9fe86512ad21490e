"""Keeps the slowest requests of the last minutes, and what each waited for.

Two periods are kept, the present one and the one before, so that the slowest requests of a start are forgotten.
Requests that wait because nothing is available are not slow: a fetch without records, a share fetch, a member whose
group rebalances.

Invariant: each period has at most `KEPT` requests, the slowest ones.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappush, heapreplace
from typing import Final, NamedTuple

from ottla.broker.requests import Request
from ottla.machine import Millis, WallMillis
from ottla.protocol.apis import ApiKey

KEPT: Final = 32
PERIOD_MS: Final = 5 * 60_000
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


class Slowest:
    """The slowest requests of a node."""

    __slots__ = ("_before", "_ends", "_next", "_present", "least_ms")

    def __init__(self) -> None:
        self._present: list[Slow] = []
        self._before: list[Slow] = []
        self._ends: Millis = 0
        self._next = 0
        self.least_ms = SLOW_MS
        """A request that took less is not among the slowest."""

    def note(self, now: Millis, at_ms: WallMillis, request: Request, took_ms: int, awaited: Awaited) -> None:
        """A request is answered that took at least `least_ms`."""
        self.turn(now)
        if took_ms < self.least_ms:
            return
        slow = Slow(
            took_ms,
            self._next,
            at_ms,
            request.api_key,
            request.client_id[:TEXT_MAX],
            str(request.identity.principal)[:TEXT_MAX],
            request.identity.address.client_host[:TEXT_MAX],
            awaited,
        )
        self._next += 1
        if len(self._present) < KEPT:
            heappush(self._present, slow)
        else:
            heapreplace(self._present, slow)
        if len(self._present) == KEPT:
            self.least_ms = max(SLOW_MS, self._present[0].took_ms)

    def turn(self, now: Millis) -> None:
        """Begin the next period if the present one is over."""
        if now >= self._ends:
            self._before = self._present if now < self._ends + PERIOD_MS else []
            self._present = []
            self._ends = now + PERIOD_MS
            self.least_ms = SLOW_MS

    def slowest(self, now: Millis) -> list[Slow]:
        """The slowest requests of the last two periods, at most `KEPT`, the slowest first."""
        self.turn(now)
        return sorted([*self._present, *self._before], reverse=True)[:KEPT]
