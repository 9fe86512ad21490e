"""IncrementalAlterConfigs, key 44, versions 0 to 1: set, reset, or extend single properties of resources.

Resources are topics, the broker ('' for all brokers), and groups. Changes take effect at once. A resource is changed as
a whole or not at all, independently of the others.

Versions: 1 flexible.

Not supported: loggers (INVALID_CONFIG: there is none of that name) and client metrics subscriptions (INVALID_REQUEST).
An unknown broker property is INVALID_CONFIG; Kafka accepts any name for the sake of its plugins.

Source: ConfigAdminManager.preprocess, ConfigurationControlManager.incrementalAlterConfigs; KIP-339, KIP-412.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.config_resources import RESOURCES_AT_ONCE, Changes, alter_all
from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import Work, encoded_in_slices
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    acl=(
        (Operation.ALTER_CONFIGS, ResourceType.TOPIC),
        (Operation.ALTER_CONFIGS, ResourceType.GROUP),
        (Operation.ALTER_CONFIGS, ResourceType.CLUSTER),
    ),
    forwarding=Forwarding.IN_PART,
)


def handle(node: Core, request: Request) -> IncrementalAlterConfigsResponse | Parked:
    is_long = len(request.body.resources) > RESOURCES_AT_ONCE
    return node.slices.begin(request, _answer(node, request), is_long=is_long)


def refused(request: Request, error: ErrorCode, sentence: str) -> IncrementalAlterConfigsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    responses = [
        AlterConfigsResourceResponse(error, sentence, each.resource_type, each.resource_name)
        for each in request.body.resources
    ]
    return IncrementalAlterConfigsResponse(responses=responses)


def _answer(node: Core, request: Request) -> Work:
    outcomes = yield from alter_all(node, request, _changes_of, replace=False)
    responses = (
        AlterConfigsResourceResponse(error, sentence, resource.resource_type, resource.resource_name)
        for resource, (error, sentence) in zip(request.body.resources, outcomes, strict=True)
    )
    return IncrementalAlterConfigsResponse(responses=(yield from encoded_in_slices(responses, request.version)))


def _changes_of(resource: AlterConfigsResource) -> Changes:
    return [(config.name, config.config_operation, config.value) for config in resource.configs]
