"""Keeps the times at which ranges of offsets are due: ends of locks and of delays.

Times are rounded up to GRANULARITY_MS, so that deadlines that are close together share an entry. The caller checks the
records of a due range itself, so an obsolete entry costs only its 16 bytes.

A million records released one by one within a second need fifty arrays of numbers. No timers, no objects.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Final

from ottla.machine import Millis

GRANULARITY_MS: Final = 20


def rounded(time_ms: Millis) -> Millis:
    """`time_ms` rounded up to the granularity of deadlines."""
    return -(-time_ms // GRANULARITY_MS) * GRANULARITY_MS


class Deadlines:
    """Ranges of offsets by due time."""

    __slots__ = ("_buckets", "_times")

    def __init__(self) -> None:
        self._buckets: dict[Millis, array[int]] = {}
        self._times: list[Millis] = []

    def __len__(self) -> int:
        return sum(len(bucket) // 2 for bucket in self._buckets.values())

    def add(self, time_ms: Millis, first: int, end: int) -> None:
        """Offsets from `first` up to but excluding `end` are due at `time_ms`, which is rounded already."""
        bucket = self._buckets.get(time_ms)
        if bucket is None:
            bucket = self._buckets[time_ms] = array("q")
            heappush(self._times, time_ms)
        elif bucket and bucket[-1] == first:
            bucket[-1] = end
            return
        bucket.append(first)
        bucket.append(end)

    def next(self) -> Millis | None:
        return self._times[0] if self._times else None

    def next_range(self, now: Millis) -> tuple[int, int] | None:
        """Remove and return a range that is due, the earliest first."""
        while self._times and self._times[0] <= now:
            bucket = self._buckets[self._times[0]]
            if bucket:
                end = bucket.pop()
                return bucket.pop(), end
            del self._buckets[heappop(self._times)]
        return None

    def put_back(self, first: int, end: int) -> None:
        """Put back the unprocessed rest of the range that `next_range` just returned."""
        self._buckets[self._times[0]].extend((first, end))
