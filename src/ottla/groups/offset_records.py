"""Encodes and decodes records of committed offsets in `__consumer_offsets`.

These are Kafka's type 1, and the older type 0, which has the same format.

Source: group-coordinator/src/main/resources/common/message/*OffsetCommit*.json, GroupCoordinatorRecordHelpers.java.
"""

from struct import Struct as Format
from typing import NamedTuple

from ottla.machine import ShardRecord, WallMillis
from ottla.protocol.coordinator_records import decode_key, decode_value, encode_key, encode_value, type_of
from ottla.protocol.messages.legacy_offset_commit_record import LegacyOffsetCommitKey
from ottla.protocol.messages.offset_commit_record import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.wire import ZERO_UUID

_LEGACY_TYPE = LegacyOffsetCommitKey.RECORD_TYPE
OFFSET_TYPES = (_LEGACY_TYPE, OffsetCommitKey.RECORD_TYPE)
"""The record types that are read here."""

_VERSION = 4
_VERSION_WITH_EXPIRY = 1
_USUAL = Format(">hqiBqBBB16s")
"""A value without metadata and expiry: version, offset, leader epoch, no text, commit timestamp, _TAGS, topic id. Most
values have this form, and the generated codec takes three times as long. A test compares the two."""
_TAGS = [1, 0, 16]
"""One tagged field, number 0, of 16 bytes."""

NO_TIMESTAMP = WallMillis(-1)


class CommittedOffset(NamedTuple):
    """A group's committed offset for one partition. It is a named tuple because replay creates one for every record.

    `record_offset` is the offset of its record in the log, -1 before it is appended. It decides between a plain and a
    transactional commit: the later one wins. `expire_timestamp_ms` is set only by OffsetCommit v2-4 with a retention
    time; such a record has no room for `topic_id`. A topic that was deleted and created again has another id.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    record_offset: int = -1
    topic_id: bytes = ZERO_UUID

    def is_of(self, topic_id: bytes) -> bool:
        """Whether this was committed for the topic with this id; an id of zero is unknown, and matches any."""
        return ZERO_UUID in (topic_id, self.topic_id) or topic_id == self.topic_id


class OffsetRecord(NamedTuple):
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


def encode_offset(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> ShardRecord:
    """A committed offset, or with None the tombstone that deletes it."""
    key = encode_key(OffsetCommitKey(group_id, topic, partition))
    if committed is None:
        return ShardRecord(key, None)
    expires = committed.expire_timestamp_ms != NO_TIMESTAMP
    if not (expires or committed.metadata) and committed.topic_id != ZERO_UUID:
        offset, leader_epoch, _, commit_timestamp_ms, _, _, topic_id = committed
        value = _USUAL.pack(_VERSION, offset, leader_epoch, 1, commit_timestamp_ms, *_TAGS, topic_id)
        return ShardRecord(key, value, OffsetRecord(group_id, topic, partition, committed))
    unusual = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    return ShardRecord(key, encode_value(unusual, _VERSION_WITH_EXPIRY if expires else _VERSION))


def decode(key: bytes, value: bytes | None, record_offset: int) -> OffsetRecord:
    """One record of a type in OFFSET_TYPES. Raises MalformedFrameError."""
    key_class = LegacyOffsetCommitKey if type_of(key) == _LEGACY_TYPE else OffsetCommitKey
    read = decode_key(key_class, key)
    committed = None if value is None else decode_committed(value, record_offset)
    return OffsetRecord(read.group, read.topic, read.partition, committed)


def decode_committed(value: bytes, record_offset: int) -> CommittedOffset:
    """The value of an offset's record. HOT. Raises MalformedFrameError."""
    if len(value) == _USUAL.size:
        version, offset, leader_epoch, metadata, commit_timestamp_ms, *tags, topic_id = _USUAL.unpack(value)
        if version == _VERSION and metadata == 1 and tags == _TAGS:
            return CommittedOffset(offset, leader_epoch, "", commit_timestamp_ms, NO_TIMESTAMP, record_offset, topic_id)
    read = decode_value(OffsetCommitValue, value)
    return CommittedOffset(
        read.offset,
        read.leader_epoch,
        read.metadata,
        read.commit_timestamp,
        read.expire_timestamp,
        record_offset,
        read.topic_id,
    )
