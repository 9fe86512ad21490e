"""Remembers which partitions of a cluster's node have a log on its disk, so that a start notices a log that is gone, or
that an older copy has replaced.

A partition that was never written has nothing on the disk. Neither has one whose directory is lost before the first
checkpoint of its high watermark. The file tells them apart: the first append to a partition adds a line to it, before
any answer. A line is `+` or `-`, topic id and partition; `-` means that this log has no records any more. The first
line is a version, and how many lines follow it at least. Every line ends with its checksum.

In front of each `+` line is one with the identity of the log's `partition.metadata`, which a copy of the directory does
not share. It is a line of its own because earlier versions read it like a `-` line.

Each start of the node writes the file again. If it is missing or damaged, it is unknown which logs are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from ottla.broker.partitions.partition import Partition
from ottla.log.checkpoints import PARTITION_METADATA_FILE
from ottla.log.files import File, FileSystem
from ottla.log.log import Log
from ottla.metadata.nodes import TopicIdPartition
from ottla.protocol.records.checksum import crc32c
from ottla.protocol.uuids import parse_uuid, uuid_text

WRITTEN_FILE: Final = ".written-partitions"
VERSION: Final = "0"


class WrittenPartitions:
    """The file of one data directory. It is not used by a node that is alone, which has no other replica to ask."""

    def __init__(self, files: FileSystem, directory: str, notes: Callable[[str], None]) -> None:
        self._files = files
        self._path = f"{directory}/{WRITTEN_FILE}"
        self._notes = notes
        self._file: File | None = None
        self._places: dict[TopicIdPartition, str] = {}
        """The partitions that have a log, and the identity of each; an empty one if it is unknown."""
        self._unsynced: list[File] = []
        """The file, if an fsync of a log has to cover it too."""
        self._in_doubt = False
        """Whether an fsync of the file has failed, so it has to be written again."""
        self.is_known = True
        """Whether every log with records is listed."""

    def read(self, *, may_be_missing: bool, may_be_torn: bool) -> None:
        """At the start of a cluster's node. `may_be_missing`: no earlier incarnation here has written it.
        `may_be_torn`: a power cut may have damaged lines whose partitions have no acknowledged records."""
        try:
            if self._files.exists(self._path):
                self._places = decoded(self._files.read_bytes(self._path), may_be_torn=may_be_torn)
                return
            self.is_known = may_be_missing
        except (OSError, ValueError) as error:
            self.is_known = False
            self._notes(f"{self._path} can't be read, so a partition without a log may have lost it: {error}")

    def names(self, place: TopicIdPartition) -> bool:
        """Whether this partition had a log with records."""
        return place in self._places

    def is_replaced(self, log: Log, index: int) -> bool:
        """Whether this is not the directory that an earlier incarnation of the node has written to."""
        noted = self._places.get((log.topic_id, index))
        return bool(noted and log.segments) and noted != self._identity(log)

    def _identity(self, log: Log) -> str:
        try:
            return self._files.identity(f"{log.directory}/{PARTITION_METADATA_FILE}")
        except OSError:
            return ""

    def begin(self, partitions: Iterable[Partition]) -> None:
        """The logs are open: write the file with those that have records or had them. Raises OSError."""
        here = {place_of(partition): partition.log for partition in partitions}
        self._places = {
            place: self._identity(log) if log.segments else ""
            for place, log in here.items()
            if place in self._places or log.segments
        }
        self._write()

    def _write(self) -> None:
        entries = [line for place in sorted(self._places) for line in _added(place, self._places[place])]
        self._files.write_atomically(self._path, b"".join([_line(f"{VERSION} {len(entries)}"), *entries]))
        if self._file is not None:
            self._file.close()
        self._file, self._unsynced, self._in_doubt = self._files.open(self._path), [], False

    def take_unsynced(self) -> list[File]:
        """The file, if the next fsync has to cover it."""
        if self._in_doubt:
            self.sync_failed()
        unsynced, self._unsynced = self._unsynced, []
        return unsynced

    def sync_failed(self) -> None:
        """An fsync of the file has failed. The system considers its lines to be on the disk from now on, so they are
        written again, now or before the next fsync."""
        self._in_doubt = True
        try:
            self._write()
        except OSError as error:
            self._report(error)

    def note(self, partition: Partition) -> None:
        """This log has been appended to."""
        place = place_of(partition)
        if self._file is None or place in self._places:
            return
        identity = self._identity(partition.log)
        if self._add(_added(place, identity)):
            self._places[place] = identity
            self._unsynced = [self._file]

    def forget(self, partition: Partition) -> None:
        """This log is deleted, or begins without the records that it had."""
        place = place_of(partition)
        if place in self._places and (self._file is None or self._add([_entry("-", place)])):
            del self._places[place]

    def _add(self, lines: list[bytes]) -> bool:
        assert self._file is not None
        size = -1
        try:
            size = self._file.size()
            self._file.write(b"".join(lines))
        except OSError as error:
            self._report(error)
            with suppress(OSError):
                if size >= 0:
                    self._file.truncate(size)
            return False
        return True

    def _report(self, error: OSError) -> None:
        self._notes(f"{self._path} could not be written: a restart may not notice that a log is gone: {error}")


def place_of(partition: Partition) -> TopicIdPartition:
    """The topic's id and the partition's index."""
    return partition.log.topic_id, partition.index


def _line(said: str) -> bytes:
    return f"{said} {crc32c(said.encode())}\n".encode()


def _entry(sign: str, place: TopicIdPartition) -> bytes:
    return _line(f"{sign} {uuid_text(place[0])} {place[1]}")


def _added(place: TopicIdPartition, identity: str) -> list[bytes]:
    """The lines of a partition that has a log."""
    return [*([_entry(identity, place)] if identity else []), _entry("+", place)]


def decoded(octets: bytes, *, may_be_torn: bool) -> dict[TopicIdPartition, str]:
    """The partitions that have a log, with their identities. Raises ValueError if the file is damaged."""
    lines = _sound_lines(octets)
    at_least = int(lines[0][1]) if lines and lines[0][0] == VERSION else len(lines)
    is_whole = octets.endswith(b"\n") and octets.count(b"\n") == len(lines)
    if at_least >= len(lines) or not (is_whole or may_be_torn):
        raise ValueError("it is damaged")
    places: dict[TopicIdPartition, str] = {}
    identities: dict[TopicIdPartition, str] = {}
    for sign, topic_id, index in lines[1:]:
        place = parse_uuid(topic_id), int(index)
        if sign == "+":
            places[place] = identities.pop(place, "")
        elif sign == "-":
            places.pop(place, None)
        else:
            identities[place] = sign
    if identities and not may_be_torn:
        raise ValueError("it is damaged")
    return places


def _sound_lines(octets: bytes) -> list[list[str]]:
    """The words of each line, without its checksum, before the first damaged one."""
    lines: list[list[str]] = []
    for line in octets.split(b"\n"):
        said, _, checksum = line.rpartition(b" ")
        if str(crc32c(said)).encode() != checksum:
            break
        lines.append(said.decode().split(" "))
    return lines
