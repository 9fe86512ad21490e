"""Tracks what of one log is on the disk: its directory, its files that wait for an fsync, its producer snapshots, which
gaps it may have, and the failures of its disk.

Only this class changes that. A log that has failed is closed to writes; its complete records can still be read.

A snapshot at offset N is the producer state below N, in Kafka's format (producers.py). It saves a start from replaying
the whole log. The newest snapshot stays, and those at the beginnings of segments, for truncation and retention. A
missing snapshot costs replaying. So a snapshot that can't be written now is postponed, except when segments are about
to be removed.

Source: Kafka's ProducerStateManager.java.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from ottla.log.answers import StorageError
from ottla.log.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, write_partition_metadata
from ottla.log.epochs import EpochCache
from ottla.log.files import FileSlice, FileSystem
from ottla.log.names import snapshot_name
from ottla.log.producers import ProducerState
from ottla.log.recovery import state
from ottla.log.recovery.loading import Loaded
from ottla.log.segments import LogSegments
from ottla.log.syncing import Syncing

SNAPSHOT_BATCHES: Final = 2048  # maximum number of batches to replay into the producer state after a kill
SNAPSHOT_BYTES: Final = 16 << 20
UNREADABLE_MAX: Final = 16


class Durability:
    """The state between one log and its disk.

    `failed` is why the log is closed to writes. `in_doubt`: an fsync failed, so what is above the recovery point may
    never reach the disk. `unreadable` are the parts of files that the I/O host could not read when it sent an answer.
    `snapshots` are the offsets of producer snapshots. `gaps`: between batches.
    """

    __slots__ = (
        "_batches_since_snapshot",
        "_bytes_since_snapshot",
        "_directory",
        "_files",
        "failed",
        "gaps",
        "in_doubt",
        "on_disk",
        "snapshots",
        "syncing",
        "unreadable",
    )

    def __init__(self, files: FileSystem, directory: str, loaded: Loaded) -> None:
        self._files = files
        self._directory = directory
        self.on_disk = loaded.on_disk
        self.failed: str | None = None
        self.in_doubt = False
        self.unreadable: list[FileSlice] = []
        self.snapshots: list[int] = loaded.snapshots
        self.syncing = Syncing(files, directory, loaded.recovery_point)
        self.gaps = loaded.gaps
        if loaded.killed:
            self.syncing.born(f"{directory}/{PARTITION_METADATA_FILE}")
            self.syncing.replaced(self.epoch_path)
            self.syncing.replaced(self.gaps.path)
        self._sync_gaps()
        self._batches_since_snapshot = loaded.batches_since_snapshot
        self._bytes_since_snapshot = 0

    # ---- files -----------------------------------------------------------------------------------------------------

    @property
    def recovery_point(self) -> int:
        """Every offset below is on the disk."""
        return self.syncing.recovery_point

    @property
    def epoch_path(self) -> str:
        return f"{self._directory}/{LEADER_EPOCH_FILE}"

    def make_directory(self, topic_id: bytes) -> None:
        """Create the directory of a log without segments, with its identity. It may have been removed since the log was
        opened. Raises OSError."""
        if not (self.on_disk and self._files.exists(self._directory)):
            self._files.makedirs(self._directory)
            self.syncing.born(write_partition_metadata(self._files, self._directory, topic_id))
            self.write_gaps()
            self.on_disk = True

    def write_gaps(self) -> None:
        """Write again which gaps the log may have. Raises OSError."""
        self.gaps.write()
        self._sync_gaps()

    def permit_gaps(self, below: int) -> None:
        """Gaps up to this offset are about to be made. The next sync covers the file. Raises StorageError."""
        try:
            self.gaps.permit(below, written=self.on_disk)
        except OSError as error:
            raise StorageError(f"writing {self.gaps.path} failed: {error}") from error
        self._sync_gaps()

    def cut_gaps(self, end: int) -> None:
        """The log was cut, and ends here."""
        self.gaps.cut(end)
        self._sync_gaps()

    def _sync_gaps(self) -> None:
        if self.gaps.is_unsynced:
            self.gaps.is_unsynced = False
            self.syncing.replaced(self.gaps.path)

    def write_epochs(self, epochs: EpochCache) -> None:
        """Bring the epoch checkpoint up to date; it is synced together with the data that follows.

        Raises StorageError; the next append tries again before it writes.
        """
        if epochs.dirty and self.on_disk:
            try:
                self._files.write_atomically(self.epoch_path, epochs.encode(), durable=False)
            except OSError as error:
                raise StorageError(f"writing {self.epoch_path} failed: {error}") from error
            epochs.written()
            self.syncing.replaced(self.epoch_path)

    # ---- producer snapshots ----------------------------------------------------------------------------------------

    def appended(self, size: int) -> bool:
        """A batch of `size` bytes was written. Returns whether a snapshot may be due. HOT."""
        self._batches_since_snapshot += 1
        self._bytes_since_snapshot += size
        return self._batches_since_snapshot >= SNAPSHOT_BATCHES or self._bytes_since_snapshot >= SNAPSHOT_BYTES

    def snapshot_due(self, producers: int) -> bool:
        """Whether enough was appended since the last snapshot, for this number of producers."""
        # The cost of a snapshot grows with the number of producers, so logs with many producers get fewer.
        due = max(SNAPSHOT_BATCHES, 4 * producers)
        batches = self._batches_since_snapshot
        return batches >= due or (self._bytes_since_snapshot >= SNAPSHOT_BYTES and batches * 4 >= due)

    def write_snapshot(self, end: int, producers: ProducerState, segments: LogSegments) -> None:
        """Write the state of the producers at the log end, `end`. The previous snapshot goes, unless a segment begins
        there. Raises StorageError."""
        path, bases = self._snapshot_path(end), segments.bases
        try:
            if segments.active is not None:
                segments.active.txn_index.flush()  # a replay from the snapshot on would not find these aborts again
            self._files.write_atomically(path, producers.encode(state.indexed(segments.all)), durable=False)
            self.syncing.replaced(path)
            previous = self.newest_snapshot
            if previous != end:
                self.snapshots.append(end)
                at = bisect_right(bases, previous) - 1
                if previous >= 0 and (at < 0 or bases[at] != previous):
                    self.drop_snapshot(previous)
        except OSError as error:
            raise StorageError(f"writing {path} failed: {error}") from error
        self.replayed(0)

    @property
    def newest_snapshot(self) -> int:
        """The offset of the newest snapshot, -1 without any."""
        return self.snapshots[-1] if self.snapshots else -1

    def replayed(self, batches: int) -> None:
        """Set the age of the newest snapshot in batches."""
        self._batches_since_snapshot = batches
        self._bytes_since_snapshot = 0

    def drop_snapshot(self, offset: int) -> None:
        """Remove the snapshot at `offset`, if there is one. Raises OSError."""
        if offset in self.snapshots:
            path = self._snapshot_path(offset)
            if self._files.exists(path):
                self._files.unlink(path)
                self.syncing.created()
            self.snapshots.remove(offset)

    def drop_snapshots_above(self, offset: int) -> None:
        """Remove the snapshots above `offset`. Raises OSError."""
        for snapshot in [snapshot for snapshot in self.snapshots if snapshot > offset]:
            self.drop_snapshot(snapshot)

    def rename_snapshot(self, path: str) -> None:
        """Give this name to the file of the newest snapshot, if there is one. Raises OSError."""
        if self.snapshots:
            self._files.rename(self._snapshot_path(self.snapshots[-1]), path)
            del self.snapshots[-1]

    def _snapshot_path(self, offset: int) -> str:
        return f"{self._directory}/{snapshot_name(offset)}"

    # ---- failures --------------------------------------------------------------------------------------------------

    def fail(self, sentence: str) -> StorageError:
        """Close the log to writes, and return the exception to raise."""
        self.failed = sentence
        return StorageError(sentence)

    def doubt(self, sentence: str) -> None:
        """An fsync failed: close the log to writes. Records above the recovery point may never reach the disk."""
        self.failed = sentence
        self.in_doubt = True

    def open_for_repair(self) -> str | None:
        """Open the log to writes, so that records in doubt can be cut off. Returns why it was closed."""
        why, self.failed = self.failed, None
        return why

    def repaired(self, why: str | None = None) -> None:
        """Nothing is in doubt any more; or the repair failed, and the log is closed again for the old reason, `why`."""
        self.failed = why
        self.in_doubt = why is not None

    def not_read(self, part: FileSlice) -> None:
        """The I/O host could not read this part of a file. Later reads of these bytes fail until they can be read."""
        if part not in self.unreadable:
            self.unreadable = [*self.unreadable[1 - UNREADABLE_MAX :], part]

    def read_again(self, wanted: FileSlice) -> None:
        """Read the bytes of `wanted` that could not be read when they were sent, too late to report it. Raises
        OSError."""
        end = wanted.position + wanted.length
        for known in list(self.unreadable):
            if known.file is wanted.file and known.position < end and wanted.position < known.position + known.length:
                known.read()
                self.unreadable.remove(known)

    def directory_lost(self) -> None:
        """The log's directory is gone, and has to be created again. Failures concerned the files that were in it."""
        self.log_deleted()
        self.on_disk, self.failed, self.in_doubt = False, None, False
        self.snapshots.clear()

    def log_deleted(self) -> None:
        """The log was deleted: none of its files needs a sync."""
        self.unreadable = []
        self.syncing.log_deleted()

    def check(self, log_end_offset: int) -> None:
        """Invariants, for tests and the simulator."""
        assert self.syncing.recovery_point <= log_end_offset, (self.syncing.recovery_point, log_end_offset)
        assert not self.in_doubt or self.failed is not None, "records in doubt, but the log accepts writes"
        assert self.snapshots == sorted(set(self.snapshots)), self.snapshots
        assert not self.snapshots or self.snapshots[-1] <= log_end_offset, (self.snapshots, log_end_offset)
        assert len(self.unreadable) <= UNREADABLE_MAX
