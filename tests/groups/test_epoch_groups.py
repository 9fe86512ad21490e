"""The common part of groups with epochs, under a third kind: its members are assigned numbered tasks."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import pytest

from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.epochs.group import EpochGroup
from ottla.groups.epochs.groups import EpochGroups
from ottla.groups.epochs.heartbeats import HeartbeatRefusedError, Sessions, check_names, known
from ottla.groups.epochs.records import (
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
    group_gone,
    member_gone,
    targets_made,
)
from ottla.machine import Millis, ShardRecord, WallMillis
from ottla.machine.timers import Timers

Tasks = frozenset[int]
NO_TASKS = Tasks()


@dataclass(frozen=True, slots=True)
class Worker:
    member_id: str
    process: str = ""
    member_epoch: int = 0
    previous_member_epoch: int = 0
    tasks: Tasks = NO_TASKS

    def placed_as(self, other: Self) -> Self:
        return replace(
            self,
            member_epoch=other.member_epoch,
            previous_member_epoch=other.previous_member_epoch,
            tasks=other.tasks,
        )


class TaskGroup(EpochGroup[Worker, Tasks]):
    TYPE = "task"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.owners: dict[int, str] = {}

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    def _unplaced(self, member_id: str) -> Worker:
        return Worker(member_id)

    def _place_changed(self, before: Worker, after: Worker | None) -> None:
        for task in before.tasks:
            self.owners.pop(task, None)
        if after is not None:
            self.owners.update(dict.fromkeys(after.tasks, after.member_id))


class TaskMembership:
    def __init__(self, timers: Timers[GroupTimer]) -> None:
        self.sessions = Sessions(timers, Deadline.SHARE_SESSION, Deadline.CONSUMER_REVOCATION)

    def loaded(self, now: Millis, group: TaskGroup) -> None:
        for member_id in group.members:
            self.sessions.begin(group.group_id, member_id, now + 1_000)

    def forget(self, group: TaskGroup) -> None:
        for member_id in group.members:
            self.sessions.end(group.group_id, member_id)

    def check(self, group: TaskGroup) -> None:
        group.check()
        self.sessions.check(group)


class TaskGroups(EpochGroups[TaskGroup]):
    def __init__(self) -> None:
        self.timers: Timers[GroupTimer] = Timers()
        super().__init__(TaskGroup, {}, (), TaskMembership(self.timers))

    def _tombstones(self, group: TaskGroup) -> list[ShardRecord]:
        first, last = group_gone(group)
        return [ShardRecord(repr(each).encode(), None) for each in (*first, last)]

    def apply(self, records: Iterable[Any]) -> TaskGroup:
        for record in records:
            self._apply(record)
        self.check_durable()
        return next(iter(self))


PLACED = Worker("a", member_epoch=2, previous_member_epoch=1, tasks=Tasks({0, 1}))
BEGUN = [
    MemberRecord("g", "a", Worker("a", "one")),
    EpochRecord("g", 2, 7),
    TargetRecord("g", "a", Tasks({0, 1})),
    TargetEpochRecord("g", 2, 50),
    CurrentRecord("g", "a", PLACED),
]


def test_a_members_records_give_the_same_in_any_order() -> None:
    group = TaskGroups().apply(BEGUN)
    assert group.members == {"a": replace(PLACED, process="one")}
    assert group.owners == {0: "a", 1: "a"}
    groups = TaskGroups()
    groups.apply([BEGUN[3], BEGUN[1], BEGUN[4], BEGUN[2], BEGUN[0]])
    assert groups.image() == {"g": group.image()}


def test_a_member_that_is_gone_leaves_nothing() -> None:
    groups = TaskGroups()
    group = groups.apply(BEGUN)
    groups.apply(member_gone("g", "a"))
    assert (group.members, group.targets, group.owners) == ({}, {}, {})
    tombstones = groups.deletion("g")
    assert tombstones is not None
    assert [each.key.decode().partition("(")[0] for each in tombstones] == ["TargetEpochRecord", "EpochRecord"]


def test_only_targets_that_change_are_written() -> None:
    group = TaskGroups().apply(BEGUN)
    records = targets_made(group, {"a": Tasks({0, 1}), "b": Tasks({2})}, 3, WallMillis(60))
    assert records == [TargetRecord("g", "b", Tasks({2})), TargetEpochRecord("g", 3, 60)]


def test_sessions_begin_after_a_load_and_end_with_the_group() -> None:
    groups = TaskGroups()
    groups.apply(BEGUN)
    with pytest.raises(AssertionError, match="nobody watches member a"):
        groups.check()
    groups.loaded(10)
    groups.check()
    assert groups.timers.deadline() == 1_010
    groups._apply(EpochRecord("g", None))
    assert "g" not in groups
    assert groups.timers.deadline() is None


def test_a_refusal_names_the_kind() -> None:
    with pytest.raises(HeartbeatRefusedError) as missing:
        known({}, "task", "g", ())
    assert missing.value.message == "Task group g not found."
    with pytest.raises(HeartbeatRefusedError) as other:
        known({}, "task", "g", ("g",))
    assert other.value.message == "Group g is not a task group."
    with pytest.raises(HeartbeatRefusedError) as blank:
        check_names(("GroupId", "g"), ("RackId", None), ("MemberId", " "))
    assert blank.value.message == "MemberId can't be empty."
