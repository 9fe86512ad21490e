"""Holds one share group: its members, each member's target, and all share partitions that it has read.

It holds the group's durable state, and how each kind of record changes it. The share coordinator (`ottla.share`) keeps
the group's position in each partition.

Epochs: `epoch` grows whenever the members or their subscriptions change. An assignment is made for an epoch
(`assignment_epoch`), and a member that has received it has the same number (`member_epoch`).

`absent` is soft: members whose connection was lost. They stay members until their session ends, but assignments are
made without them.

Invariants (`check`): targets and absences are those of members; no epoch is ahead of the group's.

Source: Kafka's ShareGroup.java, ShareGroupMember.java; KIP-932.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

Assignment: TypeAlias = tuple[tuple[bytes, tuple[int, ...]], ...]
"""(topic id, partitions) in ascending order."""

NOTHING_ASSIGNED: Final[Assignment] = ()


class Share(NamedTuple):
    """Share partitions of one topic, by the topic's id and the name at that time."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharesKnown:
    """The group's share partitions: those being initialized, those initialized, and the topics (id, name) being
    deleted."""

    initializing: tuple[Share, ...] = ()
    initialized: tuple[Share, ...] = ()
    deleting: tuple[tuple[bytes, str], ...] = ()

    def known(self, topic_id: bytes) -> tuple[int, ...]:
        """Partitions of this topic that the group has read or is about to."""
        return tuple(
            index for each in (*self.initializing, *self.initialized) if each.topic_id == topic_id
            for index in each.partitions
        )  # fmt: skip

    def added(self, shares: list[Share]) -> "SharesKnown":
        """The state with these partitions initialized; they are not being deleted any more."""
        made = {each.topic_id: each for each in self.initialized}
        for each in shares:
            before = made.get(each.topic_id)
            partitions = each.partitions if before is None else (*before.partitions, *each.partitions)
            made[each.topic_id] = Share(each.topic_id, each.name, tuple(sorted(set(partitions))))
        return SharesKnown(
            tuple(each for each in self.initializing if each.topic_id not in made),
            tuple(sorted(made.values())),
            tuple(each for each in self.deleting if each[0] not in made),
        )

    def without(self, topic_ids: list[bytes], *, deleting: bool) -> "SharesKnown":
        """The state without these topics, which are being deleted from now on, or have been."""
        gone = {
            (each.topic_id, each.name)
            for each in (*self.initializing, *self.initialized)
            if deleting and each.topic_id in topic_ids
        }
        kept = {each for each in self.deleting if deleting or each[0] not in topic_ids}
        return SharesKnown(
            tuple(each for each in self.initializing if each.topic_id not in topic_ids),
            tuple(each for each in self.initialized if each.topic_id not in topic_ids),
            tuple(sorted(gone | kept)),
        )

    def topics(self) -> Iterator[tuple[bytes, str]]:
        """Every topic whose share partitions are initializing, initialized or being deleted."""
        for each in (*self.initializing, *self.initialized):
            yield each.topic_id, each.name
        yield from self.deleting


NO_SHARES: Final = SharesKnown()


@dataclass(frozen=True, slots=True)
class ShareMember:
    """One member. `topics` are the names it subscribes to, in order."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    member_epoch: int = 0
    previous_member_epoch: int = 0
    assigned: Assignment = NOTHING_ASSIGNED


class ShareGroup:
    """See the module's docstring. Its state is "Stable" with members and "Empty" without."""

    __slots__ = (
        "_subscriptions",
        "absent",
        "assigned_at_ms",
        "assignment_epoch",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "shares",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_at_ms = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.shares = NO_SHARES
        self._subscriptions: dict[str, int] = {}
        self.absent: dict[str, None] = {}

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    def subscribed_topics(self) -> list[str]:
        """The names that any member subscribes to, in order."""
        return sorted(self._subscriptions)

    def subscribed_with(self, member: ShareMember | None, left: str | None = None) -> list[str]:
        """The subscriptions once `member` is as given here, or once the member `left` is removed."""
        counts = dict(self._subscriptions)
        old = self.members.get(member.member_id if member is not None else left or "")
        for name in () if old is None else old.topics:
            counts[name] -= 1
        for name in () if member is None else member.topics:
            counts[name] = counts.get(name, 0) + 1
        return sorted(name for name, count in counts.items() if count)

    # ---- what records say ------------------------------------------------------------------------------------------

    def put_member(self, told: ShareMember) -> None:
        """Set a member from its record; another record has its epochs and assignment."""
        known = self.members.get(told.member_id)
        if known is not None:
            told = replace(
                told,
                member_epoch=known.member_epoch,
                previous_member_epoch=known.previous_member_epoch,
                assigned=known.assigned,
            )
        self._count(known, -1)
        self._count(told, 1)
        self.members[told.member_id] = told

    def remove_member(self, member_id: str) -> None:
        self._count(self.members.pop(member_id, None), -1)
        self.targets.pop(member_id, None)
        self.absent.pop(member_id, None)

    def put_current(self, member_id: str, epoch: int, previous_epoch: int, assigned: Assignment) -> None:
        """Set a member's epochs and assignment. On replay this may precede the member's own record, which compaction
        moved back."""
        known = self.members.get(member_id) or ShareMember(member_id)
        self.members[member_id] = replace(
            known, member_epoch=epoch, previous_member_epoch=previous_epoch, assigned=assigned
        )

    def drop_current(self, member_id: str) -> None:
        if member_id in self.members:
            self.put_current(member_id, 0, 0, NOTHING_ASSIGNED)

    def _count(self, member: ShareMember | None, change: int) -> None:
        counts = self._subscriptions
        for name in () if member is None else member.topics:
            count = counts.get(name, 0) + change
            if count:
                counts[name] = count
            else:
                del counts[name]

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
            self.shares,
        )

    def check(self) -> None:
        where = f"share group {self.group_id}"
        assert self.assignment_epoch <= self.epoch, f"{where}: assigned for {self.assignment_epoch}, is at {self.epoch}"
        assert all(member_id in self.members for member_id in (*self.targets, *self.absent)), f"{where}: other_groups"
        counts: dict[str, int] = {}
        for member_id, member in self.members.items():
            assert member.member_id == member_id, where
            assert member.previous_member_epoch <= member.member_epoch <= self.assignment_epoch, f"{where}: {member}"
            for name in member.topics:
                counts[name] = counts.get(name, 0) + 1
        assert counts == self._subscriptions, f"{where}: subscriptions"
