"""Keeps the sparse time index of a segment (`.timeindex`), in Kafka's format.

12-byte entries (timestamp: int64, offset - base_offset: int32). An entry says: no batch up to this offset has a greater
timestamp. Timestamps rise strictly, except that the last entry, written when the segment closes, may repeat the one
before. Like the offset index it is a hint, written with it.

Source: Kafka's TimeIndex.java. Unlike Kafka's the file is not preallocated; a preallocated one (zeros after the last
entry) is read up to there.
"""

from __future__ import annotations

from struct import Struct
from typing import ClassVar, Final

from ottla.log.files import FileSystem
from ottla.log.index.file import IndexFile, UnsoundIndexError

TIME_ENTRY: Final = Struct(">qi")


class TimeIndex(IndexFile):
    """Timestamps to offsets for one segment. Only its last entry is in memory: lookups by time are rare."""

    __slots__ = ("_base_offset", "_last")
    ENTRY: ClassVar = TIME_ENTRY

    def __init__(self, files: FileSystem, path: str, base_offset: int, *, empty: bool) -> None:
        super().__init__(files, path, entries=0 if empty else -1)
        self._base_offset = base_offset
        self._last: tuple[int, int] | None = (-1, base_offset) if empty else None

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the newest entry; (-1, base_offset) when there is none."""
        if self._last is None:
            self.load()
            assert self._last is not None
        return self._last

    def maybe_append(self, timestamp: int, offset: int, *, closing: bool = False) -> None:
        """Add an entry if it is newer than the last one. `closing` also accepts a repeated timestamp's later offset."""
        last_timestamp, last_offset = self.last()
        if timestamp > last_timestamp or (closing and timestamp == last_timestamp and offset > last_offset):
            self._pending += TIME_ENTRY.pack(timestamp, offset - self._base_offset)
            self._last = (timestamp, offset)
            self.entries += 1

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The newest entry (timestamp, offset) with a timestamp <= the one asked; (-1, base_offset) if none. Raises
        UnsoundIndexError."""
        self.last()
        low, high = 0, self.entries
        found = (-1, self._base_offset)
        while low < high:
            middle = (low + high) // 2
            entry = self._entry(middle)
            if entry[0] <= timestamp:
                found = entry
                low = middle + 1
            else:
                high = middle
        return found

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose offset is >= `offset`. Raises UnsoundIndexError, OSError."""
        self.last()
        keep = self.entries
        while keep and self._entry(keep - 1)[1] >= offset:
            keep -= 1
        self.cut(keep)

    def cut(self, entries: int) -> None:
        """Keep the first `entries` entries. Raises UnsoundIndexError, OSError."""
        self.last()
        if entries >= self.entries:
            return
        self._last = self._entry(entries - 1) if entries else (-1, self._base_offset)
        self._drop_behind(entries)

    def clear(self) -> None:
        super().clear()
        self._last = (-1, self._base_offset)

    def load(self) -> int:
        """Find the sound entries of the file. Returns how many bytes at its end were not sound."""
        size = self._handle().size() if self._files.exists(self._path) else 0
        self._pending.clear()
        self.entries = size // TIME_ENTRY.size
        if self.entries and not self._sound(self.entries - 1):  # torn, or preallocated: zeros at the end
            kept = len(self._handle().read(0, size).rstrip(b"\0"))
            self.entries = min(self.entries, -(-kept // TIME_ENTRY.size))
        while self.entries and not self._sound(self.entries - 1):
            self.entries -= 1
        self._last = self._entry(self.entries - 1) if self.entries else (-1, self._base_offset)
        return size - self.entries * TIME_ENTRY.size

    def _sound(self, at: int) -> bool:
        timestamp, offset = self._entry(at)
        if timestamp <= 0 and offset <= self._base_offset:
            return False  # preallocated zeros
        if at == 0:
            return offset >= self._base_offset
        before = self._entry(at - 1)
        return timestamp >= before[0] and offset >= before[1]

    def _entry(self, at: int) -> tuple[int, int]:
        position = at * TIME_ENTRY.size
        pending_from = self.entries * TIME_ENTRY.size - len(self._pending)
        if position >= pending_from:
            timestamp, relative = TIME_ENTRY.unpack_from(self._pending, position - pending_from)
            return timestamp, relative + self._base_offset
        octets = self._handle().read(position, TIME_ENTRY.size)
        if len(octets) < TIME_ENTRY.size:
            raise UnsoundIndexError(f"{self._path} has no entry at {position}")
        timestamp, relative = TIME_ENTRY.unpack(octets)
        return timestamp, relative + self._base_offset
