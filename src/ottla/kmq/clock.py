"""Tells the time of the markers of a queue, whoever sets this machine's clock.

Knows: two readings of this machine's clocks, and timestamps that brokers gave markers. The monotonic clock measures;
how far the time of the markers is ahead of it is what the wall clock says, until somebody sets that. A marker that the
broker stamped within a moment of what the wall clock says confirms it; from then on another answer of the wall clock
counts only once a marker confirms that too.

Where the workers stamp their markers (`CreateTime`) nothing is confirmed: they may have the same wrong clock.
"""

from __future__ import annotations

from typing import Final

AGREES_MS: Final = 2_000
"""A marker that was just read and a wall clock that is right differ by less."""
SLEWED_MS: Final = 500
"""A wall clock that moved by so little at once was not set, but put right gently, and is followed."""


class MarkersClock:
    """Keeps how far the markers' time is ahead of the monotonic clock: `ahead_ms`; whether a marker has `confirmed`
    it."""

    __slots__ = ("ahead_ms", "confirmed")

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.confirmed = False

    def look(self, now: int, wall_ms: int) -> None:
        """Both clocks, read at once. Until a marker has confirmed the wall clock it is followed, then its drift."""
        ahead_ms = wall_ms - now
        if not self.confirmed or abs(ahead_ms - self.ahead_ms) <= SLEWED_MS:
            self.ahead_ms = ahead_ms

    def read(self, now: int, wall_ms: int, stamped_ms: int) -> None:
        """A marker was just read, the newest of its partition, that its broker stamped `stamped_ms`."""
        if abs(wall_ms - stamped_ms) <= AGREES_MS:
            self.ahead_ms, self.confirmed = wall_ms - now, True
