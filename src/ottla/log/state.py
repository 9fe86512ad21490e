"""Holds the parts of one partition's log, and the steps that involve several of them.

The parts are its offsets (offsets.py), its segments (segments.py) and what of it is on the disk (durability.py), the
epochs and the producers. Each part is the only writer of its fields. Appends, reads, retention, truncation and
compaction use these parts (log.py).

Sources: Kafka's UnifiedLog.scala, LocalLog.scala.
"""

from __future__ import annotations

import contextlib
from typing import Final

from ottla.log.answers import AppendRefusedError, StorageError
from ottla.log.config import LONG_MAX, LogConfig
from ottla.log.durability import Durability
from ottla.log.files import FileSystem
from ottla.log.index.offsets import IndexCache
from ottla.log.offsets import LogOffsets
from ottla.log.recovery.loading import Loaded
from ottla.log.segment import Segment
from ottla.log.segments import LogSegments
from ottla.log.syncing import Syncing
from ottla.protocol.errors import ErrorCode

FIRST_CHECK_DELAY_MS: Final = 30_000
RETENTION_CHECK_INTERVAL_MS: Final = 300_000
PRODUCER_CHECK_INTERVAL_MS: Final = 600_000


class Retention:
    """When a log needs upkeep. `due` requests a retention check now, `start_moved` only one of what is below the log
    start; `deletions` are (when, path) to unlink."""

    __slots__ = ("deletions", "due", "next_check_ms", "producer_check_ms", "start_moved")

    def __init__(self, now: int, deletions: list[str]) -> None:
        # Not before the first check is due, as in Kafka: a backfill of old records can be read.
        self.due = False
        self.start_moved = False
        self.deletions: list[tuple[int, str]] = [(now, path) for path in deletions]
        self.next_check_ms = now + FIRST_CHECK_DELAY_MS
        self.producer_check_ms = now + PRODUCER_CHECK_INTERVAL_MS

    def request(self) -> None:
        """Request a check now: a segment was closed, or the config has changed."""
        self.due = True

    def checked(self, now: int) -> None:
        """A check begins; the next one is due after the interval."""
        self.due = False
        self.next_check_ms = now + RETENTION_CHECK_INTERVAL_MS

    def requests_served(self) -> None:
        """No check is requested: the segments to remove were chosen."""
        self.due = False

    def start_raised(self) -> None:
        """The log start moved; segments may be below it."""
        self.start_moved = True

    def below_start_removed(self) -> None:
        """No segment is below the log start."""
        self.start_moved = False

    def producers_checked(self, next_check_ms: int) -> None:
        """Producers were expired; the next check is due at this time."""
        self.producer_check_ms = next_check_ms

    def renamed(self, when: int, path: str) -> None:
        """A file was renamed and must be unlinked at `when`."""
        self.deletions.append((when, path))

    def unlinked(self, remaining: list[tuple[int, str]]) -> None:
        """Files were unlinked; these still wait."""
        self.deletions = remaining


