"""Encodes and decodes the records of consumer groups in `__consumer_offsets`.

These are Kafka's types:
- 3: the group's epoch;
- 5: a member;
- 6: the epoch of the group's assignment;
- 7: a member's target;
- 8: a member's current partitions;
- 16: the topics that a regular expression matches.

Type 4, the topics' partitions, which Kafka wrote before 4.1, is ignored. Each record has a value or is a tombstone.

Source: group-coordinator/src/main/resources/common/message/ConsumerGroup*.json, GroupCoordinatorRecordHelpers.java.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla.groups.consumer.group import (
    ClassicMembership,
    ConsumerMember,
    MemberState,
    Owned,
    Resolved,
    Target,
    TopicIdPartition,
)
from ottla.groups.epochs.records import (
    CurrentRecord,
    EpochGroupRecord,
    EpochRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from ottla.machine import ShardRecord
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, decode_record, encode_key, encode_value
from ottla.protocol.messages import consumer_group_current_member_assignment_record as current
from ottla.protocol.messages import consumer_group_member_metadata_record as member
from ottla.protocol.messages import consumer_group_metadata_record as metadata
from ottla.protocol.messages import consumer_group_regular_expression_record as regex
from ottla.protocol.messages import consumer_group_target_assignment_member_record as target
from ottla.protocol.messages import consumer_group_target_assignment_metadata_record as target_epoch
from ottla.protocol.wire import Message

CONSUMER_TYPES: Final = (3, 4, 5, 6, 7, 8, 16)
"""The record types that are read here."""

_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class RegexRecord:
    """`resolved` None: no member subscribes to the expression any more."""

    group_id: str
    regex: str
    resolved: Resolved | None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A record of a type that is ignored."""


ConsumerRecord: TypeAlias = EpochGroupRecord[ConsumerMember, Target] | RegexRecord | PassedOver


def encode(record: ConsumerRecord) -> ShardRecord:
    """Key and value; without a value the tombstone."""
    key, value = _messages(record)
    return ShardRecord(encode_key(key), None if value is None else encode_value(value, _VERSION))


def _messages(record: ConsumerRecord) -> tuple[Message, Message | None]:
    match record:
        case MemberRecord(group_id, member_id, each):
            return member.ConsumerGroupMemberMetadataKey(group_id, member_id), None if each is None else _said(each)
        case EpochRecord(group_id, epoch, metadata_hash):
            key = metadata.ConsumerGroupMetadataKey(group_id)
            return key, None if epoch is None else metadata.ConsumerGroupMetadataValue(epoch, metadata_hash)
        case TargetEpochRecord(group_id, epoch, assigned_at_ms):
            key = target_epoch.ConsumerGroupTargetAssignmentMetadataKey(group_id)
            if epoch is None:
                return key, None
            return key, target_epoch.ConsumerGroupTargetAssignmentMetadataValue(epoch, assigned_at_ms)
        case TargetRecord(group_id, member_id, places):
            key = target.ConsumerGroupTargetAssignmentMemberKey(group_id, member_id)
            if places is None:
                return key, None
            parts = [target.TopicPartition(topic_id, indexes) for topic_id, indexes in by_topic(places).items()]
            return key, target.ConsumerGroupTargetAssignmentMemberValue(parts)
        case CurrentRecord(group_id, member_id, each):
            key = current.ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id)
            if each is None:
                return key, None
            value = current.ConsumerGroupCurrentMemberAssignmentValue(
                each.member_epoch,
                each.previous_member_epoch,
                each.state,
                _with_epochs(each.assigned),
                _with_epochs(each.revoking),
            )
            return key, value
        case RegexRecord(group_id, expression, found):
            key = regex.ConsumerGroupRegularExpressionKey(group_id, expression)
            if found is None:
                return key, None
            return key, regex.ConsumerGroupRegularExpressionValue(list(found.topics), found.version, found.at_ms)
        case PassedOver():
            raise AssertionError(record)


