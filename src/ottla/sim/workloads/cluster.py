"""A simulated cluster: nodes that replicate one topic among them, a controller, producers and readers.

    cluster = Cluster(seed)
    cluster.start()                  all nodes are up and registered, the topic is there
    cluster.run(2_000)               milliseconds
    cluster.kill(1)                  its process dies; the controller notices after a while
    cluster.begin(1)                 it comes back
    cluster.settle()                 everything heals and comes to rest, and is looked at

Every step of every node is followed by the checkers' look. Nodes hear of metadata each in its own time, but those that
are cut off from the controller, who do not.
"""

from collections.abc import Callable, Mapping

from ottla.broker.node import Node
from ottla.metadata.image import delta_since
from ottla.metadata.memory import MemoryStore
from ottla.sim.clients.replicated import AllAcksProducer, Reader
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import Broken
from ottla.sim.kernel.world import World
from ottla.sim.workloads.hand_controller import CONTROLLER_ID, HandController
from ottla.sim.workloads.replica_checkers import ReplicaChecker
from ottla.sim.workloads.run import node_on

TOPIC = "replicated"
TOPIC_ID = bytes(range(1, 17))
SETTINGS = {
    "ottla.cluster.secret": "one secret for all",
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "200",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
NOTICED_MS = 600
"""How long a node may be silent before it is fenced."""
REST_MS = 30_000
REST_STEP_MS = 100

NodeMaker = Callable[[Host, MemoryStore, Mapping[str, str], bool], Node]


class Cluster:
    """See the module's docstring. `make` is for tests that plant bugs."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        partitions: int = 1,
        min_isr: int = 2,
        settings: Mapping[str, str] | None = None,
        make: NodeMaker = node_on,
        keep_all: bool = False,
    ) -> None:
        self.world = World(seed, keep_all=keep_all)
        self.rng = self.world.stream("cluster")
        self.store = MemoryStore()
        self.controller = HandController(self.store)
        self.checker = ReplicaChecker(TOPIC)
        self.partitions = partitions
        self.min_isr = min_isr
        self._make = make
        self._settings = {**SETTINGS, **(settings or {})}
        self.hosts = {node_id: self._host(node_id) for node_id in range(1, nodes + 1)}
        self.desk = Host(self.world, "controller", lambda *_: self.controller)
        self.desk.watch = lambda _: self._told_generation_differs()
        endpoints = {node_id: host.endpoint for node_id, host in self.hosts.items()} | {
            CONTROLLER_ID: self.desk.endpoint
        }
        for host in self.hosts.values():
            host.peers = endpoints
        self.deaf: set[int] = set()
        """Nodes that hear nothing of the metadata, and that nobody hears of."""
        self.producers: list[AllAcksProducer] = []
        self.readers: list[Reader] = []
        self._told = 0

    def _host(self, node_id: int) -> Host:
        def build(host: Host, same_boot: bool) -> Node:
            return self._make(host, self.store, {**self._settings, "node.id": str(node_id)}, same_boot)

        host = Host(self.world, f"node-{node_id}", build)
        host.watch = lambda life: self.checker.look(self.node(node_id), self.controller.image)
        return host

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def node(self, node_id: int) -> Node:
        """The node in its present life."""
        life = self.hosts[node_id].life
        assert life is not None
        assert isinstance(life.node, Node)
        return life.node

    @property
    def up(self) -> list[int]:
        return [node_id for node_id, host in self.hosts.items() if host.up]

    def start(self) -> None:
        """Every node, and the topic."""
        self.desk.start()
        for node_id in self.hosts:
            self.begin(node_id)
        self.run(50)
        ids = list(self.hosts)
        placed = [tuple(ids[(first + at) % len(ids)] for at in range(len(ids))) for first in range(self.partitions)]
        self.controller.create_topic(TOPIC, TOPIC_ID, {"min.insync.replicas": str(self.min_isr)}, placed)
        self.tell_all()

    def begin(self, node_id: int, *, intact: bool = True) -> None:
        """A new life of this node, which registers."""
        host = self.hosts[node_id]
        if host.start():
            self.world.agenda.after(self.rng.randrange(1, 20 * MS), self._register, node_id, host.life, intact)

    def _register(self, node_id: int, life: Life, intact: bool) -> None:
        if life.alive:
            self.controller.catch_up()
            self.controller.register(node_id, self.hosts[node_id].lives, intact=intact)
            self.tell_all()

    def kill(self, node_id: int, *, power_cut: bool = False) -> None:
        """Its process dies, or its machine goes off; the controller notices later."""
        host = self.hosts[node_id]
        life = host.life
        if power_cut:
            self.checker.forgive(node_id)
        host.kill(power_cut=power_cut)
        self.world.agenda.after(self.rng.randrange(NOTICED_MS * MS), self._noticed, node_id, life)

    def stop(self, node_id: int) -> None:
        """Its process ends cleanly."""
        self.hosts[node_id].stop()
        self.fence(node_id)

    def register_again(self, node_id: int, life: Life) -> None:
        """A node that was given up and lives is heard of again, as a new registration."""
        self.deaf.discard(node_id)
        if life.paused:
            self.world.agenda.after(100 * MS, self.register_again, node_id, life)
        else:
            self._register(node_id, life, intact=True)

    @property
    def is_whole(self) -> bool:
        """Whether every node is up, heard of in its present life, and in sync: one machine may go off then."""
        for node_id, host in self.hosts.items():
            known = self.controller.image.nodes.get(str(node_id))
            if not host.up or known is None or known.incarnation != f"{node_id}/{host.lives}":
                return False
        return all(sorted(self.isr(index)) == sorted(self.hosts) for index in range(self.partitions))

    def _noticed(self, node_id: int, life: Life) -> None:
        if self.hosts[node_id].life is life:
            self.fence(node_id)

    def fence(self, node_id: int) -> None:
        """The controller gives this node up."""
        self.controller.fence(node_id)
        self.tell_all()

    # ---- metadata --------------------------------------------------------------------------------------------------

    def tell_all(self) -> None:
        """Everybody hears of what was committed, each in its own time."""
        self.checker.look_at_metadata(self.controller.image)
        self._told = self.store.generation
        for node_id, host in self.hosts.items():
            self.world.agenda.after(self.rng.randrange(1, 15 * MS), self._tell, node_id, host.life)

    def _told_generation_differs(self) -> None:
        if self._told != self.store.generation:
            self.tell_all()

    def _tell(self, node_id: int, life: Life | None) -> None:
        if life is None or not life.alive or node_id in self.deaf:
            return
        if life.paused:
            self.world.agenda.after(20 * MS, self._tell, node_id, life)
            return
        node = self.node(node_id)
        if node.image.generation < self.store.generation:
            life.enter(node.changed, delta_since(self.store, node.image))

    def leader(self, index: int = 0) -> int | None:
        """Who leads this partition, as the store says."""
        placed = self.controller.image.partition(TOPIC, index)
        return None if placed is None or placed.leader == -1 else placed.leader

    def isr(self, index: int = 0) -> tuple[int, ...]:
        placed = self.controller.image.partition(TOPIC, index)
        assert placed is not None
        return placed.isr

    def _endpoint_of_leader(self, index: int) -> Endpoint | None:
        leader = self.leader(index)
        return None if leader is None else self.hosts[leader].endpoint

    # ---- clients ---------------------------------------------------------------------------------------------------

    def produce(self, index: int = 0, acks: int = -1) -> AllAcksProducer:
        """A producer of this partition, which begins now."""
        name = f"producer-{len(self.producers)}"
        producer = AllAcksProducer(self.world, name, TOPIC_ID, index, self._endpoint_of_leader, self.checker, acks=acks)
        self.producers.append(producer)
        producer.go()
        return producer

    def read(self, index: int = 0) -> Reader:
        """A reader of this partition, which begins now."""
        reader = Reader(
            self.world, f"reader-{len(self.readers)}", TOPIC_ID, index, self._endpoint_of_leader, self.checker
        )
        self.readers.append(reader)
        reader.go()
        return reader

    # ---- time ------------------------------------------------------------------------------------------------------

    def run(self, ms: int) -> None:
        self.world.run(self.world.clock.now_us + ms * MS)

    def until(self, what: Callable[[], bool], ms: int = 10_000) -> None:
        """Run until this is so. Raises Broken where it is not after so long."""
        end_us = self.world.clock.now_us + ms * MS
        while not what():
            if self.world.clock.now_us >= end_us:
                raise Broken(f"not after {ms} ms: {what}")
            self.run(5)

    def settle(self) -> None:
        """Everything heals, everybody comes back, and comes to rest. Raises Broken where that does not happen, or the
        logs do not hold what was promised."""
        self.world.network.mend()
        self.world.network.weathers.clear()
        self.deaf.clear()
        for node_id, host in self.hosts.items():
            if not host.up:
                self.begin(node_id)
            elif host.life is not None:
                host.life.resume()
                if self.controller.is_given_up(node_id):
                    self.register_again(node_id, host.life)
        self.tell_all()
        for producer in self.producers:
            producer.winding_down = True
        end_us = self.world.clock.now_us + REST_MS * MS
        while (missing := self._missing()) is not None:
            if self.world.clock.now_us >= end_us:
                raise Broken(f"{REST_MS} ms after everything healed {missing}")
            self.run(REST_STEP_MS)
        nodes = [self.node(node_id) for node_id in self.hosts]
        for node in nodes:
            self.checker.look(node, self.controller.image)
            if node.replicas.by_name:
                node.replication.check()
        self.checker.look_at_rest(nodes)

    def _missing(self) -> str | None:
        """What has not come to rest yet, as a sentence; None: everything has."""
        for node_id, host in self.hosts.items():
            if not host.up:
                return f"node {node_id} is down"
            if self.node(node_id).image.generation != self.store.generation:
                self._tell(node_id, host.life)
        for producer in self.producers:
            if not producer.idle:
                return f"{producer.name} has unacknowledged records, last error {producer.last_error}"
        for index in range(self.partitions):
            leader = self.leader(index)
            if leader is None:
                return f"partition {index} has no leader"
            if sorted(self.isr(index)) != sorted(self.hosts):
                return f"in sync in {index} are only {self.isr(index)}"
            logs = [self.node(node_id).replicas.by_name[TOPIC].partitions[index].log for node_id in self.hosts]
            ends = {(log.log_end_offset, log.high_watermark) for log in logs}
            if len(ends) > 1 or any(end != mark for end, mark in ends):
                return f"the replicas of {index} end at {[(log.log_end_offset, log.high_watermark) for log in logs]}"
            for reader in self.readers:
                if reader.running and reader.index == index and reader.position != logs[0].high_watermark:
                    return f"{reader.name} is at {reader.position}"
        return None
