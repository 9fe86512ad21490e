"""CreatePartitions, key 37, versions 0 to 3: give topics more partitions.

What it does: checks and grows each topic by itself. A topic that stands twice in a request fails, once.

What changed per version: 2 flexible, 3 quota errors.

What is skipped: quotas on topic changes (KIP-599). The internal topics keep their number (INVALID_REQUEST, where Kafka
would grow them): keys find their coordinator by it.

Source: ControllerApis.createPartitions, ReplicationControlManager.createPartitions; KIP-195.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.api.topic_creation import TopicRefused, plan_growth
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned
from ottla.broker.requests import Parked, Request
from ottla.broker.security.authorizer import Operation
from ottla.broker.slices import Work
from ottla.machine import Millis
from ottla.metadata.store import StoreFailed
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


TOPICS_AT_ONCE = 10
"""More of them are a long request. Each grows with a commit of its own."""


def handle(node: Node, request: Request) -> CreatePartitionsResponse | Parked:
    return node.slices.begin(request, _answer(node, request), is_long=len(request.body.topics) > TOPICS_AT_ONCE)


def refused(request: Request, error: ErrorCode, sentence: str) -> CreatePartitionsResponse:
    """The answer where nothing of the request was done, as far as this node knows."""
    results = [CreatePartitionsTopicResult(topic.name, error, sentence) for topic in request.body.topics]
    return CreatePartitionsResponse(results=results)


def _answer(node: Node, request: Request) -> Work:
    body: CreatePartitionsRequest = request.body
    times = Counter(topic.name for topic in body.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    for topic in body.topics:
        result = CreatePartitionsTopicResult(topic.name)
        try:
            if times[topic.name] > 1:
                raise TopicRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            yield from _grow(node, request, topic, body.validate_only)
        except TopicRefused as refused:
            result.error_code, result.error_message = refused.error_code, refused.sentence
        except StoreFailed as failed:
            node.notes(f"partitions of {topic.name} could not be created: {failed}")
            result.error_code, result.error_message = error_of(failed), str(failed)
        results[topic.name] = result
    return CreatePartitionsResponse(results=list(results.values()))


def _grow(node: Node, request: Request, asked: CreatePartitionsTopic, validate_only: bool) -> Work:
    """Let the topic grow, or only look whether it may. Raises TopicRefused, StoreFailed."""

    def growing(now: Millis) -> Planned:
        return _growing(node, request, asked, validate_only)

    yield growing


def _growing(node: Node, request: Request, asked: CreatePartitionsTopic, validate_only: bool) -> Planned:
    if not node.access.on_topic(request, Operation.ALTER, asked.name):
        raise TopicRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = node.image.topics.get(asked.name)
    if topic is None:
        raise TopicRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name in INTERNAL_TOPICS:
        raise TopicRefused(
            ErrorCode.INVALID_REQUEST, f"The number of partitions of the internal topic {topic.name} can't change."
        )
    assignments = None if asked.assignments is None else [assigned.broker_ids for assigned in asked.assignments]
    total = plan_growth(node, topic, asked.count, assignments)
    if not validate_only:
        yield from node.topics.growing(topic, total, assignments or ())
