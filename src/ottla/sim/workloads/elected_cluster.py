"""Simulates a real cluster: nodes that share a metadata store, register in it, and elect a controller among them.

Each node has its own path to the store, with its own faults, and its own clock. Topics are created by requests to a
node. The `WatchedStore` checks every commit.

To extend it, add a client with `add`: it is wound down and waited for like the others. `ask` sends an administrator's
requests.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity
from ottla.broker.cluster.membership import Joining
from ottla.broker.config.values import BrokerSettings
from ottla.broker.node import Node
from ottla.broker.requests import RequestRefusedError
from ottla.machine import Millis, WallClock
from ottla.metadata.image import MetadataImage, changed, delta_since
from ottla.metadata.nodes import NodeState
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, partition_of
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.sim.clients.history import History
from ottla.sim.clients.offset_committers import OffsetCommitter
from ottla.sim.clients.replicated import LeaderClient
from ottla.sim.kernel.clock import MS, HostClock, Micros
from ottla.sim.kernel.disk import Disk
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.store import StoreCopy
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster import TOPIC, Cluster
from ottla.sim.workloads.following import LOOK_US, TRUST_MS, Following
from ottla.sim.workloads.replica_checkers import ReplicaChecker
from ottla.sim.workloads.run import DIRECTORY
from ottla.sim.workloads.watched_store import OwnStore, WatchedStore

OFFSETS_PARTITIONS = 2
REPLICAS_MAX = 3
DRIFT_PPM_MAX = 200
LEAVE_MS = 5_000
"""How long a stopping node waits for other nodes to lead its partitions (server/main.py)."""


class ElectedCluster(Cluster):
    """See the module's docstring. `by_locks`: a killed node is missed at once, as on one machine; otherwise when its
    lease has expired. `fsync`: acknowledged records are on the disks, and no power cut loses them. `replicas`: of each
    topic."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        by_locks: bool = True,
        fsync: bool = False,
        replicas: int = REPLICAS_MAX,
        settings: Mapping[str, str] | None = None,
        **given: Any,
    ) -> None:
        self.fsync = fsync
        self.replicas = min(nodes, replicas)
        mine = {
            "ottla.durability": "fsync" if fsync else "page-cache",
            "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
            "offsets.topic.replication.factor": str(self.replicas),
            "group.initial.rebalance.delay.ms": "0",
        }
        self._image = MetadataImage()
        self.ways: dict[int, OwnStore] = {}
        super().__init__(seed, nodes=nodes, settings={**mine, **(settings or {})}, **given)
        self.following = Following(self.world, self.hosts, by_locks=by_locks)
        self.store = WatchedStore(Disk(self.world.stream("store")), self.min_isr)
        self.store.committed = self._committed
        for node_id, host in self.hosts.items():
            host.store = self.ways[node_id] = OwnStore(self.store, host.stream("far"), host, node_id)
        self.checkers.append(ReplicaChecker(CONSUMER_OFFSETS_TOPIC))
        self.history = History((), groups_vanish=False)
        self._identity = 1_000_000
        self.replaced: list[Host] = []
        """The hosts whose nodes run elsewhere now. Their processes may still run."""

    # ---- nodes -----------------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        return self._image

    def clock_of(self, node_id: int) -> HostClock:
        drift = self.rng.randrange(-DRIFT_PPM_MAX, DRIFT_PPM_MAX)
        return HostClock(self.world.clock, booted_ms=1_000_000 * node_id, drift_ppm=drift)

    def build(self, host: Host, settings: Mapping[str, str], same_boot: bool) -> Node:
        node_id = int(settings["node.id"])
        self.ways[node_id].reopen()
        return Node(
            BrokerSettings.load(dict(settings), {}),
            host.disk,
            DIRECTORY,
            self.ways[node_id],
            entropy=host.stream(f"entropy-{host.lives}"),
            same_boot=same_boot,
            notes=lambda note: self.world.trace.add(host.name, note),
            wall=WallClock(host.clock.wall_ahead_ms),
            joining=Joining(host.name, 9092, self.following.incarnation_of(node_id), TRUST_MS),
        )

    def begin(self, node_id: int) -> None:
        host = self.hosts[node_id]
        if host.up:
            return
        if host.start():
            self.following.begin(node_id)

    def begin_elsewhere(self, node_id: int, disk: Disk) -> None:
        """Start this node on another machine with this disk, a copy of its own. A process that it replaces runs on, and
        the system that detects which nodes are present no longer counts it."""
        old = self.hosts[node_id]
        self.replaced.append(old)
        host = self.hosts[node_id] = self._host(node_id, f"{old.name}-copy")
        host.disk, host.lives, host.died = disk, old.lives, old.died
        old.watch = old.died = None
        host.store = self.ways[node_id] = OwnStore(self.store, host.stream("far"), host, node_id)
        host.peers.update(old.peers)
        for other in self.hosts.values():
            if other is not host:
                other.peers[node_id] = host.endpoint
        for checker in self.checkers:
            checker.lost_power(node_id, in_sync_too=True)
        self.begin(node_id)

    def kill(self, node_id: int, *, power_cut: bool = False) -> None:
        """Kill its process, or cut its machine's power."""
        self.hosts[node_id].kill(power_cut=power_cut)

    def leave(self, node_id: int) -> None:
        """Ask the node's process to stop, as SIGTERM does. It stops when other nodes lead its partitions, or after a
        while anyway."""
        life = self.hosts[node_id].life
        if life is None or not life.alive:
            return
        if life.paused:
            self.world.agenda.after(20 * MS, self.leave, node_id)
            return
        membership = self.node(node_id).membership
        assert membership is not None
        life.enter(membership.leave)
        self._stop(node_id, life, self.world.clock.now_us + LEAVE_MS * MS)

    def _stop(self, node_id: int, life: Life, until_us: Micros) -> None:
        if not life.alive:
            return
        membership = self.node(node_id).membership
        assert membership is not None
        may_stop = membership.may_stop()
        if not may_stop and self.world.clock.now_us < until_us:
            self.world.agenda.after(LOOK_US, self._stop, node_id, life, until_us)
            return
        if may_stop:
            self._look_at_stop(node_id)
        self.hosts[node_id].stop()
        self.following.leave(node_id)

    def _look_at_stop(self, node_id: int) -> None:
        """Raises InvariantError if a serving node would send clients to this stopping one, although another node leads.

        A fenced node need not wait, because no node that has learned of the fencing sends clients to it
        (BrokerHeartbeatManager.calculateNextBrokerState: a fenced broker is granted an immediate shutdown). Nor need a
        node that was elected just now and has not learned of it, because all in-sync replicas are stopping: no other
        node can take over.
        """
        stopping = self.node(node_id)
        assert stopping.membership is not None
        record = stopping.membership.record
        if record is None or record.state is NodeState.FENCED:
            return
        present = stopping.membership.present or {}
        for other, record in stopping.members.active().items():
            if present.get(other) != record.incarnation or self.following.incarnation_of(other) != record.incarnation:
                continue
            image = self.node(other).image
            for name, topic in image.topics.items():
                for index, placed in enumerate(topic.partitions):
                    now = stopping.image.partition(name, index)
                    if placed.leader != node_id or now is None or now.leader == node_id:
                        continue
                    others = {image.nodes[str(member)].state for member in placed.isr}
                    if placed.leader_epoch < now.leader_epoch or NodeState.ACTIVE in others:
                        raise InvariantError(
                            f"24: node {node_id} stops, and node {other} has it lead {name}-{index} still"
                        )

    def died(self, node_id: int, *, power_cut: bool) -> None:
        """Handle the death of a node, from any cause: exempt its replicas from checks on records that they may lose."""
        if power_cut:
            for checker in self.checkers:
                checker.lost_power(node_id, in_sync_too=not self.fsync)

    def _committed(self) -> None:
        self._image = changed(self._image, delta_since(self.store, self._image))
        self.look_at_metadata()

    def restore_store(self, copy: StoreCopy) -> None:
        """Bring back an earlier metadata store, while every node is down."""
        assert not self.up
        assert not any(host.up for host in self.replaced)
        self.store.restore(copy)
        self._image = changed(MetadataImage(), delta_since(self.store, MetadataImage()))
        for checker in self.checkers:
            checker.store_restored()

    def heal(self) -> None:
        for node_id, host in self.hosts.items():
            self.ways[node_id].heal()
            if host.life is not None:
                host.life.resume()
            self.begin(node_id)

    # ---- topics and clients ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every node, and create the topics."""
        self.start_nodes()
        self.until(self.has_topics, 5_000)

    def start_nodes(self) -> None:
        """Start every node, without topics."""
        for node_id, host in self.hosts.items():
            host.died = lambda power_cut, node_id=node_id: self.died(node_id, power_cut=power_cut)
            self.begin(node_id)
        self.until(lambda: self.states() == {NodeState.ACTIVE}, 5_000)

    def states(self) -> set[NodeState]:
        """Return the states of all nodes, by the store."""
        return {record.state for record in self.image.nodes.values()}

    def has_topics(self) -> bool:
        """Whether the topics exist; missing ones are requested."""
        missing = [name for name in (TOPIC, CONSUMER_OFFSETS_TOPIC) if name not in self.image.topics]
        node_id = self.rng.choice(list(self.hosts))
        if TOPIC in missing:
            topic = CreatableTopic(TOPIC, self.partitions, self.replicas)
            self.ask(node_id, CreateTopicsRequest(topics=[topic]))
        elif missing:
            self.ask(node_id, FindCoordinatorRequest(key_type=0, coordinator_keys=["any"]))
        return not missing

    def ask(self, node_id: int, message: Any) -> None:
        """Send a client's request to this node, without waiting for the answer."""
        life = self.hosts[node_id].life
        if life is None or not life.alive or life.paused:
            return
        self._identity += 1
        frame = encode_request(RequestHeader(message.API_KEY, message.MAX_VERSION, 1, "admin"), message)
        life.enter(
            _receive, life, Channel(Identity(Address(self._identity, "admin"))), memoryview(bytearray(frame))[4:]
        )

    def add(self, client: LeaderClient) -> None:
        """Start a client, which is wound down at the end and waited for."""
        self.others.append(client)
        client.go()

    def commit_offsets(self, group: str) -> OffsetCommitter:
        """Start a client that commits offsets for this group."""
        place = CONSUMER_OFFSETS_TOPIC, partition_of(group, OFFSETS_PARTITIONS)
        committer = OffsetCommitter(
            self, f"committer-{group}", place, group=group, about=(TOPIC, 0), history=self.history
        )
        self.add(committer)
        return committer

    # ---- at rest ---------------------------------------------------------------------------------------------------

    def missing(self) -> str | None:
        for node_id, host in self.hosts.items():
            if not host.up:
                self.begin(node_id)
            elif self.node(node_id).image.generation != self.store.generation:
                return f"node {node_id} is at {self.node(node_id).image.generation}, not {self.store.generation}"
        if self.states() != {NodeState.ACTIVE}:
            return f"the nodes are {[record.state for record in self.image.nodes.values()]}"
        return super().missing()


def _receive(now: Millis, life: Life, channel: Channel, frame: memoryview) -> None:
    assert isinstance(life.node, Node)
    with suppress(RequestRefusedError):  # it is cut off, and does not know who may do this
        life.node.receive(now, channel, frame)
