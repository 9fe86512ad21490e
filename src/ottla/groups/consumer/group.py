"""Keeps one consumer group: its members, each member's target, the partitions that it owns, and the owner of each
partition.

It holds the group's durable state, and how each kind of record changes it.

Epochs: `epoch` grows whenever the members, their subscriptions or the subscribed topics change. A target assignment is
made for an epoch (`assignment_epoch`). A member that received its part of the target has the same number
(`member_epoch`). A partition's assignment epoch is the member's epoch when it got the partition (KIP-1251).

A member owns a partition from the assignment until the member has reported the revocation, so a partition has at most
one owner (`owner_of`). `assigned` and `revoking` of a member are disjoint.

Invariants (`check`): each member owns exactly the partitions in its `assigned` and `revoking`; targets belong to
members; a static member's instance id maps to it; no epoch is ahead of the group's.

Source: Kafka's ConsumerGroup.java, ConsumerGroupMember.java; KIP-848, KIP-1251.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, TypeAlias

from ottla.machine import Millis

Place: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""

Target: TypeAlias = tuple[Place, ...]
"""A member's target partitions, in ascending order."""

Owned: TypeAlias = dict[Place, int]
"""The assignment epoch of each partition that a member has, in ascending order of the partitions."""

LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""The epoch of a static member that left and may return within its session."""

PROTOCOL_TYPE: Final = "consumer"


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
    assigned: Owned = field(default_factory=dict[Place, int])
    revoking: Owned = field(default_factory=dict[Place, int])

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

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
    return replace(member, state=MemberState.STABLE, member_epoch=0, previous_member_epoch=0, assigned={}, revoking={})


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


class ConsumerGroup:
    """See the module's docstring. Two fields are soft. `topics_version` is the view of topics that `metadata_hash` is
    known to match. `told` has the time when each member last received its partitions; None once the member confirmed
    exactly them."""

    __slots__ = (
        "_owners",
        "assigned_at_ms",
        "assignment_epoch",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "resolved",
        "statics",
        "targets",
        "told",
        "topics_version",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.statics: dict[str, str] = {}
        self.targets: dict[str, Target] = {}
        self.resolved: dict[str, Resolved] = {}
        self._owners: dict[Place, str] = {}
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

    def owner_of(self, place: Place) -> str | None:
        """The member that owns this partition, including one that must revoke it and has not reported that."""
        return self._owners.get(place)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.statics.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in subscription(member, self.resolved) for member in self.members.values())

    # ---- what records say ------------------------------------------------------------------------------------------

    def put_member(self, told: ConsumerMember) -> None:
        """Set a member from its record; another record has its epochs and partitions."""
        known = self.members.get(told.member_id)
        if known is not None:
            if known.instance_id is not None and self.statics.get(known.instance_id) == known.member_id:
                del self.statics[known.instance_id]
            told = replace(
                told,
                state=known.state,
                member_epoch=known.member_epoch,
                previous_member_epoch=known.previous_member_epoch,
                assigned=known.assigned,
                revoking=known.revoking,
            )
        if told.instance_id is not None:
            self.statics[told.instance_id] = told.member_id
        self.members[told.member_id] = told

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self.targets.pop(member_id, None)
        if member is not None:
            self._let_go(member)
            if member.instance_id is not None and self.statics.get(member.instance_id) == member_id:
                del self.statics[member.instance_id]

    def put_current(self, current: ConsumerMember) -> None:
        """Set a member's epochs and partitions. On replay this may precede the member's own record, which compaction
        moved back."""
        known = self.members.get(current.member_id) or ConsumerMember(current.member_id)
        self._let_go(known)
        for owned in (current.assigned, current.revoking):
            self._owners.update(dict.fromkeys(owned, current.member_id))
        self.members[current.member_id] = replace(
            known,
            state=current.state,
            member_epoch=current.member_epoch,
            previous_member_epoch=current.previous_member_epoch,
            assigned=current.assigned,
            revoking=current.revoking,
        )

    def drop_current(self, member_id: str) -> None:
        if member_id in self.members:
            self.put_current(ConsumerMember(member_id))

    def _let_go(self, member: ConsumerMember) -> None:
        for place in (*member.assigned, *member.revoking):
            if self._owners.get(place) == member.member_id:
                del self._owners[place]

    # ---- invariants ------------------------------------------------------------------------------------------------

    def image(self) -> object:
        """The durable state as plain values."""
        return (
            self.epoch,
            self.metadata_hash,
            self.assignment_epoch,
            self.assigned_at_ms,
            self.members,
            self.targets,
            self.resolved,
        )

    def ownership(self) -> Iterator[tuple[Place, str, int]]:
        """(partition, member, assignment epoch) of every partition that members own or have not revoked yet."""
        for member in self.members.values():
            for owned in (member.assigned, member.revoking):
                for place, epoch in owned.items():
                    yield place, member.member_id, epoch

    def check(self) -> None:
        where = f"consumer group {self.group_id}"
        assert self.assignment_epoch <= self.epoch, f"{where}: assigned for {self.assignment_epoch}, is at {self.epoch}"
        assert all(member_id in self.members for member_id in self.targets), f"{where}: a target of nobody"
        owners: dict[Place, str] = {}
        for place, member_id, epoch in self.ownership():
            assert place not in owners, f"{where}: {place} is owned by {owners[place]} and {member_id}"
            assert epoch <= self.epoch, f"{where}: {place} given in epoch {epoch}, is at {self.epoch}"
            owners[place] = member_id
        assert owners == self._owners, f"{where}: owners"
        statics = {each.instance_id: member_id for member_id, each in self.members.items() if each.instance_id}
        assert statics == self.statics, f"{where}: static members"
        targets: dict[Place, str] = {}
        for member_id, target in self.targets.items():
            for place in target:
                assert place not in targets, f"{where}: {place} is to be {targets[place]}'s and {member_id}'s"
                targets[place] = member_id
        for member in self.members.values():
            assert member.member_epoch <= self.assignment_epoch, f"{where}: {member}"
            assert (member.state is MemberState.UNREVOKED) == bool(member.revoking), f"{where}: {member}"
