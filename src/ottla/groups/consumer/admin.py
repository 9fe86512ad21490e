"""Serves administrators of consumer groups: describe, list, delete.

Source: Kafka's ConsumerGroup.java (asDescribedGroup, createGroupTombstoneRecords), ConsumerGroupMember.java;
KIP-848.
"""

from collections.abc import Iterable
from typing import Final

from ottla.groups.consumer.group import PROTOCOL_TYPE, ConsumerGroup, ConsumerMember, Place
from ottla.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
    by_topic,
    encode,
)
from ottla.groups.metadata_view import MetadataView
from ottla.machine import ShardRecord
from ottla.protocol.messages import consumer_group_describe as wire
from ottla.protocol.messages.list_groups import ListedGroup

GROUP_TYPE: Final = "consumer"
_OF_THE_CLASSIC_PROTOCOL: Final = 0
_OF_THE_CONSUMER_PROTOCOL: Final = 1


def deletion(group: ConsumerGroup) -> list[ShardRecord]:
    """Tombstones for everything about a group."""
    group_id = group.group_id
    members = dict.fromkeys((*group.members, *group.targets))
    records: list[ConsumerRecord] = [CurrentRecord(group_id, member_id, None) for member_id in members]
    records += [TargetRecord(group_id, member_id, None) for member_id in members]
    records.append(TargetEpochRecord(group_id, None))
    records += [MemberRecord(group_id, member_id, None) for member_id in members]
    records += [RegexRecord(group_id, regex, None) for regex in group.resolved]
    records.append(EpochRecord(group_id, None))
    return [encode(record) for record in records]


def listed(group: ConsumerGroup) -> ListedGroup:
    return ListedGroup(group.group_id, PROTOCOL_TYPE, group.state, GROUP_TYPE)


def described(group: ConsumerGroup, assignor: str, metadata: MetadataView) -> wire.DescribedGroup:
    return wire.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
        members=[
            _described_member(member, group.targets.get(member.member_id, ()), metadata)
            for member in group.members.values()
        ],
    )


def _described_member(member: ConsumerMember, target: Iterable[Place], metadata: MetadataView) -> wire.Member:
    return wire.Member(
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        member.client_id,
        member.client_host,
        list(member.topics),
        member.regex,
        wire.Assignment(_named(member.assigned, metadata)),
        wire.Assignment(_named(target, metadata)),
        _OF_THE_CONSUMER_PROTOCOL if member.classic is None else _OF_THE_CLASSIC_PROTOCOL,
    )


def _named(places: Iterable[Place], metadata: MetadataView) -> list[wire.TopicPartitions]:
    """A deleted topic is left out."""
    parts = ((topic_id, metadata.topic_name(topic_id), some) for topic_id, some in by_topic(places).items())
    return [wire.TopicPartitions(topic_id, name, indexes) for topic_id, name, indexes in parts if name is not None]
