"""Serves administrators of share groups: describe, list, delete, and changes of share partitions' offsets.

The share coordinator has the group's position in its partitions. So the broker handles a request about offsets in
steps. It asks the group (a `ShareQuestion`, answered by a `ShareAnswer`), then the share coordinator, then the group
again.

Offsets are deleted before the group. Topics are listed as "deleting" in the group's record until the share coordinator
has deleted its state of them. The next deletion completes one that was interrupted.

Source: Kafka's GroupMetadataManager.java (sharePartitionsEligibleForOffsetDeletion, alterShareGroupOffsets,
shareGroupBuildPartitionDeleteRequest), ShareGroup.java; KIP-932.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.groups.decision import DecisionBuilder
from ottla.groups.epochs.heartbeats import missing
from ottla.groups.epochs.records import group_gone
from ottla.groups.metadata_view import MetadataView
from ottla.groups.share.group import NO_SHARES, Assignment, Share, ShareGroup, ShareMember, SharesKnown
from ottla.groups.share.records import ShareRecord, SharesRecord, encode
from ottla.machine import ShardRecord, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_group_describe as wire

ASSIGNOR: Final = "simple"


@dataclass(frozen=True, slots=True)
class AskShares:
    """Which share partitions does the group have?"""

    group_id: str


@dataclass(frozen=True, slots=True)
class AddShares:
    """Add these share partitions to a group without members. A missing group is created."""

    group_id: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class BeginDeletion:
    """Begin to delete the offsets of these topics (None: of all) in a group without members."""

    group_id: str
    topic_ids: tuple[bytes, ...] | None


@dataclass(frozen=True, slots=True)
class EndDeletion:
    """The share coordinator has deleted its state of these topics."""

    group_id: str
    topic_ids: tuple[bytes, ...]


ShareQuestion = AskShares | AddShares | BeginDeletion | EndDeletion


@dataclass(frozen=True, slots=True)
class ShareAnswer:
    """`shares` are the group's share partitions, or those before a deletion began."""

    error: ErrorCode
    message: str | None = None
    epoch: int = 0
    shares: SharesKnown = NO_SHARES


def answer_question(
    ticket: Ticket,
    question: ShareQuestion,
    groups: Mapping[str, ShareGroup],
    other_groups: Container[str],
    decision: DecisionBuilder,
) -> None:
    group = groups.get(question.group_id)
    if group is None:
        if question.group_id in other_groups or not isinstance(question, AddShares):
            text = missing(ShareGroup.TYPE, question.group_id, other_groups)
            decision.answer(ticket, ShareAnswer(ErrorCode.GROUP_ID_NOT_FOUND, text))
            return
        group = ShareGroup(question.group_id)
    if isinstance(question, AddShares | BeginDeletion) and group.members:
        decision.answer(ticket, ShareAnswer(ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP.message))
        return
    shares = _changed(group.shares, question)
    if shares != group.shares or (isinstance(question, AddShares) and question.group_id not in groups):
        decision.records.append(encode(SharesRecord(group.group_id, shares)))
    decision.answer(ticket, ShareAnswer(ErrorCode.NONE, None, group.epoch, group.shares))


def _changed(shares: SharesKnown, question: ShareQuestion) -> SharesKnown:
    match question:
        case AskShares():
            return shares
        case AddShares(_, added):
            return shares.added(list(added))
        case BeginDeletion(_, topic_ids):
            wanted = [topic_id for topic_id, _ in shares.topics()] if topic_ids is None else list(topic_ids)
            return shares.without(wanted, deleting=True)
        case EndDeletion(_, topic_ids):
            return shares.without(list(topic_ids), deleting=False)


# ---- the group as a whole ------------------------------------------------------------------------------------------


def deletion(group: ShareGroup) -> list[ShardRecord]:
    """Tombstones for everything about a group without members."""
    first, last = group_gone(group)
    records: list[ShareRecord] = [*first, SharesRecord(group.group_id, None), last]
    return [encode(record) for record in records]


def describe(
    ticket: Ticket,
    body: wire.ShareGroupDescribeRequest,
    groups: Mapping[str, ShareGroup],
    other_groups: Container[str],
    metadata: MetadataView,
    decision: DecisionBuilder,
) -> None:
    described = [_described(group_id, groups, other_groups, metadata) for group_id in body.group_ids]
    decision.answer(ticket, wire.ShareGroupDescribeResponse(groups=described))


def _described(
    group_id: str, groups: Mapping[str, ShareGroup], other_groups: Container[str], metadata: MetadataView
) -> wire.DescribedGroup:
    group = groups.get(group_id)
    if group is None:
        text = missing(ShareGroup.TYPE, group_id, other_groups)
        return wire.DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id)
    names: dict[bytes, str] = {}
    for name in group.subscribed_topics():
        found = metadata.topic(name)
        if found is not None:
            names[found[0]] = name
    return wire.DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=[_described_member(member, names) for member in group.members.values()],
    )


def _described_member(member: ShareMember, names: Mapping[bytes, str]) -> wire.Member:
    return wire.Member(
        member.member_id,
        member.rack_id,
        member.member_epoch,
        member.client_id,
        member.client_host,
        list(member.topics),
        wire.Assignment(_named(member.assigned, names)),
    )


def _named(assignment: Assignment, names: Mapping[bytes, str]) -> list[wire.TopicPartitions]:
    """A deleted topic is left out."""
    return [
        wire.TopicPartitions(topic_id, names[topic_id], list(partitions))
        for topic_id, partitions in assignment
        if topic_id in names
    ]
