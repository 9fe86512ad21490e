"""ListConfigResources, key 74, versions 0 to 1: which resources have a configuration.

The answer has every topic, this broker and its loggers' resource, and the groups that have properties of their own. A
request without types means all of them; an unknown type is UNSUPPORTED_VERSION.

Versions: 0 is the older ListClientMetricsResources, which finds nothing here; 1 has types.

Not supported: client metrics subscriptions, because no telemetry is served.

Source: KafkaApis.handleListConfigResources; KIP-714, KIP-1142.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.metadata.configs import GROUP_CONFIGS
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    acl=((Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)


_TYPES_SINCE = 1
_KNOWN = frozenset(ConfigResourceType)


def handle(node: Core, request: Request) -> ListConfigResourcesResponse:
    body: ListConfigResourcesRequest = request.body
    if not node.access.on_cluster(request, Operation.DESCRIBE_CONFIGS):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.version < _TYPES_SINCE:
        return ListConfigResourcesResponse()
    wanted = set(body.resource_types) or set(_KNOWN)
    if not wanted <= _KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    names = {
        ConfigResourceType.GROUP: sorted(node.image[GROUP_CONFIGS]),
        ConfigResourceType.CLIENT_METRICS: [],
        ConfigResourceType.BROKER_LOGGER: [str(node.node_id)],
        ConfigResourceType.BROKER: [str(node.node_id)],
        ConfigResourceType.TOPIC: list(node.image.topics),
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(name, int(kind)) for kind, found in names.items() if kind in wanted for name in found
        ]
    )
