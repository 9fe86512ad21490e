"""ShareGroupDescribe, key 77, version 1: state, epochs, members and assignments of share groups.

What it does: asks each group's shard and answers in the order of the request. A group that reads a topic which the
client may not describe is refused as a whole.

What is skipped: nothing.

Source: KafkaApis.scala handleShareGroupDescribe; KIP-932, KIP-430.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import DescribeGroups, by_shard, call_of, named_once
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


_HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."


class Describe(DescribeGroups):
    """ShareGroupDescribe under way."""

    def as_seen(self, request: Request, group: DescribedGroup) -> DescribedGroup:
        topics = {
            name
            for member in group.members
            for name in (
                *member.subscribed_topic_names,
                *(part.topic_name for part in (member.assignment.topic_partitions if member.assignment else ())),
            )
        }
        if not all(self.node.access.on_topic(request, Operation.DESCRIBE, name) for name in sorted(topics)):
            return DescribedGroup(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN_TOPICS, group.group_id)
        return super().as_seen(request, group)

    def finish(self, request: Request) -> ShareGroupDescribeResponse:
        return ShareGroupDescribeResponse(groups=self.in_order(request))


def handle(node: Node, request: Request) -> Any:
    request.body.group_ids = named_once(request.body.group_ids)
    return node.slices.each(request, partial(_describe, node), "group_ids", "groups")


def _describe(node: Node, request: Request) -> Any:
    body: ShareGroupDescribeRequest = request.body
    refused: dict[str, DescribedGroup] = {}
    for group_id in body.group_ids:
        error = ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID
        if not node.access.on_group(request, Operation.DESCRIBE, group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if error:
            refused[group_id] = DescribedGroup(error, error.message, group_id)
    shards = by_shard(node, (group_id for group_id in dict.fromkeys(body.group_ids) if group_id not in refused))
    calls = [(at, call_of(request, ShareGroupDescribeRequest(groups))) for at, groups in shards.items()]
    return node.groups.submit(request.now, request, Describe(node, calls, body.group_ids, refused))
