"""DeleteShareGroupOffsets, key 92, version 0: delete topics from a share group without members.

The handler marks the topics in the group's record as being deleted. It has the share coordinator delete the state of
their share partitions, and then removes the mark. The next request of this kind completes an interrupted deletion. With
`share.version` at 0 all requests are refused (UNSUPPORTED_VERSION).

Not supported: nothing.

Source: Kafka's GroupCoordinatorService.java (deleteShareGroupOffsets).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_offsets import deletions, error_of, question, shares_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.rounds import Round, Work, ask_in_rounds
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, encoded_in_slices
from ottla.groups.share.admin import BeginDeletion, EndDeletion, ShareAnswer
from ottla.metadata.features import SHARE_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from ottla.protocol.wire import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    versions=(0, 0),
    acl=(
        (Operation.DELETE, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


_NOTHING_THERE = "There is no offset information to delete."


def handle(node: Core, request: Request) -> Any:
    body: DeleteShareGroupOffsetsRequest = request.body
    if not node.image.level_of(SHARE_VERSION):
        return _refusal(ErrorCode.UNSUPPORTED_VERSION)
    if not node.access.on_group(request, Operation.DELETE, body.group_id):
        return _refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not body.group_id:
        return _refusal(ErrorCode.INVALID_GROUP_ID)
    return ask_in_rounds(node.slices, request, _delete(node, request, body))


def _delete(node: Core, request: Request, body: DeleteShareGroupOffsetsRequest) -> Work:
    topics = [DeleteShareGroupOffsetsResponseTopic(topic.topic_name) for topic in body.topics]
    for position, topic in enumerate(topics, 1):
        if position % SLICE_STEPS == 0:
            yield
        found = node.image.topics.get(topic.topic_name)
        if not node.access.on_topic(request, Operation.READ, topic.topic_name):
            _refuse(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif found is None:
            _refuse(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            topic.topic_id = found.id
    wanted = tuple(topic.topic_id for topic in topics if not topic.error_code)
    known: ShareAnswer = (
        yield Round(node.coordinators.groups, [question(node, BeginDeletion(body.group_id, wanted))])
    )[0]
    if known.error:
        return _refusal(known.error, known.message)
    there = {topic_id for topic_id, _ in known.shares.topics()}
    for topic in topics:
        if not topic.error_code and topic.topic_id not in there:
            _refuse(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NOTHING_THERE)
    places = shares_of(node, known.shares, [topic.topic_id for topic in topics if not topic.error_code])
    replies = yield from deletions(node, request, body.group_id, places)
    failed = {place[0]: error_of(reply) for place, reply in zip(places, replies, strict=True) if error_of(reply)}
    gone: list[bytes] = []
    for topic in topics:
        if topic.topic_id in failed:
            _refuse(topic, failed[topic.topic_id])
        elif not topic.error_code:
            gone.append(topic.topic_id)
            node.coordinators.share.forget(request.now, body.group_id, topic.topic_id)
    if gone:
        yield Round(node.coordinators.groups, [question(node, EndDeletion(body.group_id, tuple(gone)))])
    return DeleteShareGroupOffsetsResponse(responses=(yield from encoded_in_slices(topics, request.version)))


def _refuse(topic: DeleteShareGroupOffsetsResponseTopic, error: ErrorCode, message: str | None = None) -> None:
    topic.topic_id = ZERO_UUID
    topic.error_code, topic.error_message = error, error.message if message is None else message


def _refusal(error: ErrorCode, message: str | None = None) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(
        error_code=error, error_message=error.message if message is None else message
    )
