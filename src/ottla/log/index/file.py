"""Keeps a file of entries of one size beside a segment: the common part of every index of a segment.

It tracks how long the file should be, which entries wait to be written, and whether written ones wait for an fsync.

Entries are buffered until `flush`. Entries that the disk does not accept stay buffered. The incomplete rest of a failed
write is cut off before the next one.

Another process, or the disk, may change the file. An index is a hint: its segment rebuilds it if it can't be cut.
"""

from __future__ import annotations

from struct import Struct
from typing import ClassVar

from ottla.log.files import File, FileSystem


class UnsoundIndexError(Exception):
    """Raised if an index file has fewer entries than this process knows of: the file was changed, and the index has to
    be rebuilt from the batches."""


class IndexFile:
    """The file of one index, created when it is first needed.

    `entries` also counts those that are not written yet; -1: the file has not been read.
    """

    __slots__ = ("_dirty", "_file", "_files", "_path", "_pending", "entries")
    ENTRY: ClassVar[Struct]

    def __init__(self, files: FileSystem, path: str, entries: int) -> None:
        self._files = files
        self._path = path
        self._pending: bytearray = bytearray()
        self._file: File | None = None
        self._dirty = False
        self.entries = entries

    @property
    def pending_entries(self) -> int:
        return len(self._pending) // self.ENTRY.size

    def flush(self) -> None:
        """Write the buffered entries. Raises OSError, after which they are still buffered."""
        if self._pending:
            handle, end = self._handle(), self.written_bytes
            if handle.size() > end:
                handle.truncate(end)  # left of a write that failed half way
            handle.write(self._pending)
            self._pending = bytearray()
            self._dirty = True

    @property
    def written_bytes(self) -> int:
        """The length of the file, without the buffered entries."""
        return self.entries * self.ENTRY.size - len(self._pending)

    @property
    def is_in_place(self) -> bool:
        """Whether the path leads to the file that is written to; True before it is opened. Raises OSError."""
        return self._file is None or self._file.is_in_place()

    def touch(self) -> None:
        """Create the file if it does not exist, even if it stays empty: Kafka's tools expect one beside each
        segment."""
        self._handle()

    def cut_file(self) -> None:
        """Make the file as long as its entries, so that appending continues in the right place. Raises
        UnsoundIndexError if it is shorter, and OSError."""
        size = self.entries * self.ENTRY.size
        if self._handle().size() < size:
            raise UnsoundIndexError(f"{self._path} is shorter than {size} bytes")
        self._handle().truncate(size)
        self._dirty = True

    def clear(self) -> None:
        """Drop all entries, whatever the file has. Raises OSError."""
        self._pending.clear()
        self.entries = 0
        self._handle().truncate(0)
        self._dirty = True

    def _drop_behind(self, entries: int) -> None:
        """Keep the first `entries` entries, written or not. Raises UnsoundIndexError, OSError."""
        written = self.entries - self.pending_entries
        self.entries = entries
        if entries < written:
            self._pending.clear()
            self.cut_file()
        else:
            del self._pending[(entries - written) * self.ENTRY.size :]

    def dirty_files(self) -> list[File]:
        """The file, if it was written since the last call."""
        if self._dirty and self._file is not None:
            self._dirty = False
            return [self._file]
        return []

    def unsynced(self) -> None:
        """Mark the file as dirty again: the sync of the last `dirty_files` failed."""
        self._dirty = self._file is not None

    def rewrite(self) -> None:
        """Write the file's content again, as a failed fsync requires. Raises OSError."""
        if self._files.exists(self._path):
            self._handle().rewrite(0, durable=False)
            self._dirty = True

    def moved(self, path: str) -> None:
        """The file was renamed."""
        self._path = path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _handle(self) -> File:
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        return self._file
