"""ElectLeaders, key 43, versions 0 to 2: have partitions led by their preferred replica, or by any that is left.

What it does: every partition of one node is led by its only replica, so no election is ever needed; says so of those
that are named (ELECTION_NOT_NEEDED), and nothing of the partitions when all are asked for.

What changed per version: 1 the type of election and a top-level error, 2 flexible.

Source: ReplicationControlManager.electLeaders; KIP-460.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


ELECTION_TYPES = (0, 1)
"""Preferred and unclean, as ElectionType.java numbers them."""


def handle(node: Node, request: Request) -> Any:
    return node.slices.each_partition(
        request,
        partial(_answer, node),
        ("topic_partitions", "partitions"),
        ("replica_election_results", "partition_result"),
    )


def _answer(node: Node, request: Request) -> ElectLeadersResponse:
    body: ElectLeadersRequest = request.body
    if not node.access.on_cluster(request, Operation.ALTER):
        return ElectLeadersResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    asked = body.topic_partitions
    if asked is None:
        return ElectLeadersResponse(
            replica_election_results=[ReplicaElectionResult(name) for name in sorted(node.image.topics)]
        )
    if body.election_type not in ELECTION_TYPES:
        refused = ErrorCode.INVALID_REQUEST, f"Unknown election type {body.election_type}"
        return ElectLeadersResponse(
            error_code=refused[0],
            replica_election_results=[
                ReplicaElectionResult(each.topic, [PartitionResult(index, *refused) for index in each.partitions])
                for each in asked
            ],
        )
    return ElectLeadersResponse(replica_election_results=[_of_topic(node, each) for each in asked])


def _of_topic(node: Node, asked: TopicPartitions) -> ReplicaElectionResult:
    topic = node.image.topics.get(asked.topic)
    results: list[PartitionResult] = []
    for index in asked.partitions:
        error, sentence = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        if topic is None:
            error, sentence = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {asked.topic}"
        elif not 0 <= index < len(topic.partitions):
            error, sentence = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {asked.topic}-{index}"
        results.append(PartitionResult(index, error, sentence))
    return ReplicaElectionResult(asked.topic, results)
