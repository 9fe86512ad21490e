"""Holds one segment of a log: a file of record batches, its two sparse indexes and its index of aborted transactions.

Invariants: offsets of batches rise strictly; `size` is the file's length and ends a whole batch; every index entry
points at the start of a batch. A disk or another process may break them, so index entries are compared with the batches
that they name, and the indexes of a segment that is cut are rebuilt if they do not match.

Source: Kafka's LogSegment.java, UnifiedLog.java (file names).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import Final

from ottla.log.files import File, FileSystem, ReadError
from ottla.log.index.file import UnsoundIndexError
from ottla.log.index.offsets import INDEX_FLUSH_ENTRIES, OFFSET_ENTRY, RELATIVE_OFFSET_MAX, IndexCache, OffsetIndex
from ottla.log.index.times import TIME_ENTRY, TimeIndex
from ottla.log.index.transactions import TransactionIndex
from ottla.log.names import INDEX_SUFFIXES, LOG_SUFFIX, UNFINISHED_SUFFIX, segment_name
from ottla.machine import WallClock
from ottla.protocol.records.batch import HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC

WALK_CHUNK_BYTES: Final = 16 << 10
FIND_CHUNK_BYTES: Final = 8 << 10
BATCH_CHUNK_BYTES: Final = 1 << 20

_unpack_place = Struct(">qi4xb6xi").unpack_from  # base_offset, batch_length, magic, last_offset_delta

# (base_offset, batch_length, partition_leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp,
#  max_timestamp, producer_id, producer_epoch, base_sequence, record_count), see protocol.records.batch.HEADER
RawHeader = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]


class Segment:
    """Batches with offsets from `base_offset` up to the next segment's."""

    __slots__ = (
        "_since_index_entry",
        "base_offset",
        "created_ms",
        "file",
        "files",
        "first_timestamp",
        "inherited",
        "max_timestamp_known",
        "max_timestamp_offset",
        "max_timestamp_value",
        "offset_index",
        "path",
        "size",
        "time_index",
        "txn_index",
        "verified",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        base_offset: int,
        cache: IndexCache,
        *,
        now: int,
        create: bool,
        suffix: str = "",
    ) -> None:
        """A segment on disk, or with `create` an empty one, without what files of these names may hold: another process
        has put them there. `suffix` is for the ones compaction is building."""
        self.files = files
        self.base_offset = base_offset
        self.path = f"{directory}/{segment_name(base_offset)}"
        if create:
            for path in self.names(suffix):
                if files.exists(path):
                    files.unlink(path)
        self.file: File = files.open(f"{self.path}.log{suffix}", create=create)
        self.size = self.file.size()
        self.inherited = self.size  # what is behind it this process wrote
        self.verified: tuple[int, int] = (0, 0)  # a range of what was inherited whose order is verified
        self.offset_index = OffsetIndex(files, f"{self.path}.index{suffix}", base_offset, cache, active=create)
        self.time_index = TimeIndex(files, f"{self.path}.timeindex{suffix}", base_offset, empty=create)
        self.txn_index = TransactionIndex(files, f"{self.path}.txnindex{suffix}", empty=create)
        self.created_ms = now  # when it was made or opened; of one closed since, when that was
        self.first_timestamp: int | None = None  # of the first batch; rolls by time count from it
        self.max_timestamp_known = create
        self.max_timestamp_value = -1
        self.max_timestamp_offset = base_offset
        self._since_index_entry = 0

    def append(
        self, batch: memoryview | bytes | bytearray, size: int, last_offset: int, max_timestamp: int, interval: int
    ) -> None:
        """Write one batch at the end. Raises OSError with nothing changed, but the file may end in a part of it."""
        position = self.size
        self.file.write(batch)
        self.size = position + size
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp_value:
            self.max_timestamp_value = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_index_entry > interval:
            self._add_index_entry(last_offset, position)
            self._since_index_entry = size
        else:
            self._since_index_entry += size

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int, interval: int) -> None:
        """Rebuild the indexes for a batch that is already in the file, as `append` does for a new one."""
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp_value:
            self.max_timestamp_value = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_index_entry > interval:
            self._add_index_entry(last_offset, position)
            self._since_index_entry = 0
        self._since_index_entry += size

    def _add_index_entry(self, last_offset: int, position: int) -> None:
        index = self.offset_index
        index.append(last_offset, position)
        self.time_index.maybe_append(self.max_timestamp_value, self.max_timestamp_offset)
        if index.pending_entries >= INDEX_FLUSH_ENTRIES:
            # If the disk does not accept them now, they are written later, at the latest when the segment is closed.
            with suppress(OSError):
                self.flush_indexes()

    def flush_indexes(self) -> None:
        """Write the buffered entries, the time index first: recovery trusts it up to the end of the offset index.
        Raises OSError."""
        self.time_index.flush()
        self.offset_index.flush()

    def max_timestamp(self) -> tuple[int, int]:
        """(greatest timestamp, last offset of the first batch that has it); (-1, base_offset) for an empty segment."""
        if not self.max_timestamp_known:
            self.load_max_timestamp()
        return self.max_timestamp_value, self.max_timestamp_offset

    def load_max_timestamp(self) -> None:
        """For a segment found on disk whose indexes are complete: the last time index entry holds it, unless a batch
        contradicts it. Retention deletes segments by it."""
        timestamp, offset = self.time_index.last()
        is_known = timestamp >= 0 and self._is_newest(timestamp, offset)
        self.max_timestamp_value, self.max_timestamp_offset = (
            (timestamp, offset) if is_known else (-1, self.base_offset)
        )
        self.max_timestamp_known = True
        if not is_known:
            self.max_timestamp_value, self.max_timestamp_offset = -1, self.base_offset
            for _, header in self.walk(0):
                if header[8] > self.max_timestamp_value:
                    self.max_timestamp_value = header[8]
                    self.max_timestamp_offset = header[0] + header[6]

    def _is_newest(self, timestamp: int, offset: int) -> bool:
        """Whether the batch with this offset has this timestamp, and none of the last ones is newer. The offset index
        is not loaded for that if this is one of the last batches, as it usually is."""
        last = self.offset_index.last_on_disk()
        tail = [header for _, header in self.walk(last[1] if last else 0)]
        if tail and tail[0][0] <= offset:
            named = [header for header in tail if header[0] <= offset <= header[0] + header[6]]
            return [header[8] for header in named] == [timestamp] == [max(header[8] for header in tail)]
        return all(header[8] <= timestamp for header in tail) and self._has_timestamp(timestamp, offset)

    def _has_timestamp(self, timestamp: int, offset: int) -> bool:
        """Whether the batch with this offset has this timestamp."""
        found = self.find(offset)
        return found is not None and found[1][8] == timestamp and found[1][0] <= offset

    def largest_timestamp(self, wall: WallClock) -> int:
        """The timestamp for retention by time: the greatest record timestamp, or `created_ms` if there is none."""
        timestamp, _ = self.max_timestamp()
        return timestamp if timestamp >= 0 else wall.at(self.created_ms)

    def rolling_timestamp(self) -> int:
        """The first batch's timestamp, -1 for an empty segment, a batch without one, or one that can't be read."""
        if self.first_timestamp is None:
            try:
                raw = self.file.read(0, HEADER_BYTES) if self.size >= HEADER_BYTES else b""
            except ReadError:
                return -1
            if len(raw) < HEADER_BYTES:
                return -1
            header: RawHeader = HEADER.unpack(raw)
            self.first_timestamp = header[8]
        return self.first_timestamp

    def walk(
        self, position: int, end: int | None = None, chunk: int = WALK_CHUNK_BYTES
    ) -> Iterator[tuple[int, RawHeader]]:
        """Headers of the batches from `position` on, with their positions.

        Stops at a batch that is not whole, or whose offsets are not of this segment or do not rise. No checksum covers
        offsets, so they can't be relied on.
        """
        expected, offset_max = self.base_offset, self.base_offset + RELATIVE_OFFSET_MAX
        for at, header in walk_headers(self.file, position, self.size if end is None else end, chunk):
            last = header[0] + header[6]
            if header[0] < expected or header[6] < 0 or last > offset_max:
                return
            expected = last + 1
            yield at, header

    def find(self, offset: int) -> tuple[int, RawHeader] | None:
        """The first batch that ends at or after `offset`: (position, header), None when there is none."""
        position, header, is_certain = self.seek(offset)
        if is_certain:
            return None if header is None else (position, header)
        return next((each for each in self.walk(0) if each[1][0] + each[1][6] >= offset), None)

    def seek(self, offset: int) -> tuple[int, RawHeader | None, bool]:
        """Find the first batch that ends at or after `offset`, from an index entry on: its position, its header, and
        whether the result is certain. Without such a batch: where walking ended, and None.

        It is certain if the batches from the entry to that batch, or to the segment's end, are in unbroken order, as
        `walk` checks it."""
        indexed, position = self.offset_index.entry_for(offset)
        end, expected, offset_max = self.size, self.base_offset, self.base_offset + RELATIVE_OFFSET_MAX
        in_order = True
        is_met = indexed < 0  # Kafka's entries may name the first of several batches, and the last one's offset
        while position + HEADER_BYTES <= end:
            window = self.file.read(position, min(FIND_CHUNK_BYTES, end - position))
            at, last_header = 0, len(window) - HEADER_BYTES
            while at <= last_header:
                base, length, magic, delta = _unpack_place(window, at)
                last = base + delta
                if not expected <= base <= last <= offset_max or magic != MAGIC:
                    in_order = False
                if last == indexed:
                    is_met = True
                if last >= offset:
                    header: RawHeader = HEADER.unpack_from(window, at)
                    whole = HEADER_BYTES <= length + LOG_OVERHEAD_BYTES <= end - position - at
                    return position + at, header, in_order and is_met and whole
                if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
                    return position + at, None, False
                expected = last + 1
                at += length + LOG_OVERHEAD_BYTES
            if at == 0:
                break
            position += at
        return position, None, in_order and is_met and position == end

    def find_timestamp(self, timestamp: int, from_offset: int) -> tuple[int, RawHeader] | None:
        """The first batch at or after `from_offset` that may hold a record with a timestamp >= the one asked."""
        try:
            older, offset = self.time_index.lookup(timestamp)
        except UnsoundIndexError:
            older, offset = -1, self.base_offset
        if older >= 0 and not self._has_timestamp(older, offset):
            offset = self.base_offset
        found = self.find(max(offset, from_offset))
        if found is None:
            return None
        for position, header in self.walk(found[0], chunk=64 << 10):
            if header[8] >= timestamp and header[0] + header[6] >= from_offset:
                return position, header
        return None

    def next_offset(self) -> int:
        """One past the last offset in a closed segment, by walking from the last index entry."""
        last = self.offset_index.last_on_disk()
        end = self.base_offset
        for _, header in self.walk(last[1] if last else 0):
            end = header[0] + header[6] + 1
        return end

    def read_batch(self, position: int, header: RawHeader) -> bytes:
        return self.file.read(position, header[1] + LOG_OVERHEAD_BYTES)

    def truncate(self, offset: int, index_interval_bytes: int) -> int:
        """Drop every batch that ends at or after `offset`; `resume` must follow. Returns the base offset of the first
        dropped one. Indexes that contradict the batches are rebuilt, with entries at this interval."""
        if offset <= self.base_offset:
            self._empty()
            return offset
        self.offset_index.activate()
        self.size = min(self.size, self.file.size())  # another process may have cut it
        position, header, is_certain = self.seek(offset)
        if not is_certain:
            found = next((each for each in self.walk(0) if each[1][0] + each[1][6] >= offset), None)
            position, header = (self.size, None) if found is None else found
        if header is not None:
            offset = min(offset, header[0])
            is_certain = self.truncate_at(position, offset) and is_certain
        if not (is_certain and self.indexes_match()):
            self._rebuild_indexes(index_interval_bytes)
        return offset

    def _empty(self) -> None:
        """Drop every batch. Nothing is read, because the disk may not be able to. Raises OSError."""
        self.file.truncate(0)
        self.size = self.inherited = 0
        self.txn_index.clear()
        self.offset_index.clear()
        self.time_index.clear()
        self.offset_index.activate()

    def truncate_at(self, position: int, offset: int) -> bool:
        """Cut the file at `position`, where the batch at `offset` begins, and the indexes from `offset` on. Returns
        False if the sparse indexes could not be cut: they are empty now. Raises OSError."""
        self.file.truncate(position)
        self.size = position
        self.inherited = min(self.inherited, position)
        self.txn_index.truncate_to(offset)
        try:
            self.offset_index.truncate_to(offset)
            self.time_index.truncate_to(offset)
        except UnsoundIndexError:
            self.offset_index.clear()
            self.time_index.clear()
            return False
        return True

    def _rebuild_indexes(self, interval: int) -> None:
        """Rebuild the sparse indexes in place, with entries at this interval. Raises OSError."""
        self.offset_index.clear()
        self.time_index.clear()
        self.begin_resume()
        for position, header in self.walk(0):
            self.note_batch(position, header[1] + LOG_OVERHEAD_BYTES, header[0] + header[6], header[8], interval)

    def begin_resume(self) -> None:
        """Restart the counters at the last index entries, before `note_batch` processes the batches behind them."""
        self.max_timestamp_value, self.max_timestamp_offset = self.time_index.last()
        self.max_timestamp_known = True
        self.first_timestamp = None
        self._since_index_entry = 0

    def note_indexed_batch(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """Do `note_batch` for the batch that the last index entry points at."""
        if max_timestamp > self.max_timestamp_value:
            self.max_timestamp_value = max_timestamp
            self.max_timestamp_offset = last_offset
        self._since_index_entry = size

    def resume(self) -> None:
        """Resume appending at the file's end: the counters of `append` are recovered from the last index entry."""
        last = self.offset_index.last()
        self.begin_resume()
        indexed_at = last[1] if last else 0
        self._since_index_entry = self.size - indexed_at
        for _, header in self.walk(indexed_at):
            if header[8] > self.max_timestamp_value:
                self.max_timestamp_value = header[8]
                self.max_timestamp_offset = header[0] + header[6]

    def complete_indexes(self) -> None:
        """Write the indexes to their ends. Appending may continue. Raises OSError."""
        self.complete_time_index()
        self.flush_indexes()
        self.touch_indexes()

    def close_for_appends(self) -> None:
        """Complete the indexes and write them: nothing more is appended. Raises OSError."""
        self.complete_indexes()
        self.offset_index.deactivate()

    def touch_indexes(self) -> None:
        """Both index files exist beside a complete segment, perhaps empty: Kafka's tools expect them."""
        self.time_index.touch()
        self.offset_index.touch()

    def index_tail_is_sound(self, interval: int) -> bool:
        """A cheap check of a closed segment: both indexes exist, are whole, and the last entry points at its batch."""
        paths = (f"{self.path}.index", f"{self.path}.timeindex")
        if not all(map(self.files.exists, paths)):
            return False
        if self.files.size(paths[0]) % OFFSET_ENTRY.size or self.files.size(paths[1]) % TIME_ENTRY.size:
            return False
        last = self.offset_index.last_on_disk()
        if last is None:
            return not any(position > interval for position, _ in self.walk(0))
        return last[1] > 0 and self.batch_ends_at(*last)  # zeros at the end would point at the first batch

    def batch_ends_at(self, last_offset: int, position: int) -> bool:
        """Whether there is a whole batch at `position` that ends with `last_offset`."""
        raw = self.file.read(position, HEADER_BYTES) if 0 <= position < self.size else b""
        if len(raw) < HEADER_BYTES:
            return False
        header: RawHeader = HEADER.unpack(raw)
        end = position + header[1] + LOG_OVERHEAD_BYTES
        return header[3] == 2 and header[0] + header[6] == last_offset and position < end <= self.size

    def indexes_match(self) -> bool:
        """Whether the last entry of both sparse indexes names an existing batch, with its timestamp, and whether the
        last indexed batch is not newer than the last timestamp."""
        last, (timestamp, offset) = self.offset_index.last(), self.time_index.last()
        if last is not None and not self.batch_ends_at(*last):
            return False
        if timestamp < 0:
            return last is None or self.rolling_timestamp() < 0
        found = self.find(offset)
        if found is None or found[1][8] != timestamp or found[1][0] + found[1][6] != offset:
            return False
        indexed = next(self.walk(last[1]), None) if last is not None else None
        return last is None or (indexed is not None and indexed[1][8] <= timestamp)

    def complete_time_index(self) -> None:
        if self.size:
            self.time_index.maybe_append(self.max_timestamp_value, self.max_timestamp_offset, closing=True)

    def dirty_index_files(self) -> list[File]:
        return [*self.offset_index.dirty_files(), *self.time_index.dirty_files(), *self.txn_index.dirty_files()]

    def indexes_unsynced(self) -> None:
        """Mark the files from `dirty_index_files` as dirty again: their sync failed."""
        self.offset_index.unsynced()
        self.time_index.unsynced()
        self.txn_index.unsynced()

    def rewrite_indexes(self) -> None:
        """Write the index files' contents again: an fsync of theirs failed, or may have. Raises OSError."""
        self.offset_index.rewrite()
        self.time_index.rewrite()
        self.txn_index.rewrite()

    def begin_indexes_anew(self, cache: IndexCache) -> None:
        """Create empty indexes in files beside the present ones, which stay until `put_indexes_in_place`."""
        self.offset_index.close()
        self.time_index.close()
        paths = [f"{self.path}{kind}{UNFINISHED_SUFFIX}" for kind in (".index", ".timeindex")]
        self.offset_index = OffsetIndex(self.files, paths[0], self.base_offset, cache, active=True)
        self.time_index = TimeIndex(self.files, paths[1], self.base_offset, empty=True)

    def put_indexes_in_place(self, *, durable: bool = True) -> None:
        """Replace the indexes by the rebuilt ones, if `durable` once these are complete on the disk. Raises OSError."""
        self.flush_indexes()
        self.touch_indexes()
        if durable:
            for file in (*self.offset_index.dirty_files(), *self.time_index.dirty_files()):
                file.sync()
        for kind, index in ((".timeindex", self.time_index), (".index", self.offset_index)):
            path = f"{self.path}{kind}"
            self.files.rename(path + UNFINISHED_SUFFIX, path)
            index.moved(path)

    def names(self, suffix: str = "") -> list[str]:
        """Paths of this segment's files, the log last: without it the others do not count."""
        return [f"{self.path}{kind}{suffix}" for kind in (*INDEX_SUFFIXES, LOG_SUFFIX)]

    def rename_files(self, old_suffix: str, new_suffix: str) -> None:
        """Rename those of this segment's files that exist, the log last."""
        for old, new in zip(self.names(old_suffix), self.names(new_suffix), strict=True):
            if self.files.exists(old):
                self.files.rename(old, new)
        self.offset_index.moved(f"{self.path}.index{new_suffix}")
        self.time_index.moved(f"{self.path}.timeindex{new_suffix}")
        self.txn_index.moved(f"{self.path}.txnindex{new_suffix}")

    def close(self) -> None:
        """Close every descriptor. Slices of the segment's file that are still held must not be used afterwards."""
        self.close_indexes()
        self.file.close()

    def close_indexes(self) -> None:
        self.offset_index.close()
        self.time_index.close()
        self.txn_index.close()


def walk_batches(
    file: File, position: int, end: int, chunk: int = BATCH_CHUNK_BYTES
) -> Iterator[tuple[int, RawHeader, memoryview]]:
    """Consecutive whole batches in `file` from `position` up to `end`: where, header, bytes. Nothing is checked.

    `chunk` bytes are read at a time.
    """
    unpack = HEADER.unpack_from
    while position + HEADER_BYTES <= end:
        window = memoryview(file.read(position, min(chunk, end - position)))
        at = 0
        available = len(window)
        while at + HEADER_BYTES <= available:
            header: RawHeader = unpack(window, at)
            size = header[1] + LOG_OVERHEAD_BYTES
            if size < HEADER_BYTES or position + at + size > end or header[3] != 2:
                return
            if at + size > available:
                break
            yield position + at, header, window[at : at + size]
            at += size
        if at == 0:  # larger than the window
            if available < HEADER_BYTES:
                return
            header = unpack(window, 0)
            at = header[1] + LOG_OVERHEAD_BYTES
            yield position, header, memoryview(file.read(position, at))
        position += at


def walk_headers(file: File, position: int, end: int, chunk: int) -> Iterator[tuple[int, RawHeader]]:
    """Headers of consecutive batches in `file` from `position` up to `end`, read `chunk` bytes at a time."""
    unpack = HEADER.unpack_from
    while position + HEADER_BYTES <= end:
        window = file.read(position, min(chunk, end - position))
        start = position
        last_header = len(window) - HEADER_BYTES
        at = 0
        while at <= last_header:
            header = unpack(window, at)
            size = header[1] + LOG_OVERHEAD_BYTES
            if size < HEADER_BYTES or start + at + size > end or header[3] != 2:
                return
            yield start + at, header
            at += size
        if at == 0:
            return
        position = start + at