class LogState:
    """The parts of one partition's log."""

    __slots__ = (
        "_after_max_ms",
        "_epoch",
        "_inspects",
        "_max_message_bytes",
        "_rewrites_plain",
        "config",
        "counts_unflushed",
        "directory",
        "durability",
        "epochs",
        "files",
        "found",
        "offsets",
        "producers",
        "retention",
        "segments",
        "topic_id",
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
        self.found = loaded.found
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.offsets = LogOffsets(loaded.log_start_offset, loaded.log_end_offset, high_watermark)
        self.segments = LogSegments(files, directory, config, index_cache, loaded.segments)
        self.durability = Durability(files, directory, loaded)
        self.retention = Retention(now, loaded.deletions)
        self._apply(config)
        self.state_rebuilt()

    def configure(self, config: LogConfig) -> None:
        """Apply a new config."""
        self._apply(config)
        self.segments.configure(config)
        self.retention.request()

    def _apply(self, config: LogConfig) -> None:
        """Set what an append compares with."""
        self.config = config
        self._max_message_bytes = config.max_message_bytes
        self._after_max_ms = config.message_timestamp_after_max_ms
        self.counts_unflushed = config.flush_messages != LONG_MAX
        stamps = config.message_timestamp_type != "CreateTime"
        self._rewrites_plain = stamps or config.compression_type not in ("producer", "uncompressed")
        self._inspects = (
            stamps
            or config.compacted
            or config.compression_type != "producer"
            or config.message_timestamp_before_max_ms != LONG_MAX
        )

    # ---- the parts, for readers ------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.offsets.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.offsets.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.offsets.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.offsets.last_stable_offset

    @property
    def active(self) -> Segment | None:
        return self.segments.active

    @property
    def bases(self) -> list[int]:
        """The base offsets of the segments."""
        return self.segments.bases

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def failed(self) -> str | None:
        """Why the log is closed to writes."""
        return self.durability.failed

    @property
    def on_disk(self) -> bool:
        """Whether the log's directory exists."""
        return self.durability.on_disk

    @property
    def syncing(self) -> Syncing:
        return self.durability.syncing

    @property
    def recovery_point(self) -> int:
        """Every offset below is on the disk."""
        return self.durability.syncing.recovery_point

    @property
    def unflushed(self) -> int:
        """The number of offsets that are not known to be on the disk."""
        return self.offsets.log_end_offset - self.durability.syncing.recovery_point

    @property
    def is_flush_due(self) -> bool:
        """Whether flush.messages asks for an fsync now; never, unless `counts_unflushed`."""
        return self.config.flush_messages <= self.unflushed

    def bases_end(self, at: int) -> int:
        """One past the last offset that belongs into the segment at index `at`."""
        bases = self.segments.bases
        return bases[at + 1] if at + 1 < len(bases) else self.offsets.log_end_offset

    def check_parts(self) -> None:
        """Invariants of the offsets, the segments and the state of the disk, for the simulator after each event."""
        self.offsets.check()
        self.segments.check()
        self.durability.check(self.log_end_offset)
        assert not self.bases or self.bases[-1] <= self.log_end_offset, (self.bases[-1], self.log_end_offset)

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

    def assign_epoch(self, leader_epoch: int) -> None:
        """Begin to lead in `leader_epoch`: note the epoch's start offset, before any append (KAFKA-7415)."""
        self._begin_epoch(leader_epoch, self.log_end_offset)

    def _begin_epoch(self, leader_epoch: int, first: int) -> None:
        self.epochs.assign(leader_epoch, first)
        self._epoch = self.epochs.latest_epoch

    def write_epochs(self) -> None:
        """See Durability.write_epochs."""
        self.durability.write_epochs(self.epochs)

    # ---- segments --------------------------------------------------------------------------------------------------

    def _segment_for(self, size: int, max_timestamp: int, last: int, now: int) -> Segment:
        """The segment for the next batch: a new one if the active one is full, or there is none. Raises StorageError
        with the log unchanged."""
        if size > self.config.segment_bytes:
            raise AppendRefusedError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"A batch of {size} bytes does not fit into a segment of {self.config.segment_bytes} bytes.",
            )
        segments = self.segments
        try:
            segments.repair()
            if segments.active is None:
                self.durability.make_directory(self.topic_id)
                self._create_active(now)
            elif segments.must_roll(size, max_timestamp, last, now):
                self._roll(now)
        except OSError as error:
            raise StorageError(f"a new segment in {self.directory} failed: {error}") from error
        active = segments.active
        assert active is not None
        if active.size == 0:
            segments.begins_with(max_timestamp)
        return active

    def _create_active(self, now: int) -> None:
        self.segments.create_active(self.log_end_offset, now)
        self.durability.syncing.created()

    def _roll(self, now: int) -> None:
        old = self.segments.active
        assert old is not None
        old.complete_indexes()
        self.write_snapshot()
        self._create_active(now)  # up to here anything may fail, and the old segment stays active
        old.offset_index.deactivate()
        old.created_ms = now
        self.durability.syncing.closed(old)
        self.retention.request()

    def roll(self, now: int) -> bool:
        """Close the active segment and begin a new one; False if the active one is empty or there is none. Raises
        StorageError."""
        active = self.segments.active
        if active is None or active.size == 0 or self.durability.failed is not None:
            return False
        try:
            self._roll(now)
        except OSError as error:
            raise StorageError(f"a new segment in {self.directory} failed: {error}") from error
        return True

    # ---- producers -------------------------------------------------------------------------------------------------

    def snapshot_when_due(self) -> None:
        """Write a snapshot if enough was appended since the last one. A failed one is postponed."""
        if self.durability.snapshot_due(len(self.producers.entries)):
            with contextlib.suppress(StorageError):
                self.write_snapshot()
            self.durability.replayed(0)

    def write_snapshot(self) -> None:
        """Write the producer state as it is at the log end. Raises StorageError."""
        end = self.producers.end_offset = self.log_end_offset
        self.durability.write_snapshot(end, self.producers, self.segments)

    def _update_first_unstable(self) -> None:
        self.offsets.unstable_from(self.producers.first_unstable_offset)

    def state_rebuilt(self) -> None:
        """Update the values cached from producers and epochs, which were cut or rebuilt."""
        self._epoch = self.epochs.latest_epoch
        self.producers.high_watermark_moved(self.high_watermark)
        self._update_first_unstable()
