"""Keeps offsets by due time. Deadlines are numbers in arrays: no timers, no objects, a few bytes each.

`rounded` times group deadlines that are close together; rounding never makes one early. The caller skips entries that
no longer matter.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Final

GRANULARITY_MS: Final = 10


def rounded(time_ms: int) -> int:
    """`time_ms` rounded up to a multiple of GRANULARITY_MS, so that many deadlines share few times."""
    return -(-time_ms // GRANULARITY_MS) * GRANULARITY_MS


class Deadlines:
    """Offsets by due time; an offset may be present several times."""

    __slots__ = ("_buckets", "_times", "size")

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._times: list[int] = []
        self.size = 0
        """The number of entries, including those that no longer matter."""

    def add(self, time_ms: int, offset: int) -> None:
        bucket = self._buckets.get(time_ms)
        if bucket is None:
            bucket = self._buckets[time_ms] = array("q")
            heappush(self._times, time_ms)
        bucket.append(offset)
        self.size += 1

    def next(self) -> int | None:
        """The earliest time, in ms."""
        return self._times[0] if self._times else None

    def take(self, most: int) -> array[int]:
        """Remove and return the first offsets of the earliest time, at most `most`; the caller ensures that there is
        one."""
        bucket = self._buckets[self._times[0]]
        taken = bucket[:most]
        del bucket[:most]
        self.size -= len(taken)
        if not bucket:
            del self._buckets[heappop(self._times)]
        return taken

    def clear(self) -> None:
        self._buckets.clear()
        self._times.clear()
        self.size = 0

    def offsets(self) -> set[int]:
        """Every offset in it."""
        return {offset for bucket in self._buckets.values() for offset in bucket}
