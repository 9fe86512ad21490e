"""CreatePartitions, key 37, versions 0 to 3: give topics more partitions.

The handler checks and grows each topic separately. A topic that occurs twice in a request fails, with one result.

Versions: 2 flexible, 3 quota errors.

From version 3 on, a topic beyond the client's quota on topic changes is refused; before, the client is throttled.
Validation counts too, as in Kafka.

Not supported: the internal topics keep their number of partitions (INVALID_REQUEST, where Kafka would grow them),
because keys find their coordinator by it.

Source: ControllerApis.createPartitions, ReplicationControlManager.createPartitions; KIP-195, KIP-599.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.api.topic_creation import TopicRefusedError, plan_growth
from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned
from ottla.broker.effects import Parked
from ottla.broker.quotas import Mutations
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.machine import Millis
from ottla.metadata.store import StoreError
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    acl=((Operation.ALTER, ResourceType.TOPIC),),
    forwarding=Forwarding.WHOLE,
)


STRICT_SINCE = 3
TOPICS_AT_ONCE = 10
"""More of them are a long request. Each grows with a commit of its own."""


def handle(node: Core, request: Request) -> CreatePartitionsResponse | Parked:
    return node.slices.begin(request, _answer(node, request), is_long=len(request.body.topics) > TOPICS_AT_ONCE)


def refused(request: Request, error: ErrorCode, sentence: str) -> CreatePartitionsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    results = [CreatePartitionsTopicResult(topic.name, error, sentence) for topic in request.body.topics]
    return CreatePartitionsResponse(results=results)


def _answer(node: Core, request: Request) -> Work:
    body: CreatePartitionsRequest = request.body
    times = Counter(topic.name for topic in body.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    mutations = node.throttle.mutations(request, STRICT_SINCE)
    for topic in body.topics:
        result = CreatePartitionsTopicResult(topic.name)
        try:
            if times[topic.name] > 1:
                raise TopicRefusedError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            yield partial(_growing, node, request, topic, mutations)
        except TopicRefusedError as refused:
            result.error_code, result.error_message = refused.error_code, refused.sentence
        except StoreError as failed:
            node.notes(f"partitions of {topic.name} could not be created: {failed}")
            result.error_code, result.error_message = error_of(failed), str(failed)
        results[topic.name] = result
    return CreatePartitionsResponse(throttle_time_ms=mutations.throttle_ms, results=list(results.values()))


def _growing(node: Core, request: Request, asked: CreatePartitionsTopic, mutations: Mutations, now: Millis) -> Planned:
    """The plan to grow the topic, or only to check whether it may grow. Raises TopicRefusedError, StoreError."""
    if not node.access.on_topic(request, Operation.ALTER, asked.name):
        raise TopicRefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = node.image.topics.get(asked.name)
    if topic is None:
        raise TopicRefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.name in INTERNAL_TOPICS:
        raise TopicRefusedError(
            ErrorCode.INVALID_REQUEST, f"The number of partitions of the internal topic {topic.name} can't change."
        )
    assignments = None if asked.assignments is None else [assigned.broker_ids for assigned in asked.assignments]
    total = plan_growth(node, topic, asked.count, assignments)
    if not mutations.allows(now, topic.id, total - len(topic.partitions)):
        raise TopicRefusedError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    if not request.body.validate_only:
        yield from node.topics.growing(topic, total, assignments or ())
