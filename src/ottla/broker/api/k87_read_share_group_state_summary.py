"""ReadShareGroupStateSummary, key 87, versions 0 to 1: between brokers, one of the share coordinator's APIs.

The handler reads the start offset of share partitions and how many deliveries are complete.

Versions: 1 delivery_complete_count (KIP-1226). Not supported: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_state_calls import ask
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    versions=(0, 1),
    acl=((Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
    needs_lease=True,
    between_nodes=True,
    loaded_with=SHARE_GROUP_STATE_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    return ask(node, request)
