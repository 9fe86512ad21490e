"""Decides whether a consumer group accepts a commit, a fetch or a deletion of offsets.

A commit of a partition that the member owns is accepted if its epoch is not older than the partition's assignment to
the member. Between a commit's departure and its arrival the member may have moved to a newer epoch (KIP-1251).
Everything else needs the present epoch. A member that missed a change gets STALE_MEMBER_EPOCH, and asks again when it
has received its epoch.

Source: Kafka's ConsumerGroup.java (validateOffsetCommit, validateOffsetFetch); KIP-848, KIP-1251.
"""

from collections.abc import Iterable
from typing import Final

from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, TopicIdPartition
from ottla.protocol.errors import ErrorCode

MEMBER_EPOCHS_SINCE: Final = 9


def commit_error(
    group: ConsumerGroup, version: int, member_id: str, epoch: int, places: Iterable[TopicIdPartition]
) -> ErrorCode:
    """Whether the group accepts a commit of these partitions. A commit without an epoch needs a group without
    members."""
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and version < MEMBER_EPOCHS_SINCE:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.member_epoch:
        return ErrorCode.NONE
    wrong = _wrong_epoch(member)
    if epoch > member.member_epoch:
        return wrong
    for place in places:
        given = member.assigned.get(place, member.revoking.get(place))
        if given is None or epoch < given:
            return wrong
    return ErrorCode.NONE


def fetch_error(group: ConsumerGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Whether the group answers a fetch. It always does if the fetch names no member and no epoch."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == member.member_epoch else _wrong_epoch(member)


def _wrong_epoch(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
