"""A simulated cluster whose metadata is changed by hand: sharper than chance where a story needs a certain order.

`HandController` runs on a host that never fails, and writes a store that all nodes share. Nodes hear of metadata each
in its own time, but those that are `deaf`, whom nobody hears of either.
"""

from collections.abc import Callable, Mapping

from ottla.broker.node import Node
from ottla.metadata.image import MetadataImage, delta_since
from ottla.metadata.memory import MemoryStore
from ottla.sim.clients.replicated import TopicPartition
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.network import Endpoint
from ottla.sim.workloads.cluster import TOPIC, Cluster
from ottla.sim.workloads.run import node_on
from tests.harness.sim.hand_controller import CONTROLLER_ID, HandController

TOPIC_ID = bytes(range(1, 17))
NOTICED_MS = 600
"""How long a node may be silent before it is fenced."""

NodeMaker = Callable[[Host, MemoryStore, Mapping[str, str], bool], Node]


class HandCluster(Cluster):
    """See the module's docstring. `make` is for tests that plant bugs."""

    def __init__(self, seed: int, *, make: NodeMaker = node_on, **given: object) -> None:
        self.store = MemoryStore()
        self.controller = HandController(self.store)
        self._make = make
        super().__init__(seed, **given)  # type: ignore[arg-type]
        self.desk = Host(self.world, "controller", lambda *_: self.controller)
        self.desk.watch = lambda _: self._told_generation_differs()
        for host in self.hosts.values():
            host.peers[CONTROLLER_ID] = self.desk.endpoint
        self.deaf: set[int] = set()
        """Nodes that hear nothing of the metadata, and that nobody hears of."""
        self._told = 0

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    def build(self, host: Host, settings: Mapping[str, str], same_boot: bool) -> Node:
        return self._make(host, self.store, settings, same_boot)

    def believed_leader(self, place: TopicPartition) -> Endpoint | None:
        """As the store says: in stories, who believes in whom is part of the story."""
        leader = self.leader(place[1])
        return None if leader is None else self.hosts[leader].endpoint

    # ---- nodes -----------------------------------------------------------------------------------------------------

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
            assert host.life is not None
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
            self.checker.lost_power(node_id, in_sync_too=True)
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

    def _noticed(self, node_id: int, life: Life) -> None:
        if self.hosts[node_id].life is life:
            self.fence(node_id)

    def fence(self, node_id: int) -> None:
        """The controller gives this node up."""
        self.controller.fence(node_id)
        self.tell_all()

    def heal(self) -> None:
        self.deaf.clear()
        for node_id, host in self.hosts.items():
            if not host.up:
                self.begin(node_id)
            elif host.life is not None:
                host.life.resume()
                if self.controller.is_given_up(node_id):
                    self.register_again(node_id, host.life)
        self.tell_all()

    # ---- metadata --------------------------------------------------------------------------------------------------

    def move_leader(self, node_id: int, index: int = 0) -> None:
        """Another one of the in-sync replicas leads from now on, or the same anew."""
        self.controller.move_leader(TOPIC, index, node_id)
        self.tell_all()

    def tell_all(self) -> None:
        """Everybody hears of what was committed, each in its own time."""
        self.look_at_metadata()
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

    def missing(self) -> str | None:
        for node_id, host in self.hosts.items():
            if host.up and self.node(node_id).image.generation != self.store.generation:
                self._tell(node_id, host.life)
        return super().missing()
