"""Holds one share group: its members, each member's target, and all share partitions that it has read.

It adds to `epochs.group`: subscriptions, share partitions, and lost connections. The share coordinator (`ottla.share`)
keeps the group's position in each partition. A member that has received an assignment has its epoch at once.

`absent` is soft: members whose connection was lost. They stay members until their session ends, but assignments are
made without them.

Invariants (`check`): absences are those of members; subscriptions are counted.

Source: Kafka's ShareGroup.java, ShareGroupMember.java; KIP-932.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self, TypeAlias

from ottla.groups.epochs.group import EpochGroup

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

    @property
    def rebalance_timeout_ms(self) -> int:
        """A member gives up partitions at once: -1."""
        return -1

    def placed_as(self, other: Self) -> Self:
        return replace(
            self,
            member_epoch=other.member_epoch,
            previous_member_epoch=other.previous_member_epoch,
            assigned=other.assigned,
        )


class ShareGroup(EpochGroup[ShareMember, Assignment]):
    """See the module's docstring. Its state is "Stable" with members and "Empty" without."""

    TYPE = "share"

    __slots__ = ("_subscriptions", "absent", "shares")

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
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

    def remove_member(self, member_id: str) -> None:
        super().remove_member(member_id)
        self.absent.pop(member_id, None)

    def _unplaced(self, member_id: str) -> ShareMember:
        return ShareMember(member_id)

    def _member_changed(self, before: ShareMember | None, after: ShareMember | None) -> None:
        self._count(before, -1)
        self._count(after, 1)

    def _count(self, member: ShareMember | None, change: int) -> None:
        counts = self._subscriptions
        for name in () if member is None else member.topics:
            count = counts.get(name, 0) + change
            if count:
                counts[name] = count
            else:
                del counts[name]

    # ---- invariants ------------------------------------------------------------------------------------------------

    def image(self) -> tuple[object, ...]:
        return (*super().image(), self.shares)

    def check(self) -> None:
        super().check()
        assert all(member_id in self.members for member_id in self.absent), f"{self}: somebody absent is no member"
        counts: dict[str, int] = {}
        for member in self.members.values():
            assert member.previous_member_epoch <= member.member_epoch, f"{self}: {member}"
            for name in member.topics:
                counts[name] = counts.get(name, 0) + 1
        assert counts == self._subscriptions, f"{self}: subscriptions"
