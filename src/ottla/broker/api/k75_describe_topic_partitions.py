"""DescribeTopicPartitions, key 75, version 0: topics' partitions, a page at a time.

The answer is in the order of names, has at most `max.request.partition.size.limit` partitions, and a cursor for the
next page. Topics that are named but unknown get an answer too; a request without names means all topics.

A partition without a leader, or whose leader lacks the client's listener, is an error in Metadata, but not here.

Not supported: nothing. Eligible leader replicas are always empty on one node.

Source: DescribeTopicPartitionsRequestHandler.java, KRaftMetadataCache.describeTopicResponse; KIP-966.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from heapq import merge
from typing import TYPE_CHECKING, Any

from ottla.broker.api.reachable import Reach, Reachable
from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, EncodedStructs, Work, encoded_in_slices
from ottla.metadata.topic_names import INTERNAL_TOPICS, fault_of
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    versions=(0, 0),
    acl=((Operation.DESCRIBE, ResourceType.TOPIC),),
)


def handle(node: Core, request: Request) -> DescribeTopicPartitionsResponse | Parked:
    is_long = len(request.body.topics or node.image.topics) > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request, is_long), is_long=is_long)


def _answer(node: Core, request: Request, is_long: bool) -> Work:
    body: DescribeTopicPartitionsRequest = request.body
    every = not body.topics
    named = dict.fromkeys(node.image.topics) if every else dict.fromkeys(topic.name for topic in body.topics)
    names = (yield from _in_order(list(named))) if is_long else sorted(named)
    cursor = body.cursor
    if cursor is not None and (cursor.partition_index < 0 or not (every or cursor.topic_name in named)):
        error = ErrorCode.INVALID_REQUEST
        refused = (DescribeTopicPartitionsResponseTopic(error, name) for name in names)
        return DescribeTopicPartitionsResponse(topics=(yield from encoded_in_slices(refused, request.version)))
    page = _Page(node, request)
    hidden: list[str] = []
    access = node.access.quiet if every else node.access
    for step, name in enumerate(names):
        if cursor is not None and name < cursor.topic_name:
            pass
        elif not access.on_topic(request, Operation.DESCRIBE, name):
            hidden += [] if every else [name]
        elif page.next_cursor is None:
            page.add(name)
        if is_long and step % SLICE_STEPS == SLICE_STEPS - 1:
            yield
    for name in hidden:
        page.topics.add((DescribeTopicPartitionsResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name),))
    topics: Any = page.topics
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=page.next_cursor)


def _in_order(names: list[str]) -> Generator[None, Any, Iterable[str]]:
    """The names sorted, some at a time."""
    runs: list[list[str]] = []
    for first in range(0, len(names), SLICE_STEPS):
        runs.append(sorted(names[first : first + SLICE_STEPS]))
        yield
    return merge(*runs)


class _Page:
    """The topics of one page, until it has enough partitions, and the cursor for the next page."""

    def __init__(self, node: Core, request: Request) -> None:
        body: DescribeTopicPartitionsRequest = request.body
        self._node = node
        self._request = request
        self._cursor = body.cursor
        self._left = max(1, min(node.settings["max.request.partition.size.limit"], body.response_partition_limit))
        self.topics = EncodedStructs(request.version)
        self.next_cursor: ResponseCursor | None = None

    def add(self, name: str) -> None:
        if self._left == 0:
            self.next_cursor = ResponseCursor(name, 0)
            return
        first = self._cursor.partition_index if self._cursor is not None and self._cursor.topic_name == name else 0
        topic = self._node.image.topics.get(name)
        described = _described(self._node, self._request, name)
        if topic is not None:
            shown = topic.partitions[first : first + self._left]
            reachable = Reachable(self._node, self._request.now, self._request.identity.address)
            described.partitions = [
                _partition(index, placed, reachable.of(placed, (topic.id, index)))
                for index, placed in enumerate(shown, first)
            ]
            self._left -= len(shown)
            if first + len(shown) < len(topic.partitions):
                self.next_cursor = ResponseCursor(name, first + len(shown))
        self.topics.add((described,))


def _described(node: Core, request: Request, name: str) -> DescribeTopicPartitionsResponseTopic:
    operations = node.access.authorized_operations(request, ResourceType.TOPIC, name)
    topic = node.image.topics.get(name)
    if topic is not None:
        return DescribeTopicPartitionsResponseTopic(
            name=name, topic_id=topic.id, is_internal=name in INTERNAL_TOPICS, topic_authorized_operations=operations
        )
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if fault_of(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(error, name, topic_authorized_operations=operations)


def _partition(index: int, placed: PartitionRecord, reach: Reach) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=reach.leader,
        leader_epoch=placed.leader_epoch,
        replica_nodes=list(placed.replicas),
        isr_nodes=list(placed.isr),
        eligible_leader_replicas=list(placed.elr),
        last_known_elr=list(placed.last_known_elr),
        offline_replicas=reach.offline,
    )
