"""Keeps all groups of one kind in a shard, and applies the records that every kind has.

The ids of groups of other kinds are in use.
"""

from collections.abc import Container, Iterator
from typing import Any, Generic, Protocol, TypeVar, assert_never

from ottla.groups.epochs.group import EpochGroup
from ottla.groups.epochs.records import (
    CurrentRecord,
    EpochGroupRecord,
    EpochRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from ottla.machine import Millis, ShardRecord
from ottla.protocol.messages.list_groups import ListedGroup

GroupT = TypeVar("GroupT", bound=EpochGroup[Any, Any])
GroupT_contra = TypeVar("GroupT_contra", bound=EpochGroup[Any, Any], contravariant=True)


class Membership(Protocol[GroupT_contra]):
    """The soft state of members: sessions, and the like."""

    def loaded(self, now: Millis, group: GroupT_contra) -> None:
        """Restart the sessions of all members."""
        ...

    def forget(self, group: GroupT_contra) -> None:
        """Forget a group that no longer exists."""
        ...

    def check(self, group: GroupT_contra) -> None: ...


class EpochGroups(Generic[GroupT]):
    """See the module's docstring."""

    __slots__ = ("_groups", "_made_by", "_members", "_other_groups")

    def __init__(
        self,
        made_by: type[GroupT],
        groups: dict[str, GroupT],
        other_groups: Container[str],
        members: Membership[GroupT],
    ) -> None:
        self._made_by = made_by
        self._groups = groups
        self._other_groups = other_groups
        self._members = members

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[GroupT]:
        return iter(self._groups.values())

    def of(self, group_id: str) -> GroupT | None:
        return self._groups.get(group_id)

    def listed(self) -> Iterator[ListedGroup]:
        for group in self._groups.values():
            yield ListedGroup(group.group_id, group.TYPE, group.state, group.TYPE)

    def deletion(self, group_id: str) -> list[ShardRecord] | None:
        """The records that delete this group; None if it has members."""
        group = self._groups[group_id]
        return None if group.members else self._tombstones(group)

    def _tombstones(self, group: GroupT) -> list[ShardRecord]:
        raise NotImplementedError

    def loaded(self, now: Millis) -> None:
        for group in self._groups.values():
            self._members.loaded(now, group)

    # ---- durable state ---------------------------------------------------------------------------------------------

    def _apply(self, record: EpochGroupRecord[Any, Any]) -> None:
        match record:
            case MemberRecord(group_id, member_id, member):
                if member is not None:
                    self._group(group_id).put_member(member)
                elif group_id in self._groups:
                    self._groups[group_id].remove_member(member_id)
            case EpochRecord(group_id, epoch, metadata_hash):
                if epoch is not None:
                    group = self._group(group_id)
                    group.epoch, group.metadata_hash = epoch, metadata_hash
                elif (group := self._groups.pop(group_id, None)) is not None:
                    self._members.forget(group)
            case TargetEpochRecord(group_id, epoch, assigned_at_ms):
                if epoch is not None:
                    group = self._group(group_id)
                    group.assignment_epoch, group.assigned_at_ms = epoch, assigned_at_ms
            case TargetRecord(group_id, member_id, target):
                if target is not None:
                    self._group(group_id).targets[member_id] = target
                elif group_id in self._groups:
                    self._groups[group_id].targets.pop(member_id, None)
            case CurrentRecord(group_id, member_id, member):
                if member is not None:
                    self._group(group_id).put_current(member)
                elif group_id in self._groups:
                    self._groups[group_id].drop_current(member_id)
            case _:
                assert_never(record)

    def _group(self, group_id: str) -> GroupT:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = self._made_by(group_id)
        return group

    # ---- for metrics, tests and the simulator ----------------------------------------------------------------------

    def image(self) -> object:
        return {group_id: group.image() for group_id, group in self._groups.items()}

    def check(self) -> None:
        for group in self._groups.values():
            self._members.check(group)

    def check_durable(self) -> None:
        for group_id, group in self._groups.items():
            assert group.group_id == group_id, group_id
            assert group_id not in self._other_groups, f"{group_id} is a group of two kinds"
            group.check()
