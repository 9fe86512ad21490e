"""Makes the clients of a run of groups: members of both protocols, of one group each or mixed, and topics that grow.

`classic` has members of the classic protocol. `modern` has those of KIP-848, which change what they subscribe to.
`mixed` has both: it changes its type whenever the first member of one type joins or the last of the other leaves.
"""

import re
from collections.abc import Mapping
from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.sim.clients.heartbeating import ClassicMember, HeartbeatingMember
from ottla.sim.clients.history import History, TopicPartition, TopicRule
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.ownership import Ownership
from ottla.sim.clients.producers import Producer
from ottla.sim.kernel.clock import MS
from ottla.sim.workloads.workload import Plan, Site, Workload

EVENTS, ORDERS, GROWN = "events", "orders", "grown"
CLASSIC, MODERN, MIXED = "classic", "modern", "mixed"
CHOICES: list[tuple[str, ...] | str] = [
    (EVENTS, ORDERS),
    (EVENTS, ORDERS, GROWN),
    (GROWN,),
    "(ord|gro).*",
    "ev[a-z]+",
]
GROWN_MAX = 5


class GroupsWorkload(Workload):
    """See the module."""

    def __init__(self, site: Site, plan: Plan) -> None:
        super().__init__(site, plan)
        rng = self.rng
        rules = (
            TopicRule(EVENTS, rng.randrange(1, 5), dense=True),
            TopicRule(ORDERS, rng.randrange(1, 3), dense=True),
            TopicRule(GROWN, 1, dense=True),
        )
        self.rules = {rule.name: rule for rule in rules}
        self.history = self.admin.history = History(rules, groups_vanish=False)
        self.history.groups_of_both.add(MIXED)
        self.modern: list[HeartbeatingMember] = []
        self.grower: Grower | None = None
        self._ownerships: dict[str, Ownership] = {}

    @property
    def clients(self) -> list[KafkaClient]:
        own = [] if self.grower is None else [self.grower]
        return [*super().clients, *own, *self.modern]

    def ownership(self, group: str) -> Ownership:
        return self._ownerships.setdefault(group, Ownership(group, restarts=group == MIXED))

    def topics_stand(self) -> None:
        if self.grower is not None:
            return
        rng = self.rng
        self.grower = Grower(self, "grower")
        gap_us = rng.choice((60, 120)) * MS
        for topic in (EVENTS, ORDERS, GROWN):
            self.producers.append(Producer(self, f"idem-{topic}", topic, idempotent=True, gap_us=gap_us))
        both = (EVENTS, ORDERS)
        for group, count in ((CLASSIC, rng.randrange(0, 3)), (MIXED, rng.randrange(1, 4))):
            for i in range(count):
                name = f"{group}-{i}"
                instance = name if rng.random() < 0.3 else None
                self.members.append(ClassicMember(self, name, group, both, instance=instance))
        for i in range(rng.randrange(1, 3)):
            name = f"mixed-new-{i}"
            instance = name if rng.random() < 0.3 else None
            self.modern.append(HeartbeatingMember(self, name, MIXED, both, choices=[both], instance=instance))
        for i in range(rng.randrange(1, 5)):
            name = f"modern-{i}"
            instance = name if rng.random() < 0.3 else None
            choices = CHOICES if rng.random() < 0.5 else CHOICES[:3]
            topics = (EVENTS, ORDERS, GROWN)
            self.modern.append(HeartbeatingMember(self, name, MODERN, topics, choices=choices, instance=instance))
        if self.winding_down:
            self.wind_down()

    def read_by(self, member: HeartbeatingMember) -> set[str]:
        """The topics that a member reads."""
        wanted = member.subscription
        if isinstance(wanted, str):
            return {name for name in self.rules if re.fullmatch(wanted, name)}
        return set(wanted)

    def missing_of_groups(self, ends: Mapping[TopicPartition, int]) -> str | None:
        for group in (CLASSIC, MODERN, MIXED):
            missing = self._missing_of_group(group, ends)
            if missing is not None:
                return missing
        return None

    def _missing_of_group(self, group: str, ends: Mapping[TopicPartition, int]) -> str | None:
        classic = [member for member in self.members if member.group == group]
        modern = [member for member in self.modern if member.group == group]
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
            read |= self.read_by(member)
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

    def wind_down(self) -> None:
        super().wind_down()
        if self.grower is not None:
            self.grower.grows = False
        for member in self.modern:
            member.rejoin()
            member.hurry()


class Grower(KafkaClient):
    """Adds a partition to a topic now and then."""

    def __init__(self, workload: GroupsWorkload, name: str) -> None:
        super().__init__(workload, name)
        self.grows = True
        self._count = 1
        self.connect()
        self.after(1_000 * MS, self._grow)

    def _grow(self) -> None:
        if not self.grows or self._count >= GROWN_MAX:
            return
        self.after(self.rng.randrange(4_000 * MS), self._grow)
        if self.connection is not None:
            request = CreatePartitionsRequest([CreatePartitionsTopic(GROWN, self._count + 1, None)], 3_000, False)
            self.request(ApiKey.CREATE_PARTITIONS, request, self._grew)

    def _grew(self, message: Any) -> None:
        """Count the new partition. After an unknown outcome, the next request asks for the same count again."""
        if message is not None:
            self._count += 1
