"""OffsetDelete, key 47, version 0: delete committed offsets of topics that the group no longer reads.

The handler refuses unknown and unauthorized topics and partitions. It passes the rest to the group, a very large number
in slices.

Not supported: nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of, joined_in_slices, joined_topics
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, SubRequest, Work, cut, encoded_topics, steps_of
from ottla.machine import Call
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    acl=(
        (Operation.DELETE, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


class DeleteOffsets(CoordinatorRequest):
    """A deletion of which some topics were refused before the group got it. If the group reports an error, the answer
    has only that."""

    __slots__ = ("refused",)

    def __init__(self, at: int, call: Call, refused: list[OffsetDeleteResponseTopic]) -> None:
        super().__init__([(at, call)])
        self.refused = refused

    def finish(self, request: Request) -> OffsetDeleteResponse:
        reply: OffsetDeleteResponse = self.replies[0]
        if not reply.error_code:
            reply.topics = joined_topics(self.refused, reply.topics)
        return reply


def handle(node: Core, request: Request) -> Any:
    body: OffsetDeleteRequest = request.body
    if not node.access.on_group(request, Operation.DELETE, body.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if steps_of(body.topics) > SLICE_STEPS:
        return node.slices.begin(request, _in_slices(node, request), is_long=True)
    return _delete(node, request)


def _in_slices(node: Core, request: Request) -> Work:
    """Partitions are independent: the group is asked to delete some at a time."""
    body: OffsetDeleteRequest = request.body
    answer = OffsetDeleteResponse()
    answered: list[OffsetDeleteResponseTopic] = []
    for topics in cut(body.topics, SLICE_STEPS):
        answer = yield SubRequest(request, OffsetDeleteRequest(body.group_id, topics), partial(_delete, node))
        if answer.error_code:
            return answer
        answered += answer.topics
    answered = yield from joined_in_slices(answered)
    answer.topics = yield from encoded_topics(answered, request.version)
    return answer


def _delete(node: Core, request: Request) -> Any:
    body: OffsetDeleteRequest = request.body
    taken, refused = _sort_out(node, request, body.topics)
    call = call_of(request, OffsetDeleteRequest(body.group_id, taken))
    return node.coordinators.groups.submit(
        request.now, request, DeleteOffsets(node.coordinators.groups.partition_for(body.group_id), call, refused)
    )


def _sort_out(
    node: Core, request: Request, topics: list[OffsetDeleteRequestTopic]
) -> tuple[list[OffsetDeleteRequestTopic], list[OffsetDeleteResponseTopic]]:
    """The offsets that the group is asked to delete, and the answers for the refused ones."""
    taken: list[OffsetDeleteRequestTopic] = []
    refused: list[OffsetDeleteResponseTopic] = []
    for topic in topics:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        known = node.image.topics.get(topic.name)
        count = 0 if known is None else len(known.partitions)
        if not node.access.on_topic(request, Operation.READ, topic.name):
            error, count = ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0
        there = [each for each in topic.partitions if 0 <= each.partition_index < count]
        if there:
            taken.append(OffsetDeleteRequestTopic(topic.name, there))
        failed = [
            OffsetDeleteResponsePartition(each.partition_index, error)
            for each in topic.partitions
            if not 0 <= each.partition_index < count
        ]
        if failed:
            refused.append(OffsetDeleteResponseTopic(topic.name, failed))
    return taken, refused
