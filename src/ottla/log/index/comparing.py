"""Compares the entries of a segment's index files with its batches, while the batches pass by in order.

The entries are read from the files, because what is in memory may have been read before another process or the disk
changed them.

An entry of the offset index points at a batch, and names its last offset. Kafka's may name the last offset of a later
batch, which was appended with that one. An entry of the time index names an offset of the first batch with the greatest
timestamp so far.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ottla.log.answers import IndexFault
from ottla.log.index.file import IndexFile
from ottla.log.index.offsets import OFFSET_ENTRY
from ottla.log.index.times import TIME_ENTRY
from ottla.log.segment import RawHeader, Segment

NEVER: Final = 1 << 63
"""Beyond every offset and position."""
CONTRADICTS: Final = "its entries do not match the batches"


class IndexComparison:
    """The comparison of one segment's index files, `size` bytes in all. `fault` is the first one found.

    `interval` is known to the owner of the files; another process may write to them otherwise, so what is at the end of
    the index of a segment that is not closed counts as unfinished. Raises OSError.
    """

    def __init__(self, segment: Segment, *, is_closed: bool, interval: int | None) -> None:
        self._segment = segment
        self._is_closed = is_closed
        self._interval = interval
        self.fault: IndexFault | None = None
        offsets = self._read(".index", segment.offset_index, OFFSET_ENTRY)
        times = self._read(".timeindex", segment.time_index, TIME_ENTRY)
        self.size = len(offsets) + len(times)
        self._offsets = OffsetEntries(offsets, segment.base_offset)
        self._times = TimeEntries(times, segment.base_offset)
        self._newest = 0
        """The position of the last batch."""

    def found(self, kind: str, why: str) -> None:
        """One of the files has a fault."""
        if self.fault is None:
            self.fault = IndexFault(f"{self._segment.path}{kind}", why)

    def _read(self, kind: str, index: IndexFile, entry: Struct) -> bytes:
        """The whole entries in the file of this kind."""
        try:
            octets = self._segment.files.read_bytes(f"{self._segment.path}{kind}")
        except FileNotFoundError:
            if self._is_closed or (self._interval is not None and index.written_bytes > 0):
                self.found(kind, "it was removed")
            return b""
        whole = len(octets) - len(octets) % entry.size
        if self._interval is None and not self._is_closed:  # Kafka fills the file of its newest segment with zeros
            return octets[: min(whole, -(-len(octets.rstrip(b"\0")) // entry.size) * entry.size)]
        if not index.is_in_place:
            self.found(kind, "it was replaced by another file")
        elif whole < len(octets) or not (self._is_closed or len(octets) == index.written_bytes):
            self.found(kind, "its size was changed")
        return octets[:whole]

    def batch(self, position: int, header: RawHeader, expected: int) -> tuple[int, int] | None:
        """Compare with the next batch, whose base offset is at least `expected`. Returns (position, first offset) of a
        batch that may claim a wrong base offset: it is behind a gap, and the index has another offset that fits
        there."""
        self._newest = position
        if not self._times.batch(header):
            self.found(".timeindex", CONTRADICTS)
        if not self._offsets.batch(position, header, expected):
            self.found(".index", CONTRADICTS)
        return self._offsets.doubtful

    def end(self) -> IndexFault | None:
        """All batches have passed by. Returns the fault."""
        if not self._offsets.is_through:
            self.found(".index", CONTRADICTS)
        elif self._is_closed and self._interval is not None:
            if self._newest - self._offsets.newest > self._interval:
                self.found(".index", "its last entries are missing")
            if self._times.newest < self._times.greatest:
                self.found(".timeindex", "its last entries are missing")
        if not self._times.is_through:
            self.found(".timeindex", CONTRADICTS)
        return self.fault


class OffsetEntries:
    """The entries of an offset index. `newest`: the position in the last one that matched."""

    def __init__(self, octets: bytes, base_offset: int) -> None:
        self._left = OFFSET_ENTRY.iter_unpack(octets)
        self._base_offset = base_offset
        self.newest = 0
        self.doubtful: tuple[int, int] | None = None
        """The place of a batch behind a gap, which has another offset in the index; the next batch shows whether that
        offset fits there."""
        self._in_question: tuple[int, int] | None = None
        self._advance()

    @property
    def is_through(self) -> bool:
        """Whether every entry has matched a batch."""
        return self._position == NEVER

    def _advance(self) -> None:
        entry = next(self._left, None)
        self._offset, self._position = (NEVER, NEVER) if entry is None else (self._base_offset + entry[0], entry[1])
        self._is_met = False
        self._in_question = None

    def batch(self, position: int, header: RawHeader, expected: int) -> bool:
        """Whether the entries agree with the next batch; not called again after False."""
        if position < self._position:
            return True
        base, last = header[0], header[0] + header[6]
        if position == self._position:
            self._is_met = True
            if base > expected and self._offset - header[6] >= expected:
                self._in_question = (position, expected)
        elif not self._is_met:
            return self._stop()
        if last < self._offset:
            return True
        if last == self._offset:
            self.newest = self._position
            self._advance()
            return True
        if self._in_question is not None and (position == self._position or self._offset < base):
            self.doubtful = self._in_question
        return self._stop()

    def _stop(self) -> bool:
        self._offset = self._position = NEVER
        return False


class TimeEntries:
    """The entries of a time index. `newest`: the timestamp in the last one that matched; `greatest`: of all batches."""

    def __init__(self, octets: bytes, base_offset: int) -> None:
        self._left = TIME_ENTRY.iter_unpack(octets)
        self._base_offset = base_offset
        self.newest = self.greatest = -1
        self._advance()

    @property
    def is_through(self) -> bool:
        """Whether every entry has matched a batch."""
        return self._offset == NEVER

    def _advance(self) -> None:
        entry = next(self._left, None)
        self._timestamp, self._offset = (-1, NEVER) if entry is None else (entry[0], self._base_offset + entry[1])

    def batch(self, header: RawHeader) -> bool:
        """Whether the entries agree with the next batch."""
        base, last, timestamp = header[0], header[0] + header[6], header[8]
        if timestamp > self.greatest:
            self.greatest = timestamp
        while self._offset <= last:
            if self._offset < base or not self._timestamp == timestamp == self.greatest:
                self._offset = NEVER
                return False
            self.newest = timestamp
            self._advance()
        return True
