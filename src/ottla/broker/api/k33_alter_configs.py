"""AlterConfigs, key 33, versions 0 to 2: replace the whole configuration of a resource.

A property that the request does not name is reset to its default. Clients should use IncrementalAlterConfigs. Changes
take effect at once.

Versions: 2 flexible.

Not supported: loggers and client metrics subscriptions (INVALID_REQUEST).

Source: ConfigAdminManager.preprocess, ConfigurationControlManager.legacyAlterConfigs; KIP-133.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.config_resources import RESOURCES_AT_ONCE, Change, Changes, alter_all
from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import Work, encoded_in_slices
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    acl=(
        (Operation.ALTER_CONFIGS, ResourceType.TOPIC),
        (Operation.ALTER_CONFIGS, ResourceType.GROUP),
        (Operation.ALTER_CONFIGS, ResourceType.CLUSTER),
    ),
    forwarding=Forwarding.IN_PART,
)


def handle(node: Core, request: Request) -> AlterConfigsResponse | Parked:
    is_long = len(request.body.resources) > RESOURCES_AT_ONCE
    return node.slices.begin(request, _answer(node, request), is_long=is_long)


def refused(request: Request, error: ErrorCode, sentence: str) -> AlterConfigsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    responses = [
        AlterConfigsResourceResponse(error, sentence, each.resource_type, each.resource_name)
        for each in request.body.resources
    ]
    return AlterConfigsResponse(responses=responses)


def _answer(node: Core, request: Request) -> Work:
    outcomes = yield from alter_all(node, request, _changes_of, replace=True)
    responses = (
        AlterConfigsResourceResponse(error, sentence, resource.resource_type, resource.resource_name)
        for resource, (error, sentence) in zip(request.body.resources, outcomes, strict=True)
    )
    return AlterConfigsResponse(responses=(yield from encoded_in_slices(responses, request.version)))


def _changes_of(resource: AlterConfigsResource) -> Changes:
    return [(config.name, int(Change.SET), config.value) for config in resource.configs]
