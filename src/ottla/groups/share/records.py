"""Encodes and decodes the records of share groups in `__consumer_offsets`.

These are Kafka's types 10 to 15: a member, the group's epoch, the epoch of its assignment, a member's target, a
member's current assignment, and the group's share partitions. Each has a value or is a tombstone.

Source: group-coordinator/src/main/resources/common/message/ShareGroup*.json, GroupCoordinatorRecordHelpers.java.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla.groups.epochs.records import (
    CurrentRecord,
    EpochGroupRecord,
    EpochRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from ottla.groups.share.group import Assignment, Share, ShareMember, SharesKnown
from ottla.machine import ShardRecord
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, decode_record, encode_key, encode_value
from ottla.protocol.messages import share_group_current_member_assignment_record as current
from ottla.protocol.messages import share_group_member_metadata_record as member
from ottla.protocol.messages import share_group_metadata_record as metadata
from ottla.protocol.messages import share_group_state_partition_metadata_record as shares
from ottla.protocol.messages import share_group_target_assignment_member_record as target
from ottla.protocol.messages import share_group_target_assignment_metadata_record as target_epoch
from ottla.protocol.wire import Message

SHARE_TYPES: Final = range(10, 16)
"""The record types that are read here."""

_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class SharesRecord:
    group_id: str
    shares: SharesKnown | None


ShareRecord: TypeAlias = EpochGroupRecord[ShareMember, Assignment] | SharesRecord


def encode(record: ShareRecord) -> ShardRecord:
    """Key and value; without a value the tombstone."""
    key, value = _messages(record)
    return ShardRecord(encode_key(key), None if value is None else encode_value(value, _VERSION))


def _messages(record: ShareRecord) -> tuple[Message, Message | None]:
    match record:
        case MemberRecord(group_id, member_id, each):
            value = None
            if each is not None:
                value = member.ShareGroupMemberMetadataValue(
                    each.rack_id, each.client_id, each.client_host, list(each.topics)
                )
            return member.ShareGroupMemberMetadataKey(group_id, member_id), value
        case EpochRecord(group_id, epoch, metadata_hash):
            key = metadata.ShareGroupMetadataKey(group_id)
            return key, None if epoch is None else metadata.ShareGroupMetadataValue(epoch, metadata_hash)
        case TargetEpochRecord(group_id, epoch, assigned_at_ms):
            key = target_epoch.ShareGroupTargetAssignmentMetadataKey(group_id)
            if epoch is None:
                return key, None
            return key, target_epoch.ShareGroupTargetAssignmentMetadataValue(epoch, assigned_at_ms)
        case TargetRecord(group_id, member_id, assigned):
            key = target.ShareGroupTargetAssignmentMemberKey(group_id, member_id)
            if assigned is None:
                return key, None
            parts = [target.TopicPartition(topic_id, list(indexes)) for topic_id, indexes in assigned]
            return key, target.ShareGroupTargetAssignmentMemberValue(parts)
        case CurrentRecord(group_id, member_id, each):
            key = current.ShareGroupCurrentMemberAssignmentKey(group_id, member_id)
            if each is None:
                return key, None
            parts = [current.TopicPartitions(topic_id, list(indexes)) for topic_id, indexes in each.assigned]
            return key, current.ShareGroupCurrentMemberAssignmentValue(
                each.member_epoch, each.previous_member_epoch, 0, parts
            )
        case SharesRecord(group_id, known):
            return shares.ShareGroupStatePartitionMetadataKey(group_id), None if known is None else _shares(known)


def _shares(known: SharesKnown) -> shares.ShareGroupStatePartitionMetadataValue:
    def parts(some: tuple[Share, ...]) -> list[shares.TopicPartitionsInfo]:
        return [shares.TopicPartitionsInfo(each.topic_id, each.name, list(each.partitions)) for each in some]

    deleting = [shares.TopicInfo(topic_id, name) for topic_id, name in known.deleting]
    return shares.ShareGroupStatePartitionMetadataValue(parts(known.initializing), parts(known.initialized), deleting)


def decode(key: bytes, value: bytes | None) -> ShareRecord:
    """One record of a type in SHARE_TYPES. Raises MalformedFrameError."""
    read, found = decode_record(CONSUMER_OFFSETS_TOPIC, key, value)
    match read:
        case member.ShareGroupMemberMetadataKey():
            return MemberRecord(read.group_id, read.member_id, None if found is None else _member(read, found))
        case metadata.ShareGroupMetadataKey():
            if found is None:
                return EpochRecord(read.group_id, None)
            return EpochRecord(read.group_id, found.epoch, found.metadata_hash)
        case target_epoch.ShareGroupTargetAssignmentMetadataKey():
            if found is None:
                return TargetEpochRecord(read.group_id, None)
            return TargetEpochRecord(read.group_id, found.assignment_epoch, found.assignment_timestamp)
        case target.ShareGroupTargetAssignmentMemberKey():
            assigned = None if found is None else _assignment(found.topic_partitions)
            return TargetRecord(read.group_id, read.member_id, assigned)
        case current.ShareGroupCurrentMemberAssignmentKey():
            if found is None:
                return CurrentRecord(read.group_id, read.member_id, None)
            placed = ShareMember(
                read.member_id,
                member_epoch=found.member_epoch,
                previous_member_epoch=found.previous_member_epoch,
                assigned=_assignment(found.assigned_partitions),
            )
            return CurrentRecord(read.group_id, read.member_id, placed)
        case shares.ShareGroupStatePartitionMetadataKey():
            return SharesRecord(read.group_id, None if found is None else _known(found))
        case other:
            raise AssertionError(other)


def _member(key: member.ShareGroupMemberMetadataKey, value: member.ShareGroupMemberMetadataValue) -> ShareMember:
    topics = tuple(sorted(value.subscribed_topic_names))
    return ShareMember(key.member_id, value.rack_id, value.client_id, value.client_host, topics)


def _assignment(parts: list[Any]) -> Assignment:
    return tuple(sorted((bytes(each.topic_id), tuple(sorted(each.partitions))) for each in parts))


def _known(value: shares.ShareGroupStatePartitionMetadataValue) -> SharesKnown:
    def parts(some: list[shares.TopicPartitionsInfo]) -> tuple[Share, ...]:
        return tuple(
            sorted(Share(bytes(each.topic_id), each.topic_name, tuple(sorted(each.partitions))) for each in some)
        )

    deleting = tuple(sorted((bytes(each.topic_id), each.topic_name) for each in value.deleting_topics))
    return SharesKnown(parts(value.initializing_topics), parts(value.initialized_topics), deleting)
