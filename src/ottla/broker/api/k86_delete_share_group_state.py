"""DeleteShareGroupState, key 86, version 0: between brokers, one of the share coordinator's APIs.

The handler deletes the state of share partitions.

Versions: only one. Not supported: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.share_state_calls import ask
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DELETE_SHARE_GROUP_STATE,
    versions=(0, 0),
    acl=((Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
    needs_lease=True,
    between_nodes=True,
)


def handle(node: Core, request: Request) -> Any:
    return ask(node, request)
