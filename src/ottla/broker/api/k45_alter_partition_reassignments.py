"""AlterPartitionReassignments, key 45, versions 0 to 1: move replicas of partitions to other brokers.

What it does: one node is the only place there is, so a partition may be put where it is, and nowhere else.

What changed per version: 1 whether the replication factor may change (KIP-860; it can't here).

What is skipped: replicas on other brokers; there are none (INVALID_REPLICA_ASSIGNMENT).

Source: ReplicationControlManager.alterPartitionReassignments; KIP-455.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.topic_creation import TopicRefused, check_brokers
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> Any:
    return node.slices.each_partition(request, partial(_answer, node), answered=("responses", "partitions"))


def _answer(node: Node, request: Request) -> AlterPartitionReassignmentsResponse:
    body: AlterPartitionReassignmentsRequest = request.body
    answer = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=None if body.topics else "",
    )
    if not node.access.on_cluster(request, Operation.ALTER):
        answer.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return answer
    answer.responses = [
        ReassignableTopicResponse(topic.name, [_of_partition(node, topic.name, asked) for asked in topic.partitions])
        for topic in body.topics
    ]
    return answer


def _of_partition(node: Node, name: str, asked: ReassignablePartition) -> ReassignablePartitionResponse:
    index = asked.partition_index
    try:
        _check(node, name, asked)
    except TopicRefused as refused:
        return ReassignablePartitionResponse(index, refused.error_code, refused.sentence)
    return ReassignablePartitionResponse(index, ErrorCode.NONE, None)


def _check(node: Node, name: str, asked: ReassignablePartition) -> None:
    """Raise TopicRefused unless the partition is there and is to be where it is."""
    topic = node.image.topics.get(name)
    if topic is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= asked.partition_index < len(topic.partitions):
        raise TopicRefused(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{asked.partition_index}."
        )
    if asked.replicas is None:
        raise TopicRefused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_brokers(node, asked.replicas)
