"""The index of aborted transactions of one segment (`.txnindex`), in Kafka's format.

34-byte big-endian entries: version int16 = 0, producer_id, first_offset, last_offset (the abort marker's), and
last_stable_offset at that moment. Only aborted transactions with data are in it, in the order of their markers.
A segment without one has no file. Source: Kafka's TransactionIndex.java, AbortedTxn.java.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from ottla.log.files import File, FileSystem

ENTRY: Final = Struct(">hqqqq")
VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """A transaction that ended in an abort marker in this segment."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Entries are few: they are held in memory once somebody asked, and written as they come."""

    __slots__ = ("_dirty", "_entries", "_file", "_files", "_path", "_pending")

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._file: File | None = None
        self._entries: list[AbortedTransaction] | None = None
        self._dirty = False
        self._pending = b""  # entries that the disk has not taken yet

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry. Raises OSError when it could not be written: it is known all the same, `flush` tries again."""
        self.entries().append(entry)
        self._pending += ENTRY.pack(VERSION, *entry)
        self.flush()

    def flush(self) -> None:
        """Write the entries that could not be written before. Raises OSError."""
        if self._pending:
            handle, end = self._handle(), len(self.entries()) * ENTRY.size - len(self._pending)
            if handle.size() > end:
                handle.truncate(end)  # left of a write that failed half way
            handle.write(self._pending)
            self._pending = b""
            self._dirty = True

    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            raw = self._files.read_bytes(self._path) if self._files.exists(self._path) else b""
            raw = raw[: len(raw) - len(raw) % ENTRY.size]
            self._entries = [AbortedTransaction(*fields[1:]) for fields in ENTRY.iter_unpack(raw) if fields[0] == 0]
        return self._entries

    def cut_unsound(self, base_offset: int, next_offset: int) -> bool:
        """Keep the leading entries that are in order and of transactions that ended in this segment.

        True if something was cut.
        """
        if not self._files.exists(self._path):
            return False
        kept: list[AbortedTransaction] = []
        last = base_offset - 1
        for entry in self.entries():
            if not last < entry.last_offset < next_offset or entry.first_offset > entry.last_offset:
                break
            kept.append(entry)
            last = entry.last_offset
        handle = self._handle()
        if handle.size() == len(kept) * ENTRY.size:
            return False
        self._entries = kept
        handle.truncate(len(kept) * ENTRY.size)
        self._dirty = True
        return True

    def truncate_to(self, offset: int) -> None:
        """Drop transactions whose marker is at or after `offset`. Raises OSError."""
        self.flush()
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) == len(entries) and not self._files.exists(self._path):
            return
        self._entries = kept
        handle = self._handle()
        if handle.size() != len(kept) * ENTRY.size:
            handle.truncate(len(kept) * ENTRY.size)
            self._dirty = True

    def dirty_files(self) -> list[File]:
        """The file, if it was written since it was last handed out here. Raises OSError."""
        self.flush()
        if self._dirty and self._file is not None:
            self._dirty = False
            return [self._file]
        return []

    def unsynced(self) -> None:
        """What was handed out did not reach the disk."""
        self._dirty = self._file is not None

    def rewrite(self) -> None:
        """Write what the file holds once more, as an fsync that failed asks for. Raises OSError."""
        if self._files.exists(self._path):
            self._handle().rewrite(0, durable=False)
            self._dirty = True

    def moved(self, path: str) -> None:
        self._path = path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _handle(self) -> File:
        if self._file is None:
            self._file = self._files.open(self._path, create=True)
        return self._file
