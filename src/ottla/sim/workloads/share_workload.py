"""Makes the clients of a run of share groups: producers of one topic, members of groups, an administrator."""

from ottla.sim.clients.history import History, TopicPartition, TopicRule
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.producers import Producer
from ottla.sim.clients.share_clients import LETTERS, LOCK_MS, ShareAdmin, ShareMember
from ottla.sim.clients.share_history import ShareHistory
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.network import Endpoint
from ottla.sim.workloads.checkers import node_of
from ottla.sim.workloads.workload import Plan, Site, Workload

JOBS = "jobs"


class ShareWorkload(Workload):
    """Producers of one topic and the members of its share groups."""

    def __init__(self, site: Site, plan: Plan) -> None:
        super().__init__(site, plan)
        rng = self.rng
        self.rules = {JOBS: TopicRule(JOBS, rng.randrange(1, 4), dense=True)}
        self.history = History(self.rules.values(), groups_vanish=False)
        self.admin.history = self.history
        limit = rng.choice((2, 3, 5))
        names = ["g", "h"][: rng.randrange(1, 3)]
        self.shares = {name: ShareHistory(limit) for name in names}
        self.group_configs = {
            name: {
                "share.auto.offset.reset": "earliest",
                "share.record.lock.duration.ms": str(LOCK_MS),
                "share.delivery.count.limit": str(limit),
                "errors.deadletterqueue.topic.name": LETTERS,
            }
            for name in names
        }
        self.share_members: list[ShareMember] = []
        self.share_admin: ShareAdmin | None = None

    @property
    def clients(self) -> list[KafkaClient]:
        own = [] if self.share_admin is None else [self.share_admin]
        return [*super().clients, *own, *self.share_members]

    def topics_stand(self) -> None:
        if self.share_admin is None:
            self.share_admin = ShareAdmin(self, "keeper")

    def groups_stand(self) -> None:
        """Start the other clients, because the groups are configured."""
        if self.producers:
            return
        rng = self.rng
        gap_us = rng.choice((40, 90)) * MS
        for i in range(rng.randrange(1, 3)):
            self.producers.append(Producer(self, f"maker-{i}", JOBS, idempotent=True, gap_us=gap_us))
        for name in self.shares:
            for i in range(rng.randrange(1, 5)):
                self.share_members.append(ShareMember(self, f"{name}-{i}", name, JOBS))
        if self.winding_down:
            self.wind_down()

    def leadership(self, at: Endpoint | None, where: TopicPartition) -> int | None:
        return self.lives

    def share_start_offset(self, group: str, where: TopicPartition, life: int) -> int | None:
        """Return the group's share-partition start offset, if the node is still in that incarnation and has loaded
        it."""
        host = self.site
        if not isinstance(host, Host) or not host.up or host.lives != life:
            return None
        node = node_of(host.life)
        hosted = node.coordinators.share.known(group, (node.image.topics[where[0]].id, where[1]))
        return None if hosted is None or hosted.machine is None else hosted.machine.start

    def wind_down(self) -> None:
        super().wind_down()
        if self.share_admin is not None:
            self.share_admin.wind_down()
        for member in self.share_members:
            member.hurry()
            member.rejoin()
