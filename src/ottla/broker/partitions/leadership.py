"""Decides whether this node leads a partition, or which error applies: in one place, for all requests.

It reads the replicas on this node, and the metadata image for partitions without one. The order of checks is Kafka's
everywhere: whether the partition exists, the epoch, leadership, then the log. A lower epoch than ours means that the
client is behind; a higher one means that this node is (KIP-320).

Source: ReplicaManager.getPartitionOrError, Partition.checkCurrentLeaderEpoch.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import Replicas
from ottla.metadata.nodes import TopicIdPartition
from ottla.protocol.errors import ErrorCode

NOT_SAID: Final = -1
"""The epoch of a client that sends none."""


class Leadership:
    """Asked once for each partition that a request names."""

    __slots__ = ("_behind", "_by_key", "_metadata", "given_up", "members", "suspended")

    def __init__(self, metadata: Metadata, replicas: Replicas, members: Members) -> None:
        self.members = members
        self.suspended = False
        """The node has had no contact to its cluster for so long that others may lead in its place."""
        self.given_up: AbstractSet[TopicIdPartition] = frozenset()
        """Partitions that others may lead by now, as the node has reported that their logs are offline
        (`Membership.given_up`)."""
        self._metadata = metadata
        self._by_key = replicas.by_key
        self._behind = replicas.behind

    def led(
        self,
        topic: str | bytes,
        index: int,
        current_leader_epoch: int = NOT_SAID,
        *,
        of_any_replica: bool = False,
        by_follower: bool = False,
    ) -> Partition | ErrorCode:
        """The partition of the topic of this name or id, if this node leads it in the client's epoch and its log is
        open; otherwise the error.

        - `of_any_replica`: accept a partition that it follows, too.
        - `by_follower`: another replica asks. It may copy a partition that others may lead by now; they do not before
          they have its records.
        """
        local = self._by_key.get(topic)
        partition = None if local is None else local.partitions.get(index)
        if partition is None:
            return self._absent(topic, index)
        if current_leader_epoch != NOT_SAID and current_leader_epoch != partition.leader_epoch:
            behind = current_leader_epoch < partition.leader_epoch
            return ErrorCode.FENCED_LEADER_EPOCH if behind else ErrorCode.UNKNOWN_LEADER_EPOCH
        if self.suspended or not (partition.leads or of_any_replica) or (self._behind and self._is_behind(partition)):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.log.unopened or (self.given_up and not by_follower and self.is_in_doubt(topic, index)):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return partition

    def is_in_doubt(self, topic: str | bytes, index: int) -> bool:
        """Whether another node may lead this partition by now, although it is led here."""
        if self.suspended or not (self.given_up or self._behind):
            return self.suspended
        local = self._by_key.get(topic)
        if local is None:
            return False
        partition = local.partitions.get(index)
        return (local.id, index) in self.given_up or (partition is not None and self._is_behind(partition))

    def _is_behind(self, partition: Partition) -> bool:
        """Whether the cluster has agreed on another leader epoch, and the partition has still to follow."""
        if partition.topic_name not in self._behind:
            return False
        known = self.leader_of(partition.topic_name, partition.index)
        return known is None or known[1] != partition.leader_epoch

    def holds(self, partition: Partition) -> bool:
        """Whether this node leads the partition, as far as it knows. A partition in doubt counts until the node knows
        more."""
        local = self._by_key.get(partition.topic_name)
        is_here = local is not None and local.partitions.get(partition.index) is partition
        return is_here and partition.leads and not partition.log.unopened

    def all_led(self, topic: str) -> list[Partition]:
        """All partitions of this topic that this node leads."""
        local = self._by_key.get(topic)
        return [] if local is None else [partition for partition in local.partitions.values() if partition.leads]

    def leader_of(self, topic: str | bytes, index: int) -> tuple[int, int] | None:
        """(node id, epoch) of the leader that the cluster agrees on, for clients that asked another node (KIP-951)."""
        image = self._metadata.image
        known = image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return None
        return known.partitions[index].leader, known.partitions[index].leader_epoch

    def _absent(self, topic: str | bytes, index: int) -> ErrorCode:
        """Why there is no replica of this partition here."""
        if self.leader_of(topic, index) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if isinstance(topic, bytes) and topic not in self._metadata.image.topics_by_id:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
