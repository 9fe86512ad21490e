"""Tracks which files of a log wait for the disk, and up to which offset the log is on the disk: the recovery point.

It serves group commit. `begin` returns the files to sync for everything that is in the log now, a disk thread syncs
them, and `finish` moves the recovery point. Several syncs may be outstanding; they finish in the order in which they
began. A truncation in between limits what they confirm.

The files to sync are: closed segments with their indexes, the active segment's batches, changed epoch checkpoints and
producer snapshots, and the directory when a file was created in it. The active segment's indexes are not synced: after
a power cut they are checked against the batches.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.log.files import File, FileSystem
from ottla.log.files import Pinned as Syncable
from ottla.log.segment import Segment

FILES_PER_SEGMENT: Final = 16
"""Pinnable files to allow for each closed segment of a sync: a segment has four, and other users need some too."""


class _Round:
    """One outstanding `begin`: the files that it syncs, and the segments that they belong to."""

    __slots__ = ("borrowed", "directory", "files", "newborn", "replaced", "segments", "up_to")

    def __init__(self, up_to: int, segments: list[Segment], waiting: Syncing) -> None:
        self.up_to = up_to
        self.segments = segments
        self.replaced = waiting.replaced_files
        self.directory = waiting.directory
        self.newborn = waiting.newborn
        self.files: list[Syncable] = []
        self.borrowed: list[File] = []

    def pin(self, files: list[Syncable]) -> None:
        """Pin these files. Raises OSError, with some of them pinned."""
        for file in files:
            file.pin()
            self.files.append(file)

    def release(self) -> None:
        for file in self.files:
            file.unpin()
        for file in self.borrowed:
            file.close()


class Syncing:
    """The state between a log and its disk."""

    __slots__ = (
        "_closed",
        "_dirty",
        "_files",
        "_path",
        "_rounds",
        "directory",
        "dirty_since_ms",
        "newborn",
        "recovery_point",
        "replaced_files",
    )

    def __init__(self, files: FileSystem, path: str, recovery_point: int) -> None:
        """`path`: the log's directory."""
        self._files = files
        self._path = path
        self.recovery_point = recovery_point
        self.dirty_since_ms: int | None = None  # when upkeep first saw data that is not on the disk
        self._closed: list[Segment] = []
        self.replaced_files: dict[str, None] = {}
        self.directory = False  # its names wait
        self.newborn = False  # and its own name, in its parent
        self._dirty: list[File] = []
        self._rounds: deque[_Round] = deque()

    def dirty_at(self, now: int) -> int:
        """When data that is not on the disk was first seen: now, if it was not before."""
        if self.dirty_since_ms is None:
            self.dirty_since_ms = now
        return self.dirty_since_ms

    def name_synced(self, *, failed: bool) -> None:
        """An fsync of the parent directory has ended, and covered the name of this one unless it failed."""
        self.newborn = failed

    @property
    def idle(self) -> bool:
        """Whether at most the active segment's batches wait for the disk."""
        return not (self._closed or self.replaced_files or self.directory or self._dirty or self._rounds)

    @property
    def closed_segments(self) -> list[Segment]:
        """The segments that wait with their indexes, in no order; after a failed sync also the active one."""
        return self._closed

    def closed(self, segment: Segment, dirty: list[File] | None = None) -> None:
        """Note that a segment is complete: the next sync includes its batches and indexes, and the files in `dirty`."""
        if segment not in self._closed:
            self._closed.append(segment)
        self._dirty.extend(dirty or [])
        self.directory = True

    def born(self, path: str) -> None:
        """The log's directory was created, and the file at `path` in it, which has its identity."""
        self.newborn = True
        self.replaced(path)

    def created(self) -> None:
        """A file was made, renamed or removed in the log's directory."""
        self.directory = True

    def replaced(self, path: str) -> None:
        """A small file was replaced without waiting for the disk."""
        self.replaced_files[path] = None
        self.directory = True

    def forgotten(self, segments: list[Segment]) -> None:
        """Forget these segments: they are deleted and need no sync."""
        self._closed = [segment for segment in self._closed if segment not in segments]
        for under_way in self._rounds:
            under_way.segments = [segment for segment in under_way.segments if segment not in segments]

    def log_deleted(self) -> None:
        """Forget all files: none of them needs a sync. Files of an outstanding sync are unpinned when it ends."""
        self._closed, self._dirty = [], []
        self.replaced_files, self.directory, self.newborn = {}, False, False
        for under_way in self._rounds:
            under_way.segments, under_way.replaced = [], {}
            under_way.directory = under_way.newborn = False

    def begin(self, active: Segment | None, log_end_offset: int) -> list[Syncable]:
        """Begin to sync everything below the log end, or the oldest segments if many were closed since. Raises OSError;
        all files then still wait."""
        closed = sorted(self._closed, key=lambda segment: segment.base_offset)
        segments_max = max(1, self._files.pins_max // FILES_PER_SEGMENT)
        segments, later = closed[:segments_max], closed[segments_max:]
        files: list[Syncable] = [*self._dirty]
        up_to = later[0].base_offset if later else log_end_offset
        begun = _Round(up_to, segments, self)
        try:
            for segment in segments:
                files.append(segment.file)
                files.extend(segment.dirty_index_files())
            if active is not None and not later and active not in segments and active.size:
                files.append(active.file)
                files.extend(active.txn_index.dirty_files())
                segments.append(active)
            for path in self.replaced_files:
                if self._files.exists(path):
                    begun.borrowed.append(self._files.open(path))
            files.extend(begun.borrowed)
            if self.directory:
                files.append(self._files.directory(self._path))
            if self.newborn:
                files.append(self._files.directory(self._path.rpartition("/")[0] or "."))
            begun.pin(files)
        except OSError:
            begun.release()
            for segment in segments:
                segment.indexes_unsynced()
            raise
        self._closed, self._dirty = later, []
        self.replaced_files, self.directory, self.newborn = {}, False, False
        self._rounds.append(begun)
        return files

    def finish(self, up_to: int, log_end_offset: int, *, counts: bool) -> None:
        """Finish the oldest sync. It has no effect once the log has failed."""
        done = self._rounds.popleft()
        done.release()
        if not counts:
            return
        self.recovery_point = max(self.recovery_point, min(up_to, done.up_to))
        if self.recovery_point >= log_end_offset:
            self.dirty_since_ms = None

    def failed(self) -> None:
        """The oldest round could not be synced. The others end in their turn: a disk thread may have their files.

        Names and small files are asked for again; for the batches the caller has to do better (`Log.sync_failed`).
        """
        ended = self._rounds.popleft()
        ended.release()
        self._ask_again(ended)

    def _ask_again(self, ended: _Round) -> None:
        for segment in ended.segments:
            segment.indexes_unsynced()
        self._closed = [*ended.segments, *(segment for segment in self._closed if segment not in ended.segments)]
        self.replaced_files = ended.replaced | self.replaced_files
        self.directory = self.directory or ended.directory
        self.newborn = self.newborn or ended.newborn

    def sync_now(self, active: Segment | None, log_end_offset: int) -> None:
        """Sync everything here and now, including the files of outstanding syncs. Raises OSError; all files then wait
        again."""
        try:
            self._sync_now(active, log_end_offset)
        except OSError:
            for each in self._rounds:
                self._ask_again(each)
            raise
        self.dirty_since_ms = None

    def _sync_now(self, active: Segment | None, log_end_offset: int) -> None:
        for each in self._rounds:
            for file in each.files:
                file.sync()
        while True:
            self.begin(active, log_end_offset)
            newest = self._rounds.pop()
            try:
                for file in newest.files:
                    file.sync()
            except OSError:
                self._ask_again(newest)
                raise
            finally:
                newest.release()
            self.recovery_point = max(self.recovery_point, newest.up_to)
            if not self._closed:
                break

    def truncated(self, offset: int) -> None:
        """The log was cut at `offset`: what is appended there next is not on the disk."""
        self.recovery_point = min(self.recovery_point, offset)
        for under_way in self._rounds:
            under_way.up_to = min(under_way.up_to, offset)

    def restarted(self, offset: int) -> None:
        """The log is empty and starts at `offset`."""
        self.truncated(offset)
        self.recovery_point = offset
        self._closed = []
