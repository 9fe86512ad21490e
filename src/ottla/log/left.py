"""Records the state in which a clean stop left each log, so that the next start can verify the files cheaply.

After a clean stop nothing has to be checked. But files may have been cut, removed, or restored from an older copy
since. One line for each log with its ends, sizes and checksums shows that without reading the log.

The file belongs to one clean stop: it names the broker epoch of the marker file beside it, and ends in a checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from ottla.log.checkpoints import CheckpointUnreadableError, decode_checkpoint, encode_checkpoint
from ottla.log.files import FileSystem
from ottla.log.segment import Segment
from ottla.protocol.records.checksum import crc32c
from ottla.protocol.uuids import parse_uuid, uuid_text

LEFT_LOGS_FILE: Final = ".logs-at-clean-stop"
TAIL_BYTES: Final = 4096
"""Bytes at the end of the newest segment whose checksum is in the file."""


class Left(NamedTuple):
    """One log as a clean stop left it. `epochs` and `tail` are checksums: of the leader epoch checkpoint, and of the
    newest segment's last bytes."""

    topic_id: bytes
    start: int
    end: int
    segments: int
    size: int
    newest_epoch: int
    epochs: int
    tail: int


def checksum_of(files: FileSystem, path: str) -> int:
    """The checksum of a small file, 0 without one. Raises OSError."""
    return crc32c(files.read_bytes(path)) if files.exists(path) else 0


def checksum_of_tail(segment: Segment) -> int:
    """The checksum of the last bytes of a segment. Raises OSError."""
    length = min(segment.size, TAIL_BYTES)
    return crc32c(segment.file.read(segment.size - length, length))


def write_left(
    files: FileSystem, data_directory: str, broker_epoch: int, logs: Iterable[tuple[str, int, Left]]
) -> None:
    """Write the state in which all logs (topic, partition, state) are left, before the marker of the clean stop. Raises
    OSError."""
    lines = [str(broker_epoch)]
    lines += [
        f"{topic} {partition} {uuid_text(left.topic_id)} {' '.join(map(str, left[1:]))}"
        for topic, partition, left in logs
    ]
    lines.append(str(_checksum(lines)))
    files.write_atomically(f"{data_directory}/{LEFT_LOGS_FILE}", encode_checkpoint(lines))


def take_left(files: FileSystem, data_directory: str, broker_epoch: int | None) -> Mapping[tuple[str, int], Left]:
    """Read how the clean stop of this broker epoch left its logs, and delete the file. Empty if there is no file, or if
    it is of another stop. Raises CheckpointUnreadableError, OSError."""
    path = f"{data_directory}/{LEFT_LOGS_FILE}"
    if not files.exists(path):
        return {}
    octets = files.read_bytes(path)
    files.unlink(path)
    if broker_epoch is None:
        return {}
    lines = decode_checkpoint(octets, path)
    with suppress(ValueError, IndexError):
        *said, checksum = lines
        if int(checksum) == _checksum(said):
            return dict(map(_decode, said[1:])) if int(said[0]) == broker_epoch else {}
    raise CheckpointUnreadableError(f"{path} is damaged")


def _checksum(lines: list[str]) -> int:
    return crc32c("\n".join(lines).encode())


def _decode(line: str) -> tuple[tuple[str, int], Left]:
    topic, partition, topic_id, start, end, *more = line.split(" ")
    segments, size, newest_epoch, epochs, tail = map(int, more)
    left = Left(parse_uuid(topic_id), int(start), int(end), segments, size, newest_epoch, epochs, tail)
    return (topic, int(partition)), left
