"""OffsetForLeaderEpoch, key 23, versions 2 to 4: where a leader epoch ended.

For each partition the answer has the largest epoch that is not above the requested one, and its end offset; (-1, -1) if
that is unknown. Consumers compare it with their position, to detect whether the log was truncated (KIP-320).

Versions: 3 the replica id is sent, 4 flexible.

Not supported: nothing. Followers no longer use it (KIP-595's diverging epoch in Fetch).

Source: ReplicaManager.lastOffsetForLeaderEpoch, LeaderEpochFileCache.java; KIP-101, KIP-279.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_topics, steps_of
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    acl=((Operation.DESCRIBE, ResourceType.TOPIC),),
    needs_lease=True,
)


def handle(node: Core, request: Request) -> OffsetForLeaderEpochResponse | Parked:
    is_long = steps_of(request.body.topics) > SLICE_STEPS
    return node.slices.begin(request, _answers(node, request, is_long), is_long=is_long)


def _answers(node: Core, request: Request, is_long: bool) -> Work:
    body: OffsetForLeaderEpochRequest = request.body
    topics: list[Any] = []
    steps = 0
    for topic in body.topics:
        allowed = node.access.on_topic(request, Operation.DESCRIBE, topic.topic)
        answers: list[EpochEndOffset] = []
        for asked in topic.partitions:
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answers.append(_answer(node, topic.topic, asked) if allowed else EpochEndOffset(denied, asked.partition))
            steps += 1
            if steps >= SLICE_STEPS and is_long:
                steps = 0
                yield
        topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
        steps += 1
        if steps >= SLICE_STEPS and is_long:
            steps = 0
            yield
    if is_long:
        topics = yield from encoded_topics(topics, request.version)
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(node: Core, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = node.leadership.led(topic, asked.partition, asked.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return EpochEndOffset(partition, asked.partition)
    epoch, end_offset = partition.log.end_offset_for(asked.leader_epoch)
    return EpochEndOffset(0, asked.partition, epoch, end_offset)
