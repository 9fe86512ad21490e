"""Remembers across restarts the offset from which a log is damaged, until it is copied again from another replica.

One file has a line for each damaged log: topic id, partition, offset. It is written when damage is found and when it is
repaired. If it cannot be read, damage counts again once it is found again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.log.checkpoints import CheckpointUnreadableError, decode_checkpoint, encode_checkpoint
from ottla.log.files import FileSystem
from ottla.log.log import Log
from ottla.metadata.nodes import TopicIdPartition
from ottla.protocol.uuids import parse_uuid, uuid_text

DAMAGED_FILE: Final = ".damaged-from"


class DamageMarks:
    """The marks of one data directory."""

    def __init__(self, files: FileSystem, directory: str, notes: Callable[[str], None]) -> None:
        self._files = files
        self._path = f"{directory}/{DAMAGED_FILE}"
        self._notes = notes
        self._read: dict[TopicIdPartition, int] | None = None

    def of(self, log: Log, index: int) -> int | None:
        """From which offset on this log is damaged, as its opening or an earlier incarnation of the node found; that is
        remembered from now on. None if neither found damage, or the log does not reach there any more."""
        found = log.found.damaged_from
        if log.unopened:
            return found
        marked = self._marks.get((log.topic_id, index))
        if marked is not None and not log.log_start_offset <= marked < log.log_end_offset:
            self.clear(log, index)
            marked = None
        first = min((offset for offset in (found, marked) if offset is not None), default=None)
        if first is not None:
            self.set(log, index, first)
        return first

    def set(self, log: Log, index: int, offset: int) -> None:
        """This log is damaged from that offset on."""
        if self._marks.get((log.topic_id, index)) != offset:
            self._marks[log.topic_id, index] = offset
            self._write()

    def clear(self, log: Log, index: int) -> None:
        """This log is repaired, or deleted."""
        if self._marks.pop((log.topic_id, index), None) is not None:
            self._write()

    @property
    def _marks(self) -> dict[TopicIdPartition, int]:
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
        lines = [f"{uuid_text(topic_id)} {index} {offset}" for (topic_id, index), offset in self._marks.items()]
        try:
            if lines:
                self._files.write_atomically(self._path, encode_checkpoint(lines))
            elif self._files.exists(self._path):
                self._files.unlink(self._path)
        except OSError as error:
            self._notes(f"{self._path} could not be written: a restart may forget which logs are damaged: {error}")


def _decoded(line: str) -> tuple[TopicIdPartition, int]:
    topic_id, index, offset = line.split(" ")
    return (parse_uuid(topic_id), int(index)), int(offset)
