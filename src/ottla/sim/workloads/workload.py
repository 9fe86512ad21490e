"""Makes the clients of one run (topics, producers, groups, readers, an administrator), and configures the node.

Everything is drawn from the seed, and kept small, so that one run takes well under a second of real time.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla.sim.clients.admins import Admin
from ottla.sim.clients.committers import Committer
from ottla.sim.clients.consumers import GroupMember
from ottla.sim.clients.history import History, TopicPartition, TopicRule
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.producers import Producer
from ottla.sim.clients.racers import Racer, Races
from ottla.sim.clients.readers import Scanner
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.kernel.world import World

FSYNC = "fsync"
PAGE_CACHE = "page-cache"


@dataclass(frozen=True, slots=True)
class Plan:
    """The properties of a run, drawn from the seed before it starts. Power cuts with page-cache durability may lose
    records that are not fsynced."""

    durability: str
    power_cuts: bool
    safety_ms: int
    settings: dict[str, str]

    @property
    def may_lose(self) -> bool:
        return self.power_cuts and self.durability == PAGE_CACHE


def draw_plan(rng: random.Random) -> Plan:
    durability = rng.choice((FSYNC, PAGE_CACHE))
    settings = {
        "ottla.durability": durability,
        "offsets.topic.num.partitions": str(rng.choice((1, 3))),
        "log.roll.ms": str(rng.choice((700, 3_000, 600_000))),
        "group.initial.rebalance.delay.ms": str(rng.choice((0, 300))),
        "group.min.session.timeout.ms": "1000",
        "log.retention.check.interval.ms": str(rng.choice((500, 2_000))),
        "log.cleaner.backoff.ms": str(rng.choice((200, 1_000))),
        "log.flush.offset.checkpoint.interval.ms": str(rng.choice((500, 3_000))),
        "log.flush.start.offset.checkpoint.interval.ms": str(rng.choice((500, 3_000))),
        "replica.high.watermark.checkpoint.interval.ms": str(rng.choice((500, 3_000))),
        "offsets.retention.check.interval.ms": rng.choice(("600000", "600000", "600000", "5000")),
        "log.segment.delete.delay.ms": str(rng.choice((0, 1_000, 60_000))),
        "max.incremental.fetch.session.cache.slots": str(rng.choice((1, 1_000))),
        "auto.create.topics.enable": "false",
    }
    return Plan(
        durability,
        power_cuts=durability == FSYNC or rng.random() < 0.5,
        safety_ms=rng.randrange(6_000, 14_000),
        settings=settings,
    )


class Site(Protocol):
    """The nodes of a run's clients: one host, or a cluster."""

    @property
    def world(self) -> World: ...

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Where the nodes listen."""
        ...

    @property
    def every_host(self) -> Sequence[Host]:
        """Where the nodes run."""
        ...

    @property
    def lives(self) -> int:
        """Rises whenever a node starts a new incarnation, or a coordinator moves."""
        ...

    @property
    def deaf_ms(self) -> int:
        """How long a node may continue after another one has taken its place, because it does not know."""
        ...


class Workload:
    """The clients of one run."""

    def __init__(self, site: Site, plan: Plan) -> None:
        self.site = site
        self.world = site.world
        self.plan = plan
        self.rng = self.world.stream("workload")
        self.rules = {
            rule.name: rule
            for rule in (
                TopicRule("events", self.rng.randrange(1, 4), dense=True),
                TopicRule("orders", self.rng.randrange(1, 3), dense=True),
                TopicRule("scratch", 2),
                TopicRule("table", self.rng.randrange(1, 3), compacted=True),
            )
        }
        vanish = plan.settings["offsets.retention.check.interval.ms"] != "600000"
        self.history = History(self.rules.values(), groups_vanish=vanish)
        self.producers: list[Producer] = []
        self.members: list[GroupMember] = []
        self.scanners: list[Scanner] = []
        self.committers: list[Committer] = []
        self.admin = Admin(self, "admin")
        self.races = Races()
        racers = self.rng.randrange(2, 4) if isinstance(site, Host) else 0
        self.racers = [Racer(self, f"racer-{i}", self.races) for i in range(racers)]
        self.winding_down = False
        self._producer_ids: set[int] = set()

    @property
    def lives(self) -> int:
        return self.site.lives

    @property
    def bootstraps(self) -> Sequence[Endpoint]:
        return self.site.endpoints

    @property
    def deaf_ms(self) -> int:
        return self.site.deaf_ms

    @property
    def clients(self) -> list[KafkaClient]:
        return [self.admin, *self.racers, *self.producers, *self.members, *self.scanners, *self.committers]

    def configs_of(self, rule: TopicRule) -> list[tuple[str, str]]:
        """The configs that a topic is created with."""
        configs = [
            ("segment.ms", self.rng.choice(("600", "2500"))),
            ("index.interval.bytes", self.rng.choice(("0", "300", "4096"))),
        ]
        if rule.compacted:
            configs += [
                ("cleanup.policy", "compact"),
                ("min.cleanable.dirty.ratio", "0.01"),
                ("delete.retention.ms", self.rng.choice(("0", "2000", "100000"))),
            ]
        elif rule.sparse and self.rng.random() < 0.5:
            configs += [("retention.ms", self.rng.choice(("2000", "5000"))), ("retention.bytes", "5000")]
        return configs

    def topics_stand(self) -> None:
        """Start the other clients, because the topics exist."""
        if self.producers:
            return
        rng = self.rng
        gap_us = rng.choice((40, 90)) * MS
        payload_max = rng.choice((120, 120, 120, 120, 4_000))
        for i in range(rng.randrange(1, 4)):
            self.producers.append(
                Producer(self, f"idem-{i}", "events", idempotent=True, gap_us=gap_us, payload_max=payload_max)
            )
        self.producers.append(Producer(self, "plain-all", "orders", gap_us=2 * gap_us))
        self.producers.append(Producer(self, "plain-one", "orders", acks=1, gap_us=2 * gap_us))
        self.producers.append(Producer(self, "scribble", "scratch", acks=rng.choice((0, 1)), gap_us=gap_us))
        self.producers.append(Producer(self, "eraser", "scratch", idempotent=True, gap_us=2 * gap_us))
        self.producers.append(Producer(self, "table-0", "table", idempotent=True, table=True, gap_us=gap_us))
        for i in range(rng.randrange(1, 5)):
            instance = f"alpha-{i}" if rng.random() < 0.3 else None
            self.members.append(GroupMember(self, f"alpha-{i}", "alpha", ("events",), instance=instance))
        for i in range(rng.randrange(1, 3)):
            self.members.append(GroupMember(self, f"beta-{i}", "beta", ("events", "orders")))
        self.committers.append(Committer(self, "commit-only", "gamma", ("events", 0)))
        self.scanners.append(Scanner(self, "scan-table", "table"))
        self.scanners.append(Scanner(self, "scan-all", rng.choice(("events", "orders", "scratch"))))
        if self.winding_down:
            self.wind_down()

    def may_forget(self, topic: str) -> bool:
        """Whether a topic may have lost the batches that reveal a late duplicate, by retention or compaction. Then only
        a snapshot has that knowledge, and a recovery after a power cut does not trust it."""
        rule = self.rules[topic]
        return rule.sparse or (rule.compacted and self.plan.power_cuts)

    def check_new_producer_id(self, producer_id: int) -> None:
        if producer_id in self._producer_ids:
            raise InvariantError(f"producer id {producer_id} is handed out twice")
        self._producer_ids.add(producer_id)

    def missing(self, ends: Mapping[TopicPartition, int]) -> str | None:
        """Describe in a sentence what the clients have not done yet, where `ends` are those of the partitions; None if
        they are at rest."""
        if not self.admin.created:
            return "the topics are not created"
        for producer in self.producers:
            if not producer.idle:
                return f"{producer.name} has unacknowledged records"
        for racer in self.racers:
            if racer.is_waiting:
                return f"{racer.name} waits for an answer"
        return self.missing_of_groups(ends)

    def missing_of_groups(self, ends: Mapping[TopicPartition, int]) -> str | None:
        """Describe the work left of the groups' members: each partition must have one owner, which has read and
        committed all of it."""
        groups: dict[str, list[GroupMember]] = {}
        for member in self.members:
            groups.setdefault(member.group, []).append(member)
        for group, members in groups.items():
            owned: list[TopicPartition] = []
            for member in members:
                if member.state != "stable":
                    return f"{member.name} is {member.state}"
                owned += member.positions
                for where, position in member.positions.items():
                    if position != ends[where]:
                        return f"{member.name} is at {position} of {where}, whose end is {ends[where]}"
                    if position and member.committed(where) != position:
                        return f"{member.name} has committed {member.committed(where)} of {where}, not {position}"
            wanted = [where for where in ends if where[0] in members[0].topics]
            if sorted(owned) != sorted(wanted):
                return f"the members of {group} own {sorted(owned)}"
            if len({member.generation for member in members}) > 1:
                return f"the members of {group} are in different generations"
        return None

    def wind_down(self) -> None:
        """Start no new work, and finish what was begun. Clients that start later, with late topics, begin none."""
        self.winding_down = True
        self.admin.disturbs = False
        for racer in self.racers:
            racer.works = False
        for producer in self.producers:
            producer.makes = False
        for committer in self.committers:
            committer.works = False
        for scanner in self.scanners:
            scanner.running_scan = False
        for member in self.members:
            member.rejoin()
            member.hurry()
