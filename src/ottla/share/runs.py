"""Maps a range of offsets to values, as sorted runs: the only representation of a share partition's records.

Every offset of [start, end) has a value. Neighbouring runs with equal values are one run, except where two chunks meet.

A chunk has two lists, first offsets and values. A run ends where the next one begins, so no second number has to be
kept consistent. A million runs take about 50 MB, and a change in their middle moves one chunk's pointers, not a
million.

Invariants (`check`): chunks are never empty, and their first offsets ascend without a gap between `start` and `end`. No
chunk is longer than RUNS_PER_CHUNK_MAX.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

RUNS_PER_CHUNK_MAX: Final = 1024
RUNS_PER_CHUNK_FEW: Final = 128
"""A chunk that shrinks below this is merged with a neighbour that has room for it."""

V = TypeVar("V")


class Runs(Generic[V]):
    """Offsets from `start` up to but excluding `end`, each with a value. Values are compared with ==."""

    __slots__ = ("_chunk_firsts", "_chunks", "count", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.count = 0
        """The number of runs."""
        self._chunk_firsts: list[int] = []
        self._chunks: list[tuple[list[int], list[V]]] = []

    def append(self, end: int, value: V) -> None:
        """Grow to `end`; the new offsets have this value."""
        if end <= self.end:
            return
        if not self._chunks:
            self._chunks.append(([self.end], [value]))
            self._chunk_firsts.append(self.end)
            self.count = 1
        else:
            firsts, values = self._chunks[-1]
            if values[-1] != value:
                firsts.append(self.end)
                values.append(value)
                self.count += 1
                if len(firsts) > RUNS_PER_CHUNK_MAX:
                    self._split(len(self._chunks) - 1)
        self.end = end

    def assign(self, first: int, end: int, value: V) -> None:
        """Give offsets from `first` up to but excluding `end` this value. They must be within [start, end)."""
        assert self.start <= first < end <= self.end, (self.start, first, end, self.end)
        chunk_firsts = self._chunk_firsts
        at = bisect_right(chunk_firsts, first) - 1
        firsts, values = self._chunks[at]
        chunk_end = chunk_firsts[at + 1] if at + 1 < len(chunk_firsts) else self.end
        if end > chunk_end:
            self._join(at, bisect_left(chunk_firsts, end) - 1)
            chunk_end = chunk_firsts[at + 1] if at + 1 < len(chunk_firsts) else self.end
        low = bisect_right(firsts, first) - 1
        high = bisect_left(firsts, end, low)
        new_firsts, new_values = [first], [value]
        if end < chunk_end and (high == len(firsts) or firsts[high] != end):
            old = values[high - 1]  # the run that contains end - 1 continues after the new one
            if old != value:
                new_firsts.append(end)
                new_values.append(old)
        elif high < len(firsts) and values[high] == value:
            high += 1
        if firsts[low] < first:
            if values[low] == value:
                new_firsts[0] = firsts[low]
            else:
                low += 1
        elif low and values[low - 1] == value:
            low -= 1
            new_firsts[0] = firsts[low]
        firsts[low:high] = new_firsts
        values[low:high] = new_values
        self.count += len(new_firsts) - (high - low)
        if len(firsts) > RUNS_PER_CHUNK_MAX:
            self._split(at)
        elif len(firsts) < RUNS_PER_CHUNK_FEW and len(self._chunks) > 1:
            self._lean(at)

    def trim(self, start: int) -> None:
        """Drop every offset below `start`; if `start` is beyond `end`, the map becomes empty there."""
        if start <= self.start:
            return
        if start >= self.end:
            self._chunks.clear()
            self._chunk_firsts.clear()
            self.count = 0
            self.start = self.end = start
            return
        gone = bisect_right(self._chunk_firsts, start) - 1
        if gone:
            self.count -= sum(len(firsts) for firsts, _ in self._chunks[:gone])
            del self._chunks[:gone]
            del self._chunk_firsts[:gone]
        firsts, values = self._chunks[0]
        low = bisect_right(firsts, start) - 1
        if low:
            del firsts[:low]
            del values[:low]
            self.count -= low
        firsts[0] = start
        self._chunk_firsts[0] = start
        self.start = start

    def cut(self, end: int) -> None:
        """Drop every offset from `end` on."""
        if end >= self.end:
            return
        if end <= self.start:
            self._chunks.clear()
            self._chunk_firsts.clear()
            self.count = 0
            self.start = self.end = end
            return
        at = bisect_left(self._chunk_firsts, end) - 1
        del self._chunks[at + 1 :]
        del self._chunk_firsts[at + 1 :]
        firsts, values = self._chunks[at]
        high = bisect_left(firsts, end)
        del firsts[high:]
        del values[high:]
        self.end = end
        self.count = sum(len(firsts) for firsts, _ in self._chunks)

    def at(self, offset: int) -> tuple[int, int, V]:
        """(first, end, value) of the run that contains `offset`, which must be within [start, end)."""
        assert self.start <= offset < self.end, (self.start, offset, self.end)
        at = bisect_right(self._chunk_firsts, offset) - 1
        firsts, values = self._chunks[at]
        low = bisect_right(firsts, offset) - 1
        if low + 1 < len(firsts):
            return firsts[low], firsts[low + 1], values[low]
        end = self._chunk_firsts[at + 1] if at + 1 < len(self._chunk_firsts) else self.end
        return firsts[low], end, values[low]

    def first_run(self) -> tuple[int, V] | None:
        """(end, value) of the run at `start`; None if the map is empty."""
        if not self._chunks:
            return None
        firsts, values = self._chunks[0]
        if len(firsts) > 1:
            return firsts[1], values[0]
        return (self._chunk_firsts[1] if len(self._chunk_firsts) > 1 else self.end), values[0]

    def within(self, first: int, end: int) -> Iterator[tuple[int, int, V]]:
        """(first, end, value) of every run in [first, end), cut to it. The map must not change meanwhile."""
        first = max(first, self.start)
        end = min(end, self.end)
        if first >= end:
            return
        chunks, chunk_firsts = self._chunks, self._chunk_firsts
        at = bisect_right(chunk_firsts, first) - 1
        firsts, values = chunks[at]
        low = bisect_right(firsts, first) - 1
        while True:
            count = len(firsts)
            while low + 1 < count:
                stop = firsts[low + 1]
                if stop >= end:
                    yield first, end, values[low]
                    return
                yield first, stop, values[low]
                first = stop
                low += 1
            at += 1
            if at == len(chunks) or chunk_firsts[at] >= end:
                yield first, end, values[low]
                return
            yield first, chunk_firsts[at], values[low]
            first = chunk_firsts[at]
            firsts, values = chunks[at]
            low = 0

    def _join(self, low: int, high: int) -> None:
        """Merge chunks `low` to `high`; the result may be too long for now."""
        firsts, values = self._chunks[low]
        for more_firsts, more_values in self._chunks[low + 1 : high + 1]:
            same = values[-1] == more_values[0]
            self.count -= same
            firsts += more_firsts[same:]
            values += more_values[same:]
        del self._chunks[low + 1 : high + 1]
        del self._chunk_firsts[low + 1 : high + 1]

    def _lean(self, at: int) -> None:
        """Merge a chunk with few runs into a neighbour, so that thousands of them do not accumulate."""
        low = at - 1 if at else at
        if len(self._chunks[low][0]) + len(self._chunks[low + 1][0]) <= RUNS_PER_CHUNK_MAX // 2:
            self._join(low, low + 1)

    def _split(self, at: int) -> None:
        """Split this chunk into chunks of half the maximum length."""
        firsts, values = self._chunks[at]
        half = RUNS_PER_CHUNK_MAX // 2
        pieces = [(firsts[i : i + half], values[i : i + half]) for i in range(0, len(firsts), half)]
        self._chunks[at : at + 1] = pieces
        self._chunk_firsts[at : at + 1] = [piece[0][0] for piece in pieces]

    def check(self) -> None:
        assert len(self._chunks) == len(self._chunk_firsts)
        assert bool(self._chunks) == (self.start < self.end)
        assert self.count == sum(len(firsts) for firsts, _ in self._chunks)
        previous = self.start - 1
        for (firsts, values), chunk_first in zip(self._chunks, self._chunk_firsts, strict=True):
            assert 0 < len(firsts) == len(values) <= RUNS_PER_CHUNK_MAX
            assert firsts[0] == chunk_first
            for i, first in enumerate(firsts):
                assert first > previous
                assert i == 0 or values[i - 1] != values[i], f"two runs at {first} are one"
                previous = first
        assert not self._chunks or (self._chunk_firsts[0] == self.start and previous < self.end)
