"""A simulated cluster whose nodes elect a controller, with nothing in its logs: registrations, elections, in-sync sets.

Knows: hosts that are killed, stand still, are cut off from each other and from the store; a store that is slow, loses
answers and has other writers; admins; and leaders that propose in-sync sets, right and wrong ones, new and old ones.
What must hold at every commit and every step is checked while it runs:

- at most one life of one node leads a partition in an epoch, and epochs in the store only rise;
- in-sync and eligible sets are as the design of replication says, and only active nodes join them;
- a proposal with old epochs changes nothing;
- once a controller has its claim, nothing of an older one is written;
- when all is well again, all nodes are active, know the same, and every partition that can have a leader has one.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity
from ottla.broker.cluster.membership import Joining
from ottla.broker.config.values import BrokerSettings
from ottla.broker.node import Node
from ottla.machine import Unanswered
from ottla.metadata.nodes import NodeState
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.sim.kernel.clock import MS, HostClock, Micros
from ottla.sim.kernel.disk import Disk
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.kernel.world import World
from ottla.sim.workloads.following import LEASE_MS, TRUST_MS, Following
from ottla.sim.workloads.watched_store import OwnStore, WatchedStore

MIN_ISR = 2
NAMES = ("a", "b", "c")
Place = tuple[bytes, int]


class Proposal:
    """An AlterPartition on its way; `stale`: it must change nothing."""

    def __init__(self, cluster: ControllerCluster, stale: bool) -> None:
        self.cluster = cluster
        self.stale = stale

    def answered(self, now: int, answer: Any) -> None:
        if isinstance(answer, Unanswered) or answer.error_code:
            return
        for topic in answer.topics:
            for part in topic.partitions:
                self.cluster.proposals += not part.error_code
                if self.stale and not part.error_code:
                    raise InvariantError(f"a proposal with an old epoch was taken: {part.isr}")


class ControllerCluster:
    """See the module's docstring. `run` raises InvariantError where a rule is broken, and ends with all well again."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.world = World(seed)
        self.rng = self.world.stream("controllers")
        self.hosts = {node_id: self._host(node_id) for node_id in range(1, nodes + 1)}
        self.following = Following(self.world, self.hosts)
        self.store = WatchedStore(Disk(self.world.stream("store")), MIN_ISR)
        for node_id, host in self.hosts.items():
            host.store = OwnStore(self.store, host.stream("far"), host, node_id)
        self.led: dict[tuple[Place, int], tuple[int, int]] = {}
        self.proposals = 0
        self.elections = 0
        self._identity = 1_000_000
        for host in self.hosts.values():
            host.peers.update({node_id: other.endpoint for node_id, other in self.hosts.items() if other is not host})

    def _host(self, node_id: int) -> Host:
        name = f"node{node_id}"

        def build(host: Host, same_boot: bool) -> Node:
            settings = {"node.id": str(node_id), "min.insync.replicas": str(MIN_ISR)}
            return Node(
                BrokerSettings.load(settings, {}),
                host.disk,
                "/data",
                OwnStore(self.store, self.rng, host, node_id),
                entropy=host.stream(f"entropy{host.lives}"),
                same_boot=same_boot,
                notes=lambda note: self.world.trace.add(name, note),
                joining=Joining(name, 9092, self.following.incarnation_of(node_id), TRUST_MS),
            )

        host = Host(self.world, name, build, clock=HostClock(self.world.clock, booted_ms=1_000_000 * node_id))
        host.watch = lambda life: self._check_leaders(node_id, life)
        return host

    def start(self, node_id: int) -> None:
        host = self.hosts[node_id]
        if not host.up and host.start():
            self.following.begin(node_id)

    # ---- what must hold inside -------------------------------------------------------------------------------------

    def _check_leaders(self, node_id: int, life: Life) -> None:
        node: Any = life.node
        for topic in node.replicas.by_name.values():
            for partition in topic.partitions.values():
                if partition.leads:
                    epoch = ((topic.id, partition.index), partition.leader_epoch)
                    who = (node_id, self.hosts[node_id].lives)
                    if self.led.setdefault(epoch, who) != who:
                        raise InvariantError(
                            f"{partition.name} is led by {who} and {self.led[epoch]} in epoch {epoch[1]}"
                        )

    # ---- what happens ----------------------------------------------------------------------------------------------

    def run(self, seconds: int = 20) -> None:
        for node_id in self.hosts:
            self.start(node_id)
        until = seconds * 1_000 * MS
        self.world.agenda.after(300 * MS, self._happen, until)
        self.world.run(until)
        self._heal()
        self.world.run(until + 40_000 * MS)
        self._check_healed()

    def _happen(self, until: Micros) -> None:
        if self.world.clock.now_us >= until:
            return
        act = self.rng.choice(
            (self._create, self._create, self._delete, self._grow, self._elect, self._move, self._move)
            + (self._propose,) * 6
            + (self._kill, self._kill, self._pause, self._bounce, self._cut, self._ail)
        )
        act(self.rng.choice(list(self.hosts)))
        self.world.agenda.after(self.rng.randrange(20, 400) * MS, self._happen, until)

    def ask(self, node_id: int, message: Any) -> None:
        """A client's request, whose answer nobody waits for."""
        life = self.hosts[node_id].life
        if life is None or not life.alive or life.paused:
            return
        self._identity += 1
        channel = Channel(Identity(Address(self._identity, "admin")))
        frame = encode_request(RequestHeader(message.API_KEY, message.MAX_VERSION, 1, "admin"), message)
        life.enter(self._receive, life, channel, memoryview(bytearray(frame))[4:])

    def _receive(self, now: int, life: Life, channel: Channel, frame: memoryview) -> None:
        life.node.receive(now, channel, frame)

    def _create(self, node_id: int) -> None:
        factor = self.rng.randrange(1, len(self.hosts) + 1)
        topic = CreatableTopic(self.rng.choice(NAMES), self.rng.randrange(1, 5), factor)
        self.ask(node_id, CreateTopicsRequest(topics=[topic]))

    def _delete(self, node_id: int) -> None:
        if self.rng.random() < 0.3:
            self.ask(node_id, DeleteTopicsRequest(topics=[DeleteTopicState(self.rng.choice(NAMES))]))

    def _grow(self, node_id: int) -> None:
        wanted = CreatePartitionsTopic(self.rng.choice(NAMES), self.rng.randrange(2, 9), None)
        self.ask(node_id, CreatePartitionsRequest(topics=[wanted]))

    def _elect(self, node_id: int) -> None:
        unclean = int(self.rng.random() < 0.2)
        self.ask(node_id, ElectLeadersRequest(election_type=unclean, topic_partitions=None))

    def _move(self, node_id: int) -> None:
        """Replicas shall be elsewhere, or where they were."""
        moves: list[ReassignablePartition] = []
        for index in range(self.rng.randrange(1, 5)):
            target = self.rng.sample(list(self.hosts), self.rng.randrange(1, len(self.hosts) + 1))
            moves.append(ReassignablePartition(index, target if self.rng.random() < 0.8 else None))
        topic = ReassignableTopic(self.rng.choice(NAMES), moves)
        self.ask(node_id, AlterPartitionReassignmentsRequest(topics=[topic]))

    def _propose(self, node_id: int) -> None:
        """The node, as a leader, says who is in sync: often rightly, sometimes as of an older epoch."""
        life = self.hosts[node_id].life
        if life is None or not life.alive or life.paused:
            return
        node: Any = life.node
        led = [(t, p) for t in node.replicas.by_name.values() for p in t.partitions.values() if p.leads]
        record, controller = node.image.nodes.get(str(node_id)), node.image.controller
        if not led or record is None or controller is None:
            return
        topic, partition = self.rng.choice(led)
        placed = node.image.topics_by_id[topic.id].partitions[partition.index]
        members = [each for each in placed.replicas if each == node_id or self.rng.random() < 0.6]
        epochs = {int(name): each.broker_epoch for name, each in node.image.nodes.items()}
        stale = self.rng.random() < 0.2 and partition.leader_epoch > 0 and sorted(members) != sorted(placed.isr)
        asked = RequestPartitionData(
            partition.index,
            partition.leader_epoch - stale,
            [],
            [BrokerState(each, epochs.get(each, -1)) for each in members],
            0,
            partition.partition_epoch,
        )
        message = AlterPartitionRequest(node_id, record.broker_epoch, [RequestTopicData(topic.id, [asked])])
        life.enter(self._ask, node, controller.node_id, message, Proposal(self, stale))

    def _ask(self, now: int, node: Any, controller_id: int, message: Any, asker: Proposal) -> None:
        node.peers.ask(now, controller_id, message, asker)

    # ---- faults ----------------------------------------------------------------------------------------------------

    def _kill(self, node_id: int) -> None:
        host = self.hosts[node_id]
        if host.up:
            host.kill(power_cut=self.rng.random() < 0.3)
            self.world.agenda.after(self.rng.randrange(3_000) * MS, self.start, node_id)

    def _bounce(self, node_id: int) -> None:
        """Killed and there again before anybody has looked."""
        if self.hosts[node_id].up:
            self.hosts[node_id].kill(power_cut=False)
            self.start(node_id)

    def _pause(self, node_id: int) -> None:
        """Often for longer than its lease."""
        life = self.hosts[node_id].life
        if life is not None and life.alive and not life.paused:
            life.pause()
            self.world.agenda.after(self.rng.randrange(2 * LEASE_MS) * MS, life.resume)

    def _cut(self, node_id: int) -> None:
        other = self.rng.choice(list(self.hosts))
        way = (self.hosts[node_id].name, self.hosts[other].name)
        if node_id != other:
            self.world.network.cut_path(*way)
            self.world.agenda.after(self.rng.randrange(4_000) * MS, self.world.network.mend_path, *way)

    def _ail(self, node_id: int) -> None:
        """The way to the store is slow, and answers are lost there."""
        store = self.hosts[node_id].store
        if store is not None:
            store.latency_max_us = self.rng.choice((20, 200, 1_500)) * MS
            store.lost_answers = self.rng.choice((0.0, 0.2, 0.5))
            self.world.agenda.after(self.rng.randrange(3_000) * MS, store.heal)

    # ---- the end of it ---------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        for node_id, host in self.hosts.items():
            if host.store is not None:
                host.store.heal()
            if host.life is not None:
                host.life.resume()
            self.start(node_id)

    def _check_healed(self) -> None:
        images = []
        for node_id, host in self.hosts.items():
            if not host.up or host.life is None:
                raise InvariantError(f"node {node_id} is down")
            node: Any = host.life.node
            images.append(node.image)
            if node.image.generation != self.store.generation:
                raise InvariantError(
                    f"node {node_id} is at {node.image.generation}, the store at {self.store.generation}"
                )
            if not node.membership.is_fresh(host.clock.now_ms):
                raise InvariantError(f"node {node_id} does not trust what it knows")
        if any(image != images[0] for image in images):
            raise InvariantError("the images of the nodes differ")
        states = {name: record.state for name, record in images[0].nodes.items()}
        if set(states.values()) != {NodeState.ACTIVE}:
            raise InvariantError(f"not all nodes are active: {states}")
        for topic in images[0].topics.values():
            for index, placed in enumerate(topic.partitions):
                if placed.is_moving and set(placed.target) <= set(placed.isr):
                    raise InvariantError(f"{topic.name}-{index} has arrived, and nobody says so: {placed}")
                if placed.leader == -1 and (placed.isr or placed.elr):
                    raise InvariantError(f"{topic.name}-{index} has no leader: {placed}")
        led = {
            (t.id, p.index)
            for node in self._nodes()
            for t in node.replicas.by_name.values()
            for p in t.partitions.values()
            if p.leads
        }
        for topic in images[0].topics.values():
            for index, placed in enumerate(topic.partitions):
                if placed.leader != -1 and (topic.id, index) not in led:
                    raise InvariantError(f"{topic.name}-{index} is led by nobody: {placed}")
        self.elections = sum(p.leader_epoch for t in images[0].topics.values() for p in t.partitions)

    def _nodes(self) -> list[Any]:
        return [host.life.node for host in self.hosts.values() if host.life is not None]
