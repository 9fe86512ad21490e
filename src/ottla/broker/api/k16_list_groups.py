"""ListGroups, key 16, versions 0 to 5: all groups of this node.

The handler asks every shard. A client that may describe the cluster sees all groups, any other client those that it may
describe. Long filters are read and many shards asked in slices.

Versions: 1 throttle_time_ms, 3 flexible, 4 a filter by state, 5 a filter by type.

Not supported: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.listings import listed_in_slices, sorted_out
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work
from ottla.groups.admin import STATES, TYPES, meant
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.LIST_GROUPS,
    versions=(0, 5),
    acl=(
        (Operation.DESCRIBE, ResourceType.CLUSTER),
        (Operation.DESCRIBE, ResourceType.GROUP),
    ),
    needs_lease=True,
)


def handle(node: Core, request: Request) -> Any:
    body: ListGroupsRequest = request.body
    is_long = len(body.states_filter) + len(body.types_filter) > SLICE_STEPS
    return node.slices.begin(request, _list(node, request), is_long=is_long)


def _list(node: Core, request: Request) -> Work:
    asked: ListGroupsRequest = request.body
    states, other_states = yield from sorted_out(asked.states_filter, STATES, meant)
    types, other_types = yield from sorted_out(asked.types_filter, TYPES, meant)
    # A filter of which nothing is known matches nothing, and none at all everything.
    body = ListGroupsRequest(states or other_states[:1], types or other_types[:1])
    sees_all = node.access.quiet.on_cluster(request, Operation.DESCRIBE)
    told = yield from listed_in_slices(
        node.coordinators.groups,
        request,
        body,
        "groups",
        lambda group: sees_all or node.access.quiet.on_group(request, Operation.DESCRIBE, group.group_id),
    )
    return ListGroupsResponse(error_code=told) if isinstance(told, ErrorCode) else ListGroupsResponse(groups=told)