def _said(each: ConsumerMember) -> member.ConsumerGroupMemberMetadataValue:
    value = member.ConsumerGroupMemberMetadataValue(
        each.instance_id,
        each.rack_id,
        each.client_id,
        each.client_host,
        list(each.topics),
        each.regex,
        each.rebalance_timeout_ms,
        each.assignor,
    )
    value.classic_member_metadata = None
    if each.classic is not None:
        protocols = [member.ClassicProtocol(name, said) for name, said in each.classic.protocols]
        value.classic_member_metadata = member.ClassicMemberMetadata(each.classic.session_timeout_ms, protocols)
    return value


def by_topic(places: Iterable[TopicIdPartition]) -> dict[bytes, list[int]]:
    """The partitions of each topic, in the order given."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in places:
        topics.setdefault(topic_id, []).append(index)
    return topics


def _with_epochs(owned: Owned) -> list[current.TopicPartitions]:
    return [
        current.TopicPartitions(topic_id, indexes, [owned[topic_id, index] for index in indexes])
        for topic_id, indexes in by_topic(owned).items()
    ]


def decode(key: bytes, value: bytes | None) -> ConsumerRecord:
    """One record of a type in CONSUMER_TYPES. Raises MalformedFrameError."""
    read, found = decode_record(CONSUMER_OFFSETS_TOPIC, key, value)
    match read:
        case member.ConsumerGroupMemberMetadataKey():
            each = None if found is None else _member(read.member_id, found)
            return MemberRecord(read.group_id, read.member_id, each)
        case metadata.ConsumerGroupMetadataKey():
            if found is None:
                return EpochRecord(read.group_id, None)
            return EpochRecord(read.group_id, found.epoch, found.metadata_hash)
        case target_epoch.ConsumerGroupTargetAssignmentMetadataKey():
            if found is None:
                return TargetEpochRecord(read.group_id, None)
            return TargetEpochRecord(read.group_id, found.assignment_epoch, found.assignment_timestamp)
        case target.ConsumerGroupTargetAssignmentMemberKey():
            places = None if found is None else tuple(sorted(_places(found.topic_partitions)))
            return TargetRecord(read.group_id, read.member_id, places)
        case current.ConsumerGroupCurrentMemberAssignmentKey():
            each = None if found is None else _owner(read.member_id, found)
            return CurrentRecord(read.group_id, read.member_id, each)
        case regex.ConsumerGroupRegularExpressionKey():
            resolved = None if found is None else Resolved(tuple(sorted(found.topics)), found.version, found.timestamp)
            return RegexRecord(read.group_id, read.regular_expression, resolved)
        case _:
            return PassedOver()


def _member(member_id: str, value: member.ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    classic = None
    if value.classic_member_metadata is not None:
        protocols = tuple((each.name, each.metadata) for each in value.classic_member_metadata.supported_protocols)
        classic = ClassicMembership(value.classic_member_metadata.session_timeout_ms, protocols)
    return ConsumerMember(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(sorted(value.subscribed_topic_names)),
        value.subscribed_topic_regex or "",
        value.rebalance_timeout_ms,
        value.server_assignor,
        classic,
    )


def _owner(member_id: str, value: current.ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
    """Decode a member's current partitions. A state that this version does not know counts as one in which the member
    waits: the member is reconciled again."""
    known = value.state in tuple(MemberState)
    return ConsumerMember(
        member_id,
        state=MemberState(value.state) if known else MemberState.UNRELEASED,
        member_epoch=value.member_epoch,
        previous_member_epoch=value.previous_member_epoch,
        assigned=_owned(value.assigned_partitions, value.member_epoch),
        revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
    )


def _places(parts: list[Any]) -> list[TopicIdPartition]:
    return [(bytes(each.topic_id), index) for each in parts for index in each.partitions]


def _owned(parts: list[current.TopicPartitions], member_epoch: int) -> Owned:
    """Before KIP-1251 no assignment epochs were written; the member's own epoch is then the safe value."""
    found: Owned = {}
    for each in parts:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [max(member_epoch, 0)] * len(each.partitions)
        topic_id = bytes(each.topic_id)
        found.update({(topic_id, index): epoch for index, epoch in zip(each.partitions, epochs, strict=True)})
    return dict(sorted(found.items()))
