"""Reports the state of this node's logs for its own row: which are offline, where they end, which leaders are refused.

Source: KIP-858 for failed logs; KIP-966 for what the controller does with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet

from ottla.broker.cluster.elections import awaits_logs, needs_log_ends
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import Replicas
from ottla.metadata.nodes import NO_LOG, FoundTopic, LogEnd, NodeState, TopicIdPartition
from ottla.replica.copy_status import Event


class OwnLogs:
    """The replicas of one node; a `membership.OwnLogs`. `takes_nothing`: whether writes to a replica's log fail;
    `unreadable`: the partitions with a place that can't be read. `found`: see there."""

    def __init__(
        self,
        node_id: int,
        metadata: Metadata,
        replicas: Replicas,
        takes_nothing: Callable[[Partition], bool],
        unreadable: Callable[[], Collection[Partition]],
        found: Callable[[], tuple[FoundTopic, ...]],
    ) -> None:
        self.found = found
        self._node_id = node_id
        self._metadata = metadata
        self._replicas = replicas
        self._takes_nothing = takes_nothing
        self._unreadable = unreadable

    def offline(self) -> tuple[TopicIdPartition, ...]:
        """See `membership.OwnLogs`."""
        unreadable = self._unreadable()
        return tuple(
            sorted(
                place
                for place, partition in self._placed(replicas_min=1)
                if partition.log.failed is not None
                or self._takes_nothing(partition)
                or (partition in unreadable and self._is_reported(partition))
            )
        )

    def _is_reported(self, partition: Partition) -> bool:
        """Whether the cluster is told that a place can't be read: there is no other replica, or another one is in sync.
        That one may have reported that it is offline too: then the leader stays."""
        image, place = self._metadata.image, (partition.log.topic_id, partition.index)
        placed = image.partition(partition.topic_name, partition.index)
        if placed is None:
            return False
        if len(placed.replicas) == 1:
            return True
        others = [str(node_id) for node_id in placed.isr if node_id != self._node_id]
        return any(
            row.state is NodeState.ACTIVE and not (partition.leads and place in row.offline)
            for name in others
            if (row := image.nodes.get(name)) is not None
        )

    def some_can_not_be_read(self) -> bool:
        """See `membership.OwnLogs`."""
        return bool(self._unreadable())

    def incomplete(self) -> tuple[TopicIdPartition, ...]:
        """See `membership.OwnLogs`."""
        return tuple(sorted(place for place, partition in self._replicated() if partition.copy.is_reported))

    def found_emptied(self) -> None:
        """See `membership.OwnLogs`."""
        for _, partition in self._replicated():
            partition.copy.on(Event.REPLACED)
            self._look_whether_undecided(partition)

    def found_incomplete(self, places: AbstractSet[TopicIdPartition]) -> None:
        """See `membership.OwnLogs`."""
        for place, partition in self._replicated():
            if place in places:
                partition.copy.on(Event.MAY_LACK)
                self._look_whether_undecided(partition)

    def _look_whether_undecided(self, partition: Partition) -> None:
        """If the logs decide who leads, this one counts with what it has: the start may find that it lacks records
        only after it has seen that."""
        placed = self._metadata.image.partition(partition.topic_name, partition.index)
        if placed is not None and awaits_logs(placed):
            partition.copy.on(Event.UNDECIDED)

    def log_ends(self) -> dict[TopicIdPartition, tuple[int, LogEnd]]:
        """See `membership.OwnLogs`."""
        ends: dict[TopicIdPartition, tuple[int, LogEnd]] = {}
        for topic in self._metadata.image.topics.values():
            for index, placed in enumerate(topic.partitions):
                partition = self._replicas.get(topic.id, index) if needs_log_ends(placed) else None
                is_current = partition is not None and partition.leader_epoch == placed.leader_epoch
                if partition is not None and is_current and partition.log.failed is None:
                    end = LogEnd(*partition.sound_end) if partition.copy.has_end else NO_LOG
                    ends[topic.id, index] = placed.leader_epoch, end
        return ends

    def refusing(self) -> dict[TopicIdPartition, int]:
        """See `membership.OwnLogs`."""
        return {
            place: partition.leader_epoch
            for place, partition in self._replicated()
            if partition.refused_epoch == partition.leader_epoch
        }

    def _replicated(self) -> Iterator[tuple[TopicIdPartition, Partition]]:
        """The partitions here that have replicas on other nodes, by the image."""
        return self._placed(replicas_min=2)

    def _placed(self, *, replicas_min: int) -> Iterator[tuple[TopicIdPartition, Partition]]:
        """The partitions here with so many replicas, by the image."""
        topics = self._metadata.image.topics_by_id
        for local in self._replicas.by_name.values():
            placed = topics[local.id].partitions if local.id in topics else ()
            for index, partition in local.partitions.items():
                if index < len(placed) and len(placed[index].replicas) >= replicas_min:
                    yield (local.id, index), partition
