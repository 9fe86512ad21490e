"""ListGroups, key 16, versions 0 to 5: all groups of this node.

What it does: asks every shard. A client that may describe the cluster sees all, another the groups it may describe.

What changed per version: 1 throttle_time_ms, 3 flexible, 4 a filter by state, 5 a filter by type.

What is skipped: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.node import Node


class List(CoordinatorRequest):
    """One call per shard. A shard that is not here has no groups; one that loads makes the list impossible."""

    __slots__ = ("node",)

    def __init__(self, node: Node, calls: list[tuple[int, Call]]) -> None:
        super().__init__(calls)
        self.node = node

    def finish(self, request: Request) -> ListGroupsResponse:
        node = self.node
        sees_all = node.access.on_cluster(request, Operation.DESCRIBE)
        groups: list[ListedGroup] = []
        for reply in self.replies:
            if reply.error_code == ErrorCode.NONE:
                groups += [group for group in reply.groups if sees_all or _may_see(node, request, group)]
            elif reply.error_code != ErrorCode.NOT_COORDINATOR:
                return ListGroupsResponse(error_code=reply.error_code)
        return ListGroupsResponse(groups=groups)


def handle(node: Node, request: Request) -> Any:
    calls = [(index, call_of(request)) for index in node.groups.active()]
    return node.groups.submit(request.now, request, List(node, calls))


def _may_see(node: Node, request: Request, group: ListedGroup) -> bool:
    return node.access.on_group(request, Operation.DESCRIBE, group.group_id)
