"""Heartbeat, key 12, versions 0 to 4: a member keeps its session alive and learns whether a rebalance is in progress.

Versions: 1 throttle_time_ms, 3 static members, 4 flexible.

Not supported: nothing.
"""

from __future__ import annotations

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
    key=ApiKey.HEARTBEAT,
    versions=(0, 4),
    acl=((Operation.READ, ResourceType.GROUP),),
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    return ask_group(node, request, request.body.group_id, Operation.READ)
