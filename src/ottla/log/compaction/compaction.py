"""Compacts a log: it keeps the last record of every key.

A compaction has two passes. The first reads the dirty part and remembers the last offset of each key. It remembers as
many keys as `map_bytes_max` has room for; the rest waits for the next compaction. The second copies every segment from
the log start to the end of the first pass, in groups that become one segment each. It leaves out records whose key has
a later offset.

Offsets never change: a batch keeps its base and last offset. A batch that lost all its records stays, empty, if it
still carries one of these: the last sequence of a live producer, the end of this compaction, or the end of a segment.

A tombstone stays for `delete.retention.ms` after the first compaction that saw it. That compaction writes the time into
the batch (delete horizon, attribute bit 6, in place of the base timestamp; KIP-534). A transaction's marker waits in
the same way once its data is gone. Data of aborted transactions is removed at once. If some replica is out of sync,
tombstones and markers stay longer: that replica still has the deleted data and would never receive them (Kafka removes
them).

A damaged or undecodable batch stays as it is and removes no other record. If a segment can't be walked to its end, its
group stays as it is. Both are reported to `notes`; the rest of the log is compacted.

If batches are missing, the compaction ends: the gap must not be mistaken for one that compaction has made.

A crash is safe at any step. The new segment is named `.cleaned` until it is complete and synced. Renaming its `.log` to
`.swap`, and syncing that name, is the decision. From then on a restart completes the rest (recovery/): old segments are
renamed to `.deleted`, and `.swap` to its final name. The log, readers and appends see only whole segments, replaced in
one step.

A compaction is a generator of slices of a few milliseconds each. It yields None where other work may run, and a
Syncable that must be synced before it continues. It gives up if the log is truncated, deleted or shortened meanwhile.

Source: Kafka's LogCleaner.scala (Cleaner), MemoryRecords.filterTo, CleanedTransactionMetadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from heapq import heappop, heappush
from struct import error as StructError
from typing import Final

from ottla.log import reading, removal
from ottla.log.answers import StorageError
from ottla.log.compaction import cleanable
from ottla.log.compaction.filtering import BatchFilter, Kept, is_sound, key_offsets
from ottla.log.index.offsets import RELATIVE_OFFSET_MAX
from ottla.log.index.transactions import AbortedTransaction
from ottla.log.names import CLEANED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX, SWAP_SUFFIX, segment_name
from ottla.log.producers import marker_in
from ottla.log.segment import RawHeader, Segment, walk_batches
from ottla.log.state import LogState
from ottla.log.syncing import Syncable
from ottla.protocol.records.batch import ATTRIBUTES_CONTROL, ATTRIBUTES_TRANSACTIONAL
from ottla.protocol.records.errors import CorruptRecordsError

MAP_BYTES_MAX: Final = 32 << 20
MAP_ENTRY_BYTES: Final = 200  # of a dict slot, a short key and an offset in CPython
KEY_BYTES_MAX: Final = 32  # longer keys are remembered by their hash
SLICE_RECORDS: Final = 1500
SLICE_BYTES: Final = 2 << 20


class DamagedRecordsError(Exception):
    """A segment that can't be walked to its end. `str` says where."""


class CompactionAbortedError(Exception):
    """The log changed during the compaction, or lacks records; only complete segments were replaced."""


