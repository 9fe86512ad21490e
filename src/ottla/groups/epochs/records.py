"""Defines the records that every kind of groups with epochs has, as values; each kind encodes them in its own types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from ottla.groups.epochs.group import EpochGroup, MemberT, TargetT
from ottla.machine import WallMillis


@dataclass(frozen=True, slots=True)
class MemberRecord(Generic[MemberT]):
    """A member's description of itself; its place is not used."""

    group_id: str
    member_id: str
    member: MemberT | None


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """`epoch` None: the group is deleted."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class TargetEpochRecord:
    group_id: str
    epoch: int | None
    assigned_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetRecord(Generic[TargetT]):
    group_id: str
    member_id: str
    target: TargetT | None


@dataclass(frozen=True, slots=True)
class CurrentRecord(Generic[MemberT]):
    """`member` None: it has no place. Otherwise only its place is used."""

    group_id: str
    member_id: str
    member: MemberT | None


EpochGroupRecord: TypeAlias = (
    MemberRecord[MemberT] | EpochRecord | TargetEpochRecord | TargetRecord[TargetT] | CurrentRecord[MemberT]
)


def targets_made(
    group: EpochGroup[Any, TargetT], targets: Mapping[str, TargetT], epoch: int, wall_ms: WallMillis
) -> list[TargetRecord[TargetT] | TargetEpochRecord]:
    """The records of a target assignment that is made for this epoch: the targets that changed, and its epoch."""
    changed = [
        TargetRecord(group.group_id, member_id, target)
        for member_id, target in targets.items()
        if group.targets.get(member_id) != target
    ]
    return [*changed, TargetEpochRecord(group.group_id, epoch, wall_ms)]


Tombstone: TypeAlias = MemberRecord[Any] | EpochRecord | TargetEpochRecord | TargetRecord[Any] | CurrentRecord[Any]


def member_gone(group_id: str, member_id: str) -> list[Tombstone]:
    """The tombstones of a member."""
    return [
        CurrentRecord(group_id, member_id, None),
        TargetRecord(group_id, member_id, None),
        MemberRecord(group_id, member_id, None),
    ]


def group_gone(group: EpochGroup[Any, Any]) -> tuple[list[Tombstone], EpochRecord]:
    """The tombstones of a group: the first ones, and the last one. The kind's own tombstones belong between them."""
    group_id = group.group_id
    members = dict.fromkeys((*group.members, *group.targets))
    first: list[Tombstone] = [CurrentRecord(group_id, member_id, None) for member_id in members]
    first += [TargetRecord(group_id, member_id, None) for member_id in members]
    first.append(TargetEpochRecord(group_id, None))
    first += [MemberRecord(group_id, member_id, None) for member_id in members]
    return first, EpochRecord(group_id, None)
