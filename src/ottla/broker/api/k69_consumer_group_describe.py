"""ConsumerGroupDescribe, key 69, versions 0 to 1: state, epochs, members and assignments of consumer groups.

What it does: asks each group's shard and answers in the order of the request. A group that reads a topic which the
client may not describe is refused as a whole.

What changed per version: 1 which protocol a member speaks.

What is skipped: nothing.

Source: KafkaApis.scala handleConsumerGroupDescribe; KIP-848, KIP-430.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import by_shard, call_of, named_once
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


_HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."


class Describe(CoordinatorRequest):
    """`described` holds the groups that the client may not see, and comes to hold all."""

    __slots__ = ("described", "node", "order")

    def __init__(
        self, node: Node, calls: list[tuple[int, Call]], order: list[str], refused: dict[str, DescribedGroup]
    ) -> None:
        super().__init__(calls)
        self.node = node
        self.order = order
        self.described = refused

    def finish(self, request: Request) -> ConsumerGroupDescribeResponse:
        for reply in self.replies:
            for group in reply.groups:
                self.described[group.group_id] = _as_seen(self.node, request, group)
        return ConsumerGroupDescribeResponse(groups=[self.described[group_id] for group_id in self.order])


def _as_seen(node: Node, request: Request, group: DescribedGroup) -> DescribedGroup:
    if group.error_code:
        return group
    topics = {
        name
        for member in group.members
        for name in (
            *member.subscribed_topic_names,
            *(part.topic_name for part in member.assignment.topic_partitions),
            *(part.topic_name for part in member.target_assignment.topic_partitions),
        )
    }
    if not all(node.access.on_topic(request, Operation.DESCRIBE, name) for name in sorted(topics)):
        return DescribedGroup(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN_TOPICS, group.group_id)
    if request.body.include_authorized_operations:
        group.authorized_operations = node.access.authorized_operations(request, ResourceType.GROUP, group.group_id)
    return group


def handle(node: Node, request: Request) -> Any:
    request.body.group_ids = named_once(request.body.group_ids)
    return node.slices.each(request, partial(_describe, node), "group_ids", "groups")


def _describe(node: Node, request: Request) -> Any:
    body: ConsumerGroupDescribeRequest = request.body
    refused: dict[str, DescribedGroup] = {}
    for group_id in body.group_ids:
        error = ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID
        if not node.access.on_group(request, Operation.DESCRIBE, group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if error:
            refused[group_id] = DescribedGroup(error, error.message, group_id)
    shards = by_shard(node, (group_id for group_id in dict.fromkeys(body.group_ids) if group_id not in refused))
    calls = [(at, call_of(request, ConsumerGroupDescribeRequest(groups))) for at, groups in shards.items()]
    return node.groups.submit(request.now, request, Describe(node, calls, body.group_ids, refused))
