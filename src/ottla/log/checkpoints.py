"""Reads and writes Kafka's small text files: checkpoints of offsets, epochs, and the identity of directories.

A checkpoint is `version`, number of entries, then one entry a line, replaced atomically. A missing file reads as None.
A torn or empty file, or one of another version, raises CheckpointUnreadableError, which the caller handles.

The last entry of a checkpoint of offsets is a checksum of the others, under a name that no topic can have. Kafka
ignores partitions that it does not know, and writes no such entry.

Source: Kafka's CheckpointFile.java, OffsetCheckpointFile.java, LeaderEpochCheckpointFile.java,
PartitionMetadataFile.java, PropertiesUtils.java, CleanShutdownFileHandler.java.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from ottla.log.files import FileSystem
from ottla.protocol.records.checksum import crc32c
from ottla.protocol.uuids import parse_uuid, uuid_text

UNRECOVERED_FILE: Final = "unrecovered-checkpoint"
CLEANER_OFFSET_FILE: Final = "cleaner-offset-checkpoint"
LEADER_EPOCH_FILE: Final = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE: Final = "partition.metadata"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
LOST_SINCE_FILE: Final = ".lost-since"
INCARNATIONS_FILE: Final = ".incarnations"
LAST_INCARNATION_FILE: Final = "incarnation"
IDENTITY_FILE: Final = ".incarnations-identity"
INCARNATIONS_KEPT: Final = 200
SEEN_FILE: Final = ".metadata-seen"
CHECKPOINT_VERSION: Final = 0
CHECKSUM_NAME: Final = "#crc32c"
FLIPPED_BITS_MAX: Final = 4
"""Maximum number of flipped bits at which a damaged text still counts as the expected one. Two topic ids differ in far
more."""


class CheckpointUnreadableError(Exception):
    """The file exists but its content is not valid."""


def encode_checkpoint(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (CHECKPOINT_VERSION, len(entries), *entries)).encode()


def decode_checkpoint(text: bytes, path: str) -> list[str]:
    """The entry lines. Raises CheckpointUnreadableError.

    A file that does not end its last line was torn by a power cut: `2 1` may be the beginning of `2 19`.
    """
    if not text.endswith(b"\n"):
        raise CheckpointUnreadableError(f"{path} is not a checkpoint file: its last line has no end")
    try:
        lines = text.decode().split("\n")
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError) as error:
        raise CheckpointUnreadableError(f"{path} is not a checkpoint file: {error}") from error
    if version != CHECKPOINT_VERSION:
        raise CheckpointUnreadableError(f"{path} has version {version}, not {CHECKPOINT_VERSION}")
    entries = [line for line in lines[2:] if line.strip()]
    if count != len(entries):
        raise CheckpointUnreadableError(f"{path} promises {count} entries and has {len(entries)}")
    return entries


def read_offsets(files: FileSystem, path: str) -> dict[tuple[str, int], int] | None:
    """(topic, partition) to offset, None when there is no such file. Raises CheckpointUnreadableError."""
    if not files.exists(path):
        return None
    lines = decode_checkpoint(files.read_bytes(path), path)
    if lines and lines[-1].startswith(CHECKSUM_NAME) and lines.pop() != _checksum_line(lines):
        raise CheckpointUnreadableError(f"{path} does not match its checksum")
    offsets: dict[tuple[str, int], int] = {}
    for line in lines:
        try:
            topic, partition, offset = line.split()
            offsets[topic, int(partition)] = int(offset)
        except ValueError as error:
            raise CheckpointUnreadableError(f"{path} has a line that is no offset: {line!r}") from error
    return offsets


def encode_offsets(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """A checkpoint of offsets by (topic, partition)."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return encode_checkpoint([*lines, _checksum_line(lines)])


def _checksum_line(lines: list[str]) -> str:
    content = "\n".join(lines).encode()
    return f"{CHECKSUM_NAME} 0 {crc32c(content)}"


def cleaner_path(directory: str) -> str:
    """The checkpoint of compactions beside the directory of a partition."""
    return f"{directory.rpartition('/')[0]}/{CLEANER_OFFSET_FILE}"


def place_in(directory: str) -> tuple[str, int]:
    """(topic, partition) of a partition's directory."""
    topic, _, partition = directory.rpartition("/")[2].rpartition("-")
    return topic, int(partition)


