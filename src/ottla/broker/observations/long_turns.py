"""Keeps the longest turns of the event loop of the last minutes, and what ran in each.

While one turn runs, every client of the node waits. The host measures the turns; a simulated node has none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.broker.observations.two_periods import TwoPeriods
from ottla.machine import Millis, WallMillis

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


class LongTurns(TwoPeriods[LongTurn]):
    """The longest turns of a node."""

    __slots__ = ()

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
        self.turn(now)
        texts = client_id[:TEXT_MAX], principal[:TEXT_MAX], host[:TEXT_MAX]
        self.keep(LongTurn(took_ms, self.number, at_ms, api_key, *texts, timer))
