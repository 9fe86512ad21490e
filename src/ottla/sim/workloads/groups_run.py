"""Runs groups of both protocols: members that hang, leave, change; groups that change their kind; topics that grow.

On top of what every run holds: the promises of `ownership` at every step, and in the end each partition that a group
reads has one owner, who has read all of it and committed so. Nothing that was promised may be lost in these runs: power
cuts come with fsync durability only.
"""

from dataclasses import replace

from ottla.sim.clients.heartbeating import SESSION_MS, ClassicMember
from ottla.sim.clients.history import TopicPartition
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host
from ottla.sim.workloads.faults import Faults
from ottla.sim.workloads.groups import CLASSIC, MIXED, MODERN, GroupsWorkload
from ottla.sim.workloads.run import Run
from ottla.sim.workloads.workload import FSYNC, Plan


class GroupsFaults(Faults):
    """Members of the new protocol go, come back, and change what they read."""

    def __init__(self, host: Host, workload: GroupsWorkload, plan: Plan) -> None:
        super().__init__(host, workload, plan)
        self._groups = workload
        self._kinds += [(self.modern_leaves, 5), (self.modern_changes, 5), (self.modern_stands_still, 3)]

    def modern_leaves(self) -> None:
        staying = [member for member in self._groups.modern if not member.leaving]
        if staying:
            member = self.rng.choice(staying)
            self.world.trace.add("faults", f"{member.name} leaves")
            member.leave()
            self.world.agenda.after(self.rng.randrange(4_000 * MS), member.rejoin)

    def modern_changes(self) -> None:
        if self._groups.modern:
            member = self.rng.choice(self._groups.modern)
            member.change()
            self.world.trace.add("faults", f"{member.name} subscribes to {member.subscription}")

    def modern_stands_still(self) -> None:
        awake = [member for member in self._groups.modern if not member.paused]
        if awake:
            member = self.rng.choice(awake)
            self.world.trace.add("faults", f"{member.name} stands still")
            member.pause()
            self.world.agenda.after(self.rng.randrange(2 * SESSION_MS * MS), member.resume)


class GroupsRun(Run):
    """One seed. See the module."""

    workload: GroupsWorkload

    def make_plan(self) -> Plan:
        plan = super().make_plan()
        rng = self.world.stream("groups-plan")
        settings = {
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.session.timeout.ms": str(SESSION_MS),
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.heartbeat.interval.ms": str(rng.choice((300, 900))),
            "group.consumer.assignment.interval.ms": str(rng.choice((0, 100, 700))),
            "group.consumer.assignors": rng.choice(("uniform,range", "range,uniform")),
            "offsets.retention.check.interval.ms": "600000",
        }
        return replace(plan, power_cuts=plan.durability == FSYNC, settings={**plan.settings, **settings})

    def make_workload(self) -> GroupsWorkload:
        return GroupsWorkload(self.host, self.plan)

    def make_faults(self) -> GroupsFaults:
        return GroupsFaults(self.host, self.workload, self.plan)

    def _missing_of_groups(self, ends: dict[TopicPartition, int]) -> str | None:
        for group in (CLASSIC, MODERN, MIXED):
            missing = self._missing_of_group(group, ends)
            if missing is not None:
                return missing
        return None

    def _missing_of_group(self, group: str, ends: dict[TopicPartition, int]) -> str | None:
        classic = [member for member in self.workload.members if member.group == group]
        modern = [member for member in self.workload.modern if member.group == group]
        read: set[str] = set()
        owned: list[TopicPartition] = []
        for member in classic:
            assert isinstance(member, ClassicMember)
            if member.state != "stable":
                return f"{member.name} is {member.state}"
            read.update(member.topics)
            owned += member.where
        for member in modern:
            if member.state != "in":
                return f"{member.name} is {member.state}"
            read |= self.workload.read_by(member)
            owned += member.owned
            if member.owned.keys() != member.positions.keys():
                return f"{member.name} does not know where {group} has come to"
        wanted = [where for where in ends if where[0] in read]
        if sorted(owned) != sorted(wanted):
            return f"the members of {group} own {sorted(owned)} of {sorted(wanted)}"
        for member in (*classic, *modern):
            for where, position in member.positions.items():
                if position != ends[where]:
                    return f"{member.name} is at {position} of {where}, whose end is {ends[where]}"
                if position and member.committed(where) != position:
                    return f"{member.name} has committed {member.committed(where)} of {where}, not {position}"
        return None
