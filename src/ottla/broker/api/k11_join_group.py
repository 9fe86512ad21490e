"""JoinGroup, key 11, versions 0 to 9: become a member of a group and wait for its next generation.

The request is parked until the join phase ends (`groups.classic`, `groups.rebalance`).

Versions: 1 rebalance_timeout_ms, 4 a new member first gets its id (MEMBER_ID_REQUIRED), 5 static members, 6 flexible, 7
protocol_type in the answer, 8 a reason, 9 skip_assignment for a static leader that has returned.

Not supported: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import ask_group
from ottla.broker.api_spec import ApiSpec, RequestSize
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.JOIN_GROUP,
    versions=(0, 9),
    acl=((Operation.READ, ResourceType.GROUP),),
    size=RequestSize.LARGE_FIELDS,
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    return ask_group(node, request, request.body.group_id, Operation.READ)
