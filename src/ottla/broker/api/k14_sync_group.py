"""SyncGroup, key 14, versions 0 to 5: the leader brings the assignments, every member fetches its own.

The request is parked until the assignments are stored.

Versions: 1 throttle_time_ms, 3 static members, 4 flexible, 5 protocol_type and protocol_name, which must fit the group
(INCONSISTENT_GROUP_PROTOCOL).

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
    key=ApiKey.SYNC_GROUP,
    versions=(0, 5),
    acl=((Operation.READ, ResourceType.GROUP),),
    size=RequestSize.LARGE_FIELDS,
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    return ask_group(node, request, request.body.group_id, Operation.READ)
