"""The two sparse indexes of a segment, in Kafka's format.

`.index`: 8-byte entries (offset - base_offset: int32, position: int32), both strictly rising. An entry names the last
offset of a batch and where that batch begins, so the floor of an offset is a place at or before its batch.
`.timeindex`: 12-byte entries (timestamp: int64, offset - base_offset: int32). An entry says: no batch up to this offset
has a greater timestamp. Timestamps rise strictly, except that the last entry, written when the segment closes, may
repeat the one before.

An index is only ever a hint that can be rebuilt from the segment. Entries are buffered and written INDEX_FLUSH_ENTRIES
at a time, so a killed process leaves an index that is short by at most that many entries, and never wrong. Entries
that the disk does not take stay buffered, and what a failed write left of them is cut off before the next one.

Source: Kafka's OffsetIndex.java, TimeIndex.java. Unlike Kafka's the files are not preallocated; a preallocated one
(zeros after the last entry) is read up to the first entry that does not rise.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from itertools import islice
from struct import Struct
from typing import Final

from ottla.log.files import File, FileSystem

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")
INDEX_FLUSH_ENTRIES: Final = 64
INDEX_CACHE_BYTES_MAX: Final = 16 << 20
RELATIVE_OFFSET_MAX: Final = 2**31 - 1


class IndexCache:
    """Which closed segments' offset indexes are in memory: the most recently used, up to `bytes_max` in all."""

    def __init__(self, bytes_max: int = INDEX_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._loaded: OrderedDict[OffsetIndex, int] = OrderedDict()

    def touched(self, index: OffsetIndex) -> None:
        if index in self._loaded:
            self._loaded.move_to_end(index)
            return
        size = index.entries * OFFSET_ENTRY.size
        self._loaded[index] = size
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._loaded) > 1:
            oldest, size = self._loaded.popitem(last=False)
            self._bytes -= size
            oldest.unload()

    def forget(self, index: OffsetIndex) -> None:
        self._bytes -= self._loaded.pop(index, 0)


