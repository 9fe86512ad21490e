"""Simulates a cluster: nodes that replicate topics among them, their clients, and the checks at every step.

    cluster.start()                  all nodes are up and take part, the topic exists
    cluster.run(2_000)               milliseconds
    cluster.kill(1)                  its process dies; the controller notices after a while
    cluster.begin(1)                 it comes back
    cluster.settle()                 everything heals and comes to rest, and is checked

Subclasses define how the nodes learn of metadata, and which node is the controller. Clients use some node's knowledge
of the leaders, which may be stale.
"""

from collections.abc import Callable, Collection, Mapping

from ottla.broker.node import Node
from ottla.metadata.image import MetadataImage
from ottla.sim.clients.replicated import LeaderClient, LogReader, NearbyReader, ReplicatedProducer, TopicPartition
from ottla.sim.kernel.clock import MS, HostClock
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.kernel.world import World
from ottla.sim.workloads.replica_checkers import ReplicaChecker
from ottla.sim.workloads.run import DIRECTORY

TOPIC = "replicated"
SETTINGS = {
    "ottla.cluster.secret": "one secret for all",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "log.cleaner.enable": "false",
}
REST_MS = 30_000
REST_STEP_MS = 100


class Cluster:
    """See the module's docstring. `settings` are those of every node, beside its id."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        partitions: int = 1,
        min_isr: int = 2,
        settings: Mapping[str, str] | None = None,
        keep_all: bool = False,
    ) -> None:
        self.world = World(seed, keep_all=keep_all)
        self.rng = self.world.stream("cluster")
        self.partitions = partitions
        self.min_isr = min_isr
        self.settings = {**SETTINGS, "min.insync.replicas": str(min_isr), **(settings or {})}
        self.checker = ReplicaChecker(TOPIC)
        self.checkers = [self.checker]
        """One for each topic that is checked."""
        self._looked_at: dict[int, tuple[Life, int]] = {}
        """The incarnation and step of each node that were checked last, under the current metadata."""
        self.hosts = {node_id: self._host(node_id) for node_id in range(1, nodes + 1)}
        for host in self.hosts.values():
            host.peers.update({node_id: other.endpoint for node_id, other in self.hosts.items() if other is not host})
        self.rest_ms = REST_MS
        """How long everything may take to come to rest."""
        self.changed_beneath: Callable[[], Collection[int]] = tuple
        """The nodes whose disks may have directories that another process has put there since they started."""
        self.producers: list[ReplicatedProducer] = []
        self.readers: list[LogReader] = []
        self.others: list[LeaderClient] = []
        """Clients that neither produce nor read: they commit offsets, or whatever a test has them do."""

    def _host(self, node_id: int, name: str = "") -> Host:
        def build(host: Host, same_boot: bool) -> Node:
            return self.build(host, {**self.settings, "node.id": str(node_id)}, same_boot)

        host = Host(self.world, name or f"node-{node_id}", build, clock=self.clock_of(node_id))
        host.watch = lambda _: self.look(node_id)
        return host

    # ---- for subclasses --------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        raise NotImplementedError

    def build(self, host: Host, settings: Mapping[str, str], same_boot: bool) -> Node:
        """A node on this host."""
        raise NotImplementedError

    def clock_of(self, node_id: int) -> HostClock:
        """The clock of this node's host."""
        return HostClock(self.world.clock)

    def begin(self, node_id: int) -> None:
        """Start a new incarnation of this node."""
        raise NotImplementedError

    def heal(self) -> None:
        """Bring back every node that is down, cut off or stopped by a failure."""
        raise NotImplementedError

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def node(self, node_id: int) -> Node:
        """Return the node in its current incarnation."""
        life = self.hosts[node_id].life
        assert life is not None
        assert isinstance(life.node, Node)
        return life.node

    @property
    def up(self) -> list[int]:
        return [node_id for node_id, host in self.hosts.items() if host.up]

    def look(self, node_id: int) -> None:
        """Check a node after a step, or a chance for one. Raises InvariantError."""
        life = self.hosts[node_id].life
        assert life is not None
        step = life, life.steps
        if self._looked_at.get(node_id) == step:
            return  # it has made none
        self._looked_at[node_id] = step
        node, image = self.node(node_id), self.image
        for checker in self.checkers:
            checker.look(node, image)

    def look_at_metadata(self) -> None:
        """Check the metadata after a commit."""
        self._looked_at.clear()
        for checker in self.checkers:
            checker.look_at_metadata(self.image)

    # ---- partitions ------------------------------------------------------------------------------------------------

    def leader(self, index: int = 0) -> int | None:
        """The node that leads this partition, by the committed metadata."""
        placed = self.image.partition(TOPIC, index)
        return None if placed is None or placed.leader == -1 else placed.leader

    def isr(self, index: int = 0) -> tuple[int, ...]:
        placed = self.image.partition(TOPIC, index)
        assert placed is not None
        return placed.isr

    def is_whole(self) -> bool:
        """Whether every replica of every topic is in sync."""
        topics = [self.image.topics[each.topic] for each in self.checkers if each.topic in self.image.topics]
        return all(sorted(placed.isr) == sorted(placed.replicas) for topic in topics for placed in topic.partitions)

    # ---- clients ---------------------------------------------------------------------------------------------------

    def believed_leader(self, place: TopicPartition) -> Endpoint | None:
        """Return the leader of this partition as some node knows it."""
        up = self.up
        if not up:
            return None
        image = self.node(self.rng.choice(up)).image
        placed = image.partition(*place)
        return None if placed is None or placed.leader not in self.hosts else self.hosts[placed.leader].endpoint

    def believed_replica(self, place: TopicPartition) -> Endpoint | None:
        """Return a replica of this partition as some node knows it."""
        if not self.up:
            return None
        placed = self.node(self.rng.choice(self.up)).image.partition(*place)
        return None if placed is None else self.hosts[self.rng.choice(placed.replicas)].endpoint

    def was_moved_away(self, place: TopicPartition, endpoint: Endpoint) -> bool:
        placed = self.image.partition(*place)
        return placed is not None and all(self.hosts[node_id].endpoint != endpoint for node_id in placed.replicas)

    def topic_id(self, name: str) -> bytes | None:
        topic = self.image.topics.get(name)
        return None if topic is None else topic.id

    def produce(self, index: int = 0, acks: int = -1, *, idempotent: bool = False) -> ReplicatedProducer:
        """Start a producer of this partition."""
        name = f"producer-{len(self.producers)}"
        producer = ReplicatedProducer(self, name, (TOPIC, index), acks=acks, idempotent=idempotent)
        self.producers.append(producer)
        producer.go()
        return producer

    def read(self, index: int = 0, *, nearby: bool = False) -> LogReader:
        """Start a reader of this partition; `nearby`: at any replica."""
        kind = NearbyReader if nearby else LogReader
        reader = kind(self, f"reader-{len(self.readers)}", (TOPIC, index))
        self.readers.append(reader)
        reader.go()
        return reader

    @property
    def clients(self) -> list[LeaderClient]:
        return [*self.producers, *self.readers, *self.others]

    # ---- time ------------------------------------------------------------------------------------------------------

    def run(self, ms: int) -> None:
        self.world.run(self.world.clock.now_us + ms * MS)

    def until(self, what: Callable[[], bool], ms: int = 10_000) -> None:
        """Run until the condition holds. Raises InvariantError if it does not in time."""
        end_us = self.world.clock.now_us + ms * MS
        while not what():
            if self.world.clock.now_us >= end_us:
                raise InvariantError(f"not after {ms} ms: {what}")
            self.run(5)

    def settle(self) -> None:
        """Heal everything, bring all nodes back and wait until all is at rest. Raises InvariantError if that does not
        happen, or if the logs break a promise."""
        self.world.network.mend()
        self.world.network.weathers.clear()
        self.heal()
        self.wind_down()
        end_us = self.world.clock.now_us + self.rest_ms * MS
        while (missing := self.missing()) is not None:
            if self.world.clock.now_us >= end_us:
                raise InvariantError(f"15: {self.rest_ms} ms after everything healed {missing}")
            self.run(REST_STEP_MS)
        nodes = [self.node(node_id) for node_id in self.hosts]
        for node in nodes:
            self.look(node.node_id)
            if node.replicas.by_name:
                node.replication.check()
                node.schedule.check()
                node.completions.check()
        for checker in self.checkers:
            checker.look_at_rest(nodes)

    def wind_down(self) -> None:
        """Let the clients finish what they have begun, and begin nothing else."""
        for client in self.clients:
            client.winding_down = True

    def missing(self) -> str | None:
        """Describe in a sentence what is not at rest yet; None if everything is."""
        for node_id, host in self.hosts.items():
            if not host.up:
                return f"node {node_id} is down"
        for client in self.clients:
            if not client.idle:
                return f"{client.name} is not done, its last error is {client.last_error}"
        for checker in self.checkers:
            topic = self.image.topics.get(checker.topic)
            for index in range(0 if topic is None else len(topic.partitions)):
                missing = self._missing_of(checker.topic, index)
                if missing is not None:
                    return missing
        return None

    def _missing_of(self, topic: str, index: int) -> str | None:
        placed = self.image.partition(topic, index)
        assert placed is not None
        if placed.leader == -1:
            return f"{topic}-{index} has no leader"
        if sorted(placed.isr) != sorted(placed.replicas):
            return f"in sync in {topic}-{index} are only {placed.isr}"
        if placed.is_moving:
            return f"{topic}-{index} is being moved: {placed}"
        for node_id, host in self.hosts.items():
            if node_id in self.changed_beneath():
                continue
            if node_id not in placed.replicas and host.disk.exists(f"{DIRECTORY}/{topic}-{index}"):
                return f"node {node_id} still has the directory of {topic}-{index}"
        replicas = [self.node(node_id).replicas.get(topic, index) for node_id in placed.replicas]
        ends = {(-1, 0) if each is None else (each.log.log_end_offset, each.log.high_watermark) for each in replicas}
        if len(ends) > 1 or any(end != mark for end, mark in ends):
            return f"the replicas of {topic}-{index} end at {sorted(ends)}"
        (end, _), *_ = ends
        for reader in self.readers:
            if reader.running and reader.place == (topic, index) and reader.position != end:
                return f"{reader.name} is at {reader.position}"
        return None
