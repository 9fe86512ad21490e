"""DeleteGroups, key 42, versions 0 to 2: delete groups without members, with their offsets.

What changed per version: 1 throttle_time_ms, 2 flexible.

What is skipped: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.authz import Operation, ResourceType
from ottla.broker.group_calls import by_shard, call_of
from ottla.broker.requests import Request
from ottla.broker.shards import Errand
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.node import Node

KEY = 42
VERSIONS = (0, 2)


class DeleteAll(Errand):
    """`refused`: groups that the client may not delete."""

    __slots__ = ("refused",)

    def __init__(self, calls: list[tuple[int, Call]], refused: list[str]) -> None:
        super().__init__(calls)
        self.refused = refused

    def finish(self, node: Node, request: Request) -> DeleteGroupsResponse:
        results = [result for reply in self.replies for result in reply.results]
        failed = [DeletableGroupResult(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED) for group_id in self.refused]
        return DeleteGroupsResponse(results=results + failed)


def handle(node: Node, request: Request) -> Any:
    allowed: list[str] = []
    refused: list[str] = []
    for group_id in dict.fromkeys(request.body.groups_names):
        may_delete = node.authorize(request.context, Operation.DELETE, ResourceType.GROUP, group_id)
        (allowed if may_delete else refused).append(group_id)
    shards = by_shard(node, allowed)
    calls = [(at, call_of(request, DeleteGroupsRequest(groups_names=groups))) for at, groups in shards.items()]
    return node.groups.submit(request.now, request, DeleteAll(calls, refused))