def read_cleaned(files: FileSystem, directory: str) -> dict[tuple[str, int], int]:
    """The offsets at which compactions ended, by (topic, partition), as the checkpoint beside this directory of a
    partition has them; none if it can't be read. Raises OSError."""
    try:
        return read_offsets(files, cleaner_path(directory)) or {}
    except CheckpointUnreadableError:
        return {}


def read_unrecovered(files: FileSystem, data_directory: str) -> set[tuple[str, int]]:
    """The partitions (topic, partition) whose recovery began and has not ended. Raises CheckpointUnreadableError."""
    path = f"{data_directory}/{UNRECOVERED_FILE}"
    if not files.exists(path):
        return set()
    places: set[tuple[str, int]] = set()
    for line in decode_checkpoint(files.read_bytes(path), path):
        topic, _, partition = line.rpartition(" ")
        if not partition.isdecimal():
            raise CheckpointUnreadableError(f"{path} has a line that is no partition: {line!r}")
        places.add((topic, int(partition)))
    return places


def write_unrecovered(files: FileSystem, data_directory: str, places: Iterable[tuple[str, int]]) -> None:
    """Record these partitions before their recovery, so that the record remains after a kill. It is not synced: after a
    power cut every recovery starts again anyway.

    Raises OSError.
    """
    path = f"{data_directory}/{UNRECOVERED_FILE}"
    lines = [f"{topic} {partition}" for topic, partition in sorted(places)]
    if lines:
        files.write_atomically(path, encode_checkpoint(lines), durable=False)
    elif files.exists(path):
        files.unlink(path)


def write_partition_metadata(files: FileSystem, directory: str, topic_id: bytes) -> str:
    """Write the identity of this directory, without waiting for the disk. Returns the file's path."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    files.write_atomically(path, _partition_metadata(topic_id), durable=False)
    return path


def _partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}\n".encode()


def mend_partition_metadata(files: FileSystem, directory: str, topic_id: bytes) -> bool:
    """Write the file again if a power cut tore or removed it before its first sync, or if a few of its bits are
    flipped: the directory is this topic's. False if the file has another content. Raises OSError."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    whole, left = _partition_metadata(topic_id), files.read_bytes(path) if files.exists(path) else b""
    torn = len(left) <= len(whole) and all(got in (0, wanted) for got, wanted in zip(left, whole, strict=False))
    if torn or 0 < _flipped_bits(left, whole) <= FLIPPED_BITS_MAX:
        files.write_atomically(path, whole)
        return True
    return False


def _flipped_bits(octets: bytes, wanted: bytes) -> int:
    """The number of different bits in two texts of one length; above every limit if the lengths differ."""
    if len(octets) != len(wanted):
        return FLIPPED_BITS_MAX + 1
    return differing_bits(octets, wanted)


def differing_bits(octets: bytes, wanted: bytes) -> int:
    """The number of different bits in two texts, up to the length of the shorter one."""
    return sum((got ^ other).bit_count() for got, other in zip(octets, wanted, strict=False))


