"""Finds which nodes of a partition clients can reach, for Metadata and DescribeTopicPartitions.

A replica is offline if its node can't be reached, or reports that the log is offline. A node without a cluster reports
its own logs that fail.

Source: KRaftMetadataCache.scala (getAliveEndpoint, getOfflineReplicas).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.client_identity import Address
from ottla.broker.cluster.members import NOBODY
from ottla.machine import Millis
from ottla.metadata.nodes import TopicIdPartition
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Core


class Reach(NamedTuple):
    """The part of a partition's answer to clients that is not in its record."""

    error_code: ErrorCode
    leader: int
    offline: list[int]


class Reachable:
    """The nodes that serve clients of an address's listener, as this node sees them at one moment."""

    def __init__(self, node: Core, now: Millis, address: Address) -> None:
        self._serving = None if node.members.is_alone else node.members.serving()
        self._reached = node.members.reached(address)
        self._peers = node.peers
        self._now = now
        self._failed = _failed_here(node) if self._serving is None else _failed(node)

    def of(self, placed: PartitionRecord, place: TopicIdPartition) -> Reach:
        """LEADER_NOT_AVAILABLE if there is no leader, or it does not serve, or it was lost a moment ago.

        Clients retry soon after that error; after an answer with an unreachable leader they would wait a second.
        LISTENER_NOT_FOUND if the leader serves, but not on the client's listener.
        """
        leader, reached = placed.leader, self._reached
        failed = self._failed.get(place, frozenset())
        if self._serving is None:
            return Reach(ErrorCode.NONE, leader, [node_id for node_id in placed.replicas if node_id in failed])
        offline = [node_id for node_id in placed.replicas if node_id not in reached or node_id in failed]
        if leader == NOBODY or self.has_lost(leader):
            return Reach(ErrorCode.LEADER_NOT_AVAILABLE, NOBODY, offline)
        if leader not in reached:
            return Reach(ErrorCode.LISTENER_NOT_FOUND, NOBODY, offline)
        return Reach(ErrorCode.NONE, leader, offline)

    @property
    def is_passing(self) -> bool:
        """Whether some answers will soon be different although no row of the cluster changes."""
        if self._serving is None:
            return bool(self._failed)
        return any(self._peers.doubts(self._now, each) for each in self._serving)

    def has_lost(self, leader: int) -> bool:
        """Whether this leader does not serve, or its connection broke a moment ago: another will lead soon."""
        serving = self._serving
        if serving is None or leader == NOBODY:
            return False
        return leader not in serving or self._peers.doubts(self._now, leader)


def _failed_here(node: Core) -> Mapping[TopicIdPartition, frozenset[int]]:
    """The same on a node without a cluster, which has no row."""
    here = frozenset({node.node_id})
    return {
        (partition.log.topic_id, partition.index): here
        for partition in (*node.failures.failing(), *node.topics.unopened())
    }


def _failed(node: Core) -> Mapping[TopicIdPartition, frozenset[int]]:
    """The nodes on which the log of a partition is offline."""
    if not any(record.offline for record in node.image.nodes.values()):
        return {}
    from ottla.broker.cluster.duties import offline_at  # only in a cluster

    return offline_at(node.image)
