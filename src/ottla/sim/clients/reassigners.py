"""Simulates an administrator of a cluster who moves replicas of partitions to other nodes, and cancels some moves.

He sends requests to any node and waits for no answer. He never asks for so few replicas that losing them one by one
could lose acknowledged records. The checkers of metadata and of replicas see the results.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ottla.metadata.image import MetadataImage
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

CANCELS = 0.2
REPLICAS_MAX = 4


class MovableCluster(Protocol):
    """A cluster whose replicas can be moved."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def hosts(self) -> Mapping[int, object]: ...

    @property
    def min_isr(self) -> int: ...

    def ask(self, node_id: int, message: Any) -> None: ...


class Reassigner:
    """See the module's docstring."""

    def __init__(self, cluster: MovableCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng

    def move(self) -> None:
        """Move one partition of any topic to other nodes, or cancel its move."""
        cluster, rng = self._cluster, self._rng
        if not cluster.image.topics:
            return
        name = rng.choice(sorted(cluster.image.topics))
        index = rng.randrange(len(cluster.image.topics[name].partitions))
        nodes = list(cluster.hosts)
        size = rng.randrange(cluster.min_isr, min(len(nodes), REPLICAS_MAX) + 1)
        self.ask(name, index, None if rng.random() < CANCELS else rng.sample(nodes, size))

    def ask(self, name: str, index: int, target: Sequence[int] | None) -> None:
        """Request a move of this partition to these nodes; None cancels a move."""
        asked = ReassignablePartition(index, None if target is None else list(target))
        node_id = self._rng.choice(list(self._cluster.hosts))
        topics = [ReassignableTopic(name, [asked])]
        self._cluster.ask(node_id, AlterPartitionReassignmentsRequest(topics=topics))
