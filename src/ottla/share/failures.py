"""Remembers when records of a share partition failed first, for their dead letters.

Kept in memory alone, by the leader: the state of a share partition has no times. A time is rounded down to a second, so
that records that fail together share a range; beyond RANGES_MAX ranges, later failures are not remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.machine import Millis
from ottla.share.runs import Runs

RANGES_MAX: Final = 10_000
"""About half a megabyte for each share partition."""
STEP_MS: Final = 1_000
_UNKNOWN: Final = -1


class FirstFailures:
    """The ends of first deliveries that did not succeed, by offset."""

    __slots__ = ("_runs",)

    def __init__(self, start: int) -> None:
        self._runs: Runs[Millis] = Runs(start)

    def note(self, now: Millis, first: int, end: int) -> None:
        """The first delivery of the records from `first` up to but excluding `end` has failed."""
        runs = self._runs
        first = max(first, runs.start)
        if first < end and runs.count < RANGES_MAX:
            runs.append(end, _UNKNOWN)
            runs.assign(first, end, now - now % STEP_MS)

    def within(self, first: int, end: int) -> Iterator[tuple[int, int, Millis | None]]:
        """The ranges between two offsets with the times at which they failed first, None if it is not known."""
        for low, high, time in self._runs.within(first, end):
            if first < low:
                yield first, low, None
            yield low, high, None if time == _UNKNOWN else time
            first = high
        if first < end:
            yield first, end, None

    def forget_below(self, offset: int) -> None:
        """The records below are done."""
        self._runs.trim(offset)
