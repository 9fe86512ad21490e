"""The records of `__consumer_offsets`: values of this room to bytes and back.

Knows Kafka's two kinds of record that the classic protocol needs: committed offsets (type 1; type 0 is the older one,
read alike) and classic groups (type 2); those of share groups (10 to 15) stand in `share_records`. A record of another
type, written by a later version or by Kafka itself, is `Unknown`: replay passes over it and keeps it in the log.

A key is an int16 type and the key's fields, a value an int16 version and the value's fields; without a value it is a
tombstone.

Source: group-coordinator/src/main/resources/common/message/*.json, GroupCoordinatorRecordHelpers.java.
"""

from dataclasses import dataclass
from struct import Struct as Format
from typing import NamedTuple, TypeAlias

from ottla.groups.share_records import SHARE_TYPES, ShareRecord
from ottla.groups.share_records import decode as decode_share
from ottla.machine import ShardRecord, WallMillis
from ottla.protocol.errors import MalformedFrame
from ottla.protocol.messages.group_metadata_record import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from ottla.protocol.messages.legacy_offset_commit_record import LegacyOffsetCommitKey
from ottla.protocol.messages.offset_commit_record import OffsetCommitKey, OffsetCommitValue
from ottla.protocol.wire import ZERO_UUID

_INT16 = Format(">h")

_LEGACY_OFFSET_COMMIT = 0
_OFFSET_COMMIT = 1
_GROUP_METADATA = 2

_GROUP_VALUE_VERSION = 3
_OFFSET_VALUE_VERSION = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY = 1

NO_TIMESTAMP = WallMillis(-1)


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member as a record keeps it: its metadata for the chosen protocol alone, and its assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as a record keeps it, either Empty (no members) or Stable. `protocol_type` "" means none."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: WallMillis
    members: tuple[StoredMember, ...]


class CommittedOffset(NamedTuple):
    """What a group committed for one partition. A named tuple, for replay makes one of every record.

    `record_offset` is where in the log it stands, which decides between a plain and a transactional commit (the later
    one wins); -1 before it is appended. `expire_timestamp_ms` only from OffsetCommit v2-4 with a retention time, and
    then the record has no room for `topic_id`. A topic that was deleted and made again has another id.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    record_offset: int = -1
    topic_id: bytes = ZERO_UUID

    def is_of(self, topic_id: bytes) -> bool:
        """Whether this was committed in the life of the topic that has this id; an id of zero is not known."""
        return ZERO_UUID in (topic_id, self.topic_id) or topic_id == self.topic_id


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    group_id: str
    stored: StoredGroup | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a kind this version does not keep."""

    record_type: int


Record: TypeAlias = OffsetRecord | GroupRecord | ShareRecord | Unknown


def encode_offset(group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> ShardRecord:
    """A committed offset, or with None the tombstone that deletes it."""
    key = bytearray(_INT16.pack(_OFFSET_COMMIT))
    OffsetCommitKey(group=group_id, topic=topic, partition=partition).encode(key, 0)
    if committed is None:
        return ShardRecord(bytes(key), None)
    expires = committed.expire_timestamp_ms != NO_TIMESTAMP
    version = _OFFSET_VALUE_VERSION_WITH_EXPIRY if expires else _OFFSET_VALUE_VERSION
    value = bytearray(_INT16.pack(version))
    OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    ).encode(value, version)
    return ShardRecord(bytes(key), bytes(value))


def encode_group(group_id: str, stored: StoredGroup | None) -> ShardRecord:
    """A classic group, or with None the tombstone that deletes it."""
    key = bytearray(_INT16.pack(_GROUP_METADATA))
    GroupMetadataKey(group=group_id).encode(key, 0)
    if stored is None:
        return ShardRecord(bytes(key), None)
    value = bytearray(_INT16.pack(_GROUP_VALUE_VERSION))
    GroupMetadataValue(
        protocol_type=stored.protocol_type,
        generation=stored.generation,
        protocol=stored.protocol,
        leader=stored.leader,
        current_state_timestamp=stored.state_timestamp_ms,
        members=[_member_metadata(member) for member in stored.members],
    ).encode(value, _GROUP_VALUE_VERSION)
    return ShardRecord(bytes(key), bytes(value))


def _member_metadata(member: StoredMember) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.subscription,
        assignment=member.assignment,
    )


def decode(key: bytes, value: bytes | None, record_offset: int) -> Record:
    """One record of the log. Raises MalformedFrame where the bytes are not what their type and version say."""
    if len(key) < _INT16.size:
        raise MalformedFrame("a record's key has no type")
    record_type: int = _INT16.unpack_from(key)[0]
    if record_type == _GROUP_METADATA:
        group_key, _ = GroupMetadataKey.decode(key, _INT16.size, 0)
        return GroupRecord(group_key.group, None if value is None else _decode_group(value))
    if record_type in (_LEGACY_OFFSET_COMMIT, _OFFSET_COMMIT):
        key_class = OffsetCommitKey if record_type == _OFFSET_COMMIT else LegacyOffsetCommitKey
        offset_key, _ = key_class.decode(key, _INT16.size, 0)
        committed = None if value is None else decode_committed(value, record_offset)
        return OffsetRecord(offset_key.group, offset_key.topic, offset_key.partition, committed)
    if record_type in SHARE_TYPES:
        return decode_share(key, value)
    return Unknown(record_type)


def _version(value: bytes, highest: int) -> int:
    if len(value) < _INT16.size:
        raise MalformedFrame("a record's value has no version")
    version: int = _INT16.unpack_from(value)[0]
    if not 0 <= version <= highest:
        raise MalformedFrame(f"a record's value has version {version}, above {highest}")
    return version


def decode_committed(value: bytes, record_offset: int) -> CommittedOffset:
    """The value of an offset's record. Raises MalformedFrame."""
    decoded, _ = OffsetCommitValue.decode(value, _INT16.size, _version(value, OffsetCommitValue.MAX_VERSION))
    return CommittedOffset(
        decoded.offset,
        decoded.leader_epoch,
        decoded.metadata,
        decoded.commit_timestamp,
        decoded.expire_timestamp,
        record_offset,
        decoded.topic_id,
    )


def _decode_group(value: bytes) -> StoredGroup:
    decoded, _ = GroupMetadataValue.decode(value, _INT16.size, _version(value, GroupMetadataValue.MAX_VERSION))
    return StoredGroup(
        protocol_type=decoded.protocol_type,
        generation=decoded.generation,
        protocol=decoded.protocol,
        leader=decoded.leader,
        state_timestamp_ms=WallMillis(decoded.current_state_timestamp),
        members=tuple(
            StoredMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                # Version 0 had one timeout for both.
                rebalance_timeout_ms=member.session_timeout
                if member.rebalance_timeout < 0
                else member.rebalance_timeout,
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in decoded.members
        ),
    )
