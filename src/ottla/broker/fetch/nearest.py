"""Chooses the replica that a consumer should fetch from: one in the consumer's own rack (KIP-392).

The leader names a replica only if it is in sync, active, and has the consumer's listener and the wanted offset. Of
several, it names the one with the greatest end offset. If the leader itself is in that rack, or no replica is, the
consumer stays with the leader.

Sources: KIP-392; Kafka's RackAwareReplicaSelector.java, ReplicaManager.findPreferredReadReplica.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.metadata.nodes import NodeRecord, NodeState

if TYPE_CHECKING:
    from ottla.replica.followers import Followers


def nearest(followers: Followers, nodes: Mapping[str, NodeRecord], listener: str, rack: str, offset: int) -> int | None:
    """The node that a consumer of this listener and rack shall fetch from; None: from the leader."""
    if _rack_of(nodes, followers.node_id) == rack:
        return None
    near = [
        (follower.end_offset, node_id)
        for node_id, follower in followers.followers.items()
        if node_id in followers.isr
        and follower.log_start_offset <= offset <= follower.end_offset
        and _rack_of(nodes, node_id) == rack
        and nodes[str(node_id)].endpoint(listener) is not None
    ]
    return max(near)[1] if near else None


def _rack_of(nodes: Mapping[str, NodeRecord], node_id: int) -> str | None:
    """The rack of an active node."""
    record = nodes.get(str(node_id))
    return None if record is None or record.state is not NodeState.ACTIVE else record.rack
