"""ElectLeaders, key 43, versions 0 to 2: have partitions led by their preferred replica, or by any that is left.

On a standalone node each partition is led by its only replica, so no election is ever needed. In a cluster the
controller elects the first replica of the assignment if it is in sync. An unclean election elects any live replica if
none in sync is live. If the request names no partition, it means all, and those that need no election are left out of
the answer.

Versions: 1 the type of election and a top-level error, 2 flexible.

Source: ReplicationControlManager.electLeaders; KIP-460.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned, RowBatch
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.machine import Millis
from ottla.metadata.store import StoreError
from ottla.metadata.topics import PartitionRecord, TopicImage
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ELECT_LEADERS,
    versions=(0, 2),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
PREFERRED, UNCLEAN = 0, 1
"""The types of election, as ElectionType.java numbers them."""


def handle(node: Core, request: Request) -> Any:
    return node.slices.each_partition(
        request,
        partial(_serve, node),
        ("topic_partitions", "partitions"),
        ("replica_election_results", "partition_result"),
    )


def refused(request: Request, error: ErrorCode, sentence: str) -> ElectLeadersResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return ElectLeadersResponse(
        error_code=error,
        replica_election_results=[
            ReplicaElectionResult(each.topic, [PartitionResult(index, error, sentence) for index in each.partitions])
            for each in request.body.topic_partitions or ()
        ],
    )


def _serve(node: Core, request: Request) -> ElectLeadersResponse | Parked:
    body: ElectLeadersRequest = request.body
    if not node.access.on_cluster(request, Operation.ALTER):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return refused(request, denied, denied.message)
    asked = body.topic_partitions
    if asked is not None and body.election_type not in (PREFERRED, UNCLEAN):
        return refused(request, ErrorCode.INVALID_REQUEST, f"Unknown election type {body.election_type}")
    return node.slices.begin(request, _answer(node, request), is_long=False)


def _answer(node: Core, request: Request) -> Work:
    try:
        return (yield lambda now: _electing(node, request.body, now))
    except StoreError as failed:
        node.notes(f"leaders could not be elected: {failed}")
        return refused(request, error_of(failed), str(failed))


def _electing(node: Core, body: ElectLeadersRequest, now: Millis) -> Planned:
    changed: dict[str, list[PartitionRecord]] = {}
    results: list[ReplicaElectionResult] = []
    for asked in _all(node) if body.topic_partitions is None else body.topic_partitions:
        result = _of_topic(node, asked, body.election_type, changed)
        if body.topic_partitions is None:
            result.partition_result = [
                each for each in result.partition_result if ErrorCode(each.error_code) is not NOT_NEEDED
            ]
        results.append(result)
    if changed:
        from ottla.broker.cluster.duties import topic_row  # only in a cluster

        rows = [topic_row(node.image.topics[name], partitions) for name, partitions in changed.items()]
        yield RowBatch(rows, (), node.members.guards(rows))
    return ElectLeadersResponse(replica_election_results=results)


def _all(node: Core) -> Iterable[TopicPartitions]:
    topics = sorted(node.image.topics.items())
    return [TopicPartitions(name, list(range(len(topic.partitions)))) for name, topic in topics]


def _of_topic(
    node: Core, asked: TopicPartitions, election_type: int, changed: dict[str, list[PartitionRecord]]
) -> ReplicaElectionResult:
    topic = node.image.topics.get(asked.topic)
    results: list[PartitionResult] = []
    for index in asked.partitions:
        if topic is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(PartitionResult(index, unknown, f"No such topic as {asked.topic}"))
        elif not 0 <= index < len(topic.partitions):
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(PartitionResult(index, unknown, f"No such partition as {asked.topic}-{index}"))
        else:
            results.append(_elect(node, topic, index, election_type, changed))
    return ReplicaElectionResult(asked.topic, results)


def _elect(
    node: Core, topic: TopicImage, index: int, election_type: int, changed: dict[str, list[PartitionRecord]]
) -> PartitionResult:
    placed = topic.partitions[index]
    after = placed
    if node.membership is not None:
        after = node.membership.controller.elected(topic, index, placed, unclean=election_type == UNCLEAN)
    is_led = placed.leader == placed.replicas[0] if election_type == PREFERRED else placed.leader >= 0
    if after is placed and (is_led or node.membership is None):
        sentence = "Leader election not needed for topic partition."
        return PartitionResult(index, NOT_NEEDED, sentence)
    if after is placed or after.leader == -1:
        error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        if election_type == UNCLEAN:
            error = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return PartitionResult(index, error, error.message)
    changed.setdefault(topic.name, list(topic.partitions))[index] = after
    return PartitionResult(index, 0, None)
