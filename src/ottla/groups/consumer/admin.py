"""Serves administrators of consumer groups: describe, list, delete.

Source: Kafka's ConsumerGroup.java (asDescribedGroup, createGroupTombstoneRecords), ConsumerGroupMember.java;
KIP-848.
"""

from collections.abc import Iterable
from typing import Final

from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, TopicIdPartition
from ottla.groups.consumer.records import ConsumerRecord, RegexRecord, by_topic, encode
from ottla.groups.epochs.records import group_gone
from ottla.groups.metadata_view import MetadataView
from ottla.machine import ShardRecord
from ottla.protocol.messages import consumer_group_describe as wire

_OF_THE_CLASSIC_PROTOCOL: Final = 0
_OF_THE_CONSUMER_PROTOCOL: Final = 1


def deletion(group: ConsumerGroup) -> list[ShardRecord]:
    """Tombstones for everything about a group."""
    first, last = group_gone(group)
    records: list[ConsumerRecord] = [*first]
    records += [RegexRecord(group.group_id, regex, None) for regex in group.resolved]
    records.append(last)
    return [encode(record) for record in records]


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


def _described_member(
    member: ConsumerMember, target: Iterable[TopicIdPartition], metadata: MetadataView
) -> wire.Member:
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


def _named(places: Iterable[TopicIdPartition], metadata: MetadataView) -> list[wire.TopicPartitions]:
    """A deleted topic is left out."""
    parts = ((topic_id, metadata.topic_name(topic_id), some) for topic_id, some in by_topic(places).items())
    return [wire.TopicPartitions(topic_id, name, indexes) for topic_id, name, indexes in parts if name is not None]
