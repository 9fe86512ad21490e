"""Estimates the time of a queue's markers, even if someone changes this machine's wall clock.

The monotonic clock measures elapsed time. The wall clock gives the offset from it to the markers' time, until someone
sets the wall clock. A marker whose broker timestamp is within `AGREES_MS` of the wall clock confirms the offset. From
then on a jump of the wall clock counts only after a marker confirms the new reading too.

If the workers stamp their markers (`CreateTime`), nothing is confirmed: they may share the same wrong clock.
"""

from __future__ import annotations

from typing import Final

AGREES_MS: Final = 2_000
"""The largest difference between the timestamp of a marker that was just read and a correct wall clock."""
SLEWED_MS: Final = 500
"""A change of the wall clock up to this size is slewing (gradual adjustment), and is followed."""


class MarkersClock:
    """Keeps `ahead_ms`, the offset from the monotonic clock to the markers' time, and whether a marker has `confirmed`
    it."""

    __slots__ = ("ahead_ms", "confirmed")

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.confirmed = False

    def look(self, now: int, wall_ms: int) -> None:
        """Update from both clocks, read at once: follow the wall clock until a marker confirms it, then only its
        drift."""
        ahead_ms = wall_ms - now
        if not self.confirmed or abs(ahead_ms - self.ahead_ms) <= SLEWED_MS:
            self.ahead_ms = ahead_ms

    def read(self, now: int, wall_ms: int, stamped_ms: int) -> None:
        """Update from a marker that was just read, the newest of its partition, with the broker timestamp
        `stamped_ms`."""
        if abs(wall_ms - stamped_ms) <= AGREES_MS:
            self.ahead_ms, self.confirmed = wall_ms - now, True
