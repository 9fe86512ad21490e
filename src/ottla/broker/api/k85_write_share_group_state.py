"""WriteShareGroupState, key 85, versions 0 to 1: between brokers, one of the share coordinator's APIs.

The handler writes the changes of a share partition.

Versions: 1 delivery_complete_count (KIP-1226). Not supported: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_state_calls import ask
from ottla.broker.api_spec import ApiSpec, RequestSize
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.WRITE_SHARE_GROUP_STATE,
    versions=(0, 1),
    acl=((Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
    size=RequestSize.MANY_ELEMENTS,
    needs_lease=True,
    between_nodes=True,
    loaded_with=SHARE_GROUP_STATE_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    return ask(node, request)
