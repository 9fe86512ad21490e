"""The checkers of groups can fail: each test breaks the node in one place, and a seed must notice.

The seeds are some that notice; any other would do, perhaps later.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ottla.groups.consumer import assignment, reconciliation
from ottla.groups.consumer import offsets as consumer_offsets
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember
from ottla.groups.consumer.groups import ConsumerGroups
from ottla.groups.epochs.records import TargetEpochRecord
from ottla.groups.offsets import Offsets
from ottla.protocol.errors import ErrorCode
from ottla.sim.kernel.clock import MS
from ottla.sim.workloads.groups_run import GroupsClientFaults, GroupsFaults, GroupsRun

Patch = pytest.MonkeyPatch


def plant_everything_is_free(patch: Patch) -> None:
    """A member is given what another still has."""
    patch.setattr(ConsumerGroup, "owner_of", lambda self, place: None)


def plant_revocations_that_nobody_waits_for(patch: Patch) -> None:
    patch.setattr(reconciliation, "_still_owns", lambda revoking, owned: False)


def plant_what_is_revoked_has_no_owner(patch: Patch) -> None:
    """KAFKA-16147's kind of bookkeeping."""
    original: Callable[..., Any] = ConsumerGroup.put_current

    def forgets(self: ConsumerGroup, current: ConsumerMember) -> None:
        original(self, current)
        for place in current.revoking:
            self._owners.pop(place, None)

    patch.setattr(ConsumerGroup, "put_current", forgets)


def members_stand_still(self: GroupsFaults) -> None:
    """The only trouble of such a run: again and again some member sleeps, perhaps through its session."""
    if self.active:
        assert isinstance(self.clients, GroupsClientFaults)
        self.clients.modern_stands_still()
        self.clients.pause()
        self.world.agenda.after(self.rng.randrange(500 * MS), self._next)


def plant_commits_of_fenced_members(patch: Patch) -> None:
    patch.setattr(GroupsFaults, "_next", members_stand_still)
    patch.setattr(consumer_offsets, "commit_error", lambda *args: ErrorCode.NONE)


def plant_a_partition_that_nobody_is_assigned(patch: Patch) -> None:
    original = assignment.ASSIGNORS["uniform"]

    def forgetful(*args: Any) -> Any:
        made = dict(original(*args))
        for member_id, target in made.items():
            if len(target) > 1:
                made[member_id] = tuple(list(target)[:-1])
                break
        return made

    patch.setitem(assignment.ASSIGNORS, "uniform", forgetful)


def plant_epochs_that_are_not_kept(patch: Patch) -> None:
    """The epoch of a target assignment is read one too low where it is a multiple of three."""
    original = ConsumerGroups.apply

    def lowered(self: ConsumerGroups, record: Any) -> None:
        if isinstance(record, TargetEpochRecord) and record.epoch is not None and record.epoch % 3 == 0:
            record = replace(record, epoch=record.epoch - 2)
        original(self, record)

    patch.setattr(ConsumerGroups, "apply", lowered)


def plant_commits_that_are_not_kept(patch: Patch) -> None:
    original = Offsets.apply
    count = 0

    def forgetful(self: Offsets, *args: Any) -> None:
        nonlocal count
        count += 1
        if count % 7:
            original(self, *args)

    patch.setattr(Offsets, "apply", forgetful)


PLANTED: list[tuple[Callable[[Patch], None], int, str]] = [
    (plant_everything_is_free, 0, "must not lose yet"),
    (plant_revocations_that_nobody_waits_for, 0, "must not lose yet"),
    (plant_what_is_revoked_has_no_owner, 0, "owners"),
    (plant_commits_of_fenced_members, 1, "was given before that"),
    (plant_a_partition_that_nobody_is_assigned, 0, "the members of modern own"),
    (plant_epochs_that_are_not_kept, 0, "consumer group modern"),
    (plant_commits_that_are_not_kept, 0, ""),
]


@pytest.mark.parametrize(("plant", "seed", "words"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[Patch], None], seed: int, words: str
) -> None:
    plant(monkeypatch)
    failure = GroupsRun(seed).outcome().failure
    assert failure is not None, f"seed {seed} does not notice"
    assert words in failure