class OffsetIndex:
    """Offsets to positions for one segment. In memory while the segment is active, loaded on demand afterwards."""

    __slots__ = (
        "_base_offset",
        "_cache",
        "_dirty",
        "_file",
        "_files",
        "_offsets",
        "_path",
        "_pending",
        "_pinned_in_memory",
        "_positions",
        "entries",
    )

    def __init__(self, files: FileSystem, path: str, base_offset: int, cache: IndexCache, *, active: bool) -> None:
        self._files = files
        self._path = path
        self._base_offset = base_offset
        self._cache = cache
        self._pinned_in_memory = active
        self._offsets: array[int] | None = array("i") if active else None
        self._positions: array[int] | None = array("i") if active else None
        self._pending = bytearray()
        self._file: File | None = None
        self._dirty = False
        self.entries = 0

    @property
    def size_bytes(self) -> int:
        """How long the file is when everything is written."""
        if self._offsets is None:
            return self._files.size(self._path) if self._files.exists(self._path) else 0
        return self.entries * OFFSET_ENTRY.size

    def append(self, last_offset: int, position: int) -> None:
        offsets, positions = self._arrays()
        relative = last_offset - self._base_offset
        offsets.append(relative)
        positions.append(position)
        self.entries += 1
        self._pending += OFFSET_ENTRY.pack(relative, position)

    @property
    def in_memory(self) -> bool:
        return self._offsets is not None

    @property
    def pending_entries(self) -> int:
        return len(self._pending) // OFFSET_ENTRY.size

    def lookup(self, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`; 0 when the index has nothing lower."""
        offsets, positions = self._arrays()
        at = bisect_right(offsets, offset - self._base_offset)
        return positions[at - 1] if at else 0

    def boundary(self, position: int) -> int:
        """The greatest indexed batch start at or before `position`; 0 when there is none."""
        _, positions = self._arrays()
        at = bisect_right(positions, position)
        return positions[at - 1] if at else 0

    def boundary_after(self, position: int) -> int | None:
        """The smallest indexed batch start behind `position`; None when there is none."""
        _, positions = self._arrays()
        at = bisect_right(positions, position)
        return positions[at] if at < len(positions) else None

    def last(self) -> tuple[int, int] | None:
        """(last offset, position) of the newest entry."""
        offsets, positions = self._arrays()
        return (self._base_offset + offsets[-1], positions[-1]) if offsets else None

    def last_on_disk(self) -> tuple[int, int] | None:
        """`last`, of a closed segment, without reading the whole index."""
        if not self._files.exists(self._path):
            return None
        size = self._files.size(self._path)
        if size < OFFSET_ENTRY.size:
            return None
        size -= size % OFFSET_ENTRY.size
        relative, position = OFFSET_ENTRY.unpack(self._handle().read(size - OFFSET_ENTRY.size, OFFSET_ENTRY.size))
        return self._base_offset + relative, position

    def flush(self) -> None:
        """Write the buffered entries. Raises OSError, after which they are buffered still."""
        if self._pending:
            _write_at(self._handle(), self.entries * OFFSET_ENTRY.size - len(self._pending), self._pending)
            self._pending = bytearray()
            self._dirty = True

    def touch(self) -> None:
        """Make sure the file is there, though perhaps empty: Kafka's tools expect one beside each segment."""
        self._handle()

    def cut(self, entries: int) -> None:
        """Keep the first `entries` entries."""
        offsets, positions = self._arrays()
        if entries >= len(offsets):
            return
        persisted = self.entries - self.pending_entries
        del offsets[entries:]
        del positions[entries:]
        self.entries = entries
        if entries < persisted:
            self._pending.clear()
            self._handle().truncate(entries * OFFSET_ENTRY.size)
            self._dirty = True
        else:
            del self._pending[(entries - persisted) * OFFSET_ENTRY.size :]

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose last offset is >= `offset`."""
        offsets, _ = self._arrays()
        self.cut(bisect_right(offsets, offset - self._base_offset - 1))

    def load(self) -> int:
        """Read the file and keep its sound entries. Returns how many bytes at the end of the file were not sound."""
        try:
            raw = self._files.read_bytes(self._path)
        except FileNotFoundError:
            raw = b""
        whole = len(raw) - len(raw) % OFFSET_ENTRY.size
        flat = array("i", raw[:whole])
        flat.byteswap()
        offsets, positions = flat[::2], flat[1::2]
        sound = _rising_prefix(offsets, positions)
        del offsets[sound:]
        del positions[sound:]
        self._offsets, self._positions = offsets, positions
        self.entries = sound
        self._pending.clear()
        return len(raw) - sound * OFFSET_ENTRY.size

    def cut_file(self) -> None:
        """Make the file as long as what `load` found sound, so that appending continues in the right place."""
        self._handle().truncate(self.entries * OFFSET_ENTRY.size)
        self._dirty = True

    def deactivate(self) -> None:
        """The segment is closed: write what is left, and let the memory go when the cache needs it."""
        self.flush()
        self._pinned_in_memory = False
        if self._offsets is not None:
            self._cache.touched(self)

    def activate(self) -> None:
        """The segment is (again) the one appended to: entries stay in memory."""
        self._arrays()
        self._cache.forget(self)
        self._pinned_in_memory = True

    def unload(self) -> None:
        """Called by the cache."""
        if not self._pinned_in_memory:
            self._offsets = self._positions = None

    def dirty_files(self) -> list[File]:
        """The file, if it was written since it was last handed out here."""
        if self._dirty and self._file is not None:
            self._dirty = False
            return [self._file]
        return []

    def unsynced(self) -> None:
        """What was handed out did not reach the disk."""
        self._dirty = self._file is not None

    def rewrite(self) -> None:
        """Write what the file holds once more, as an fsync that failed asks for. Raises OSError."""
        if self._files.exists(self._path):
            self._handle().rewrite(0, durable=False)
            self._dirty = True

    def moved(self, path: str) -> None:
        self._path = path

    def close(self) -> None:
        self._cache.forget(self)
        self._offsets = self._positions = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _handle(self) -> File:
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        return self._file

    def _arrays(self) -> tuple[array[int], array[int]]:
        if self._offsets is None or self._positions is None:
            self.load()
            assert self._offsets is not None
            assert self._positions is not None
            if not self._pinned_in_memory:
                self._cache.touched(self)
        elif not self._pinned_in_memory:
            self._cache.touched(self)
        return self._offsets, self._positions


def _write_at(handle: File, end: int, octets: bytearray) -> None:
    """Append to a file that should end at `end`: what is behind it is left of a write that failed half way."""
    if handle.size() > end:
        handle.truncate(end)
    handle.write(octets)


def _rising_prefix(offsets: array[int], positions: array[int]) -> int:
    """How many leading entries rise strictly in both columns: fast for the sound file, exact for the torn one."""
    count = len(offsets)
    if _strictly_rising(offsets) and _strictly_rising(positions):
        return count
    for at in range(1, count):
        if offsets[at] <= offsets[at - 1] or positions[at] <= positions[at - 1]:
            return 0 if at == 1 and offsets[0] <= 0 and positions[0] == 0 else at
    return count


def _strictly_rising(column: array[int]) -> bool:
    return all(map(int.__lt__, column, islice(column, 1, None)))


class TimeIndex:
    """Timestamps to offsets for one segment. Only its last entry is in memory: lookups by time are rare."""

    __slots__ = ("_base_offset", "_dirty", "_file", "_files", "_last", "_path", "_pending", "entries")

    def __init__(self, files: FileSystem, path: str, base_offset: int, *, empty: bool) -> None:
        self._files = files
        self._path = path
        self._base_offset = base_offset
        self._pending = bytearray()
        self._file: File | None = None
        self._dirty = False
        self._last: tuple[int, int] | None = (-1, base_offset) if empty else None
        self.entries = 0 if empty else -1

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the newest entry; (-1, base_offset) when there is none."""
        if self._last is None:
            self.load()
            assert self._last is not None
        return self._last

    def maybe_append(self, timestamp: int, offset: int, *, closing: bool = False) -> None:
        """Add an entry if it is newer than the last one. `closing` also takes a repeated timestamp's later offset."""
        last_timestamp, last_offset = self.last()
        if timestamp > last_timestamp or (closing and timestamp == last_timestamp and offset > last_offset):
            self._pending += TIME_ENTRY.pack(timestamp, offset - self._base_offset)
            self._last = (timestamp, offset)
            self.entries += 1

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The newest entry (timestamp, offset) with a timestamp <= the one asked; (-1, base_offset) if none."""
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

    def flush(self) -> None:
        """Write the buffered entries. Raises OSError, after which they are buffered still."""
        if self._pending:
            _write_at(self._handle(), self.entries * TIME_ENTRY.size - len(self._pending), self._pending)
            self._pending = bytearray()
            self._dirty = True

    def touch(self) -> None:
        self._handle()

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose offset is >= `offset`."""
        self.last()
        keep = self.entries
        while keep and self._entry(keep - 1)[1] >= offset:
            keep -= 1
        self.cut(keep)

    def cut(self, entries: int) -> None:
        """Keep the first `entries` entries."""
        self.last()
        if entries >= self.entries:
            return
        persisted = self.entries - len(self._pending) // TIME_ENTRY.size
        if entries < persisted:
            self._pending.clear()
            self._handle().truncate(entries * TIME_ENTRY.size)
            self._dirty = True
        else:
            del self._pending[(entries - persisted) * TIME_ENTRY.size :]
        self.entries = entries
        self._last = self._entry(entries - 1) if entries else (-1, self._base_offset)

    def load(self) -> int:
        """Find the sound entries of the file. Returns how many bytes at its end were not sound."""
        size = self._files.size(self._path) if self._files.exists(self._path) else 0
        self._pending.clear()
        self.entries = size // TIME_ENTRY.size
        if self.entries and not self._sound(self.entries - 1):  # torn, or preallocated: zeros at the end
            kept = len(self._files.read_bytes(self._path).rstrip(b"\0"))
            self.entries = min(self.entries, -(-kept // TIME_ENTRY.size))
        while self.entries and not self._sound(self.entries - 1):
            self.entries -= 1
        self._last = self._entry(self.entries - 1) if self.entries else (-1, self._base_offset)
        return size - self.entries * TIME_ENTRY.size

    def cut_file(self) -> None:
        """Make the file as long as what `load` found sound."""
        self._handle().truncate(self.entries * TIME_ENTRY.size)
        self._dirty = True

    def dirty_files(self) -> list[File]:
        if self._dirty and self._file is not None:
            self._dirty = False
            return [self._file]
        return []

    def unsynced(self) -> None:
        """What was handed out did not reach the disk."""
        self._dirty = self._file is not None

    def rewrite(self) -> None:
        """Write what the file holds once more, as an fsync that failed asks for. Raises OSError."""
        if self._files.exists(self._path):
            self._handle().rewrite(0, durable=False)
            self._dirty = True

    def moved(self, path: str) -> None:
        self._path = path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def size_bytes(self) -> int:
        self.last()
        return self.entries * TIME_ENTRY.size

    def _sound(self, at: int) -> bool:
        timestamp, offset = self._entry(at)
        if timestamp <= 0 and offset <= self._base_offset:
            return False  # preallocated zeros
        if at == 0:
            return True
        before = self._entry(at - 1)
        return timestamp >= before[0] and offset >= before[1]

    def _entry(self, at: int) -> tuple[int, int]:
        position = at * TIME_ENTRY.size
        pending_from = self.entries * TIME_ENTRY.size - len(self._pending)
        if position >= pending_from:
            timestamp, relative = TIME_ENTRY.unpack_from(self._pending, position - pending_from)
        else:
            timestamp, relative = TIME_ENTRY.unpack(self._handle().read(position, TIME_ENTRY.size))
        return timestamp, relative + self._base_offset

    def _handle(self) -> File:
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        return self._file