def read_partition_metadata(files: FileSystem, directory: str) -> bytes | None:
    """The topic id that owns a partition directory, None without the file. Raises CheckpointUnreadableError,
    OSError."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    try:
        text = files.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        fields = dict(line.split(":", 1) for line in text.decode().splitlines() if line.strip())
        return parse_uuid(fields["topic_id"].strip())
    except (ValueError, KeyError) as error:
        raise CheckpointUnreadableError(f"{path} is not a partition.metadata file: {error}") from error


def write_properties(files: FileSystem, path: str, properties: Mapping[str, str]) -> None:
    """A Java properties file (meta.properties) of plain names and values."""
    files.write_atomically(path, "".join(f"{name}={value}\n" for name, value in properties.items()).encode())


def read_properties(files: FileSystem, path: str) -> dict[str, str] | None:
    """Returns None if there is no file. Raises CheckpointUnreadableError if it is empty (a torn write) or not text."""
    if not files.exists(path):
        return None
    try:
        lines = files.read_bytes(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointUnreadableError(f"{path} is not text: {error}") from error
    pairs = (line.partition("=") for line in lines if line.strip() and not line.startswith("#"))
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    if not properties:
        raise CheckpointUnreadableError(f"{path} is empty")
    return properties


def write_clean_shutdown(files: FileSystem, data_directory: str, broker_epoch: int) -> None:
    """The last write of a clean stop."""
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    files.write_atomically(f"{data_directory}/{CLEAN_SHUTDOWN_FILE}", text.encode())


def take_clean_shutdown(files: FileSystem, data_directory: str) -> int | None:
    """The broker epoch of the last clean stop, None after an unclean one. The marker is durably removed on return."""
    path = f"{data_directory}/{CLEAN_SHUTDOWN_FILE}"
    broker_epoch: int | None = None
    if files.exists(path):
        try:
            broker_epoch = int(json.loads(files.read_bytes(path))["brokerEpoch"])
        except (ValueError, KeyError, TypeError):
            broker_epoch = -1  # Kafka before 3.7 wrote an empty marker
        files.unlink(path)
    # A start that was killed here may have unlinked it in memory only: a power cut would bring it back.
    files.sync_directory(data_directory)
    return broker_epoch


def write_lost_since(
    files: FileSystem, data_directory: str, incarnation: str, places: Iterable[tuple[bytes, int]] = ()
) -> None:
    """Record that records may be lost which this or an earlier incarnation of the node had stored. They are of these
    partitions (topic id, index), or of any if none is named. Raises OSError."""
    lines = [incarnation, *(f"{uuid_text(topic_id)} {index}" for topic_id, index in places)]
    files.write_atomically(f"{data_directory}/{LOST_SINCE_FILE}", "".join(f"{line}\n" for line in lines).encode())


def read_lost_since(files: FileSystem, data_directory: str) -> tuple[str, set[tuple[bytes, int]]] | None:
    """The incarnation in the last such record, with the partitions; no partitions: any. None without a record. If that
    line is damaged, an incarnation that no node ever had. Raises OSError."""
    path = f"{data_directory}/{LOST_SINCE_FILE}"
    if not files.exists(path):
        return None
    incarnation, *lines = files.read_bytes(path).decode(errors="replace").splitlines() or [""]
    try:
        return incarnation, {(parse_uuid(topic_id), int(index)) for topic_id, index in map(str.split, lines)}
    except ValueError:
        return incarnation, set()


def incarnations(files: FileSystem, directory: str) -> list[str]:
    """The last incarnations of a node that used this directory, oldest first. Raises OSError."""
    return _words(files, f"{directory}/{INCARNATIONS_FILE}")


def _words(files: FileSystem, path: str) -> list[str]:
    """The words of a file; none if it does not exist."""
    return files.read_bytes(path).decode(errors="replace").split() if files.exists(path) else []


def note_incarnation(files: FileSystem, directory: str, incarnation: str, *, clean: bool) -> list[str] | None:
    """Add this incarnation of the node durably to the directory's list, and return the earlier ones, oldest first. None
    if the directory holds files of different incarnations, because a copy was put over it, or if the list is itself a
    copy. The list of an older copy of the whole directory lacks the later incarnations. Raises OSError.

    A copy that was made while the node ran has files of different times, so it is not complete. One that was made after
    a `clean` stop is, unless it was put over the directory without one of the two files.
    """
    paths = [f"{directory}/{name}" for name in (INCARNATIONS_FILE, LAST_INCARNATION_FILE)]
    identity_path = f"{directory}/{IDENTITY_FILE}"
    listed, last, noted = (_words(files, path) for path in (*paths, identity_path))
    is_whole = last == listed[-1:] or listed[-1:] == [incarnation]
    if is_whole and listed and noted[:1] == last:
        changed = [files.identity(path) != identity for path, identity in zip(paths, noted[1:], strict=False)]
        is_whole = not any(changed) or (clean and all(changed))
    earlier = [each for each in listed if each != incarnation][-INCARNATIONS_KEPT:]
    for path, lines in zip(paths, ([*earlier, incarnation], [incarnation]), strict=True):
        files.write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
    identities = " ".join(files.identity(path) for path in paths)
    files.write_atomically(identity_path, f"{incarnation} {identities}\n".encode())
    return earlier if is_whole else None


def forget_seen(files: FileSystem, data_directory: str) -> None:
    """Remove a cluster node's records of the metadata store that it shared. Raises OSError."""
    path = f"{data_directory}/{SEEN_FILE}"
    if files.exists(path):
        files.unlink(path)
