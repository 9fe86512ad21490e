"""Reads the configs of topics from the metadata log of a Kafka broker, if its data directory has one.

A KRaft controller keeps all metadata in `__cluster_metadata-0`: segments, and snapshots (`OFFSET-EPOCH.checkpoint`)
that replace the segments before their offset. Both hold ordinary batches. The value of each record is a frame version,
an API key and a version as varints, then the message in the flexible encoding.

Source: KIP-631 (The Quorum-based Kafka Controller), MetadataRecordSerde.java, TopicRecord.json, ConfigRecord.json,
RemoveTopicRecord.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import error as StructError
from typing import Final

from ottla.log.files import FileSystem
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.records.batch import has_valid_crc, iter_batches
from ottla.protocol.records.compression import READER_BYTES_MAX
from ottla.protocol.records.errors import CorruptRecordsError, UnsupportedMagicError
from ottla.protocol.records.record import decode_records
from ottla.protocol.wire import read_compact_nullable_string, read_compact_string, read_uvarint

METADATA_LOG: Final = "__cluster_metadata-0"
TOPIC, CONFIG, REMOVE_TOPIC = 2, 4, 9
"""Types of metadata records, which Kafka calls API keys."""
UUID_BYTES: Final = 16

_SEGMENT = re.compile(r"(\d{20})\.log", re.ASCII)
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)


class KraftUnreadableError(Exception):
    """The metadata log cannot be read; the text says which file and why."""


@dataclass(slots=True)
class _Topics:
    """Names by id, and configs by name."""

    names: dict[bytes, str] = field(default_factory=dict[bytes, str])
    configs: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])


def topic_configs(files: FileSystem, directory: str) -> dict[bytes, dict[str, str]]:
    """The configs of each topic, by topic id, in the metadata log of a broker's data directory; empty if there is none.
    Raises KraftUnreadableError."""
    log = f"{directory}/{METADATA_LOG}"
    topics, path, begin = _Topics(), log, 0
    try:
        names = files.listdir(log) if files.exists(log) else []
        if snapshots := [name for name in names if _SNAPSHOT.fullmatch(name)]:
            path, begin = f"{log}/{snapshots[-1]}", int(snapshots[-1][:20])
            for _, value in _values(files.read_bytes(path)):
                _replay(topics, value)
        for path in (f"{log}/{name}" for name in names if _SEGMENT.fullmatch(name)):
            for offset, value in _values(files.read_bytes(path)):
                if offset >= begin:
                    _replay(topics, value)
    except (
        OSError,
        CorruptRecordsError,
        UnsupportedMagicError,
        MalformedFrameError,
        StructError,
        IndexError,
        UnicodeError,
    ) as error:
        raise KraftUnreadableError(f"{path}: {error}") from error
    return {topic_id: topics.configs.get(name, {}) for topic_id, name in topics.names.items()}


def _values(content: bytes) -> Iterator[tuple[int, bytes]]:
    """(offset, value) of each data record; a torn batch ends the file."""
    view = memoryview(content)
    for header, position in iter_batches(view):
        if not has_valid_crc(view, position, header):
            raise CorruptRecordsError(f"the batch at position {position} does not match its checksum")
        if not header.is_control:
            for record in decode_records(view, position, max_bytes=READER_BYTES_MAX):
                if record.value is not None:
                    yield record.offset, record.value


def _replay(topics: _Topics, value: bytes) -> None:
    """Apply one metadata record; all but those of topics and configs change nothing here."""
    view = memoryview(value)
    _, pos = read_uvarint(view, 0)
    record_type, pos = read_uvarint(view, pos)
    _, pos = read_uvarint(view, pos)
    if record_type == TOPIC:
        name, pos = read_compact_string(view, pos)
        topics.names[bytes(view[pos : pos + UUID_BYTES])] = name
    elif record_type == REMOVE_TOPIC:
        topics.configs.pop(topics.names.pop(bytes(view[pos : pos + UUID_BYTES]), ""), None)
    elif record_type == CONFIG and view[pos] == ConfigResourceType.TOPIC:
        name, pos = read_compact_string(view, pos + 1)
        key, pos = read_compact_string(view, pos)
        text, pos = read_compact_nullable_string(view, pos)
        configs = topics.configs.setdefault(name, {})
        if text is None:
            configs.pop(key, None)
        else:
            configs[key] = text
