"""LeaveGroup, key 13, versions 0 to 5: members leave, or an administrator removes them.

Versions: 1 throttle_time_ms, 3 many members at once, static ones by instance id alone, 4 flexible, 5 a reason.

Not supported: nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import ask_group
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.LEAVE_GROUP,
    versions=(0, 5),
    acl=((Operation.READ, ResourceType.GROUP),),
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    return node.slices.each(request, partial(_leave, node), "members", "members")


def _leave(node: Core, request: Request) -> Any:
    return ask_group(node, request, request.body.group_id, Operation.READ)
