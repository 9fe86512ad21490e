"""DescribeConfigs, key 32, versions 1 to 4: the configuration of topics, the broker, and groups.

What it does: every property with its value, where that comes from, all the layers below it (synonyms), its type and a
sentence about it. Secrets are null. Listeners and the data directory are the ones in use. A request that names a
resource type nobody knows is refused as a whole, as Kafka does.

What changed per version: 3 types and sentences, 4 flexible.

What is skipped: loggers (an empty list); client metrics subscriptions (INVALID_REQUEST: no telemetry is served).

Source: Kafka's ConfigHelper.scala; KIP-133, KIP-226, KIP-569.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.authz import Operation
from ottla.broker.config_answers import Entry, broker_entries, cluster_entries, group_entries, topic_entries
from ottla.broker.config_resources import ConfigResourceType, ResourceRefused, broker_id_of, denial, existing_topic
from ottla.broker.configs import shown
from ottla.broker.requests import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node

KEY = 32
VERSIONS = (1, 4)

_KNOWN = frozenset(ConfigResourceType)


def handle(node: Node, request: Request) -> DescribeConfigsResponse:
    body: DescribeConfigsRequest = request.body
    if any(resource.resource_type not in _KNOWN for resource in body.resources):
        error = ErrorCode.INVALID_REQUEST
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(int(error), error.message, resource.resource_type, resource.resource_name)
                for resource in body.resources
            ]
        )
    return DescribeConfigsResponse(results=[_describe(node, request, resource) for resource in body.resources])


def _describe(node: Node, request: Request, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        denied = denial(node, request, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        if denied is not None:
            raise ResourceRefused(denied)
        entries = _entries(node, request, resource.resource_type, resource.resource_name)
    except ResourceRefused as refused:
        result.error_code, result.error_message = int(refused.error_code), refused.sentence
        return result
    asked = resource.configuration_keys
    names = [name for name in entries if name in asked] if asked else list(entries)
    result.configs = [_printed(name, entries[name](), request.body) for name in names]
    return result


def _entries(node: Node, request: Request, resource_type: int, name: str) -> Mapping[str, Callable[[], Entry]]:
    """Raises ResourceRefused."""
    match resource_type:
        case ConfigResourceType.TOPIC:
            return topic_entries(node.settings, existing_topic(node, name).overrides)
        case ConfigResourceType.BROKER:
            if not name:
                return cluster_entries(node.settings)
            broker_id_of(node, name, "expected {} or empty string, but received {}")
            host, port = node.advertised(request.context)
            listener = (f"{request.context.listener}://{host}:{port}",)
            given = {"listeners": listener, "advertised.listeners": listener, "log.dirs": (node.directory,)}
            return broker_entries(node.settings, given)
        case ConfigResourceType.BROKER_LOGGER:
            if not name:
                raise ResourceRefused(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            broker_id_of(node, name, "expected {} but received {}")
            return {}
        case ConfigResourceType.GROUP:
            if not name:
                raise ResourceRefused(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return group_entries(node.settings, node.topics.configs.of_group(name))
        case _:
            raise ResourceRefused(ErrorCode.INVALID_REQUEST, "This node does not collect client metrics.")


def _printed(name: str, entry: Entry, body: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsSynonym(layer.name, shown(entry.key, layer.value), int(layer.source))
        for layer in (entry.layers if body.include_synonyms else ())
    ]
    return DescribeConfigsResourceResult(
        name=name,
        value=entry.text,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.key.sensitive,
        synonyms=synonyms,
        config_type=int(entry.key.kind),
        documentation=entry.key.doc if body.include_documentation else None,
    )
