"""OffsetFetch, key 9, versions 1 to 10: read how far groups have read.

What it does: asks each group's shard; a partition without an offset answers -1.

What changed per version: 2 topics null for all, a top-level error; 3 throttle_time_ms; 5 committed_leader_epoch;
6 flexible; 7 require_stable; 8 many groups at once; 9 member_id and member_epoch; 10 topics by id instead of by name.

What is skipped: nothing. Version 0 (offsets in ZooKeeper) is gone from Kafka too.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.broker.api.group_calls import call_of
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.broker.slices import SLICE_STEPS, Piece, Work, encoded, encoded_topics
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.wire import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.node import Node


_TOP_LEVEL_ERROR_SINCE = 2
_MANY_GROUPS_SINCE = 8
_BY_TOPIC_ID_SINCE = 10

_SortedOut: TypeAlias = tuple[list[OffsetFetchRequestTopics], list[OffsetFetchResponseTopics]]


class FetchGroups(CoordinatorRequest):
    """A fetch for one group or many. `wanted`: what was asked of each group, with the topics refused beforehand."""

    __slots__ = ("node", "order", "refused")

    def __init__(
        self,
        node: Node,
        calls: list[tuple[int, Call]],
        order: list[OffsetFetchRequestGroup],
        refused: list[list[OffsetFetchResponseTopics] | ErrorCode],
    ) -> None:
        super().__init__(calls)
        self.node = node
        self.order = order
        self.refused = refused

    def finish(self, request: Request) -> OffsetFetchResponse:
        replies = iter(self.replies)
        groups: list[OffsetFetchResponseGroup] = []
        for asked, refused in zip(self.order, self.refused, strict=True):
            if isinstance(refused, ErrorCode):
                groups.append(OffsetFetchResponseGroup(asked.group_id, error_code=refused))
                continue
            answered: OffsetFetchResponseGroup = next(replies).groups[0]
            if not answered.error_code:
                if asked.topics is None:
                    answered.topics = _visible(self.node, request, answered.topics)
                answered.topics += refused
            groups.append(answered)
        if request.version >= _MANY_GROUPS_SINCE:
            return OffsetFetchResponse(groups=groups)
        return _of_one_group(request.version, self.order[0], groups[0])


def handle(node: Node, request: Request) -> Any:
    body: OffsetFetchRequest = request.body
    asked = body.groups if request.version >= _MANY_GROUPS_SINCE else [_one_group(body)]
    if len(asked) > SLICE_STEPS or sum(map(_steps, asked)) > SLICE_STEPS:
        return node.slices.begin(request, _long_answer(node, request, asked), is_long=True)
    return _ask(asked, [_sort_out(node, request, group.topics or ()) for group in asked], node, request)


def _steps(group: OffsetFetchRequestGroup) -> int:
    return 1 + sum(1 + len(topic.partition_indexes) for topic in group.topics or ())


def _long_answer(node: Node, request: Request, asked: list[OffsetFetchRequestGroup]) -> Work:
    """Groups are asked a few at a time; each is asked for all of its offsets at once, as they belong together."""
    answer = OffsetFetchResponse()
    answered: list[Any] = []
    some: list[OffsetFetchRequestGroup] = []
    sorted_out: list[_SortedOut] = []
    steps = 0
    for position, group in enumerate(asked, 1):
        wanted: list[OffsetFetchRequestTopics] = []
        refused: list[OffsetFetchResponseTopics] = []
        for first in range(0, len(group.topics or ()), SLICE_STEPS):
            more, not_allowed = _sort_out(node, request, (group.topics or [])[first : first + SLICE_STEPS])
            wanted += more
            refused += not_allowed
            yield
        some.append(group)
        sorted_out.append((wanted, refused))
        steps += _steps(group)
        if steps >= SLICE_STEPS or position == len(asked):
            answer = yield Piece(request, request.body, partial(_ask, some, sorted_out, node))
            some, sorted_out, steps = [], [], 0
            for each in answer.groups if request.version >= _MANY_GROUPS_SINCE else [answer]:
                each.topics = yield from encoded_topics(each.topics, request.version)
            answered += encoded(answer.groups, request.version)
    answer.groups = answered
    return answer


def _ask(asked: list[OffsetFetchRequestGroup], sorted_out: list[_SortedOut], node: Node, request: Request) -> Any:
    calls: list[tuple[int, Call]] = []
    refused: list[list[OffsetFetchResponseTopics] | ErrorCode] = []
    for group, (topics, not_allowed) in zip(asked, sorted_out, strict=True):
        if not node.access.on_group(request, Operation.DESCRIBE, group.group_id):
            refused.append(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            continue
        refused.append(not_allowed)
        wanted = OffsetFetchRequestGroup(
            group.group_id, group.member_id, group.member_epoch, None if group.topics is None else topics
        )
        asks = OffsetFetchRequest(groups=[wanted], require_stable=request.body.require_stable)
        calls.append((node.groups.partition_for(group.group_id), call_of(request, asks)))
    return node.groups.submit(request.now, request, FetchGroups(node, calls, asked, refused))


def _one_group(body: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = body.topics
    return OffsetFetchRequestGroup(
        group_id=body.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes) for each in topics],
    )


def _sort_out(node: Node, request: Request, topics: Iterable[OffsetFetchRequestTopics]) -> _SortedOut:
    """What to ask a group, and the topics it is not asked about."""
    wanted: list[OffsetFetchRequestTopics] = []
    refused: list[OffsetFetchResponseTopics] = []
    for topic in topics:
        error = ErrorCode.NONE
        if request.version >= _BY_TOPIC_ID_SINCE:
            known = node.image.topics_by_id.get(topic.topic_id)
            if known is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                topic.name = known.name
        else:
            known = node.image.topics.get(topic.name)
            topic.topic_id = ZERO_UUID if known is None else known.id
        if error is ErrorCode.NONE and not _may_see(node, request, topic.name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if error is ErrorCode.NONE:
            wanted.append(topic)
        else:
            partitions = [
                OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, error_code=error)
                for index in topic.partition_indexes
            ]
            refused.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
    return wanted, refused


def _may_see(node: Node, request: Request, topic: str) -> bool:
    return node.access.on_topic(request, Operation.DESCRIBE, topic)


def _visible(node: Node, request: Request, topics: list[OffsetFetchResponseTopics]) -> list[OffsetFetchResponseTopics]:
    """Of all topics with offsets, those the client may see; by id only those that still exist. What was committed in
    an earlier life of a topic does not count."""
    found: dict[str, OffsetFetchResponseTopics] = {}
    for topic in topics:
        known = node.image.topics.get(topic.name)
        if known is None:
            if request.version >= _BY_TOPIC_ID_SINCE:
                continue
        elif topic.topic_id in (ZERO_UUID, known.id):
            topic.topic_id = known.id
        else:
            continue
        if _may_see(node, request, topic.name):
            first = found.setdefault(topic.name, topic)
            if first is not topic:
                first.partitions += topic.partitions
    return list(found.values())


def _of_one_group(version: int, asked: OffsetFetchRequestGroup, group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The answer as it was for one group; version 1 has no place for an error but the partitions."""
    if version < _TOP_LEVEL_ERROR_SINCE and group.error_code:
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    topic.name,
                    [
                        OffsetFetchResponsePartition(index, -1, -1, "", group.error_code)
                        for index in topic.partition_indexes
                    ],
                )
                for topic in asked.topics or []
            ]
        )
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponsePartition(
                        each.partition_index,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.metadata,
                        each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
