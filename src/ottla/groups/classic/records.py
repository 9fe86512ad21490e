"""Encodes and decodes records of classic groups in `__consumer_offsets`.

These are Kafka's type 2: a group with its generation and its members.

Source: group-coordinator/src/main/resources/common/message/GroupMetadata*.json, GroupCoordinatorRecordHelpers.java.
"""

from dataclasses import dataclass

from ottla.machine import ShardRecord, WallMillis
from ottla.protocol.coordinator_records import decode_key, decode_value, encode_key, encode_value
from ottla.protocol.messages.group_metadata_record import GroupMetadataKey, GroupMetadataValue, MemberMetadata

GROUP_METADATA_TYPE = GroupMetadataKey.RECORD_TYPE
"""The record type that is read here."""

_VERSION = 3


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


@dataclass(frozen=True, slots=True)
class GroupRecord:
    group_id: str
    stored: StoredGroup | None


def encode_group(group_id: str, stored: StoredGroup | None) -> ShardRecord:
    """A classic group, or with None the tombstone that deletes it."""
    key = encode_key(GroupMetadataKey(group_id))
    if stored is None:
        return ShardRecord(key, None)
    value = GroupMetadataValue(
        protocol_type=stored.protocol_type,
        generation=stored.generation,
        protocol=stored.protocol,
        leader=stored.leader,
        current_state_timestamp=stored.state_timestamp_ms,
        members=[_member_metadata(member) for member in stored.members],
    )
    return ShardRecord(key, encode_value(value, _VERSION))


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


def decode(key: bytes, value: bytes | None) -> GroupRecord:
    """One record of GROUP_METADATA_TYPE. Raises MalformedFrameError."""
    group_id = decode_key(GroupMetadataKey, key).group
    return GroupRecord(group_id, None if value is None else _stored_group(decode_value(GroupMetadataValue, value)))


def _stored_group(read: GroupMetadataValue) -> StoredGroup:
    return StoredGroup(
        protocol_type=read.protocol_type,
        generation=read.generation,
        protocol=read.protocol,
        leader=read.leader,
        state_timestamp_ms=WallMillis(read.current_state_timestamp),
        members=tuple(_stored_member(member) for member in read.members),
    )


def _stored_member(read: MemberMetadata) -> StoredMember:
    """Version 0 had one timeout for both."""
    return StoredMember(
        member_id=read.member_id,
        group_instance_id=read.group_instance_id,
        client_id=read.client_id,
        client_host=read.client_host,
        rebalance_timeout_ms=read.session_timeout if read.rebalance_timeout < 0 else read.rebalance_timeout,
        session_timeout_ms=read.session_timeout,
        subscription=read.subscription,
        assignment=read.assignment,
    )
