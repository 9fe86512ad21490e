"""Keeps the longest turns of the event loop of the last minutes, and what ran in each.

While one turn runs, every client of the node waits. Two periods are kept, the present one and the one before. The host
measures the turns; a simulated node has none.

Invariant: each period has at most `KEPT` turns, the longest ones.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import Final, NamedTuple

from ottla.machine import Millis, WallMillis

KEPT: Final = 32
PERIOD_MS: Final = 5 * 60_000
TEXT_MAX: Final = 100
LONG_MS: Final = 100
"""A shorter turn is not kept."""
TIMERS: Final = -1
"""The API of a turn that ran the node's timers."""


class LongTurn(NamedTuple):
    """A long turn: a request of this API and client, or timers. `timer`: the part of the node whose timer took
    longest."""

    took_ms: int
    number: int
    at_ms: WallMillis
    api_key: int
    client_id: str
    principal: str
    host: str
    timer: str = ""


class LongTurns:
    """The longest turns of a node."""

    __slots__ = ("_before", "_ends", "_next", "_present")

    def __init__(self) -> None:
        self._present: list[LongTurn] = []
        self._before: list[LongTurn] = []
        self._ends: Millis = 0
        self._next = 0

    def note(
        self,
        now: Millis,
        at_ms: WallMillis,
        took_ms: int,
        api_key: int,
        client_id: str = "",
        principal: str = "",
        host: str = "",
        timer: str = "",
    ) -> None:
        """A turn is over that took at least `LONG_MS`."""
        self._turn(now)
        texts = client_id[:TEXT_MAX], principal[:TEXT_MAX], host[:TEXT_MAX]
        turn = LongTurn(took_ms, self._next, at_ms, api_key, *texts, timer)
        self._next += 1
        if len(self._present) < KEPT:
            heappush(self._present, turn)
        else:
            heappushpop(self._present, turn)

    def _turn(self, now: Millis) -> None:
        """Begin the next period if the present one is over."""
        if now >= self._ends:
            self._before = self._present if now < self._ends + PERIOD_MS else []
            self._present = []
            self._ends = now + PERIOD_MS

    def longest(self, now: Millis) -> list[LongTurn]:
        """The longest turns of the last two periods, at most `KEPT`, the longest first."""
        self._turn(now)
        return sorted([*self._present, *self._before], reverse=True)[:KEPT]
