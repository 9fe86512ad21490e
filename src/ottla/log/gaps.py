"""Knows below which offset a log may have gaps between its batches, so that any other gap counts as damage.

Only two things make gaps: compaction, and copying from a leader whose log was compacted. Each first raises the offset
in the file `gaps-below` of the partition's directory. A gap that ends above it is where records are lost: a file was
cut, or an older copy was put over it, and the node appended behind.

A log without the file comes from Kafka or from an earlier version, so it may have gaps up to its present end. Kafka and
earlier versions do not know the file. If they have compacted the log since, the checkpoint of compactions says so.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ottla.log.checkpoints import (
    CheckpointUnreadableError,
    decode_checkpoint,
    encode_checkpoint,
    place_in,
    read_cleaned,
)
from ottla.log.config import LONG_MAX
from ottla.log.files import FileSystem, ReadError
from ottla.protocol.records.checksum import crc32c

GAPS_FILE: Final = "gaps-below"


class Gaps:
    """The gaps of one log: each ends at `below` or lower. `is_unsynced`: the file was written without waiting for the
    disk."""

    __slots__ = ("_directory", "_files", "below", "is_unsynced", "path")

    def __init__(self, files: FileSystem, directory: str, below: int = LONG_MAX) -> None:
        self._files = files
        self._directory = directory
        self.path = f"{directory}/{GAPS_FILE}"
        self.below = below
        self.is_unsynced = False

    @classmethod
    def read(cls, files: FileSystem, directory: str, note: Callable[[str], None]) -> Gaps:
        """The gaps of a log on the disk; without a sound file they may be anywhere. Raises OSError."""
        gaps = cls(files, directory)
        if files.exists(gaps.path):
            try:
                gaps.below = _decoded(files.read_bytes(gaps.path), gaps.path)
            except CheckpointUnreadableError as unreadable:
                note(f"{unreadable}; gaps that are in this log now do not count as damage.")
        return gaps

    def is_damage(self, end: int) -> bool:
        """Whether a gap that ends at this offset is damage."""
        if end <= self.below:
            return False
        compacted = read_cleaned(self._files, self._directory).get(place_in(self._directory), 0)
        self.below = max(self.below, compacted)
        return end > self.below

    def permit(self, below: int, *, written: bool = True, durable: bool = False) -> None:
        """Gaps up to this offset are about to be made. Not `written`: the directory does not exist yet. Raises OSError,
        with nothing changed."""
        before = self.below
        if below > before:
            self.below = below
            try:
                if written:
                    self.write(durable=durable)
            except OSError:
                self.below = before
                raise

    def cut(self, end: int) -> None:
        """The log ends here: later records have no gaps so far. If that can't be written, the file only permits
        more."""
        if end < self.below:
            self.below = end
            with suppress(OSError):
                self.write()

    def write(self, *, durable: bool = False) -> None:
        """Write the file. Raises OSError."""
        self._files.write_atomically(self.path, self._encoded(), durable=durable)
        self.is_unsynced = not durable

    @property
    def is_as_written(self) -> bool:
        """Whether the file has what is in memory. Raises OSError."""
        try:
            return self._files.exists(self.path) and self._files.read_bytes(self.path) == self._encoded()
        except ReadError:
            return False

    def _encoded(self) -> bytes:
        text = str(self.below)
        return encode_checkpoint([f"{text} {crc32c(text.encode())}"])


def _decoded(octets: bytes, path: str) -> int:
    """Raises CheckpointUnreadableError."""
    text, _, checksum = " ".join(decode_checkpoint(octets, path)).partition(" ")
    if not text.isdecimal() or checksum != str(crc32c(text.encode())):
        raise CheckpointUnreadableError(f"{path} is damaged")
    return int(text)
