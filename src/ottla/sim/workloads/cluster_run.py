"""One run of the cluster workload: a seed, some nodes, a time of trouble, and the rest after it.

Trouble is of nodes (killed, machine off, standing still), of paths between them (cut one way, parted, slow), of
metadata (a node that hears nothing and is given up), and leaders that move. As many nodes as a partition can lose at
once are down at once, and no more machines go off than that.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.faults import PathFaults
from ottla.sim.workloads.cluster import TOPIC, Cluster
from ottla.sim.workloads.run import Outcome, failure_of

SAFETY_MS = 12_000
GAP_US = 900 * MS
DEAD_MAX_US = 2_500 * MS


class ClusterRun:
    """One seed. `make`, as `Cluster`'s, is for tests that plant bugs."""

    def __init__(self, seed: int, *, keep_all: bool = False, **given: object) -> None:
        self.cluster = Cluster(seed, keep_all=keep_all, **_drawn(seed), **given)  # pyright: ignore[reportArgumentType]
        self.rng = self.cluster.world.stream("trouble")
        self.paths = PathFaults(self.cluster.world, self.rng)
        self.active = True

    def outcome(self) -> Outcome:
        """Run to the end, whatever it is."""
        cluster, world = self.cluster, self.cluster.world
        failure = failure_of(self.go, world.trace)
        return Outcome(
            world.seed,
            world.trace.digest(),
            failure,
            list(world.trace.lines),
            sum(host.lives for host in cluster.hosts.values()),
            world.agenda.events_run,
            sum(producer.acknowledged_count for producer in cluster.producers),
            sum(reader.position for reader in cluster.readers),
            world.clock.now_us // MS,
        )

    def go(self) -> None:
        """Raises Broken, or whatever a node lets out."""
        cluster = self.cluster
        cluster.start()
        for index in range(cluster.partitions):
            cluster.produce(index)
            cluster.produce(index, acks=self.rng.choice((-1, -1, 1)))
            cluster.read(index)
        for host in cluster.hosts.values():
            self._write_back(host.disk.write_back)
        self._later()
        cluster.run(SAFETY_MS)
        self.active = False
        cluster.settle()

    def _write_back(self, write_back: Callable[[], None]) -> None:
        write_back()
        self.cluster.world.agenda.after(self.rng.randrange(2_000 * MS), self._write_back, write_back)

    # ---- trouble ---------------------------------------------------------------------------------------------------

    def _later(self) -> None:
        self.cluster.world.agenda.after(self.rng.randrange(GAP_US), self._strike)

    def _strike(self) -> None:
        if not self.active:
            return
        names = [host.name for host in self.cluster.hosts.values()]
        faults: Sequence[Callable[[], None]] = (
            self._kill,
            self._kill,
            self._stop,
            self._stand_still,
            self._deafen,
            self._move_leader,
            self._move_leader,
            partial(self.paths.cut_path, names),
            partial(self.paths.part, names),
            partial(self.paths.bad_path, names),
            self.paths.break_connection,
        )
        self.rng.choice(faults)()
        self._later()

    def _victim(self) -> int | None:
        """A node that may die now."""
        up = self.cluster.up
        return self.rng.choice(up) if len(up) >= self.cluster.min_isr else None

    def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            goes_off = self.cluster.is_whole and self.rng.random() < 0.6
            self.cluster.kill(victim, power_cut=goes_off)
            self._begin_later(victim, intact=not goes_off)

    def _stop(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.cluster.stop(victim)
            self._begin_later(victim)

    def _begin_later(self, node_id: int, *, intact: bool = True) -> None:
        delay_us = self.rng.choice((50 * MS, DEAD_MAX_US))
        self.cluster.world.agenda.after(self.rng.randrange(delay_us), self._begin, node_id, intact)

    def _begin(self, node_id: int, intact: bool) -> None:
        if not self.cluster.hosts[node_id].up:
            self.cluster.begin(node_id, intact=intact)

    def _stand_still(self) -> None:
        node_id = self.rng.choice(self.cluster.up or [0])
        life = self.cluster.hosts[node_id].life if node_id else None
        if life is not None and not life.paused:
            self.cluster.world.trace.add("faults", f"node {node_id} stands still")
            life.pause()
            self.cluster.world.agenda.after(self.rng.randrange(3_000 * MS), life.resume)
            if self.rng.random() < 0.5:
                self.cluster.fence(node_id)
                self.cluster.world.agenda.after(3_000 * MS, self.cluster.register_again, node_id, life)

    def _deafen(self) -> None:
        """A node hears nothing of the metadata for a while, and is given up, while others may still reach it."""
        node_id = self.rng.choice(list(self.cluster.hosts))
        host = self.cluster.hosts[node_id]
        if not self.cluster.deaf and host.up and host.life is not None:
            self.cluster.world.trace.add("faults", f"node {node_id} hears nothing of the metadata")
            self.cluster.deaf.add(node_id)
            self.cluster.fence(node_id)
            delay_us = self.rng.randrange(3_000 * MS)
            self.cluster.world.agenda.after(delay_us, self.cluster.register_again, node_id, host.life)

    def _move_leader(self) -> None:
        """To another in-sync replica, or to the same in a new epoch."""
        index = self.rng.randrange(self.cluster.partitions)
        if self.cluster.leader(index) is not None:
            self.cluster.controller.move_leader(TOPIC, index, self.rng.choice(self.cluster.isr(index)))
            self.cluster.tell_all()


def _drawn(seed: int) -> dict[str, object]:
    """What sort of cluster a seed has."""
    return {"nodes": (3, 3, 5)[seed % 3], "partitions": 1 + seed % 2}
