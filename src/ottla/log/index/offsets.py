"""Keeps the sparse offset index of a segment (`.index`), in Kafka's format.

8-byte entries (offset - base_offset: int32, position: int32), both strictly rising. An entry names the last offset of a
batch and where that batch begins, so the floor of an offset is a place at or before its batch.

An index is only ever a hint that can be rebuilt from the segment; `Segment` verifies what it reads here. Entries are
written INDEX_FLUSH_ENTRIES at a time, so a killed process leaves an index that is short by at most that many entries,
and never wrong.

Source: Kafka's OffsetIndex.java. Unlike Kafka's the file is not preallocated; a preallocated one (zeros after the last
entry) is read up to the first entry that does not rise.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from itertools import islice
from struct import Struct
from typing import ClassVar, Final

from ottla.log.files import FileSystem
from ottla.log.index.file import IndexFile

OFFSET_ENTRY: Final = Struct(">ii")
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


class OffsetIndex(IndexFile):
    """Offsets to positions for one segment. In memory while the segment is active, loaded on demand afterwards."""

    __slots__ = ("_base_offset", "_cache", "_offsets", "_pinned_in_memory", "_positions")
    ENTRY: ClassVar = OFFSET_ENTRY

    def __init__(self, files: FileSystem, path: str, base_offset: int, cache: IndexCache, *, active: bool) -> None:
        super().__init__(files, path, entries=0)
        self._base_offset = base_offset
        self._cache = cache
        self._pinned_in_memory = active
        self._offsets: array[int] | None = array("i") if active else None
        self._positions: array[int] | None = array("i") if active else None

    @property
    def size_bytes(self) -> int:
        """The file's length once everything is written."""
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

    def lookup(self, offset: int) -> int:
        """Position of a batch at or before the one that holds `offset`; 0 when the index has nothing lower."""
        offsets, positions = self._arrays()
        at = bisect_right(offsets, offset - self._base_offset)
        return positions[at - 1] if at else 0

    def entry_for(self, offset: int) -> tuple[int, int]:
        """(last offset, position) of the batch at which `lookup` begins; (-1, 0) when the index has nothing lower."""
        offsets, positions = self._arrays()
        at = bisect_right(offsets, offset - self._base_offset)
        return (self._base_offset + offsets[at - 1], positions[at - 1]) if at else (-1, 0)

    def boundary(self, position: int) -> int:
        """The greatest indexed batch start at or before `position`; 0 when there is none."""
        return self.boundary_entry(position)[1]

    def boundary_entry(self, position: int) -> tuple[int, int]:
        """(last offset, position) of the greatest indexed batch start at or before `position`; (-1, 0) when there is
        none."""
        offsets, positions = self._arrays()
        at = bisect_right(positions, position)
        return (self._base_offset + offsets[at - 1], positions[at - 1]) if at else (-1, 0)

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
        size = self._handle().size()
        size -= size % OFFSET_ENTRY.size
        octets = self._handle().read(max(size - OFFSET_ENTRY.size, 0), OFFSET_ENTRY.size)
        if len(octets) < OFFSET_ENTRY.size:
            return None
        relative, position = OFFSET_ENTRY.unpack(octets)
        return (self._base_offset + relative, position) if position >= 0 else None

    def cut(self, entries: int) -> None:
        """Keep the first `entries` entries. Raises UnsoundIndexError, OSError."""
        offsets, positions = self._arrays()
        if entries >= len(offsets):
            return
        del offsets[entries:]
        del positions[entries:]
        self._drop_behind(entries)

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose last offset is >= `offset`. Raises UnsoundIndexError, OSError."""
        offsets, _ = self._arrays()
        self.cut(bisect_right(offsets, offset - self._base_offset - 1))

    def clear(self) -> None:
        super().clear()
        self._offsets, self._positions = array("i"), array("i")

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

    def deactivate(self) -> None:
        """Write the remaining entries, because the segment is closed. The cache may then free the memory."""
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

    def close(self) -> None:
        self._cache.forget(self)
        self._offsets = self._positions = None
        super().close()

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


def _rising_prefix(offsets: array[int], positions: array[int]) -> int:
    """How many leading entries are not negative and rise strictly in both columns: fast for the sound file, exact for
    the torn one."""
    count = len(offsets)
    if count and (offsets[0] < 0 or positions[0] < 0):
        return 0
    if _strictly_rising(offsets) and _strictly_rising(positions):
        return count
    for at in range(1, count):
        if offsets[at] <= offsets[at - 1] or positions[at] <= positions[at - 1]:
            return 0 if at == 1 and offsets[0] <= 0 and positions[0] == 0 else at
    return count


def _strictly_rising(column: array[int]) -> bool:
    return all(map(int.__lt__, column, islice(column, 1, None)))
