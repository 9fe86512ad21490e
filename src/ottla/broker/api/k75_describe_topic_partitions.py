"""DescribeTopicPartitions, key 75, version 0: topics' partitions, a page at a time.

What it does: answers in the order of names, at most `max.request.partition.size.limit` partitions, and says where to go
on (the cursor). Topics that are named but unknown are answered too; without names all topics are.

What is skipped: nothing. Eligible leader replicas are always empty on one node.

Source: DescribeTopicPartitionsRequestHandler.java, KRaftMetadataCache.describeTopicResponse; KIP-966.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.metadata.topic_names import INTERNAL_TOPICS, fault_of
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    RequestCursor,
    ResponseCursor,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> DescribeTopicPartitionsResponse:
    body: DescribeTopicPartitionsRequest = request.body
    names = sorted({topic.name for topic in body.topics})
    cursor = body.cursor
    if cursor is not None and (cursor.partition_index < 0 or (names and cursor.topic_name not in names)):
        return _refused(names)
    every = not names
    if every:
        names = sorted(node.image.topics)
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
    visible = [name for name in names if node.access.on_topic(request, Operation.DESCRIBE, name)]
    seen = set(visible)
    hidden = [] if every else [name for name in names if name not in seen]
    limit = max(1, min(node.settings["max.request.partition.size.limit"], body.response_partition_limit))
    answer = _page(node, request, visible, cursor, limit)
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer.topics.extend(DescribeTopicPartitionsResponseTopic(denied, name) for name in hidden)
    return answer


def _refused(names: list[str]) -> DescribeTopicPartitionsResponse:
    error = ErrorCode.INVALID_REQUEST
    return DescribeTopicPartitionsResponse(topics=[DescribeTopicPartitionsResponseTopic(error, name) for name in names])


def _page(
    node: Node, request: Request, names: list[str], cursor: RequestCursor | None, limit: int
) -> DescribeTopicPartitionsResponse:
    answer = DescribeTopicPartitionsResponse()
    for name in names:
        if limit == 0:
            answer.next_cursor = ResponseCursor(name, 0)
            break
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        topic = node.image.topics.get(name)
        described = _described(node, request, name)
        answer.topics.append(described)
        if topic is None:
            continue
        shown = topic.partitions[first : first + limit]
        described.partitions = [_partition(index, placed) for index, placed in enumerate(shown, first)]
        limit -= len(shown)
        if first + len(shown) < len(topic.partitions):
            answer.next_cursor = ResponseCursor(name, first + len(shown))
            break
    return answer


def _described(node: Node, request: Request, name: str) -> DescribeTopicPartitionsResponseTopic:
    operations = node.access.authorized_operations(request, ResourceType.TOPIC, name)
    topic = node.image.topics.get(name)
    if topic is not None:
        return DescribeTopicPartitionsResponseTopic(
            name=name, topic_id=topic.id, is_internal=name in INTERNAL_TOPICS, topic_authorized_operations=operations
        )
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if fault_of(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(error, name, topic_authorized_operations=operations)


def _partition(index: int, placed: PartitionRecord) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=placed.leader,
        leader_epoch=placed.leader_epoch,
        replica_nodes=list(placed.replicas),
        isr_nodes=list(placed.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
    )
