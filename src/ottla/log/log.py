"""Keeps one partition's log: an ordered run of segments, its offsets, and the state derived from its batches.

The log does not decide when to act: `now` (monotonic) is an argument, `wall` converts it to a timestamp, and `deadline`
is the time at which `maintaining` has work.

Invariants: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset. Segments are in offset order,
and the last one is appended to. Everything below `recovery_point` is on the disk. A failed write has no visible effect.

A new partition has nothing on disk until its first append. That append creates the directory, `partition.metadata` and
the first segment. The first sync covers all of that, and upkeep requests it soon.

There are two append paths. The leader's path assigns offsets and checks what clients send (validation.py has the
detailed checks). The follower's path appends the leader's bytes unchanged. Both update producers, epochs and the
transaction index.

Sources: NetDB'11 paper, KIP-98, KIP-101; Kafka's UnifiedLog.scala, LocalLog.scala.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, ClassVar, Final

from ottla.log import closing, failed_sync, reading, removal, retention, truncation
from ottla.log.answers import (
    Appended,
    DamagedLogError,
    DivergingOffsetError,
    Isolation,
    OffsetOutOfRangeError,
    Origin,
    ReadResult,
    StorageError,
    TimestampOffset,
)
from ottla.log.compaction import cleanable
from ottla.log.config import LogConfig
from ottla.log.files import FileSlice, FileSystem
from ottla.log.index.offsets import IndexCache
from ottla.log.index.transactions import AbortedTransaction
from ottla.log.left import Left
from ottla.log.producers import marker_in
from ottla.log.recovery.loading import load
from ottla.log.segment import RawHeader, Segment
from ottla.log.state import LogState
from ottla.log.syncing import Syncable
from ottla.log.validation import Known, prepare_batch
from ottla.machine import WallClock
from ottla.protocol.records.batch import (
    ATTRIBUTES_AT,
    ATTRIBUTES_CONTROL,
    ATTRIBUTES_TRANSACTIONAL,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
)
from ottla.protocol.records.checksum import crc32c
from ottla.protocol.records.record import RECORD_BYTES_MIN

PRODUCER_EXPIRATION_MS: Final = 86_400_000
USUAL_ATTRIBUTES: Final = frozenset({0, 1, 2, 3, 4, 16, 17, 18, 19, 20})  # a codec, and perhaps transactional

_COORDINATOR: Final = Origin.COORDINATOR  # a member of an enum costs 0.2 us on each use in Python 3.11
_unpack_header = HEADER.unpack_from
_new_tuple = tuple[Any, ...].__new__  # what a NamedTuple calls from a function of its own, which costs as much again
_stamp = Struct(">qii").pack_into  # base_offset, batch_length (unchanged), partition_leader_epoch


def _fault_in(header: RawHeader, records: memoryview, position: int, end: int) -> str | None:
    """The fault of this batch from a leader, in its checksum or in the fields that the checksum does not cover; None
    for a sound batch."""
    base, last = header[0], header[0] + header[6]
    if crc32c(records[position + ATTRIBUTES_AT : end]) != header[4]:
        return f"the batch at offset {base} does not match its checksum"
    if end + HEADER_BYTES <= len(records):
        following: RawHeader = _unpack_header(records, end)
        if following[0] <= last or 0 <= following[2] < header[2]:
            return (
                f"the batch at offset {base} claims the offsets up to {last} and leader epoch {header[2]}, and behind "
                f"it is one at offset {following[0]} of epoch {following[2]}"
            )
    return None


def _last_base_in(records: memoryview, position: int) -> int:
    """The base offset of the last batch from a leader that follows in order on the one at `position`."""
    base = expected = -1
    while position + HEADER_BYTES <= len(records):
        header: RawHeader = _unpack_header(records, position)
        if header[0] < expected or header[1] + LOG_OVERHEAD_BYTES < HEADER_BYTES:
            break
        base, expected = header[0], header[0] + header[6] + 1
        position += header[1] + LOG_OVERHEAD_BYTES
    return base


class Log(LogState):
    """The log of one partition. Created by `Log.open`; used from one thread."""

    __slots__ = ()
    unopened: ClassVar[bool] = False

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        *,
        topic_id: bytes,
        now: int,
        clean_shutdown: bool,
        same_boot: bool,
        recovery_point: int,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        producer_id_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        write_again: bool = False,
        interrupted: bool = False,
        start_known: bool = True,
        left: Left | None = None,
        notes: Callable[[str], None] | None = None,
        index_cache: IndexCache | None = None,
        wall: WallClock | None = None,
    ) -> Log:
        """The log in `directory`, or a new one if there is no such directory.

        `clean_shutdown`: the last stop was clean, so the files are complete. `same_boot`: the machine was not restarted
        since, so everything that a killed process wrote is there. Both False: everything from `recovery_point` on is
        checked against its CRC. `write_again`: after a kill, what is above the recovery point is also checked and
        written again. So it is on the disk even if fsyncs of the killed process failed. `interrupted`: an earlier open
        did not end, so all of that is done.

        A `log_start_offset` beyond the end counts only if `high_watermark` had reached it. `start_known`: the
        checkpoint of log starts could be read. `left`: how the last clean stop left this log. Repairs are reported to
        `notes`, a sentence each; missing or damaged data is in `found`. Raises OSError.
        """
        cache = index_cache if index_cache is not None else IndexCache()
        loaded = load(
            files,
            directory,
            config,
            cache,
            wall if wall is not None else WallClock(),
            now=now,
            clean_shutdown=clean_shutdown,
            same_boot=same_boot,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            producer_id_expiration_ms=producer_id_expiration_ms,
            note=notes if notes is not None else lambda _: None,
            write_again=write_again,
            interrupted=interrupted,
            start_known=start_known,
            left=left,
        )
        log = cls(files, directory, config, topic_id, loaded, high_watermark, cache, now)
        log.snapshot_when_due()  # a long replay is not done twice
        return log

    # ---- offsets ---------------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark to `offset`, which is at most the log end; never lowers it. True when it moved."""
        offsets = self.offsets
        if offset <= offsets.high_watermark or self.durability.failed is not None:
            return False
        offsets.committed(offset)
        if self.producers.ended:
            self.producers.high_watermark_moved(offset)
            self._update_first_unstable()
        return True

    def end_offset_for(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end_offset): see EpochCache.end_offset_for."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # ---- appending -------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batch: memoryview,
        *,
        now: int,
        leader_epoch: int,
        origin: Origin = Origin.CLIENT,
        inside: Known | None = None,
    ) -> Appended:
        """Give one record batch the next offsets and write it. `inside`: the result of an earlier decoding. HOT.

        `batch` is writable and holds exactly one batch. Offset, epoch and, if configs require it, timestamp are set in
        place. Raises AppendRefusedError or StorageError, and the log is then unchanged.
        """
        durability = self.durability
        if durability.failed is not None:
            raise StorageError(durability.failed)
        if len(batch) < HEADER_BYTES:
            batch = prepare_batch(batch, self.config, self.wall.at(now), origin)
        header: RawHeader = _unpack_header(batch)
        (base, body, _, magic, crc, attributes, last_delta, _, max_timestamp, producer_id, producer_epoch, sequence,
         count) = header  # fmt: skip
        size = body + LOG_OVERHEAD_BYTES
        if (
            (self._rewrites_plain or size > self._max_message_bytes)
            if origin is _COORDINATOR  # this node has just made the batch
            else size != len(batch)
            or magic != 2
            or base != 0
            or last_delta + 1 != count
            or count <= 0
            or (count * RECORD_BYTES_MIN > size - HEADER_BYTES and (not attributes & 7 or count > size - HEADER_BYTES))
            or attributes not in USUAL_ATTRIBUTES
            or size > self._max_message_bytes
            or (producer_id >= 0 and sequence < 0)
            or max_timestamp - now - self.wall.ahead_ms > self._after_max_ms
            or self._inspects
            or crc32c(batch[ATTRIBUTES_AT:]) != crc
        ):
            # Something is unusual: the careful path refuses it, in Kafka's words, or makes it storable.
            batch = prepare_batch(batch, self.config, self.wall.at(now), origin, inside)
            header = _unpack_header(batch)
            (_, body, _, _, _, attributes, last_delta, _, max_timestamp, producer_id, producer_epoch, sequence,
             _) = header  # fmt: skip
            size = body + LOG_OVERHEAD_BYTES
        if producer_id >= 0:
            known = self.producers.verify_batch(
                attributes, producer_id, producer_epoch, sequence, last_delta, batch, origin
            )
            if known is not None:
                return Appended(known.first_offset, known.last_offset, known.timestamp, True)
        first = self.offsets.log_end_offset
        last = first + last_delta
        segments = self.segments
        active = segments.active
        if (
            active is None
            or active.size + size > segments.size_max
            or max_timestamp > segments.roll_timestamp
            or last > segments.roll_offset
            or active.offset_index.entries >= segments.index_entries_max
        ):
            active = self._segment_for(size, max_timestamp, last, now)
        if leader_epoch != self._epoch or self.epochs.dirty:
            self._note_epoch(leader_epoch, first)
        _stamp(batch, 0, first, body, leader_epoch)
        self._write(active, batch, header, first, last, size)
        return _new_tuple(Appended, (first, last, max_timestamp if attributes & 8 else -1, False))

    def not_written(self, batch: memoryview) -> None:
        """Note that this batch was refused for now, by `append_as_leader` with StorageError or before it. Later
        batches of its producer must wait for it."""
        if len(batch) >= HEADER_BYTES:
            header: RawHeader = _unpack_header(batch)
            self.producers.owe(header[9], header[10], header[11])

    def append_as_follower(self, records: memoryview, *, now: int, leader_epoch: int = 2**31 - 1) -> Appended | None:
        """Append batches from the leader unchanged; offsets, epochs and timestamps are already in them.

        Stops before the first batch that is torn, or whose epoch is above `leader_epoch`, the one of the fetch
        (KAFKA-18723). Returns the appended range, None if it is empty. Raises DamagedLogError if the first batch does
        not match its checksum, or claims offsets or an epoch that the next one contradicts. Raises DivergingOffsetError
        if the records do not continue the log (an empty log restarts at the first batch instead, KAFKA-6975), and
        StorageError.
        """
        if self.failed is not None:
            raise StorageError(self.failed)
        first: int | None = None
        position = 0
        while position + HEADER_BYTES <= len(records):
            header: RawHeader = _unpack_header(records, position)
            end = position + header[1] + LOG_OVERHEAD_BYTES
            if header[1] + LOG_OVERHEAD_BYTES < HEADER_BYTES or end > len(records) or header[3] != 2:
                break
            if header[2] > leader_epoch:
                break
            fault = _fault_in(header, records, position, end)
            if fault is not None:
                if first is None:
                    raise DamagedLogError(fault)
                break
            if header[0] > self.log_end_offset and header[0] > self.durability.gaps.below:
                self.durability.permit_gaps(_last_base_in(records, position))
            self._append_batch_as_follower(records[position:end], header, now)
            first = header[0] if first is None else first
            position = end
        if first is None:
            return None
        return Appended(first, self.log_end_offset - 1, -1, False)

    def _append_batch_as_follower(self, batch: memoryview, header: RawHeader, now: int) -> None:
        base, body, epoch, _, _, _, last_delta, _, max_timestamp, _, _, _, _ = header
        last = base + last_delta
        if base < self.log_end_offset:
            if self.log_start_offset != self.log_end_offset or last < self.log_end_offset:
                raise DivergingOffsetError(base, last, self.log_end_offset)
            self.truncate_fully_and_start_at(base, now=now)
        size = body + LOG_OVERHEAD_BYTES
        active = self.active
        if active is None or self.segments.must_roll(size, max_timestamp, last, now):
            active = self._segment_for(size, max_timestamp, last, now)
        if epoch >= 0 and (epoch != self._epoch or self.epochs.dirty):
            self._note_epoch(epoch, base)
        self._write(active, batch, header, base, last, size)

    def _write(self, active: Segment, batch: memoryview, header: RawHeader, first: int, last: int, size: int) -> None:
        """Write a batch that has its offsets, and update the state derived from it. HOT. Raises StorageError."""
        try:
            active.append(batch, size, last, header[8], self.segments.index_interval)
        except OSError as error:
            self._write_failed(active, error)
        self.offsets.appended(last + 1)
        if header[9] >= 0:
            self._note_batch(batch, header, first)
        if self.durability.appended(size):
            self.snapshot_when_due()

    def _note_batch(self, batch: memoryview, header: RawHeader, first: int) -> None:
        """A batch with a producer id was written at `first`."""
        (_, _, _, _, _, attributes, last_delta, _, max_timestamp, producer_id, epoch, sequence, _) = header
        if attributes & ATTRIBUTES_CONTROL:
            self._note_marker(batch, producer_id, epoch, first, max_timestamp)
            return
        transactional = bool(attributes & ATTRIBUTES_TRANSACTIONAL)
        self.producers.add(
            producer_id, epoch, sequence, first, first + last_delta, max_timestamp, transactional=transactional
        )
        if transactional and self.offsets.first_unstable is None:
            self._update_first_unstable()

    def _note_marker(self, batch: memoryview, producer_id: int, epoch: int, offset: int, timestamp: int) -> None:
        """A control batch was written at `offset`: perhaps a transaction ended."""
        producers = self.producers
        marker = marker_in(batch)
        if marker is None:
            producers.emptied_marker(producer_id, epoch, timestamp)
            return
        aborted = not marker.committed
        ended = producers.end_transaction(
            producer_id, epoch, marker.coordinator_epoch, offset, timestamp, aborted=aborted
        )
        if ended is None:
            return
        if aborted and self.active is not None:
            stable = producers.last_stable_offset_after(ended)
            self.syncing.created()
            with contextlib.suppress(OSError):  # the index tries again before the next sync or snapshot
                self.active.txn_index.append(AbortedTransaction(producer_id, ended.first_offset, offset, stable))
        producers.complete(ended)
        self._update_first_unstable()

    def _note_epoch(self, leader_epoch: int, first: int) -> None:
        if leader_epoch >= 0:
            self._begin_epoch(leader_epoch, first)
        self.write_epochs()

    def _write_failed(self, segment: Segment, error: OSError) -> None:
        """Cut off a batch that may be partly in the file. If the disk refuses that now, the next append does it
        first."""
        self.segments.write_failed()
        raise StorageError(f"writing {segment.file.path} failed: {error}") from error

    # ---- reading ---------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        min_one_batch: bool = True,
    ) -> ReadResult:
        """Whole batches from the one that holds `offset` on, at most `max_bytes` and of one segment. HOT.

        With `min_one_batch` a first batch larger than `max_bytes` is returned whole. An offset between the isolation's
        limit and the log end gives no slice and no error. Raises OffsetOutOfRangeError. Raises OSError if the disk
        fails here, or if it failed when a slice of these bytes was sent and still fails.
        """
        return reading.read(self, offset, max_bytes, isolation, min_one_batch)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record at or after the log start whose timestamp is >= `timestamp`."""
        return reading.offset_for_timestamp(self, timestamp)

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the greatest timestamp; on LogAppendTime the first of its batch."""
        return reading.max_timestamp(self)

    def earliest(self) -> TimestampOffset:
        """The log start, with the epoch in force there (-1 if unknown)."""
        return TimestampOffset(-1, self.log_start_offset, self.epochs.epoch_at(self.log_start_offset))

    # ---- truncation ------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, now: int) -> bool:
        """Drop everything from `offset` on, for a log that diverged from its leader. False if there was nothing to
        drop.

        Checkpoints of the recovery point and of the high watermark must be written before the next append: they may be
        above the new end.
        """
        return truncation.truncate_to(self, offset, now)

    def truncate_fully_and_start_at(self, offset: int, *, now: int) -> None:
        """Drop everything; the log is empty and begins and ends at `offset` (KAFKA-9491)."""
        truncation.truncate_fully_and_start_at(self, offset, now)

    @property
    def is_gone(self) -> bool:
        """Whether another process has removed or renamed the log's directory."""
        return removal.is_gone(self)

    def start_over(self) -> None:
        """The directory `is_gone`: drop everything. The log is empty and begins and ends at its log start, as if this
        node had started now. A log that has failed accepts writes again. Raises StorageError."""
        truncation.start_over(self)

    def delete_records_before(self, offset: int) -> bool:
        """Move the log start up to `offset`. True if it moved. Raises OffsetOutOfRangeError above the high
        watermark."""
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self.high_watermark)
        return retention.move_log_start(self, offset)

    # ---- compaction ------------------------------------------------------------------------------------------------

    def cleanable_ratio(self, now: int) -> float:
        """The share of the log that a compaction would read for the first time, 0.0 while no compaction is due."""
        return cleanable.cleanable_ratio(self, now)

    def not_read(self, part: FileSlice) -> None:
        """The I/O host could not read this part of a slice. Later reads of it fail until it can be read."""
        self.durability.not_read(part)

    # ---- durability and upkeep -------------------------------------------------------------------------------------

    def pending_sync(self) -> list[Syncable]:
        """The files to sync so that everything up to `log_end_offset` is on the disk.

        Each is pinned. Call `sync` on all of them, on any thread. Then, on the log's thread, call `synced(up_to)` with
        the log end offset at the time of this call, or `sync_failed`. Several syncs may be outstanding; they finish in
        order.
        """
        return self.syncing.begin(self.active, self.log_end_offset)

    def synced(self, up_to: int) -> None:
        """The oldest outstanding `pending_sync` is done: the recovery point moves."""
        self.syncing.finish(up_to, self.log_end_offset, counts=self.failed is None)

    def sync_failed(self, error: OSError) -> None:
        """The oldest outstanding `pending_sync` failed, so the log closes to writes; `reopen` may open it again.

        What it should have covered may never reach the disk, whatever a later fsync says (failed_sync.py).
        """
        self.syncing.failed()
        failed_sync.shut(self, error)

    def reopen(self, now: int, *, others_know: bool = False) -> bool:
        """After a failed fsync, cut off what it should have covered and open the log again. False if the records were
        already acknowledged or delivered.

        `others_know`: other replicas have these records, or rely on this log to have them.
        """
        return failed_sync.reopen(self, now, others_know=others_know)

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything, here and now, unless all below `up_to` is synced already. Raises StorageError."""
        if self.failed is not None:
            raise StorageError(self.failed)
        if up_to is not None and up_to <= self.recovery_point:
            return
        self._sync_now()

    def _sync_now(self) -> None:
        try:
            self.syncing.sync_now(self.active, self.log_end_offset)
        except OSError as error:
            raise failed_sync.shut(self, error) from error

    def flush_due(self, now: int) -> bool:
        """Whether flush.messages or flush.ms require a sync."""
        return retention.flush_due(self, now)

    def deadline(self, now: int) -> int | None:
        """The earliest time at which `maintaining` or a flush has work; None while there is none."""
        return retention.deadline(self, now)

    def maintaining(self, now: int) -> Iterator[Syncable]:
        """Do what is due: retention, removal of deleted files, expiry of producers.

        In steps: what is yielded must be synced, with a pin around, before the next one. Raises OSError.
        """
        return retention.maintaining(self, now)

    def complete(self) -> bool:
        """Write the files of a clean stop. True if it has to wait for the disk. Raises StorageError."""
        return closing.complete(self)

    def close(self, now: int) -> Left | None:
        """Stop cleanly: everything is complete and synced, and descriptors are closed. Returns the state of the log."""
        if self.complete():
            self._sync_now()
        left = closing.left_by(self)
        removal.remove_deleted_files(self, now, at_once=True)
        for segment in self.segments:
            segment.close()
        return left

    def delete(self) -> None:
        """Remove the partition from the disk; slices already handed out stay readable. Raises OSError; try again."""
        self._end()
        if self.on_disk:
            removal.remove_partition(self.files, self.directory, self.topic_id)

    def bury(self) -> str:
        """Rename the partition's directory, so that another one may have its name; returns the new path, which is to be
        removed. The caller syncs the data directory. Raises OSError; try again."""
        self._end()
        if self.on_disk:
            removal.bury_partition(self.files, self.directory, self.topic_id)
        return removal.grave_of(self.directory, self.topic_id)

    def _end(self) -> None:
        """Drop all state: the partition is deleted."""
        self.durability.fail("the partition was deleted")
        self.segments.interrupt_compaction()
        cleanable.forget_checkpoint(self)
        self.segments.log_deleted()
        self.durability.log_deleted()

    def check(self) -> None:
        """Invariants, for tests."""
        self.check_parts()
        assert self._epoch == self.epochs.latest_epoch
        self.epochs.check()
        self.producers.check()
