"""AlterShareGroupOffsets, key 91, version 0: move a share group without members to other offsets.

The handler records the share partitions in the group (which is created if it does not exist). It has the share
coordinator reset them to the given offsets, and drops their loaded state. With `share.version` at 0 all requests are
refused (UNSUPPORTED_VERSION).

Not supported: nothing.

Source: Kafka's GroupCoordinatorService.java, GroupMetadataManager.java (alterShareGroupOffsets).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_offsets import ask_states, error_of, question
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.rounds import Round, Work, ask_in_rounds
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, encoded_topics
from ottla.groups.share.admin import AddShares, ShareAnswer
from ottla.groups.share.group import Share
from ottla.metadata.features import SHARE_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from ottla.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    acl=(
        (Operation.READ, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


_Wanted = list[tuple[bytes, AlterShareGroupOffsetsResponsePartition, int]]
"""Topic id, the partition's place in the answer, and the offset it is to begin at."""


def handle(node: Core, request: Request) -> Any:
    body: AlterShareGroupOffsetsRequest = request.body
    if not node.image.level_of(SHARE_VERSION):
        return _refusal(ErrorCode.UNSUPPORTED_VERSION)
    if not node.access.on_group(request, Operation.READ, body.group_id):
        return _refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    node.access.changes(request, Operation.READ, ResourceType.GROUP, body.group_id)
    if not body.group_id:
        return _refusal(ErrorCode.INVALID_GROUP_ID)
    return ask_in_rounds(node.slices, request, _alter(node, request, body))


def _alter(node: Core, request: Request, body: AlterShareGroupOffsetsRequest) -> Work:
    topics, shares, wanted = yield from _sorted(node, request, body)
    known: ShareAnswer = (
        yield Round(node.coordinators.groups, [question(node, AddShares(body.group_id, tuple(shares)))])
    )[0]
    if known.error:
        return _refusal(known.error, known.message)
    calls = (
        node.coordinators.share.states.call(
            request.now,
            InitializeShareGroupStateRequest,
            body.group_id,
            topic_id,
            part.partition_index,
            start_offset,
            known.epoch,
        )
        for topic_id, part, start_offset in wanted
    )
    replies = yield from ask_states(node, calls, needed=bool(wanted))
    for (topic_id, part, _), reply in zip(wanted, replies, strict=True):
        part.error_code = error_of(reply)
        part.error_message = ErrorCode(part.error_code).message if part.error_code else None
        node.coordinators.share.forget(request.now, body.group_id, topic_id, part.partition_index)
    return AlterShareGroupOffsetsResponse(responses=(yield from encoded_topics(topics, request.version)))


def _sorted(
    node: Core, request: Request, body: AlterShareGroupOffsetsRequest
) -> Generator[None, Any, tuple[list[AlterShareGroupOffsetsResponseTopic], list[Share], _Wanted]]:
    """The answer's topics with those already refused, and the remaining work."""
    topics: list[AlterShareGroupOffsetsResponseTopic] = []
    shares: list[Share] = []
    wanted: _Wanted = []
    steps = 0
    for asked in body.topics:
        found = node.image.topics.get(asked.topic_name)
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not node.access.on_topic(request, Operation.READ, asked.topic_name):
            error, found = ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
        topic = AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
        topics.append(topic)
        if found is not None:
            topic.topic_id = found.id
        taken: list[int] = []
        for each in asked.partitions:
            steps += 1
            if steps % SLICE_STEPS == 0:
                yield
            part = AlterShareGroupOffsetsResponsePartition(each.partition_index)
            topic.partitions.append(part)
            if found is not None and 0 <= each.partition_index < len(found.partitions):
                taken.append(each.partition_index)
                wanted.append((found.id, part, each.start_offset))
            else:
                part.error_code, part.error_message = error, error.message
        if found is not None and taken:
            shares.append(Share(found.id, found.name, tuple(sorted(set(taken)))))
    return topics, shares, wanted


def _refusal(error: ErrorCode, message: str | None = None) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(error_code=error, error_message=error.message if message is None else message)
