"""Holds the parts of one partition's log, and the steps that all operations on it share.

The parts are the segments, with the rules for closing the active one, the epoch checkpoint, and snapshots of the
producer state. Appends, reads, retention, truncation and compaction use these parts (log.py).

A snapshot at offset N is the producer state below N, in Kafka's format (producers.py). It saves a start from replaying
the whole log. The newest snapshot stays, and those at the beginnings of segments, for truncation and retention. A
missing snapshot costs replaying. So a snapshot that can't be written now is postponed, except when segments are about
to be removed.

Sources: Kafka's UnifiedLog.scala, LogSegment.java, ProducerStateManager.java.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from typing import Final

from ottla.log.answers import AppendRefused, StorageFailed
from ottla.log.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, write_partition_metadata
from ottla.log.config import LONG_MAX, LogConfig
from ottla.log.cost import BEYOND_USUAL, SEGMENT
from ottla.log.files import FileSlice, FileSystem
from ottla.log.index.offsets import RELATIVE_OFFSET_MAX, IndexCache
from ottla.log.index.times import TIME_ENTRY
from ottla.log.names import snapshot_name
from ottla.log.recovery.loading import Loaded
from ottla.log.segment import Segment
from ottla.log.syncing import Syncing
from ottla.protocol.errors import ErrorCode

SNAPSHOT_BATCHES: Final = 2048  # maximum number of batches to replay into the producer state after a kill
SNAPSHOT_BYTES: Final = 16 << 20
FIRST_CHECK_DELAY_MS: Final = 30_000
PRODUCER_CHECK_INTERVAL_MS: Final = 600_000


class Retention:
    """When a log needs upkeep. `due` requests a retention check now, `start_moved` only one of what is below the log
    start; `deletions` are (when, path) to unlink."""

    __slots__ = ("deletions", "due", "next_check_ms", "producer_check_ms", "start_moved")

    def __init__(self, now: int, deletions: list[str]) -> None:
        self.due = False
        self.start_moved = False
        self.deletions: list[tuple[int, str]] = [(now, path) for path in deletions]
        self.next_check_ms = now + FIRST_CHECK_DELAY_MS
        self.producer_check_ms = now + PRODUCER_CHECK_INTERVAL_MS

    def config_changed(self) -> None:
        self.due = True


class LogState:
    """The parts of one partition's log."""

    __slots__ = (
        "_after_max_ms",
        "_batches_since_snapshot",
        "_bytes_since_snapshot",
        "_epoch",
        "_first_unstable",
        "_index_entries_max",
        "_index_interval",
        "_inspects",
        "_max_message_bytes",
        "_rewrites_plain",
        "_roll_offset",
        "_roll_timestamp",
        "_segment_bytes",
        "_torn",
        "active",
        "bases",
        "cleaned_to",
        "compaction_epoch",
        "config",
        "cursors",
        "directory",
        "epochs",
        "failed",
        "files",
        "found",
        "high_watermark",
        "in_doubt",
        "index_cache",
        "log_end_offset",
        "log_start_offset",
        "on_disk",
        "producers",
        "retention",
        "segments",
        "snapshots",
        "syncing",
        "topic_id",
        "unreadable",
        "wall",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        topic_id: bytes,
        loaded: Loaded,
        high_watermark: int,
        index_cache: IndexCache,
        now: int,
    ) -> None:
        self.files = files
        self.wall = loaded.wall
        self.directory = directory
        self.topic_id = topic_id
        self.index_cache = index_cache
        self.on_disk = loaded.on_disk
        self.segments: list[Segment] = loaded.segments
        self.bases: list[int] = [segment.base_offset for segment in loaded.segments]
        self.active: Segment | None = loaded.segments[-1] if loaded.segments else None
        self.epochs = loaded.epochs
        self.found = loaded.found
        self.producers = loaded.producers
        self.snapshots: list[int] = loaded.snapshots
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.failed: str | None = None  # why the log is closed to writes
        self.in_doubt = False  # an fsync failed: what is above the recovery point may not reach the disk
        self.unreadable: list[FileSlice] = []  # where the I/O host could not read when it sent an answer
        self._torn = False  # the active segment's file ends in a part of a batch that could not be cut off
        self.cleaned_to: int | None = None  # where the last compaction ended; None: not read yet
        self.compaction_epoch: int = 0  # raised whenever a running compaction's picture of the segments may be wrong
        self.cursors: dict[int, tuple[Segment, int]] = {}
        self.syncing = Syncing(files, directory, loaded.recovery_point)
        if loaded.killed:
            self.syncing.born(f"{directory}/{PARTITION_METADATA_FILE}")
            self.syncing.replaced(self.epoch_path)
        self.retention = Retention(now, loaded.deletions)
        self._batches_since_snapshot = loaded.batches_since_snapshot
        self._bytes_since_snapshot = 0
        self._epoch = self.epochs.latest_epoch
        self._first_unstable: int | None = None
        self.configure(config)
        # Not before the first check is due, as in Kafka: a backfill of old records can be read.
        self.retention.due = False
        self.producers.high_watermark_moved(self.high_watermark)
        self._update_first_unstable()

    def configure(self, config: LogConfig) -> None:
        """Apply a new config."""
        self.config = config
        self._segment_bytes = config.segment_bytes
        self._max_message_bytes = config.max_message_bytes
        self._index_interval = config.index_interval_bytes
        self._index_entries_max = max(1, config.segment_index_bytes // TIME_ENTRY.size - 1)
        self._after_max_ms = config.message_timestamp_after_max_ms
        stamps = config.message_timestamp_type != "CreateTime"
        self._rewrites_plain = stamps or config.compression_type not in ("producer", "uncompressed")
        self._inspects = (
            stamps
            or config.compacted
            or config.compression_type != "producer"
            or config.message_timestamp_before_max_ms != LONG_MAX
        )
        self.retention.config_changed()
        self._set_roll_limits()

    # ---- offsets ---------------------------------------------------------------------------------------------------

    @property
    def recovery_point(self) -> int:
        """Every offset below is on the disk."""
        return self.syncing.recovery_point

    @property
    def last_stable_offset(self) -> int:
        first = self._first_unstable
        return first if first is not None and first < self.high_watermark else self.high_watermark

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def unflushed(self) -> int:
        """The number of offsets that are not known to be on the disk."""
        return self.log_end_offset - self.syncing.recovery_point

    def _update_first_unstable(self) -> None:
        first = self.producers.first_unstable_offset
        self._first_unstable = None if first is None else max(first, self.log_start_offset)

    def bases_end(self, at: int) -> int:
        """One past the last offset that belongs into the segment at index `at`."""
        return self.bases[at + 1] if at + 1 < len(self.bases) else self.log_end_offset

    # ---- epochs ----------------------------------------------------------------------------------------------------

    @property
    def last_record_epoch(self) -> int:
        """The epoch of the last record, -1 without any: newer epochs may have begun, and have no record yet."""
        return self.epochs.epoch_at(self.log_end_offset - 1)

    @property
    def latest_epoch(self) -> int:
        """The newest epoch assigned, -1 without any."""
        return self.epochs.latest_epoch

    @property
    def epoch_start_offset(self) -> int:
        """The start offset of the newest epoch."""
        return self.epochs.latest_start

    def write_epochs(self) -> None:
        """Bring the epoch checkpoint up to date; it is synced together with the data that follows.

        Raises StorageFailed; the next append tries again before it writes.
        """
        if self.epochs.dirty and self.on_disk:
            try:
                self.files.write_atomically(self.epoch_path, self.epochs.encode(), durable=False)
            except OSError as error:
                raise StorageFailed(f"writing {self.epoch_path} failed: {error}") from error
            self.epochs.dirty = False
            self.syncing.replaced(self.epoch_path)

    @property
    def epoch_path(self) -> str:
        return f"{self.directory}/{LEADER_EPOCH_FILE}"

    # ---- segments --------------------------------------------------------------------------------------------------

    def _set_roll_limits(self) -> None:
        """Set the limits that `append_as_leader` compares with: the offset and timestamp at which the active segment
        must close."""
        active = self.active
        if active is None:
            self._roll_offset, self._roll_timestamp = -1, -1
            return
        self._roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
        first = active.rolling_timestamp()
        # Without a first timestamp the clock decides: -2 sends every append to `_must_roll`.
        self._roll_timestamp = first + self.config.roll_ms if first >= 0 else -2

    def _must_roll(self, active: Segment, size: int, max_timestamp: int, last: int, now: int) -> bool:
        """Kafka's LogSegment.shouldRoll."""
        config = self.config
        first = active.rolling_timestamp()
        waited = max_timestamp - first if first >= 0 else now - active.created_ms
        return (
            active.size + size > config.segment_bytes
            or (active.size > 0 and waited > config.roll_ms)
            or active.offset_index.entries >= self._index_entries_max
            or last - active.base_offset > RELATIVE_OFFSET_MAX
        )

    def _segment_for(self, size: int, max_timestamp: int, last: int, now: int) -> Segment:
        """The segment for the next batch: a new one if the active one is full, or there is none. Raises StorageFailed
        with the log unchanged."""
        if size > self.config.segment_bytes:
            raise AppendRefused(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"A batch of {size} bytes does not fit into a segment of {self.config.segment_bytes} bytes.",
            )
        try:
            if self._torn:
                self._cut_torn_tail()
            if self.active is None:
                self._begin(now)
            elif self._must_roll(self.active, size, max_timestamp, last, now):
                self._roll(now)
        except OSError as error:
            raise StorageFailed(f"a new segment in {self.directory} failed: {error}") from error
        active = self.active
        assert active is not None
        if active.size == 0:
            self._roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
            self._roll_timestamp = max_timestamp + self.config.roll_ms if max_timestamp >= 0 else -2
        return active

    def _begin(self, now: int) -> None:
        """Create the directory and files of a new log on its first append."""
        if not self.on_disk:
            self.files.makedirs(self.directory)
            self.syncing.born(write_partition_metadata(self.files, self.directory, self.topic_id))
            self.on_disk = True
        self._add_segment(now)

    def _add_segment(self, now: int) -> None:
        segment = Segment(self.files, self.directory, self.log_end_offset, self.index_cache, now=now, create=True)
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self._set_roll_limits()
        self.syncing.created()
        BEYOND_USUAL.steps += SEGMENT

    def _roll(self, now: int) -> None:
        old = self.active
        assert old is not None
        old.complete_indexes()
        self.write_snapshot()
        self._add_segment(now)  # up to here anything may fail, and the old segment stays active
        old.offset_index.deactivate()
        old.created_ms = now
        self.syncing.closed(old)
        self.retention.due = True

    def roll(self, now: int) -> bool:
        """Close the active segment and begin a new one; False if the active one is empty or there is none."""
        if self.active is None or self.active.size == 0 or self.failed is not None:
            return False
        try:
            self._roll(now)
        except OSError as error:
            raise StorageFailed(f"a new segment in {self.directory} failed: {error}") from error
        return True

    def _cut_torn_tail(self) -> None:
        active = self.active
        if active is not None and active.file.size() > active.size:
            active.file.truncate(active.size)
        self._torn = False
        self._set_roll_limits()

    def segments_replaced(self, segments: list[Segment]) -> None:
        """Replace the list of segments; remembered positions become invalid."""
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1] if segments else None
        self.cursors.clear()
        self._set_roll_limits()

    # ---- producer snapshots ----------------------------------------------------------------------------------------

    def snapshot_when_due(self) -> None:
        """Write a snapshot if enough was appended since the last one. A failed one is postponed."""
        # The cost of a snapshot grows with the number of producers, so logs with many producers get fewer.
        due = max(SNAPSHOT_BATCHES, 4 * len(self.producers.entries))
        batches = self._batches_since_snapshot
        if batches >= due or (self._bytes_since_snapshot >= SNAPSHOT_BYTES and batches * 4 >= due):
            with contextlib.suppress(StorageFailed):
                self.write_snapshot()
            self.replayed(0)

    def write_snapshot(self) -> None:
        """Write the producer state as it is at the log end. Raises StorageFailed."""
        end = self.log_end_offset
        path = self._snapshot_path(end)
        self.producers.end_offset = end
        try:
            if self.active is not None:
                self.active.txn_index.flush()  # a replay from the snapshot on would not find these aborts again
            self.files.write_atomically(path, self.producers.encode(), durable=False)
            self.syncing.replaced(path)
            previous = self.snapshots[-1] if self.snapshots else -1
            if previous != end:
                self.snapshots.append(end)
                at = bisect_right(self.bases, previous) - 1
                if previous >= 0 and (at < 0 or self.bases[at] != previous):
                    self.drop_snapshot(previous)
        except OSError as error:
            raise StorageFailed(f"writing {path} failed: {error}") from error
        self.replayed(0)

    def replayed(self, batches: int) -> None:
        """Set the age of the newest snapshot in batches."""
        self._batches_since_snapshot = batches
        self._bytes_since_snapshot = 0

    def drop_snapshot(self, offset: int) -> None:
        """Remove the snapshot at `offset`, if there is one. Raises OSError."""
        if offset in self.snapshots:
            path = self._snapshot_path(offset)
            if self.files.exists(path):
                self.files.unlink(path)
                self.syncing.created()
            self.snapshots.remove(offset)

    def _snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{snapshot_name(offset)}"

    def state_rebuilt(self) -> None:
        """Update the values cached from producers and epochs, which were cut or rebuilt."""
        self._epoch = self.epochs.latest_epoch
        self.producers.high_watermark_moved(self.high_watermark)
        self._update_first_unstable()

    def fail(self, sentence: str) -> StorageFailed:
        """Close the log to writes, and return the exception to raise. Complete records can still be read."""
        self.failed = sentence
        return StorageFailed(sentence)
