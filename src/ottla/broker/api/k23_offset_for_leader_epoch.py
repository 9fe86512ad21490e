"""OffsetForLeaderEpoch, key 23, versions 2 to 4: where a leader epoch ended.

What it does: answers, per partition, the largest epoch not above the asked one and its end offset, (-1, -1) where that
is unknown. Consumers compare it with what they hold, to see whether the log was cut under them (KIP-320).

What changed per version: 3 the replica id is sent, 4 flexible.

What is skipped: nothing. Followers do not use it any more (KIP-595's diverging epoch in Fetch).

Source: ReplicaManager.lastOffsetForLeaderEpoch, LeaderEpochFileCache.java; KIP-101, KIP-279.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.authz import Operation, on_topic
from ottla.broker.leadership import find_led
from ottla.broker.requests import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node

KEY = 23
VERSIONS = (2, 4)


def handle(node: Node, request: Request) -> OffsetForLeaderEpochResponse:
    body: OffsetForLeaderEpochRequest = request.body
    topics: list[OffsetForLeaderTopicResult] = []
    for topic in body.topics:
        if on_topic(node, request, Operation.DESCRIBE, topic.topic):
            answers = [_answer(node, topic.topic, asked) for asked in topic.partitions]
        else:
            denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            answers = [EpochEndOffset(denied, asked.partition) for asked in topic.partitions]
        topics.append(OffsetForLeaderTopicResult(topic.topic, answers))
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(node: Node, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = find_led(node, topic, asked.partition, asked.current_leader_epoch)
    if isinstance(partition, ErrorCode):
        return EpochEndOffset(int(partition), asked.partition)
    epoch, end_offset = partition.log.end_offset_for(asked.leader_epoch)
    return EpochEndOffset(0, asked.partition, epoch, end_offset)
