"""Writes ListOffsets requests, one for each node that is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.client.client import TopicPartition
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

CONSUMER_REPLICA: Final = -1
DEBUGGING_REPLICA: Final = -2
"""As the replica id: any replica reports the end of its own log (ReplicaManager.fetchOffset)."""
TIMEOUT_MS: Final = 30_000


def offsets_requests(
    on: Mapping[TopicPartition, int], time_ms: int, *, isolation: int = 0, replica: int = CONSUMER_REPLICA
) -> dict[int, ListOffsetsRequest]:
    """Asks each node for the offsets of its partitions at a time."""
    by_node: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
    for (topic, index), node_id in on.items():
        rows = by_node.setdefault(node_id, {}).setdefault(topic, [])
        rows.append(ListOffsetsPartition(index, timestamp=time_ms))
    return {
        node_id: ListOffsetsRequest(
            replica, isolation, [ListOffsetsTopic(name, rows) for name, rows in topics.items()], TIMEOUT_MS
        )
        for node_id, topics in by_node.items()
    }
