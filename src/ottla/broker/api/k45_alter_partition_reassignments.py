"""AlterPartitionReassignments, key 45, versions 0 to 1: move replicas of partitions to other nodes, or cancel that.

The controller checks each partition separately and writes the valid changes in one batch. A target for a partition that
is already moving replaces the previous target; null cancels. On a standalone node a partition may only be moved to
where it is.

Versions: 1 whether the number of replicas may change (KIP-860); in version 0 it may.

Not supported: nothing.

Source: ReplicationControlManager.alterPartitionReassignments; KIP-455.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.topic_creation import TopicRefusedError, check_brokers
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
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


def handle(node: Core, request: Request) -> Any:
    return node.slices.each_partition(request, partial(_serve, node), answered=("responses", "partitions"))


def refused(request: Request, error: ErrorCode, sentence: str) -> AlterPartitionReassignmentsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    body: AlterPartitionReassignmentsRequest = request.body
    responses = [
        ReassignableTopicResponse(
            topic.name,
            [ReassignablePartitionResponse(each.partition_index, error, sentence) for each in topic.partitions],
        )
        for topic in body.topics
    ]
    return AlterPartitionReassignmentsResponse(error_code=error, error_message=sentence, responses=responses)


def _serve(node: Core, request: Request) -> AlterPartitionReassignmentsResponse | Parked:
    body: AlterPartitionReassignmentsRequest = request.body
    answer = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_message=None if body.topics else "",
    )
    if not node.access.on_cluster(request, Operation.ALTER):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return refused(request, denied, denied.message)
    return node.slices.begin(request, _answer(node, body, answer), is_long=False)


def _answer(node: Core, body: AlterPartitionReassignmentsRequest, answer: AlterPartitionReassignmentsResponse) -> Work:
    try:
        answer.responses = yield lambda now: _moving(node, body, now)
    except StoreError as failed:
        node.notes(f"replicas could not be moved: {failed}")
        answer.error_code, answer.error_message = error_of(failed), str(failed)
    return answer


def _moving(node: Core, body: AlterPartitionReassignmentsRequest, now: Millis) -> Planned:
    changed: dict[str, list[PartitionRecord]] = {}
    results: list[ReassignableTopicResponse] = []
    for topic in body.topics:
        told = [_result(node, body, topic.name, asked, changed) for asked in topic.partitions]
        results.append(ReassignableTopicResponse(topic.name, told))
    if changed:
        from ottla.broker.cluster.duties import topic_row  # only in a cluster

        rows = [topic_row(node.image.topics[name], partitions) for name, partitions in changed.items()]
        yield RowBatch(rows, (), node.members.guards(rows))
    return results


def _result(
    node: Core,
    body: AlterPartitionReassignmentsRequest,
    name: str,
    asked: ReassignablePartition,
    changed: dict[str, list[PartitionRecord]],
) -> ReassignablePartitionResponse:
    """The result of one partition; if the partition changes, it is added to `changed`."""
    index = asked.partition_index
    try:
        topic = _topic(node, name, index)
        partitions = changed.get(name, list(topic.partitions))
        after = _moved(node, topic, index, partitions[index], asked.replicas, body.allow_replication_factor_change)
    except TopicRefusedError as refused:
        return ReassignablePartitionResponse(index, refused.error_code, refused.sentence)
    if after is not partitions[index]:
        partitions[index] = after
        changed[name] = partitions
    return ReassignablePartitionResponse(index, ErrorCode.NONE, None)


def _topic(node: Core, name: str, index: int) -> TopicImage:
    """The topic, if it has such a partition. Raises TopicRefusedError."""
    topic = node.image.topics.get(name)
    if topic is None:
        raise TopicRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= index < len(topic.partitions):
        raise TopicRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    return topic


def _moved(
    node: Core, topic: TopicImage, index: int, placed: PartitionRecord, target: list[int] | None, may_resize: bool
) -> PartitionRecord:
    """The record with its replicas on their way to `target`, or on their way no more. Raises TopicRefusedError."""
    if target is None and not placed.is_moving:
        raise TopicRefusedError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    if target is not None:
        check_brokers(node, target)
        if not may_resize and len(placed.target) != len(target):
            raise TopicRefusedError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {len(placed.target)} to {len(target)}",
            )
    if node.membership is None:
        return placed
    from ottla.broker.cluster.reassignments import cancelled, reassigned  # only in a cluster

    controller = node.membership.controller
    nodes = controller.nodes_at(topic, index)
    if target is not None:
        return reassigned(placed, target, nodes)
    back = cancelled(placed, nodes, controller.rules_of(topic))
    if back is None:
        raise TopicRefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {topic.name}:{index} because it would require an unclean "
            "leader election.",
        )
    return back
