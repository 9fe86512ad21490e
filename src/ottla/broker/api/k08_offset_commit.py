"""OffsetCommit, key 8, versions 2 to 10: store how far a group has read.

The handler refuses unknown and unauthorized topics and partitions, and passes the rest to the group.

Versions: 2 retention_time_ms, gone in 5; 3 throttle_time_ms; 6 committed_leader_epoch; 7 static members; 8 flexible; 9
GROUP_ID_NOT_FOUND for an unknown group; 10 topics by id instead of by name.

Not supported: nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of, joined_in_slices, joined_topics
from ottla.broker.api_spec import ApiSpec
from ottla.broker.config.machines import group_settings
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, SubRequest, Work, cut, encoded_topics, steps_of
from ottla.groups.offsets import PreparedCommit, commit_error
from ottla.machine import Call
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    acl=(
        (Operation.READ, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


_BY_TOPIC_ID_SINCE = 10


class Commit(CoordinatorRequest):
    """A commit of which some topics were refused before the group saw it."""

    __slots__ = ("refused",)

    def __init__(self, at: int, call: Call, refused: list[OffsetCommitResponseTopic]) -> None:
        super().__init__([(at, call)])
        self.refused = refused

    def finish(self, request: Request) -> OffsetCommitResponse:
        return OffsetCommitResponse(topics=joined_topics(self.refused, self.replies[0].topics))


def handle(node: Core, request: Request) -> Any:
    body: OffsetCommitRequest = request.body
    if steps_of(body.topics) > SLICE_STEPS:
        return node.slices.begin(request, _long_answer(node, request), is_long=True)
    if not node.access.on_group(request, Operation.READ, body.group_id):
        return commit_error(body, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    taken, refused = _sort_out(node, request, body.topics)
    return _commit(taken, refused, node, request)


def _long_answer(node: Core, request: Request) -> Work:
    """Look up, encode and answer a slice at a time. The group decides on all records at once, and they are one batch,
    as in Kafka: no reader may find half a commit."""
    body: OffsetCommitRequest = request.body
    settings = group_settings(node.settings)
    commit = PreparedCommit(body)
    answered: list[OffsetCommitResponseTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    allowed = node.access.on_group(request, Operation.READ, body.group_id)
    for topics in cut(body.topics, SLICE_STEPS):
        if allowed:
            taken, failed = _sort_out(node, request, topics)
            answered += commit.add(taken, node.wall.at(request.now), settings)
            refused += failed
        else:
            refused += commit_error(OffsetCommitRequest(topics=topics), ErrorCode.GROUP_AUTHORIZATION_FAILED).topics
        yield
    if any(topic.topic_id not in node.image.topics_by_id for topic in answered):
        # Deleted since the lookup: no later cleanup would delete offsets committed to it.
        return (yield from _long_answer(node, request))
    if answered:
        error = yield SubRequest(request, commit, partial(_decide, node))
        if error:
            yield from _say_everywhere(answered, error)
    topics = yield from joined_in_slices(refused + answered)
    return OffsetCommitResponse(topics=(yield from encoded_topics(topics, request.version)))


def _decide(node: Core, request: Request) -> Any:
    index = node.coordinators.groups.partition_for(request.body.asked.group_id)
    return node.coordinators.groups.submit(request.now, request, CoordinatorRequest([(index, call_of(request))]))


def _say_everywhere(answered: list[OffsetCommitResponseTopic], error: ErrorCode) -> Generator[None, Any, None]:
    for topics in cut(answered, SLICE_STEPS):
        for topic in topics:
            for each in topic.partitions:
                each.error_code = error
        yield


def _commit(
    taken: list[OffsetCommitRequestTopic], refused: list[OffsetCommitResponseTopic], node: Core, request: Request
) -> Any:
    body: OffsetCommitRequest = request.body
    if not taken:
        return OffsetCommitResponse(topics=refused)
    body.topics = taken
    asked = Commit(node.coordinators.groups.partition_for(body.group_id), call_of(request), refused)
    return node.coordinators.groups.submit(request.now, request, asked)


def _sort_out(
    node: Core, request: Request, topics: list[OffsetCommitRequestTopic]
) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
    """The topics for the group, and the answers for the refused ones."""
    taken: list[OffsetCommitRequestTopic] = []
    refused: list[OffsetCommitResponseTopic] = []
    for topic in topics:
        error, partition_count = _look_up(node, request, topic)
        partitions = [each for each in topic.partitions if 0 <= each.partition_index < partition_count]
        if partitions:
            taken.append(OffsetCommitRequestTopic(topic.name, topic.topic_id, partitions))
        missing = [each.partition_index for each in topic.partitions if not 0 <= each.partition_index < partition_count]
        if missing:
            failed = [OffsetCommitResponsePartition(index, error) for index in missing]
            refused.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, failed))
    return taken, refused


def _look_up(node: Core, request: Request, topic: OffsetCommitRequestTopic) -> tuple[ErrorCode, int]:
    """The error of partitions that can't be committed, and how many can. The topic gets both its name and its id."""
    if request.version >= _BY_TOPIC_ID_SINCE:
        known = node.image.topics_by_id.get(topic.topic_id)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, 0
        topic.name = known.name
    if not node.access.on_topic(request, Operation.READ, topic.name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0
    known = node.image.topics.get(topic.name)
    if known is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0
    topic.topic_id = known.id
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, len(known.partitions)
