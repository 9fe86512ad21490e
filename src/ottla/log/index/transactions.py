"""Keeps the index of aborted transactions of one segment (`.txnindex`), in Kafka's format.

34-byte big-endian entries: version int16 = 0, producer_id, first_offset, last_offset (the abort marker's), and
last_stable_offset at that moment. Only aborted transactions with data are in it, in the order of their markers.
A segment without one has no file. Source: Kafka's TransactionIndex.java, AbortedTxn.java.
"""

from __future__ import annotations

from struct import Struct
from typing import ClassVar, Final, NamedTuple

from ottla.log.files import File, FileSystem, ReadError
from ottla.log.index.file import IndexFile
from ottla.protocol.records.checksum import crc32c

TRANSACTION_ENTRY: Final = Struct(">hqqqq")
VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """A transaction that ended in an abort marker in this segment."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class IndexSummary(NamedTuple):
    """The number of entries in a transaction index, and their CRC-32C."""

    entries: int
    checksum: int


class TransactionIndex(IndexFile):
    """The transaction index of a segment. It has few entries: they are kept in memory from the first read on, and
    written when they are added."""

    __slots__ = ("_aborted", "_summary")
    ENTRY: ClassVar = TRANSACTION_ENTRY

    def __init__(self, files: FileSystem, path: str, *, empty: bool = False) -> None:
        super().__init__(files, path, entries=0 if empty else -1)
        self._aborted: list[AbortedTransaction] | None = [] if empty else None
        self._summary: IndexSummary | None = None

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry. Raises OSError if it could not be written; it is kept all the same, and `flush` tries again."""
        self.aborted().append(entry)
        self.entries += 1
        self._summary = None
        self._pending += TRANSACTION_ENTRY.pack(VERSION, *entry)
        self.flush()

    def aborted(self) -> list[AbortedTransaction]:
        """All entries, in the order of their markers."""
        if self._aborted is None:
            raw = self._files.read_bytes(self._path) if self._files.exists(self._path) else b""
            raw = raw[: len(raw) - len(raw) % TRANSACTION_ENTRY.size]
            unpacked = TRANSACTION_ENTRY.iter_unpack(raw)
            self._aborted = [AbortedTransaction(*fields[1:]) for fields in unpacked if fields[0] == VERSION]
            self.entries = len(self._aborted)
        return self._aborted

    def summary(self) -> IndexSummary:
        """The summary of all entries."""
        if self._summary is None:
            octets = self._octets
            self._summary = IndexSummary(self.entries, crc32c(octets))
        return self._summary

    def cut_unsound(self, base_offset: int, next_offset: int) -> bool:
        """Keep the leading entries that are in order and of transactions that ended in this segment.

        True if something was cut.
        """
        if not self._files.exists(self._path):
            self._aborted, self.entries, self._summary = [], 0, None
            return False
        kept: list[AbortedTransaction] = []
        last = base_offset - 1
        for entry in self.aborted():
            if not last < entry.last_offset < next_offset or entry.first_offset >= entry.last_offset:
                break
            kept.append(entry)
            last = entry.last_offset
        return self._keep(kept)

    @property
    def is_as_written(self) -> bool:
        """Whether the file has the entries that are in memory. True if it was not read. Raises OSError."""
        if self._aborted is None:
            return True
        try:
            found = self._files.read_bytes(self._path)
        except FileNotFoundError:
            found = b""
        except ReadError:
            return False
        return self.is_in_place and found == self._octets[: self.written_bytes]

    def write_again(self) -> None:
        """Replace the file by one with the entries that are in memory, without waiting for the disk. Raises OSError."""
        self.close()
        if not self.entries:
            if self._files.exists(self._path):
                self._files.unlink(self._path)
            return
        self._files.write_atomically(self._path, self._octets, durable=False)
        self._pending.clear()
        self.touch()
        self._dirty = True

    @property
    def _octets(self) -> bytes:
        return b"".join(TRANSACTION_ENTRY.pack(VERSION, *entry) for entry in self.aborted())

    def clear(self) -> None:
        """Drop all entries, whatever the file has. Raises OSError."""
        self._aborted, self._summary = [], None
        if self._files.exists(self._path):
            super().clear()
        else:
            self._pending.clear()
            self.entries = 0

    def truncate_to(self, offset: int) -> None:
        """Drop transactions whose marker is at or after `offset`. Raises OSError."""
        self.flush()
        aborted = self.aborted()
        kept = [entry for entry in aborted if entry.last_offset < offset]
        if len(kept) < len(aborted) or self._files.exists(self._path):
            self._keep(kept)

    def _keep(self, kept: list[AbortedTransaction]) -> bool:
        """Hold these leading entries. True if the file held more. Raises OSError."""
        self._aborted, self.entries, self._summary = kept, len(kept), None
        size, wanted = self._handle().size(), self.entries * TRANSACTION_ENTRY.size
        if size < wanted:  # another process has cut it
            self._handle().truncate(0)
            self._pending += b"".join(TRANSACTION_ENTRY.pack(VERSION, *entry) for entry in kept)
            self.flush()
        elif size > wanted:
            self.cut_file()
        return size > wanted

    def dirty_files(self) -> list[File]:
        """The file, if it was written since the last call. Raises OSError."""
        self.flush()
        return super().dirty_files()
