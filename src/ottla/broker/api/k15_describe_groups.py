"""DescribeGroups, key 15, versions 0 to 6: state, members and assignments of groups.

The handler asks each group's shard and answers in the order of the request.

Versions: 1 throttle_time_ms, 3 authorized operations (KIP-430), 4 static members, 5 flexible, 6 GROUP_ID_NOT_FOUND and
error_message for an unknown group, which before was a Dead group without an error.

Not supported: nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import by_shard, call_of
from ottla.broker.api.group_descriptions import DescribeGroups, named_once
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_GROUPS,
    versions=(0, 6),
    acl=((Operation.DESCRIBE, ResourceType.GROUP),),
    needs_lease=True,
)


class Describe(DescribeGroups):
    """A running DescribeGroups request."""

    __slots__ = ()

    def finish(self, request: Request) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(groups=self.in_order(request))


def handle(node: Core, request: Request) -> Any:
    request.body.groups = named_once(request.body.groups)
    return node.slices.each(request, partial(_describe, node), "groups", "groups")


def _describe(node: Core, request: Request) -> Any:
    body: DescribeGroupsRequest = request.body
    refused = {
        group_id: DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for group_id in body.groups
        if not node.access.on_group(request, Operation.DESCRIBE, group_id)
    }
    shards = by_shard(node, (group_id for group_id in dict.fromkeys(body.groups) if group_id not in refused))
    calls = [(at, call_of(request, DescribeGroupsRequest(groups=groups))) for at, groups in shards.items()]
    return node.coordinators.groups.submit(request.now, request, Describe(node, calls, body.groups, refused))
