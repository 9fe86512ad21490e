"""Which files of a log wait for the disk, and how far everything is there: the recovery point.

Made for group commit: `begin` says what must be synced for all that is in the log now, a disk thread syncs it, `finish`
moves the recovery point. Several may be under way; they finish in the order they began. A truncation in between takes
back what they would have promised.

What is synced: closed segments with their indexes, the active segment's batches (its indexes are not: after a power
cut they are checked against the batches), epoch checkpoints and producer snapshots since the last time, and the
directory when a file was created in it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ottla.log.files import File
from ottla.log.files import Pinned as Syncable
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.log import Log


class _Round:
    """One `begin` under way: what it syncs, and whose it is."""

    __slots__ = ("borrowed", "directory", "files", "replaced", "segments", "up_to")

    def __init__(self, up_to: int, segments: list[Segment], replaced: dict[str, None], directory: bool) -> None:
        self.up_to = up_to
        self.segments = segments
        self.replaced = replaced
        self.directory = directory
        self.files: list[Syncable] = []
        self.borrowed: list[File] = []

    def pin(self, files: list[Syncable]) -> None:
        """Take these, or none of them. Raises OSError."""
        try:
            for file in files:
                file.pin()
                self.files.append(file)
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        for file in self.files:
            file.unpin()
        for file in self.borrowed:
            file.close()


class Syncing:
    """The state between a log and its disk."""

    __slots__ = ("_closed", "_directory", "_dirty", "_replaced", "_rounds", "dirty_since_ms", "recovery_point")

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self.dirty_since_ms: int | None = None  # when upkeep first saw data that is not on the disk
        self._closed: list[Segment] = []
        self._replaced: dict[str, None] = {}
        self._directory = False
        self._dirty: list[File] = []
        self._rounds: deque[_Round] = deque()

    @property
    def idle(self) -> bool:
        """Nothing but perhaps the active segment's batches waits for the disk."""
        return not (self._closed or self._replaced or self._directory or self._dirty or self._rounds)

    def closed(self, segment: Segment, dirty: list[File] | None = None) -> None:
        """A segment is complete: its batches and indexes, and the files in `dirty`, go with the next round."""
        if segment not in self._closed:
            self._closed.append(segment)
        self._dirty.extend(dirty or [])
        self._directory = True

    def created(self) -> None:
        """A file was made, renamed or removed in the log's directory."""
        self._directory = True

    def replaced(self, path: str) -> None:
        """A small file was replaced without waiting for the disk."""
        self._replaced[path] = None
        self._directory = True

    def forgotten(self, segments: list[Segment]) -> None:
        """These segments are deleted; nobody needs them on the disk."""
        self._closed = [segment for segment in self._closed if segment not in segments]
        for under_way in self._rounds:
            under_way.segments = [segment for segment in under_way.segments if segment not in segments]

    def log_deleted(self) -> None:
        """Nobody needs any of it on the disk. Files that a round is at are let go when that ends."""
        self._closed, self._replaced, self._directory, self._dirty = [], {}, False, []
        for under_way in self._rounds:
            under_way.segments, under_way.replaced, under_way.directory = [], {}, False

    def begin(self, log: Log) -> list[Syncable]:
        """Start a round for everything below the log end. Raises OSError, and what waited goes on waiting."""
        segments = list(self._closed)
        files: list[Syncable] = [*self._dirty]
        begun = _Round(log.log_end_offset, segments, self._replaced, self._directory)
        try:
            for segment in segments:
                files.append(segment.file)
                files.extend(segment.dirty_index_files())
            active = log.active
            if active is not None and active not in segments and active.size:
                files.append(active.file)
                files.extend(active.txn_index.dirty_files())
                segments.append(active)
            for path in self._replaced:
                if log.files.exists(path):
                    begun.borrowed.append(log.files.open(path))
            files.extend(begun.borrowed)
            if self._directory:
                files.append(log.files.directory(log.directory))
            begun.pin(files)
        except OSError:
            for segment in segments:
                segment.indexes_unsynced()
            raise
        self._closed, self._replaced, self._directory, self._dirty = [], {}, False, []
        self._rounds.append(begun)
        return files

    def finish(self, log: Log, up_to: int) -> None:
        """The oldest round is synced. It counts for nothing once a sync has failed."""
        done = self._rounds.popleft()
        done.release()
        if log.failed is not None:
            return
        self.recovery_point = max(self.recovery_point, min(up_to, done.up_to))
        if self.recovery_point >= log.log_end_offset:
            self.dirty_since_ms = None

    def failed(self) -> None:
        """The oldest round could not be synced. The others end in their turn: a disk thread may have their files.

        Names and small files are asked for again; for the batches the caller has to do better (`Log.sync_failed`).
        """
        ended = self._rounds.popleft()
        ended.release()
        for segment in ended.segments:
            segment.indexes_unsynced()
        self._closed = [*ended.segments, *(segment for segment in self._closed if segment not in ended.segments)]
        self._replaced = ended.replaced | self._replaced
        self._directory = self._directory or ended.directory

    def sync_now(self, log: Log) -> None:
        """Sync everything here and now, also what rounds under way are at. Raises OSError."""
        self.begin(log)
        newest = self._rounds.pop()
        try:
            for each in (*self._rounds, newest):
                for file in each.files:
                    file.sync()
        finally:
            newest.release()
        self.recovery_point = max(self.recovery_point, newest.up_to)
        self.dirty_since_ms = None

    def truncated(self, offset: int) -> None:
        """The log was cut at `offset`: what comes there next is not on the disk."""
        self.recovery_point = min(self.recovery_point, offset)
        for under_way in self._rounds:
            under_way.up_to = min(under_way.up_to, offset)

    def restarted(self, offset: int) -> None:
        """The log is empty and starts at `offset`."""
        self.truncated(offset)
        self.recovery_point = offset
        self._closed = []
