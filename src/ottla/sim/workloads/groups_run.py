"""Runs groups of both protocols: members that hang, leave, change; groups that change their type; topics that grow.

In addition to the checks of every run, it checks the promises of `ownership` at every step. In the end, each partition
that a group reads has one owner, which has read and committed all of it. These runs may not lose any promise: power
cuts come with fsync durability only.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from ottla.sim.clients.heartbeating import SESSION_MS
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host
from ottla.sim.workloads.faults import ClientFaults, Faults
from ottla.sim.workloads.groups import GroupsWorkload
from ottla.sim.workloads.run import Run
from ottla.sim.workloads.workload import FSYNC, Plan, Workload


class GroupsClientFaults(ClientFaults):
    """Lets members of the new protocol leave, come back, and change their subscriptions."""

    def __init__(self, workload: GroupsWorkload, rng: random.Random) -> None:
        super().__init__(workload, rng)
        self._groups = workload

    def kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self.modern_leaves, 5), (self.modern_changes, 5), (self.modern_stands_still, 3)]

    def modern_leaves(self) -> None:
        staying = [member for member in self._groups.modern if not member.leaving]
        if staying:
            member = self.rng.choice(staying)
            self._trace.add("faults", f"{member.name} leaves")
            member.leave()
            self._agenda.after(self.rng.randrange(4_000 * MS), member.rejoin)

    def modern_changes(self) -> None:
        if self._groups.modern:
            member = self.rng.choice(self._groups.modern)
            member.change()
            self._trace.add("faults", f"{member.name} subscribes to {member.subscription}")

    def modern_stands_still(self) -> None:
        awake = [member for member in self._groups.modern if not member.paused]
        if awake:
            member = self.rng.choice(awake)
            self._trace.add("faults", f"{member.name} stands still")
            member.pause()
            self._agenda.after(self.rng.randrange(2 * SESSION_MS * MS), member.resume)


class GroupsFaults(Faults):
    """See `GroupsClientFaults`."""

    def __init__(self, host: Host, workload: GroupsWorkload, plan: Plan) -> None:
        self._groups = workload
        super().__init__(host, workload, plan)
        self._kinds += self.clients.kinds()

    def client_faults(self, workload: Workload) -> ClientFaults:
        return GroupsClientFaults(self._groups, self.rng)


def groups_settings(rng: random.Random) -> dict[str, str]:
    """Return the settings of nodes that coordinate the groups of a run."""
    return {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(SESSION_MS),
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": str(rng.choice((300, 900))),
        "group.consumer.assignment.interval.ms": str(rng.choice((0, 100, 700))),
        "group.consumer.assignors": rng.choice(("uniform,range", "range,uniform")),
        "offsets.retention.check.interval.ms": "600000",
    }


class GroupsRun(Run):
    """One seed. See the module."""

    workload: GroupsWorkload

    def make_plan(self) -> Plan:
        plan = super().make_plan()
        settings = groups_settings(self.world.stream("groups-plan"))
        return replace(plan, power_cuts=plan.durability == FSYNC, settings={**plan.settings, **settings})

    def make_workload(self) -> GroupsWorkload:
        return GroupsWorkload(self.host, self.plan)

    def make_faults(self) -> GroupsFaults:
        return GroupsFaults(self.host, self.workload, self.plan)
