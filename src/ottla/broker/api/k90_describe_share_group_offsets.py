"""DescribeShareGroupOffsets, key 90, versions 0 to 1: the offsets of share groups in their partitions, and their lag.

The handler asks the group for its share partitions, or uses the requested ones, and asks the share coordinator about
each of them. A share partition that was never read has start offset -1, as has one of an unknown group or topic. With
`share.version` at 0 all requests are refused (UNSUPPORTED_VERSION).

Versions: 1 lag (KIP-1226): records between the start offset and the end that are not done.

Not supported: nothing.

Source: Kafka's GroupCoordinatorService.java (describeShareGroupOffsets, describeShareGroupAllOffsets).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_offsets import ask_states, ends_elsewhere, question
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.rounds import CALLS_AT_ONCE, Round, Work, ask_in_rounds
from ottla.broker.delivery.describing import lag_of
from ottla.broker.requests import Request
from ottla.groups.share.admin import AskShares, ShareAnswer
from ottla.metadata.features import SHARE_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    versions=(0, 1),
    acl=(
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


NO_OFFSET = -1


def handle(node: Core, request: Request) -> Any:
    return ask_in_rounds(node.slices, request, _describe(node, request))


def _describe(node: Core, request: Request) -> Work:
    body: DescribeShareGroupOffsetsRequest = request.body
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []
    for position, asked in enumerate(body.groups, 1):
        if position % CALLS_AT_ONCE == 0:
            yield None
        if not node.image.level_of(SHARE_VERSION):
            groups.append(_refused(asked.group_id, ErrorCode.UNSUPPORTED_VERSION))
            continue
        if not node.access.on_group(request, Operation.DESCRIBE, asked.group_id):
            groups.append(_refused(asked.group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        known = ShareAnswer(ErrorCode.NONE)
        if asked.topics is None:
            known = (yield Round(node.coordinators.groups, [question(node, AskShares(asked.group_id))]))[0]
        if known.error:
            groups.append(_refused(asked.group_id, known.error, known.message))
            continue
        topics, wanted = _wanted(node, request, asked, known)
        calls = (
            node.coordinators.share.states.call(
                request.now, ReadShareGroupStateSummaryRequest, asked.group_id, topic.topic_id, part.partition_index
            )
            for topic, part in wanted
        )
        replies = yield from ask_states(node, calls, needed=bool(wanted))
        ends = yield from ends_elsewhere(node, [(topic.topic_name, part.partition_index) for topic, part in wanted])
        for (topic, part), reply in zip(wanted, replies, strict=True):
            _fill(node, topic, part, reply.results[0].partitions[0], ends)
        groups.append(DescribeShareGroupOffsetsResponseGroup(asked.group_id, topics))
    return DescribeShareGroupOffsetsResponse(groups=groups)


_Wanted = list[tuple[DescribeShareGroupOffsetsResponseTopic, DescribeShareGroupOffsetsResponsePartition]]


def _wanted(
    node: Core, request: Request, asked: DescribeShareGroupOffsetsRequestGroup, known: ShareAnswer
) -> tuple[list[DescribeShareGroupOffsetsResponseTopic], _Wanted]:
    """The topics of the answer, and the partitions in them that the share coordinator is to be asked about."""
    if asked.topics is None:
        named = [(share.name, list(share.partitions)) for share in known.shares.initialized]
        sees = node.access.quiet
        named = [(name, parts) for name, parts in named if sees.on_topic(request, Operation.DESCRIBE, name)]
    else:
        named = [(topic.topic_name, list(topic.partitions)) for topic in asked.topics]
    topics: list[DescribeShareGroupOffsetsResponseTopic] = []
    wanted: _Wanted = []
    for name, indexes in named:
        found = node.image.topics.get(name)
        parts = [DescribeShareGroupOffsetsResponsePartition(index, NO_OFFSET) for index in indexes]
        topic = DescribeShareGroupOffsetsResponseTopic(topic_name=name, partitions=parts)
        topics.append(topic)
        if not node.access.on_topic(request, Operation.DESCRIBE, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif found is None:
            continue
        else:
            topic.topic_id = found.id
            wanted += [(topic, part) for part in parts if 0 <= part.partition_index < len(found.partitions)]
            parts = [part for part in parts if not 0 <= part.partition_index < len(found.partitions)]
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for part in parts:
            part.error_code, part.error_message = error, error.message
    return topics, wanted


def _fill(
    node: Core,
    topic: DescribeShareGroupOffsetsResponseTopic,
    part: DescribeShareGroupOffsetsResponsePartition,
    state: PartitionResult,
    ends: Mapping[tuple[str, int], int],
) -> None:
    """`ends`: of partitions that other nodes lead."""
    if state.error_code:
        part.error_code, part.error_message = state.error_code, state.error_message
        return
    part.start_offset = state.start_offset
    part.leader_epoch = max(state.leader_epoch, 0)
    end_offset = ends.get((topic.topic_name, part.partition_index))
    begun = state.start_offset, state.delivery_complete_count
    if end_offset is None:
        part.lag = node.coordinators.share.lag(topic.topic_id, part.partition_index, *begun)
    else:
        part.lag = lag_of(end_offset, *begun)


def _refused(group_id: str, error: ErrorCode, message: str | None = None) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id, error_code=error, error_message=error.message if message is None else message
    )
