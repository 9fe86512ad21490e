"""Checks every commit of a cluster's metadata store when it is made: its writer, and the changes of partitions.

    7   in-sync and eligible replicas are replicas, none is both; a leader is in sync; only active nodes join, in the
        broker epoch that was named; epochs only rise
    9   only the incarnation of the node that has the controller's claim writes topics
    3   a leader that was elected cleanly was in sync, or eligible

The numbers are those of the invariants of a replicated log (`replica_checkers`).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord, NodeState
from ottla.metadata.store import Put, Versioned, VersionGuard, Write
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.metadata.topics import PartitionRecord, TopicRecord
from ottla.sim.kernel.disk import Disk
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.store import FarStore, SimStore
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.following import incarnation_on


class WatchedStore(SimStore):
    """The cluster's store. `writer`: the node that commits, and its incarnation; `committed` is called after each
    commit."""

    __slots__ = ("_min_isr", "committed", "writer")

    def __init__(self, disk: Disk, min_isr: int) -> None:
        super().__init__(disk)
        self._min_isr = min_isr
        self.writer: tuple[int, str] | None = None
        self.committed: Callable[[], None] | None = None

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        before = {write.key: self.get(write.key) for write in writes}
        claim = self._claim()
        generation = super().commit(writes, guards)
        for write in writes:
            if write.key.startswith(TOPIC_PREFIX):
                new = TopicRecord.decode(write.value) if isinstance(write, Put) else None
                self._check_topic(write.key, before[write.key], new, claim)
        if self.committed is not None:
            self.committed()
        return generation

    def _claim(self) -> ControllerRecord | None:
        row = self.get(CONTROLLER_KEY)
        return None if row is None else ControllerRecord.decode(row.value)

    def _check_topic(
        self, key: str, old: Versioned | None, new: TopicRecord | None, claim: ControllerRecord | None
    ) -> None:
        known = None if old is None else TopicRecord.decode(old.value)
        if claim is None or (claim.node_id, claim.incarnation) != self.writer:
            raise InvariantError(f"9: {key} is written by {self.writer}, and {claim} is the controller")
        if new is None or known is None or known.topic_id != new.topic_id:
            return
        for index, (before, after) in enumerate(zip(known.partitions, new.partitions, strict=False)):
            if before != after:
                self._check_change(f"{key}-{index}", before, after)

    def _check_change(self, name: str, before: PartitionRecord, after: PartitionRecord) -> None:
        isr, elr = set(after.isr), set(after.elr)
        enough = min(self._min_isr, len(after.replicas))
        rules = {
            "in-sync and eligible replicas are replicas": isr | elr <= set(after.replicas),
            "nobody is in both sets": not isr & elr,
            "a leader is in sync": after.leader == -1 or after.leader in isr,
            "a set that is enough has nobody beside it": not elr or len(isr) < enough,
            "the partition epoch rises": after.partition_epoch > before.partition_epoch,
            "a change of leader raises its epoch": (after.leader == before.leader)
            or after.leader_epoch > before.leader_epoch,
            "replicas stay until all of the target are in sync, or it is cancelled": set(before.replicas)
            <= set(after.replicas)
            or set(after.isr) == set(after.replicas)
            or after.replicas == before.origin,
            "who loses a replica is fenced": set(before.replicas) <= set(after.replicas)
            or after.leader_epoch > before.leader_epoch,
            "leader epochs never fall": after.leader_epoch >= before.leader_epoch,
            "who joins is active": all(self._is_active(member) for member in isr - set(before.isr)),
            "a clean leader held everything": after.leader in (-1, before.leader)
            or after.recovering
            or after.leader in {*before.isr, *before.elr}
            or (before.is_moving and after.replicas == before.target),  # its joining was the end of the move
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise InvariantError(f"7: {broken[0]}, but {name}: {before} becomes {after}")

    def _is_active(self, node_id: int) -> bool:
        row = self.get(f"{NODE_PREFIX}{node_id}")
        return row is not None and NodeRecord.decode(row.value).state is NodeState.ACTIVE


class OwnStore(FarStore):
    """The path to the store of a node on this host."""

    def __init__(self, store: WatchedStore, rng: random.Random, host: Host, node_id: int) -> None:
        super().__init__(store, rng)
        self._watched = store
        self._host = host
        self._node_id = node_id

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        self._watched.writer = self._node_id, incarnation_on(self._host, self._node_id)
        try:
            return super().commit(writes, guards)
        finally:
            self._watched.writer = None

    def by_rival(self, write: Put) -> bytes:
        """A topic of another client has another id: the one in `write` names an attempt of this client's request. Every
        node that adopts a topic takes its id from the logs."""
        if not write.key.startswith(TOPIC_PREFIX):
            return write.value
        record = TopicRecord.decode(write.value)
        return write.value if record.adopted else replace(record, topic_id=record.topic_id[::-1]).encode()
