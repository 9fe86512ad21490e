"""Remembers across restarts the offset from which a log is damaged, until it is copied again from another replica.

One file has a line for each damaged log: topic id, partition, offset. If the log has lost its first segments, the line
also has the offset at which the log begins now. The file is written when damage is found and when it is repaired. If it
cannot be read, damage counts again once it is found again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.log.checkpoints import CheckpointUnreadableError, decode_checkpoint, encode_checkpoint
from ottla.log.files import FileSystem
from ottla.log.log import Log
from ottla.metadata.nodes import TopicIdPartition
from ottla.protocol.uuids import parse_uuid, uuid_text

DAMAGED_FILE: Final = ".damaged-from"


class Mark(NamedTuple):
    """The offset from which a log is damaged. `begins`: where a log begins whose records from `offset` on are gone."""

    offset: int
    begins: int | None = None

    def counts(self, log: Log) -> bool:
        """Whether the log still has, or lacks, the marked offset. It does not if its end or its start was moved
        past it."""
        start = log.log_start_offset
        is_below = self.offset < start and (self.begins is None or self.begins < start)
        return not is_below and self.offset < log.log_end_offset


class DamageMarks:
    """The marks of one data directory."""

    def __init__(self, files: FileSystem, directory: str, notes: Callable[[str], None]) -> None:
        self._files = files
        self._path = f"{directory}/{DAMAGED_FILE}"
        self._notes = notes
        self._read: dict[TopicIdPartition, Mark] | None = None

    def of(self, log: Log, index: int) -> int | None:
        """From which offset on this log is damaged, as its opening or an earlier incarnation of the node found; that is
        remembered from now on. None if neither found damage, or the log does not reach there any more."""
        found = log.found.damaged_from
        if log.unopened:
            return found
        mark = self._marks.get((log.topic_id, index))
        marked = mark.offset if mark is not None and mark.counts(log) else None
        first = min((offset for offset in (found, marked) if offset is not None), default=None)
        if first is None:
            self.clear(log, index)
        else:
            self.set(log, index, first)
        return first

    def set(self, log: Log, index: int, offset: int) -> None:
        """This log is damaged from that offset on, which may be below its start: it has lost its first segments."""
        mark = Mark(offset, log.log_start_offset if offset < log.log_start_offset else None)
        if self._marks.get((log.topic_id, index)) != mark:
            self._marks[log.topic_id, index] = mark
            self._write()

    def clear(self, log: Log, index: int) -> None:
        """This log is repaired, or deleted."""
        if self._marks.pop((log.topic_id, index), None) is not None:
            self._write()

    @property
    def _marks(self) -> dict[TopicIdPartition, Mark]:
        if self._read is None:
            self._read = {}
            try:
                if self._files.exists(self._path):
                    lines = decode_checkpoint(self._files.read_bytes(self._path), self._path)
                    self._read = dict(map(_decoded, lines))
            except (OSError, ValueError, CheckpointUnreadableError) as error:
                self._notes(f"{self._path} can't be read: damage in logs counts again once it is found again: {error}")
        return self._read

    def _write(self) -> None:
        lines = [_encoded(*place, mark) for place, mark in self._marks.items()]
        try:
            if lines:
                self._files.write_atomically(self._path, encode_checkpoint(lines))
            elif self._files.exists(self._path):
                self._files.unlink(self._path)
        except OSError as error:
            self._notes(f"{self._path} could not be written: a restart may forget which logs are damaged: {error}")


def _encoded(topic_id: bytes, index: int, mark: Mark) -> str:
    return " ".join(map(str, (uuid_text(topic_id), index, *(each for each in mark if each is not None))))


def _decoded(line: str) -> tuple[TopicIdPartition, Mark]:
    topic_id, index, *offsets = line.split(" ")
    return (parse_uuid(topic_id), int(index)), Mark(*map(int, offsets))
