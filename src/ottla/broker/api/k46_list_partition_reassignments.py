"""ListPartitionReassignments, key 46, version 0: which replicas are being moved.

The answer names the moving partitions, of all topics or among the requested ones. Unknown partitions, and those that do
not move, are left out. The controller answers, so that a client sees a move that it has just started. A replica that a
newer target has made unnecessary is listed as being removed, and not also as being added.

Source: ReplicationControlManager.listPartitionReassignments; KIP-455.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.metadata.topics import TopicImage
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    acl=((Operation.DESCRIBE, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)

TOPICS_AT_ONCE = 500


def handle(node: Core, request: Request) -> Any:
    body: ListPartitionReassignmentsRequest = request.body
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return refused(request, denied, denied.message)
    if body.topics is None:
        return node.slices.begin(request, _all(node), is_long=len(node.image.topics) > TOPICS_AT_ONCE)
    return node.slices.each_partition(request, partial(_named, node), ("topics", "partition_indexes"))


def refused(request: Request, error: ErrorCode, sentence: str) -> ListPartitionReassignmentsResponse:
    """The answer if nothing of the request was done, as far as this node knows: the topics as they were asked for."""
    body: ListPartitionReassignmentsRequest = request.body
    topics = [
        OngoingTopicReassignment(asked.name, [OngoingPartitionReassignment(index) for index in asked.partition_indexes])
        for asked in body.topics or ()
    ]
    return ListPartitionReassignmentsResponse(error_code=error, error_message=sentence, topics=topics)


def _all(node: Core) -> Work:
    found: list[OngoingTopicReassignment] = []
    topics = list(node.image.topics.values())
    for first in range(0, len(topics), TOPICS_AT_ONCE):
        if first:
            yield
        some = topics[first : first + TOPICS_AT_ONCE]
        found += filter(None, (_of_topic(topic, range(len(topic.partitions))) for topic in some))
    return ListPartitionReassignmentsResponse(error_message=None, topics=found)


def _named(node: Core, request: Request) -> ListPartitionReassignmentsResponse:
    body: ListPartitionReassignmentsRequest = request.body
    known = [(node.image.topics.get(asked.name), asked.partition_indexes) for asked in body.topics or ()]
    found = [_of_topic(topic, indexes) for topic, indexes in known if topic is not None]
    return ListPartitionReassignmentsResponse(error_message=None, topics=[each for each in found if each is not None])


def _of_topic(topic: TopicImage, indexes: Iterable[int]) -> OngoingTopicReassignment | None:
    """Those of these partitions that are moving; None if none is."""
    moving = [
        OngoingPartitionReassignment(
            index,
            list(placed.replicas),
            [node_id for node_id in placed.adding if node_id not in placed.removing],
            list(placed.removing),
        )
        for index in indexes
        if 0 <= index < len(topic.partitions) and (placed := topic.partitions[index]).is_moving
    ]
    return OngoingTopicReassignment(topic.name, moving) if moving else None
