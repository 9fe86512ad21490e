"""Simulates how the nodes of a cluster learn which nodes are present and what was committed.

Each node polls every few milliseconds, as `ottla.server.metadata_follower` does. It renews its lease, reads which
incarnations of other nodes are present, reads what its image lacks from the metadata store, and informs the node. A
node that is cut off from the store renews nothing, and counts as gone when its lease has expired. A killed node is
missed at once if a lock reveals that (`by_locks`, nodes of one machine), otherwise when its lease has expired.

Source: server/metadata_follower.py and server/presence.py, which this module replaces.
"""

from collections.abc import Mapping

from ottla.broker.cluster.membership import Membership
from ottla.broker.node import Node
from ottla.machine import Millis
from ottla.metadata.image import MetadataDelta, delta_since
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.store import FarStore
from ottla.sim.kernel.world import World

LEASE_MS = 2_000
TRUST_MS = 1_300
"""How long a node trusts its state: it stops before other nodes consider it dead."""
LOOK_US: Micros = 15 * MS


def incarnation_on(host: Host, node_id: int) -> str:
    """Return the name of the incarnation of this node that runs on this host."""
    return f"{node_id}-{host.lives}"


class Following:
    """The polls of the nodes on these hosts, by node id; each host has its path to the store."""

    def __init__(self, world: World, hosts: Mapping[int, Host], *, by_locks: bool = True) -> None:
        self._world = world
        self._hosts = hosts
        self._by_locks = by_locks
        self._rng = world.stream("following")
        self._renewed: dict[int, tuple[Micros, int, str]] = {}
        """When each node last renewed its lease, and in which incarnation, by number and by name."""

    def incarnation_of(self, node_id: int) -> str:
        """Return the name of this node's current incarnation."""
        return incarnation_on(self._hosts[node_id], node_id)

    def begin(self, node_id: int) -> None:
        """Start polling for a node that has started a new incarnation."""
        life = self._hosts[node_id].life
        assert life is not None
        self._look(node_id, life)

    def leave(self, node_id: int) -> None:
        """Handle the report of a node that has stopped."""
        self._renewed.pop(node_id, None)

    def present(self) -> dict[int, str]:
        """Return the incarnations that are present now, by node id."""
        oldest_us = self._world.clock.now_us - LEASE_MS * MS
        present: dict[int, str] = {}
        for node_id, (renewed_us, lives, incarnation) in sorted(self._renewed.items()):
            host = self._hosts[node_id]
            if renewed_us >= oldest_us and ((lives == host.lives and host.up) or not self._by_locks):
                present[node_id] = incarnation
        return present

    # ---- polls -----------------------------------------------------------------------------------------------------

    def _look(self, node_id: int, life: Life) -> None:
        if not life.alive or life.host is not self._hosts[node_id]:
            return  # it has ended, or another process has taken the place of this node
        agenda, host = self._world.agenda, self._hosts[node_id]
        store = host.store
        assert store is not None
        if life.paused or store.is_cut:
            agenda.after(LOOK_US, self._look, node_id, life)
            return
        self._renewed[node_id] = self._world.clock.now_us, host.lives, self.incarnation_of(node_id)
        renewed_at, present = host.clock.now_ms, self.present()
        delta = self._news(life, store)
        agenda.after(store.latency(2 * MS), self._hear, node_id, life, delta, present, renewed_at)

    def _news(self, life: Life, store: FarStore) -> MetadataDelta | None:
        """Return the store's changes that the node's image lacks."""
        assert isinstance(life.node, Node)
        image = life.node.image
        return delta_since(store, image) if store.generation != image.generation else None

    def _hear(
        self, node_id: int, life: Life, delta: MetadataDelta | None, present: Mapping[int, str], renewed_at: Millis
    ) -> None:
        if life.paused:
            self._world.agenda.after(LOOK_US, self._hear, node_id, life, delta, present, renewed_at)
        elif life.alive:
            if self._is_known(life, delta, present):
                self._membership(life).confirmed(renewed_at)  # nearly all polls end here, without further effects
                life.stepped()
            else:
                life.enter(self._tell, life.node, delta, present, renewed_at)
            self._world.agenda.after(self._rng.randrange(LOOK_US), self._look, node_id, life)

    def _is_known(self, life: Life, delta: MetadataDelta | None, present: Mapping[int, str]) -> bool:
        """Whether a node with a valid lease already knows everything that a poll has found."""
        membership, clock = self._membership(life), life.host.clock
        if delta is not None or present != membership.present:
            return False
        return life.wall_ahead_ms == clock.wall_ahead_ms and membership.is_fresh(clock.now_ms)

    def _membership(self, life: Life) -> Membership:
        assert isinstance(life.node, Node)
        assert life.node.membership is not None
        return life.node.membership

    def _tell(
        self, now: Millis, node: Node, delta: MetadataDelta | None, present: Mapping[int, str], renewed_at: Millis
    ) -> None:
        membership = node.membership
        assert membership is not None
        if delta is not None and delta.generation > node.image.generation:
            node.changed(now, delta)
        membership.confirmed(renewed_at)
        if present != membership.present:
            membership.seen(now, present)
