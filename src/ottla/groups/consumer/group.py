"""Keeps one consumer group: its members, each member's target, the partitions that it owns, and the owner of each
partition.

It adds to `epochs.group`: static members, regular expressions, and owners. A partition's assignment epoch is the
member's epoch when it got the partition (KIP-1251).

A member owns a partition from the assignment until the member has reported the revocation, so a partition has at most
one owner (`owner_of`). `assigned` and `revoking` of a member are disjoint.

Invariants (`check`): each member owns exactly the partitions in its `assigned` and `revoking`; a static member's
instance id maps to it.

Source: Kafka's ConsumerGroup.java, ConsumerGroupMember.java; KIP-848, KIP-1251.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, Self, TypeAlias

from ottla.groups.epochs.group import EpochGroup
from ottla.machine import Millis

TopicIdPartition: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""

Target: TypeAlias = tuple[TopicIdPartition, ...]
"""A member's target partitions, in ascending order."""

Owned: TypeAlias = dict[TopicIdPartition, int]
"""The assignment epoch of each partition that a member has, in ascending order of the partitions."""

STATIC_LEAVE_EPOCH: Final = -2
"""The epoch of a static member that left and may return within its session."""


class MemberState(IntEnum):
    """A member's progress towards its target. Records contain the numbers."""

    STABLE = 0
    UNREVOKED = 1
    """It must revoke the partitions in `revoking` first."""
    UNRELEASED = 2
    """It waits for partitions that other members have not revoked yet."""


@dataclass(frozen=True, slots=True)
class ClassicMembership:
    """The contents of the JoinGroup of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """One member. `topics` are the names it subscribes to, in order; `regex` "": none."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMembership | None = None

    state: MemberState = MemberState.STABLE
    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Owned = field(default_factory=dict[TopicIdPartition, int])
    revoking: Owned = field(default_factory=dict[TopicIdPartition, int])

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def placed_as(self, other: Self) -> Self:
        return replace(
            self,
            state=other.state,
            member_epoch=other.member_epoch,
            previous_member_epoch=other.previous_member_epoch,
            assigned=other.assigned,
            revoking=other.revoking,
        )

    def owns_what(self, other: "ConsumerMember") -> bool:
        """Whether both have the same state, epochs and partitions, which are the fields of a current assignment's
        record."""
        return _current(self) == _current(other)

    def described_as(self, other: "ConsumerMember") -> bool:
        """Whether both have the same fields of a member's record."""
        return _said(self) == _said(other)


def _current(member: ConsumerMember) -> object:
    return member.state, member.member_epoch, member.previous_member_epoch, member.assigned, member.revoking


def _said(member: ConsumerMember) -> object:
    return member.placed_as(ConsumerMember(member.member_id))


@dataclass(frozen=True, slots=True)
class Resolved:
    """The topics that a regular expression matches, in order, and since when (milliseconds since 1970)."""

    topics: tuple[str, ...]
    version: int
    at_ms: int


def subscription(member: ConsumerMember, resolved: Mapping[str, Resolved]) -> tuple[str, ...]:
    """The names of the topics that a member subscribes to, in order. A regex that is not resolved matches none."""
    found = resolved.get(member.regex) if member.regex else None
    if found is None or not found.topics:
        return member.topics
    return tuple(sorted({*member.topics, *found.topics}))


def subscribed(members: Mapping[str, ConsumerMember], resolved: Mapping[str, Resolved]) -> list[str]:
    """The names of the topics that any of these members subscribes to, in order."""
    wanted = {(member.topics, member.regex): member for member in members.values()}
    return sorted({name for member in wanted.values() for name in subscription(member, resolved)})


class GroupState:
    """The states of a consumer group, as Kafka names them."""

    EMPTY: Final = "Empty"
    ASSIGNING: Final = "Assigning"
    RECONCILING: Final = "Reconciling"
    STABLE: Final = "Stable"


class ConsumerGroup(EpochGroup[ConsumerMember, Target]):
    """See the module's docstring. Two fields are soft. `topics_version` is the view of topics that `metadata_hash` is
    known to match. `told` has the time when each member last received its partitions; None once the member confirmed
    exactly them."""

    TYPE = "consumer"

    __slots__ = ("_owners", "resolved", "statics", "told", "topics_version")

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.statics: dict[str, str] = {}
        self.resolved: dict[str, Resolved] = {}
        self._owners: dict[TopicIdPartition, str] = {}
        self.topics_version: object = None
        self.told: dict[str, Millis | None] = {}

    @property
    def state(self) -> str:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        reconciled = all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values())
        return GroupState.STABLE if reconciled else GroupState.RECONCILING

    def owner_of(self, place: TopicIdPartition) -> str | None:
        """The member that owns this partition, including one that must revoke it and has not reported that."""
        return self._owners.get(place)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.statics.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in subscription(member, self.resolved) for member in self.members.values())

    # ---- what records say ------------------------------------------------------------------------------------------

    def _unplaced(self, member_id: str) -> ConsumerMember:
        return ConsumerMember(member_id)

    def _member_changed(self, before: ConsumerMember | None, after: ConsumerMember | None) -> None:
        left = None if before is None else before.instance_id
        if before is not None and left is not None and self.statics.get(left) == before.member_id:
            del self.statics[left]
        if after is not None and after.instance_id is not None:
            self.statics[after.instance_id] = after.member_id

    def _place_changed(self, before: ConsumerMember, after: ConsumerMember | None) -> None:
        self._let_go(before)
        if after is not None:
            for owned in (after.assigned, after.revoking):
                self._owners.update(dict.fromkeys(owned, after.member_id))

    def _let_go(self, member: ConsumerMember) -> None:
        for place in (*member.assigned, *member.revoking):
            if self._owners.get(place) == member.member_id:
                del self._owners[place]

    # ---- invariants ------------------------------------------------------------------------------------------------

    def image(self) -> tuple[object, ...]:
        return (*super().image(), self.resolved)

    def ownership(self) -> Iterator[tuple[TopicIdPartition, str, int]]:
        """(partition, member, assignment epoch) of every partition that members own or have not revoked yet."""
        for member in self.members.values():
            for owned in (member.assigned, member.revoking):
                for place, epoch in owned.items():
                    yield place, member.member_id, epoch

    def check(self) -> None:
        super().check()
        owners: dict[TopicIdPartition, str] = {}
        for place, member_id, epoch in self.ownership():
            assert place not in owners, f"{self}: {place} is owned by {owners[place]} and {member_id}"
            assert epoch <= self.epoch, f"{self}: {place} given in epoch {epoch}, is at {self.epoch}"
            owners[place] = member_id
        assert owners == self._owners, f"{self}: owners"
        statics = {each.instance_id: member_id for member_id, each in self.members.items() if each.instance_id}
        assert statics == self.statics, f"{self}: static members"
        targets: dict[TopicIdPartition, str] = {}
        for member_id, target in self.targets.items():
            for place in target:
                assert place not in targets, f"{self}: {place} is to be {targets[place]}'s and {member_id}'s"
                targets[place] = member_id
        for member in self.members.values():
            assert (member.state is MemberState.UNREVOKED) == bool(member.revoking), f"{self}: {member}"
