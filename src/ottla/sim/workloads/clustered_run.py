"""Runs a workload on a simulated cluster: its clients, which follow leaders and coordinators, and the faults of both.

The same histories and audits as on one node check the clients' answers, and those of the cluster workload check the
replicas. In addition, every coordinator is checked while it works, and no request outlives its deadline. In the end,
each coordinator's state agrees with its partition.
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ottla.broker.coordinators.shards import ShardHost
from ottla.broker.node import Node
from ottla.broker.partitions.partition import Partition
from ottla.machine import Shard
from ottla.protocol.coordinator_records import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from ottla.protocol.errors import ErrorCode
from ottla.sim.clients.history import TopicPartition
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.checkers import LOOK_EVERY, Deadlines, audit, durable_image, look_at_fetch_sessions
from ottla.sim.workloads.cluster_run import Trouble, drawn
from ottla.sim.workloads.compacted_replicas import CompactedReplicaChecker
from ottla.sim.workloads.elected_cluster import REPLICAS_MAX, ElectedCluster
from ottla.sim.workloads.faults import ClientFaults
from ottla.sim.workloads.following import TRUST_MS
from ottla.sim.workloads.replica_checkers import ReplicaChecker
from ottla.sim.workloads.run import SeedResult, failure_of, outcome_of
from ottla.sim.workloads.workload import FSYNC, PAGE_CACHE, Plan, Workload, draw_plan

INTERNAL_TOPICS = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)
REST_MS = 60_000
COMPACTED_INTERNAL = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)


class WorkloadCluster(ElectedCluster):
    """A cluster with these topics, which clients create, some of them `compacted`. `stepped` is called after every step
    of a node."""

    def __init__(self, seed: int, topics: Sequence[str], compacted: Sequence[str], **given: Any) -> None:
        super().__init__(seed, **given)
        self.topics = topics
        self.checkers = [
            CompactedReplicaChecker(topic) if topic in (*compacted, *COMPACTED_INTERNAL) else ReplicaChecker(topic)
            for topic in (*topics, *INTERNAL_TOPICS)
        ]
        self.rest_ms = REST_MS
        self.resting: Callable[[], str | None] = lambda: None
        """Describes what is not at rest, besides nodes and replicas."""
        self.stepped: Callable[[int], None] = lambda node_id: None

    deaf_ms = TRUST_MS + 50

    @property
    def endpoints(self) -> list[Endpoint]:
        return [host.endpoint for host in self.hosts.values()]

    @property
    def every_host(self) -> list[Host]:
        return list(self.hosts.values())

    @property
    def lives(self) -> int:
        image = self.image
        internal = [image.topics[topic] for topic in INTERNAL_TOPICS if topic in image.topics]
        epochs = sum(placed.leader_epoch for topic in internal for placed in topic.partitions)
        return epochs + sum(host.lives for host in self.hosts.values())

    def has_topics(self) -> bool:
        return True

    def look(self, node_id: int) -> None:
        super().look(node_id)
        self.stepped(node_id)

    def missing(self) -> str | None:
        return super().missing() or self.resting()

    # ---- leaders ---------------------------------------------------------------------------------------------------

    def led(self, topic: str, index: int) -> Partition | None:
        """Return this partition at the node that leads it and knows so; None if there is none now."""
        placed = self.image.partition(topic, index)
        if placed is None or placed.leader == -1 or not self.hosts[placed.leader].up:
            return None
        found = self.node(placed.leader).leadership.led(topic, index, placed.leader_epoch)
        return None if isinstance(found, ErrorCode) else found

    def all_led(self, topics: Sequence[str]) -> list[Partition]:
        """Return all partitions of these topics that have a leader now."""
        known = [(topic, self.image.topics[topic]) for topic in topics if topic in self.image.topics]
        places = [(topic, index) for topic, image in known for index in range(len(image.partitions))]
        return [found for place in places if (found := self.led(*place)) is not None]

    def coordinators(self, host_of: Callable[[Node], ShardHost]) -> Iterator[tuple[Partition, Shard]]:
        """The loaded shards of one kind, each at the node that leads its partition."""
        for node_id in self.up:
            for partition, shard in host_of(self.node(node_id)).loaded():
                if self.led(partition.topic_name, partition.index) is partition:
                    yield partition, shard

    def all_loaded(self, topic: str) -> bool:
        """Whether every coordinator whose state is in this topic, and whose log is not empty, is loaded."""
        host_of = KINDS[topic]
        image = self.image.topics.get(topic)
        loaded = {partition.index for partition, _ in self.coordinators(host_of)}
        for index in range(0 if image is None else len(image.partitions)):
            partition = self.led(topic, index)
            if partition is None or (partition.log.log_end_offset and index not in loaded):
                return False
        return True


def groups_of(node: Node) -> ShardHost:
    return node.coordinators.groups


def transactions_of(node: Node) -> ShardHost:
    return node.coordinators.transactions


def share_state_of(node: Node) -> ShardHost:
    return node.coordinators.share_state


KINDS = {
    CONSUMER_OFFSETS_TOPIC: groups_of,
    TRANSACTION_STATE_TOPIC: transactions_of,
    SHARE_GROUP_STATE_TOPIC: share_state_of,
}
"""The hosts of coordinators, by the topic with their state."""


class ClusterWatch:
    """Checks a node every few steps. Subclasses check more."""

    def __init__(self, cluster: WorkloadCluster) -> None:
        self.cluster = cluster
        self._steps = dict.fromkeys(cluster.hosts, 0)
        self._deadlines: dict[Host, Deadlines] = {}

    def __call__(self, node_id: int) -> None:
        self._steps[node_id] += 1
        if self._steps[node_id] % LOOK_EVERY == 0:
            self.look(node_id, self.cluster.node(node_id))

    def look(self, node_id: int, node: Node) -> None:
        for host_of in KINDS.values():
            host_of(node).check()
        host = self.cluster.hosts[node_id]
        assert host.life is not None
        look_at_fetch_sessions(host.life)
        self._deadlines.setdefault(host, Deadlines(host)).look(node)


class ClientTrouble(Trouble):
    """The trouble of the nodes and that of the clients."""

    def __init__(self, cluster: WorkloadCluster, clients: ClientFaults) -> None:
        super().__init__(cluster)
        self.clients = clients
        self.topics = cluster.topics

    def kinds(self) -> list[Callable[[], None]]:
        mine = [(self.clients.pause, 2), (self.clients.give_up, 2), (self.clients.member_leaves, 2)]
        return [*super().kinds(), *(act for act, weight in (*mine, *self.clients.kinds()) for _ in range(weight))]

    def likely(self) -> list[int]:
        """The leaders of internal topics, which are coordinators."""
        image = self.cluster.image
        internal = [image.topics[topic] for topic in INTERNAL_TOPICS if topic in image.topics]
        return [placed.leader for topic in internal for placed in topic.partitions]

    def end(self) -> None:
        super().end()
        self.clients.heal()


def compaction_settings(rng: random.Random) -> dict[str, str]:
    """How eagerly nodes compact, and how small segments are: many in some runs, a batch or two each in a few."""
    return {
        "log.cleaner.enable": "true",
        "log.cleaner.min.cleanable.ratio": rng.choice(("0.01", "0.5")),
        "log.index.interval.bytes": rng.choice(("0", "4096")),
        "log.index.size.max.bytes": rng.choice(("60", "400", "10485760")),
    }


class ClusteredRun:
    """One seed. Subclasses choose the clients, their faults, and further checks.

    `given`: arguments of `ElectedCluster`, for tests that need particular ones.
    """

    topics: tuple[str, ...]
    compacted: tuple[str, ...] = ()
    """The compacted topics; each replica compacts by itself."""

    def __init__(self, seed: int, *, keep_all: bool = False, **given: Any) -> None:
        how = {**drawn(seed), **given}
        how.pop("partitions", None)
        rng = random.Random(f"{seed}/plan")
        plan = draw_plan(rng)
        replicas = str(min(int(how["nodes"]), REPLICAS_MAX))
        own = {
            "ottla.durability": FSYNC if how["fsync"] else PAGE_CACHE,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "2",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "2",
            **compaction_settings(random.Random(f"{seed}/compaction")),
        }
        settings = {**plan.settings, **self.settings(rng), **own}
        self.plan = replace(plan, durability=own["ottla.durability"], settings=settings)
        self.cluster = WorkloadCluster(
            seed, self.topics, self.compacted, keep_all=keep_all, settings=self.plan.settings, **how
        )
        self.workload = self.make_workload(self.plan)
        self.trouble = self.make_trouble()
        self.watch = self.make_watch()
        self.cluster.stepped = self.stepped

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def settings(self, rng: random.Random) -> dict[str, str]:
        """Settings of every node."""
        return {}

    @abstractmethod
    def make_workload(self, plan: Plan) -> Workload: ...

    def make_trouble(self) -> ClientTrouble:
        return ClientTrouble(self.cluster, ClientFaults(self.workload, self.cluster.world.stream("client-trouble")))

    def make_watch(self) -> ClusterWatch:
        return ClusterWatch(self.cluster)

    def stepped(self, node_id: int) -> None:
        """A node has made a step."""
        self.watch(node_id)

    def missing(self) -> str | None:
        """Describe what is not at rest yet of clients and coordinators; None if all are at rest."""
        not_loaded = self._not_loaded()
        if not_loaded is not None:
            return not_loaded
        led = self.cluster.all_led(self.topics)
        ends: dict[TopicPartition, int] = {(each.topic_name, each.index): each.log.high_watermark for each in led}
        return self.workload.missing(ends)

    def audit(self) -> None:
        """Compare the final state with the answers that clients received."""
        audit(self.workload, self.cluster.led)

    # ---- the run ---------------------------------------------------------------------------------------------------

    def outcome(self) -> SeedResult:
        """Run to the end, whatever it is."""
        cluster, world, history = self.cluster, self.cluster.world, self.workload.history
        failure = failure_of(self.go, world.trace)
        return outcome_of(
            world,
            failure,
            lives=sum(host.lives for host in cluster.hosts.values()),
            acknowledged=history.acknowledged_count,
            seen=history.seen_count,
            plan=self.plan,
        )

    def go(self) -> None:
        """Raises InvariantError, or whatever a node lets out."""
        cluster = self.cluster
        cluster.world.trace.add("run", str(self.plan))
        cluster.start()
        self.trouble.begin()
        cluster.run(self.plan.safety_ms)
        self.trouble.end()
        self.workload.wind_down()
        cluster.world.trace.add("run", "everything heals")
        self.trouble.before_rest()
        cluster.resting = self.missing
        cluster.settle()
        self.audit()
        self._compare_with_replay()
        for client in self.workload.clients:
            client.running = False
            client.hang_up()
        cluster.world.trace.add("run", "everything is at rest; all die once more")
        cluster.resting = self._not_loaded
        for node_id in cluster.hosts:
            cluster.kill(node_id, power_cut=cluster.fsync)
        cluster.settle()
        self.audit()

    def _not_loaded(self) -> str | None:
        return next((f"{each} lacks a coordinator" for each in KINDS if not self.cluster.all_loaded(each)), None)

    def _compare_with_replay(self) -> None:
        """Check that each coordinator's state is what its partition says (14)."""
        for host_of in KINDS.values():
            for partition, shard in list(self.cluster.coordinators(host_of)):
                placed = self.cluster.image.partition(partition.topic_name, partition.index)
                assert placed is not None
                now = self.cluster.hosts[placed.leader].clock.now_ms
                twin = host_of(self.cluster.node(placed.leader)).replayed(now, partition)
                live, replayed = durable_image(shard), durable_image(twin)
                if live != replayed:
                    raise InvariantError(
                        f"14: the coordinator of {partition.name} has {live}, and its log says {replayed}"
                    )
