"""Runs a cluster whose disks lie: what lies on a minority of them is spoiled while their nodes are down.

Beside the trouble of `cluster_run` one node of three, or up to two of five, has bits of its files flipped, files cut
or lost, directories lost, or a copy of its data directory back that was made while it was down. Nothing acknowledged
may be lost, and in the end all replicas are whole and equal without an operator. Machines keep their power: a second
fault may lose what the first one has left.
"""

from collections.abc import Callable
from typing import Any

from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.spoiling import Spoiler
from ottla.sim.workloads.cluster_run import ClusterRun, Trouble, drawn
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.run import DIRECTORY

BACK_UP_CHANCE = 0.3
SCRUB_MS = 3_000
SCRUBBING = {"ottla.scrub.interval.ms": str(SCRUB_MS), "ottla.scrub.bytes.per.second": "100000000"}


class SpoiledRun(ClusterRun):
    """One seed."""

    def __init__(self, seed: int, *, keep_all: bool = False, **given: Any) -> None:
        two = seed % 6 == 5
        mine: dict[str, Any] = {"nodes": 5, "min_isr": 3, "replicas": 5} if two else {}
        mine["settings"] = SCRUBBING
        super().__init__(seed, keep_all=keep_all, **{**drawn(seed), **mine, **given})
        self.trouble: SpoilingTrouble = SpoilingTrouble(self.cluster, liars=2 if two else 1)

    def before_rest(self) -> None:
        """Every log is scrubbed, and what that finds is copied again."""
        self.cluster.heal()
        self.cluster.run(2 * SCRUB_MS)


class SpoilingTrouble(Trouble):
    """Causes the faults; `liars`: number of nodes whose disks are spoiled."""

    def __init__(self, cluster: ElectedCluster, liars: int) -> None:
        super().__init__(cluster)
        chosen = self.rng.sample(sorted(cluster.hosts), liars)
        self.spoilers = {
            node_id: Spoiler(cluster.hosts[node_id].disk, DIRECTORY, cluster.world.stream(f"spoiler-{node_id}"))
            for node_id in chosen
        }
        self.strikes: list[str] = []
        """The damage done to disks, for tests."""

    def kinds(self) -> list[Callable[[], None]]:
        return [*super().kinds(), *(self._spoil,) * 6]

    def _may_go_off(self) -> bool:
        return False

    def _ail(self) -> None:
        """Disks only lie here."""

    def _spoil(self) -> None:
        """One of the liars is down, killed or stopped, and comes back to a spoiled disk."""
        node_id = self.rng.choice(sorted(self.spoilers))
        host = self.cluster.hosts[node_id]
        if host.up:
            if self.rng.random() < 0.3:
                self.cluster.leave(node_id)
                self.cluster.world.agenda.after(self.rng.randrange(1_000 * MS), self._spoil_what_is_down, node_id)
                return
            host.kill(power_cut=False)
        self._spoil_what_is_down(node_id)

    def _spoil_what_is_down(self, node_id: int) -> None:
        host = self.cluster.hosts[node_id]
        if self.active and not host.up:
            if self.rng.random() < BACK_UP_CHANCE:
                self.spoilers[node_id].back_up()
                return
            what = self.spoilers[node_id].spoil()
            self.strikes.append(what)
            self._tell(f"{host.name} {what}")
            for checker in self.cluster.checkers:
                checker.liars.add(node_id)
                checker.lost_power(node_id, in_sync_too=True)
