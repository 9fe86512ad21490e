"""Leads a member from the partitions that it owns to its target: it revokes first, and then assigns what is free.

The inputs are one member, its target, and the owners of all partitions.

    keep        owned, and in the target
    revoking    owned, and not in the target: the member stays in its epoch, UNREVOKED, until it reports the revocation
    new         in the target, and free: the member moves to the target's epoch and gets them
    held        in the target, and owned by another member: UNRELEASED, the member waits in the target's epoch

A partition that the member itself has not revoked yet counts as its own and not as held (KAFKA-19449). It stays the
member's own if it is assigned to the member again before the revocation (KAFKA-16147). The partitions of a topic that
the member no longer subscribes to are revoked at once, before there is a new target (KAFKA-19431).

Source: Kafka's CurrentAssignmentBuilder.java; KIP-848, KIP-1251.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ottla.groups.consumer.group import ConsumerMember, MemberState, Owned, Target, TopicIdPartition
from ottla.protocol.messages.consumer_group_heartbeat import RequestTopicPartitions


@dataclass(frozen=True, slots=True)
class PlacesNamed:
    """The partitions that a heartbeat names. There may be many of them, and most heartbeats need not decode them."""

    parts: Sequence[RequestTopicPartitions]

    def __iter__(self) -> Iterator[TopicIdPartition]:
        for part in self.parts:
            topic_id = bytes(part.topic_id)
            for index in part.partitions:
                yield topic_id, index


def reconciled(
    member: ConsumerMember,
    assignment_epoch: int,
    target: Target,
    owner_of: Callable[[TopicIdPartition], str | None],
    subscribed: Collection[bytes],
    owned: Iterable[TopicIdPartition] | None,
    *,
    resubscribed: bool,
) -> ConsumerMember:
    """The member after this heartbeat.

    `subscribed`: the ids of the topics that it subscribes to. `owned`: the partitions that it reports; None if it
    reports none. `resubscribed`: this heartbeat has changed its subscription.
    """
    match member.state:
        case MemberState.STABLE if member.member_epoch == assignment_epoch:
            return _unsubscribed(member, subscribed, owned) if resubscribed else member
        case MemberState.STABLE | MemberState.UNRELEASED:
            epoch = member.member_epoch
        case MemberState.UNREVOKED:
            if _still_owns(member.revoking, owned):
                return _unsubscribed(member, subscribed, owned) if resubscribed else member
            # It became UNREVOKED perhaps for its own subscription, for which there is no target yet.
            epoch = min(member.member_epoch + 1, assignment_epoch)
    return _towards(member, epoch, assignment_epoch, target, owner_of, subscribed, owned)


def _still_owns(revoking: Collection[TopicIdPartition], owned: Iterable[TopicIdPartition] | None) -> bool:
    """Whether the member may still own any of these. A member that does not report its partitions may own all of
    them."""
    return owned is None or any(place in revoking for place in owned)


def _towards(
    member: ConsumerMember,
    epoch: int,
    assignment_epoch: int,
    target: Target,
    owner_of: Callable[[TopicIdPartition], str | None],
    subscribed: Collection[bytes],
    owned: Iterable[TopicIdPartition] | None,
) -> ConsumerMember:
    wanted = dict.fromkeys(place for place in target if place[0] in subscribed)
    kept = {place: given for place, given in member.assigned.items() if place in wanted}
    revoking = {place: given for place, given in member.assigned.items() if place not in wanted}
    if revoking and _still_owns(revoking, owned):
        return _moved(member, MemberState.UNREVOKED, epoch, kept, revoking)
    missing = [place for place in wanted if place not in kept]
    free = [place for place in missing if owner_of(place) in (None, member.member_id)]
    state = MemberState.UNRELEASED if len(free) < len(missing) else MemberState.STABLE
    assigned = dict(sorted((kept | dict.fromkeys(free, assignment_epoch)).items()))
    return _moved(member, state, assignment_epoch, assigned, {})


def _unsubscribed(
    member: ConsumerMember, subscribed: Collection[bytes], owned: Iterable[TopicIdPartition] | None
) -> ConsumerMember:
    """The member without the topics that it no longer subscribes to. It keeps its epoch, because there is no new
    target."""
    gone = {place: given for place, given in member.assigned.items() if place[0] not in subscribed}
    if not gone:
        return member
    kept = {place: given for place, given in member.assigned.items() if place not in gone}
    revoking = dict(sorted((member.revoking | gone).items()))
    if _still_owns(revoking, owned):
        return replace(member, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    return replace(member, assigned=kept)


def _moved(member: ConsumerMember, state: MemberState, epoch: int, assigned: Owned, revoking: Owned) -> ConsumerMember:
    return replace(
        member,
        state=state,
        member_epoch=epoch,
        previous_member_epoch=member.member_epoch,
        assigned=assigned,
        revoking=revoking,
    )