class Compaction:
    """One compaction of one log. Iterate it to its end, on the log's thread; see the module for what it yields.

    `in_sync`: every replica has what is committed, so that tombstones and markers may go."""

    def __init__(
        self,
        log: LogState,
        now: int,
        *,
        map_bytes_max: int = MAP_BYTES_MAX,
        in_sync: bool = True,
        notes: Callable[[str], None] = lambda note: None,
    ) -> None:
        self.log = log
        self.now = now
        self._in_sync = in_sync
        self._notes = notes
        self._keys_max = max(1, map_bytes_max // MAP_ENTRY_BYTES)
        self._epoch = log.segments.compaction_epoch
        self._offsets: dict[bytes, int] = {}
        self._latest = -1  # last offset that the map has seen
        self._upper_bound = 0
        self._committed = 0
        self._work = 0

    def __iter__(self) -> Iterator[Syncable | None]:
        """Raises OSError if the disk does not accept the new segment; the log is then unchanged."""
        dirty = cleanable.dirty_part(self.log, self.now)
        if dirty.first >= dirty.end or self.log.failed is not None:
            return
        self._upper_bound, self._committed = dirty.end, self.log.high_watermark
        try:
            yield from self._sync_dirty(dirty)
            yield from self._build_map(dirty)
            end = self._latest + 1
            transactions = Transactions(self._committed)
            for group in self._groups(end):
                try:
                    yield from self._clean_group(group, transactions)
                except DamagedRecordsError as damaged:
                    self._notes(f"{damaged}; the segment is not compacted")
            self._check()
            cleanable.write_checkpoint(self.log, end)
        except CompactionAbortedError:
            return

    def _check(self) -> None:
        if self.log.segments.compaction_epoch != self._epoch or self.log.failed is not None:
            raise CompactionAbortedError

    def _pause(self, records: int, size: int) -> bool:
        """Whether the slice is long enough after this much more work."""
        self._work += max(records * SLICE_BYTES // SLICE_RECORDS, size)
        if self._work < SLICE_BYTES:
            return False
        self._work = 0
        return True

    def _synced(self, file: Syncable) -> Iterator[Syncable]:
        """Wait until `file` is on the disk."""
        file.pin()
        yield file
        file.unpin()
        self._check()

    # ---- first pass ------------------------------------------------------------------------------------------------

    def _sync_dirty(self, dirty: cleanable.Dirty) -> Iterator[Syncable]:
        """Wait until a record is on the disk before it removes older ones of its key."""
        for segment in self.log.segments[:-1]:
            end = self._end_of(segment)
            if end > dirty.first and segment.base_offset < dirty.end and end > self.log.recovery_point:
                yield from self._synced(segment.file)

    def _build_map(self, dirty: cleanable.Dirty) -> Iterator[None]:
        log, offsets = self.log, self._offsets
        transactions = Transactions(log.log_end_offset)  # an abort counts even if its marker is not committed
        self._latest = dirty.first - 1
        for segment in [segment for segment in log.segments[:-1] if segment.base_offset < dirty.end]:
            end = self._end_of(segment)
            if end <= dirty.first:
                continue
            transactions.add(reading.aborted_transactions(log, segment.base_offset, end))
            start = segment.offset_index.lookup(dirty.first)
            try:
                for header, batch in self._walk(segment, start):
                    last = header[0] + header[6]
                    if last < dirty.first:
                        continue
                    if last >= dirty.end:
                        return
                    if not is_sound(header, batch) or (
                        transactions.is_settled(header, batch) or header[5] & ATTRIBUTES_CONTROL
                    ):
                        self._latest = last
                        continue
                    found = key_offsets(header, batch)
                    if offsets and len(offsets) + len(found) > self._keys_max:
                        return
                    offsets.update((_short(key), offset) for key, offset in found if offset >= dirty.first)
                    self._latest = last
                    if self._pause(len(found), len(batch)):
                        yield None
                        self._check()
            except DamagedRecordsError:
                self._latest = end - 1  # the second pass reports it; the damaged part removes no record

    def _walk(self, segment: Segment, start: int) -> Iterator[tuple[RawHeader, memoryview]]:
        """The segment's batches from position `start` on. Raises DamagedRecordsError if the bytes are not a batch, and
        CompactionAbortedError if batches are missing."""
        expected, end, walked = segment.base_offset, self._end_of(segment), start
        for position, header, batch in walk_batches(segment.file, start, segment.size):
            last = header[0] + header[6]
            if header[0] < expected or header[6] < 0 or last >= end:
                break
            if header[0] > expected and not position == start > 0 and self.log.durability.gaps.is_damage(header[0]):
                self._notes(f"{segment.file.path}: lacks the offsets {expected} to {header[0] - 1}; not compacted")
                raise CompactionAbortedError
            expected, walked = last + 1, position + len(batch)
            yield header, batch
        if walked < segment.size:
            raise DamagedRecordsError(f"{segment.file.path}, position {walked}: no batch of this segment begins there")

    def _end_of(self, segment: Segment) -> int:
        log = self.log
        return log.bases_end(log.segments.index(segment))

    # ---- second pass -----------------------------------------------------------------------------------------------

    def _groups(self, end: int) -> Iterator[list[Segment]]:
        """Closed segments below `end`, in runs that fit into one segment."""
        config = self.log.config
        group: list[Segment] = []
        size = index_size = 0
        for segment in [segment for segment in self.log.segments[:-1] if segment.base_offset < end]:
            bytes_of_index = segment.offset_index.size_bytes
            span = self._end_of(segment) - 1 - (group[0].base_offset if group else segment.base_offset)
            if group and (
                size + segment.size > config.segment_bytes
                or index_size + bytes_of_index > config.segment_index_bytes
                or span > RELATIVE_OFFSET_MAX
            ):
                yield group
                group, size, index_size = [], 0, 0
            group.append(segment)
            size += segment.size
            index_size += bytes_of_index
        if group:
            yield group

    def _clean_group(self, group: list[Segment], transactions: Transactions) -> Iterator[Syncable | None]:
        log = self.log
        self._check()
        self._remove_unfinished(group[0].base_offset)
        cleaned = Segment(
            log.files,
            log.directory,
            group[0].base_offset,
            log.segments.index_cache,
            now=group[-1].created_ms,
            create=True,
            suffix=CLEANED_SUFFIX,
        )
        try:
            yield from self._copy(group, cleaned, transactions)
            cleaned.close_for_appends()
            yield from self._permit_gaps(group)
            names = log.files.directory(log.directory)
            for file in [cleaned.file, *cleaned.dirty_index_files(), names]:
                yield from self._synced(file)
            cleaned.rename_files(CLEANED_SUFFIX, SWAP_SUFFIX)
            yield from self._synced(names)
        except GeneratorExit:
            # Dropped half way; perhaps with its whole process, in a simulation, where nothing may be touched then.
            with contextlib.suppress(BaseException):
                self._undo(cleaned)
            raise
        except Exception:
            self._undo(cleaned)
            raise
        self._replace(group, cleaned)

    def _permit_gaps(self, group: list[Segment]) -> Iterator[Syncable]:
        """Permit gaps up to the end of this group, before it has them. Raises OSError."""
        durability, end = self.log.durability, self._end_of(group[-1])
        if end <= durability.gaps.below:
            return
        durability.permit_gaps(end)
        file = self.log.files.open(durability.gaps.path)
        try:
            yield from self._synced(file)
        finally:
            file.close()

    def _undo(self, cleaned: Segment) -> None:
        with contextlib.suppress(OSError):
            cleaned.file.size()
        cleaned.close()
        if self.log.files.exists(self.log.directory):
            self._remove_unfinished(cleaned.base_offset)

    def _remove_unfinished(self, base_offset: int) -> None:
        """Remove the files of an unfinished compaction; the log first, so that a restart sees no decision."""
        segment_path = f"{self.log.directory}/{segment_name(base_offset)}"
        for suffix in (SWAP_SUFFIX, CLEANED_SUFFIX):
            for kind in (LOG_SUFFIX, *INDEX_SUFFIXES):
                path = f"{segment_path}{kind}{suffix}"
                if self.log.files.exists(path):
                    self.log.files.unlink(path)

    def _copy(self, group: list[Segment], cleaned: Segment, transactions: Transactions) -> Iterator[None]:
        log = self.log
        interval = log.config.index_interval_bytes
        transactions.cleaned = cleaned
        # The last batch of a segment also stays, if only its header. So segments always join without a gap, and a
        # segment that a power cut shortened can be distinguished from a compacted one.
        ends = frozenset((self._upper_bound, self._end_of(group[-1])))
        decide = BatchFilter(
            self._offsets,
            self._latest,
            log.wall.at(self.now),
            log.config,
            ends,
            log.producers.entries,
            _short,
            in_sync=self._in_sync,
        )
        for segment in group:
            transactions.add(reading.aborted_transactions(log, segment.base_offset, self._end_of(segment)))
            for header, batch in self._walk(segment, 0):
                kept = self._kept(decide, transactions, segment, header, batch)
                if kept is not None:
                    octets, max_timestamp = kept
                    cleaned.append(octets, len(octets), header[0] + header[6], max_timestamp, interval)
                if self._pause(min(header[12], len(batch)), len(batch)):
                    yield None
                    self._check()

    def _kept(
        self,
        decide: BatchFilter,
        transactions: Transactions,
        segment: Segment,
        header: RawHeader,
        batch: memoryview,
    ) -> Kept | None:
        """The part of the batch that the rules keep: all of it if it is damaged or its records can't be decoded."""
        fault = "its checksum does not match"
        if is_sound(header, batch):
            try:
                return decide(header, batch, transactions.is_settled(header, batch))
            except (
                CorruptRecordsError,
                ValueError,
                StructError,
            ) as error:  # the last two: fields that no batch can have
                fault = str(error)
        self._notes(
            f"{segment.file.path}: the batch at offset {header[0]} stays as it is, for it can't be read: {fault}"
        )
        return batch, header[8]

    def _replace(self, group: list[Segment], cleaned: Segment) -> None:
        """Replace the group by the compacted segment, in one step for readers and appends. The decision is already on
        the disk, so no restart undoes it."""
        log, has_aborts = self.log, any(segment.txn_index.aborted() for segment in group)
        try:
            for segment in group:
                removal.discard_files(log, segment, self.now)
            cleaned.rename_files(SWAP_SUFFIX, "")
        except OSError as error:
            raise log.durability.fail(f"replacing compacted segments of {log.directory} failed: {error}") from error
        log.syncing.forgotten(group)
        log.syncing.created()
        replaced = {segment.base_offset for segment in group}
        log.segments.compacted(group, cleaned)
        for base_offset in replaced - {cleaned.base_offset}:
            log.durability.drop_snapshot(base_offset)
        if has_aborts:
            with contextlib.suppress(StorageError):  # the next start would replay the whole log
                log.write_snapshot()


def _short(key: bytes) -> bytes:
    return key if len(key) <= KEY_BYTES_MAX else blake2b(key, digest_size=KEY_BYTES_MAX + 1).digest()


class Transactions:
    """Which transactions are open while batches pass by in offset order. Kafka's CleanedTransactionMetadata.

    `committed`: where markers begin that another leader may cut off again, and which settle nothing yet."""

    def __init__(self, committed: int) -> None:
        self._committed_below = committed
        self.cleaned: Segment | None = None
        self._coming: list[tuple[int, AbortedTransaction]] = []
        self._known: set[AbortedTransaction] = set()
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_with_data: set[int] = set()
        self._committed: set[int] = set()

    def add(self, aborted: list[AbortedTransaction]) -> None:
        for entry in aborted:
            if entry not in self._known:
                self._known.add(entry)
                heappush(self._coming, (entry.first_offset, entry))

    def is_settled(self, header: RawHeader, batch: memoryview) -> bool:
        """Whether the batch can be removed: data of an aborted transaction, or a marker whose transaction has no data
        left."""
        last = header[0] + header[6]
        while self._coming and self._coming[0][0] <= last:
            entry = heappop(self._coming)[1]
            self._aborted.setdefault(entry.producer_id, entry)
        if header[5] & ATTRIBUTES_CONTROL:
            return self._marker_is_settled(header, batch)
        if not header[5] & ATTRIBUTES_TRANSACTIONAL:
            return False
        producer_id = header[9]
        entry = self._aborted.get(producer_id)
        if entry is not None:
            self._aborted_with_data.add(producer_id)
            return entry.last_offset < self._committed_below
        self._committed.add(producer_id)
        return False

    def _marker_is_settled(self, header: RawHeader, batch: memoryview) -> bool:
        producer_id = header[9]
        if header[12] == 0:
            return True  # emptied by an earlier compaction
        marker = marker_in(batch)
        if marker is None:
            return False
        if marker.committed:
            if producer_id in self._committed:
                self._committed.discard(producer_id)
                return False
            return True
        entry = self._aborted.pop(producer_id, None)
        if entry is not None and producer_id in self._aborted_with_data:
            # The marker, and its entry in the index, stay until a compaction finds none of its data.
            self._aborted_with_data.discard(producer_id)
            if self.cleaned is not None:
                self.cleaned.txn_index.append(entry)
            return False
        return True
