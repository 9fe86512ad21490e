"""Runs the cluster workload once: a seed, some nodes, a time of faults, and the rest after it.

Each kind of fault occurs or not, by the seed:

- nodes: killed (also in mid-step), stopped, without power, or paused, often longer than their lease;
- their disks: slow, full, or with failing syncs; and their clocks;
- paths between nodes: cut one way, parted, slow; and the path to the metadata store: slow, cut, with lost answers;
- moves of leaders, replicas and controllers.

With page-cache durability, a machine loses power only while every replica is in sync, none of them has lost anything,
and no disk has faults. More could lose acknowledged records, as in Kafka. With fsync, any machines may lose power, even
all at once, and no acknowledged record is lost.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ottla.protocol.messages.elect_leaders import ElectLeadersRequest
from ottla.sim.clients.reassigners import Reassigner
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.faults import HostFaults, PathFaults
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.following import LEASE_MS
from ottla.sim.workloads.run import SeedResult, failure_of, outcome_of

SAFETY_MS = 12_000
PACE_US = 25 * MS
KIND_CHANCE = 0.75


class ClusterRun:
    """One seed. `given`: arguments of `ElectedCluster`, for tests that need particular ones."""

    def __init__(self, seed: int, *, keep_all: bool = False, **given: Any) -> None:
        self.cluster = ElectedCluster(seed, keep_all=keep_all, **{**drawn(seed), **given})
        self.trouble = Trouble(self.cluster)

    def outcome(self) -> SeedResult:
        """Run to the end, whatever it is."""
        cluster, world = self.cluster, self.cluster.world
        failure = failure_of(self.go, world.trace)
        return outcome_of(
            world,
            failure,
            lives=sum(host.lives for host in cluster.hosts.values()),
            acknowledged=sum(producer.acknowledged_count for producer in cluster.producers),
            seen=sum(reader.position for reader in cluster.readers),
        )

    def go(self) -> None:
        """Raises InvariantError, or whatever a node lets out."""
        cluster = self.cluster
        cluster.start()
        self._bring_clients(cluster)
        self.trouble.begin()
        cluster.run(SAFETY_MS)
        self.trouble.end()
        self.trouble.before_rest()
        cluster.settle()

    def _bring_clients(self, cluster: ElectedCluster) -> None:
        rng = cluster.world.stream("clients")
        for index in range(cluster.partitions):
            cluster.produce(index, idempotent=True)
            acks = rng.choice((-1, 1, 0))
            cluster.produce(index, acks=acks, idempotent=acks != 0 and rng.random() < 0.3)
            cluster.read(index)
            cluster.read(index, nearby=True)
        for group in ("alpha", "beta"):
            cluster.commit_offsets(group)
        for client in cluster.clients:
            client.pace_us = PACE_US


class Trouble:
    """Causes the faults in a cluster, and decides when."""

    def __init__(self, cluster: ElectedCluster) -> None:
        self.cluster = cluster
        self.rng = cluster.world.stream("trouble")
        self.paths = PathFaults(cluster.world, self.rng)
        self.nodes = {node_id: self._faults_of(node_id) for node_id in cluster.hosts}
        self.reassigner = Reassigner(cluster, self.rng)
        self.active = False
        self._names = [host.name for host in cluster.hosts.values()]
        self._gap_us = self.rng.choice((300, 900, 2_000)) * MS

    def begin(self) -> None:
        """Start the faults."""
        for node_id in self.cluster.hosts:
            self._watch(node_id)
        self.active = True
        kinds = self.kinds()
        self._kinds = [act for act in kinds if self.rng.random() < KIND_CHANCE] or kinds
        self._later()

    def _faults_of(self, node_id: int) -> HostFaults:
        cluster = self.cluster
        return HostFaults(cluster.hosts[node_id], self.rng, power_cuts=False, start=partial(cluster.begin, node_id))

    def _watch(self, node_id: int) -> None:
        host, faults = self.cluster.hosts[node_id], self.nodes[node_id]
        host.died = partial(self._died, partial(self._forgive, node_id), faults)
        faults.write_back()

    def _forgive(self, node_id: int, power_cut: bool) -> None:
        self.cluster.died(node_id, power_cut=power_cut)

    def moved(self, node_id: int) -> None:
        """This node is on another host from now on: the faults are that host's."""
        old = self.nodes[node_id]
        self.nodes[node_id] = self._faults_of(node_id)
        self._names[self._names.index(old.host.name)] = self.cluster.hosts[node_id].name
        self._watch(node_id)

    def kinds(self) -> list[Callable[[], None]]:
        """Return all possible faults, the likely ones more than once."""
        return [
            *(self._kill,) * 3,
            *(self._cut_in_mid_step,) * 2,
            self._stop,
            *(self._stand_still,) * 2,
            self._ail,
            *(self._ail_at_the_store,) * 2,
            self._leap,
            *(self._elect,) * 2,
            *(self.reassigner.move,) * 3,
            self._lull,
            partial(self.paths.cut_path, self._names),
            partial(self.paths.part, self._names),
            partial(self.paths.bad_path, self._names),
            self.paths.break_connection,
        ]

    def end(self) -> None:
        """Cause no new faults, and repair the existing ones."""
        self.active = False
        self.paths.heal()
        for faults in self.nodes.values():
            faults.heal()
        for client in self.cluster.clients:
            client.resume()

    def before_rest(self) -> None:
        """Override for work between the faults and the rest after them."""

    def _later(self) -> None:
        self.cluster.world.agenda.after(self.rng.randrange(self._gap_us), self._strike)

    def _strike(self) -> None:
        if self.active:
            self.rng.choice(self._kinds)()
            self._later()

    def _tell(self, what: str) -> None:
        self.cluster.world.trace.add("faults", what)

    def _died(self, forgiven: Callable[[bool], None], faults: HostFaults, power_cut: bool) -> None:
        forgiven(power_cut)
        faults.node_died()

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _any(self) -> HostFaults:
        """One of the nodes, the controller and the leaders more often than the others."""
        return self.nodes[self.rng.choice([*self.nodes, *(each for each in self.likely() if each in self.nodes)])]

    def likely(self) -> list[int]:
        """Nodes that matter more than others."""
        image = self.cluster.image
        return [-1 if image.controller is None else image.controller.node_id, self.cluster.leader(0) or -1]

    def _may_go_off(self) -> bool:
        """Whether a machine may lose power, and with it what its disk has not written."""
        cluster = self.cluster
        return cluster.fsync or (
            cluster.is_whole()
            and not any(host.disk.ails for host in cluster.hosts.values())
            and not any(checker.forgives for checker in cluster.checkers)
        )

    def _kill(self) -> None:
        power_cut = self._may_go_off() and self.rng.random() < 0.5
        victims = list(self.nodes.values()) if self.rng.random() < 0.1 else [self._any()]
        for faults in victims:
            faults.host.kill(power_cut=power_cut and (self.cluster.fsync or len(victims) == 1))

    def _cut_in_mid_step(self) -> None:
        faults = self._any()
        faults.power_cuts = self.cluster.fsync
        faults.cut_in_mid_step()

    def kill_any(self) -> None:
        """Kill one of the nodes, more often one that matters."""
        self._any().host.kill(power_cut=False)

    def _stop(self) -> None:
        self.cluster.leave(self.rng.choice(list(self.nodes)))

    def _stand_still(self) -> None:
        self._any().stall(self.rng.choice((300, 2 * LEASE_MS)))

    def _ail(self) -> None:
        """Cause faults of one disk at a time: two failing disks may lose acknowledged records."""
        faults = self._any()
        if not any(host.disk.ails for host in self.cluster.hosts.values()):
            self.rng.choice((faults.slow_disk, faults.full_disk, faults.failing_syncs))()

    def _ail_at_the_store(self) -> None:
        faults = self._any()
        self.rng.choice((faults.slow_store, faults.lossy_store, faults.cut_store))()

    def _leap(self) -> None:
        faults, by_ms = self._any(), self.rng.choice((-60_000, -1_500, 300, 3_000, 60_000))
        self._tell(f"the wall clock of {faults.host.name} leaps by {by_ms} ms")
        faults.host.clock.wall_off_ms += by_ms

    # ---- leaders and clients ---------------------------------------------------------------------------------------

    def _elect(self) -> None:
        """Elect preferred leaders."""
        self.cluster.ask(self.rng.choice(list(self.nodes)), ElectLeadersRequest(0, None))

    def _lull(self) -> None:
        """Pause all producers for a while."""
        for producer in self.cluster.producers:
            if not producer.paused:
                producer.pause()
                self.cluster.world.agenda.after(self.rng.randrange(3_000 * MS), producer.resume)


def drawn(seed: int) -> dict[str, Any]:
    """Return the properties of a seed's cluster."""
    return {
        "nodes": (3, 3, 5)[seed % 3],
        "partitions": 1 + seed % 2,
        "by_locks": bool(seed % 4),
        "fsync": seed % 5 in (1, 3),
    }
