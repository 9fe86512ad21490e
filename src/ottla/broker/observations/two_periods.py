"""Keeps the largest entries of the last minutes: those of the present period, and of the one before.

So the largest entries of a start are forgotten after a while.

Invariant: each period has at most `KEPT` entries, the largest ones.
"""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import Any, Final, Generic, TypeVar

from ottla.machine import Millis

KEPT: Final = 32
PERIOD_MS: Final = 5 * 60_000

_Entry = TypeVar("_Entry", bound=tuple[Any, ...])


class TwoPeriods(Generic[_Entry]):
    """Entries that compare by what they begin with: the measure, and `number`, which is another one for each."""

    __slots__ = ("_before", "_ends", "number", "present")

    def __init__(self) -> None:
        self.present: list[_Entry] = []
        """The entries of the present period, as a heap: the smallest one first."""
        self._before: list[_Entry] = []
        self._ends: Millis = 0
        self.number = 0

    def keep(self, entry: _Entry) -> None:
        """Add an entry with the next `number`, after `turn`."""
        self.number += 1
        if len(self.present) < KEPT:
            heappush(self.present, entry)
        else:
            heappushpop(self.present, entry)

    def turn(self, now: Millis) -> bool:
        """Begin the next period if the present one is over, and return whether it was."""
        if now < self._ends:
            return False
        self._before = self.present if now < self._ends + PERIOD_MS else []
        self.present = []
        self._ends = now + PERIOD_MS
        return True

    def largest(self, now: Millis) -> list[_Entry]:
        """The largest entries of both periods, at most `KEPT`, the largest first."""
        self.turn(now)
        return sorted([*self.present, *self._before], reverse=True)[:KEPT]
