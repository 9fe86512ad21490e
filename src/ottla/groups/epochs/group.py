"""Keeps what every group with epochs has: members, a target for each, and the epochs of both.

`epoch` grows whenever the members, their subscriptions or the subscribed topics change. A target assignment is made for
an epoch (`assignment_epoch`). A member that received its part of the target has the same number (`member_epoch`).

Two records describe a member: one has what the member said of itself, the other has its place in the group, which is
its epochs and what is assigned to it. A kind of groups that keeps an index over members overrides `_member_changed` or
`_place_changed`.

Invariants (`check`): targets are those of members; no epoch is ahead of the group's.

Source: Kafka's ModernGroup.java, ModernGroupMember.java.
"""

from typing import ClassVar, Generic, Protocol, Self, TypeVar


class EpochMember(Protocol):
    """A member of any kind; a value that never changes."""

    @property
    def member_id(self) -> str: ...

    @property
    def member_epoch(self) -> int: ...

    @property
    def previous_member_epoch(self) -> int: ...

    def placed_as(self, other: Self) -> Self:
        """This member in the place of the other: with its epochs, and what is assigned to it."""
        ...


MemberT = TypeVar("MemberT", bound=EpochMember)
TargetT = TypeVar("TargetT")


class EpochGroup(Generic[MemberT, TargetT]):
    """See the module's docstring."""

    __slots__ = ("assigned_at_ms", "assignment_epoch", "epoch", "group_id", "members", "metadata_hash", "targets")

    TYPE: ClassVar[str]
    """Kafka's name of this kind of groups, and of their protocol."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at_ms = 0
        self.members: dict[str, MemberT] = {}
        self.targets: dict[str, TargetT] = {}

    @property
    def state(self) -> str:
        """The group's state, as Kafka names it."""
        raise NotImplementedError

    def _unplaced(self, member_id: str) -> MemberT:
        """A member of which nothing is known."""
        raise NotImplementedError

    # ---- what records say ------------------------------------------------------------------------------------------

    def put_member(self, told: MemberT) -> None:
        """Set a member from its record; another record has its place."""
        known = self.members.get(told.member_id)
        if known is not None:
            told = told.placed_as(known)
        self._member_changed(known, told)
        self.members[told.member_id] = told

    def remove_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self.targets.pop(member_id, None)
        if member is not None:
            self._place_changed(member, None)
            self._member_changed(member, None)

    def put_current(self, current: MemberT) -> None:
        """Set a member's place. On replay this may precede the member's own record, which compaction moved back."""
        known = self.members.get(current.member_id) or self._unplaced(current.member_id)
        placed = known.placed_as(current)
        self._place_changed(known, placed)
        self.members[current.member_id] = placed

    def drop_current(self, member_id: str) -> None:
        if member_id in self.members:
            self.put_current(self._unplaced(member_id))

    def _member_changed(self, before: MemberT | None, after: MemberT | None) -> None:
        """The member's description of itself changes; None: it is no member."""

    def _place_changed(self, before: MemberT, after: MemberT | None) -> None:
        """A member's place changes; None: it leaves."""

    # ---- invariants ------------------------------------------------------------------------------------------------

    def image(self) -> tuple[object, ...]:
        """The durable state as plain values."""
        return (
            self.epoch,
            self.metadata_hash,
            self.assignment_epoch,
            self.assigned_at_ms,
            self.members,
            self.targets,
        )

    def __str__(self) -> str:
        return f"{self.TYPE} group {self.group_id}"

    def check(self) -> None:
        assert self.assignment_epoch <= self.epoch, f"{self}: assigned for {self.assignment_epoch}, is at {self.epoch}"
        assert all(member_id in self.members for member_id in self.targets), f"{self}: a target of nobody"
        for member_id, member in self.members.items():
            assert member.member_id == member_id, self
            assert member.member_epoch <= self.assignment_epoch, f"{self}: {member}"
