"""Does the client's picture of a partition's leadership hold? One place for the epoch checks of KIP-320.

Order, as everywhere in Kafka: epoch, then leadership, then the rest. A lower epoch than ours: the client is behind. A
higher one: we are. -1: the client does not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.partitions.partition import Partition

NOT_SAID: Final = -1


def find_led(node: Node, topic: str, index: int, current_leader_epoch: int) -> Partition | ErrorCode:
    """The partition, where this node leads it in the epoch that the client believes in; else why not."""
    partition = node.replicas.get(topic, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if current_leader_epoch != NOT_SAID:
        if current_leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if current_leader_epoch > partition.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
    if partition.leader != node.node_id:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if partition.log.unopened:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return partition
