"""DescribeConfigs, key 32, versions 1 to 4: the configuration of topics, the broker, and groups.

The answer has every property with its value, the value's source, all the layers below it (synonyms), its type and a
sentence about it. Secrets are null. Listeners and the data directory are the ones in use. A request with an unknown
resource type is refused as a whole, as in Kafka. One entry of a broker is no property, and nothing can set it: the list
of Ottla's own requests that the node serves.

Versions: 3 types and sentences, 4 flexible.

Not supported: loggers (an empty list); client metrics subscriptions (INVALID_REQUEST: no telemetry is served).

Source: Kafka's ConfigHelper.scala; KIP-133, KIP-226, KIP-569.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.api.config_resources import (
    ConfigResourceType,
    ResourceRefusedError,
    broker_id_of,
    denial,
    existing_topic,
)
from ottla.broker.api_spec import ApiSpec
from ottla.broker.config.answers import Entry, broker_entries, cluster_entries, group_entries, topic_entries
from ottla.broker.config.key import ConfigKey, Kind
from ottla.broker.config.values import shown
from ottla.broker.effects import Close, Parked
from ottla.broker.requests import Listening, Request
from ottla.broker.served import PRIVATE
from ottla.broker.slices import NO_ELEMENTS, SLICE_STEPS, Work, answer_of_parts
from ottla.protocol import private_requests
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
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
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    acl=(
        (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        (Operation.DESCRIBE_CONFIGS, ResourceType.GROUP),
        (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    ),
)


_FLEXIBLE_SINCE = 4
ANSWERED_AT_ONCE_MAX = 3
"""With more resources than these the answer is built in slices."""
ANSWER_BYTES_MAX = 0x7FFF_FF00

PRIVATE_KEY: Final = ConfigKey(
    private_requests.PRIVATE_REQUESTS,
    Kind.LIST,
    (),
    "Requests of Ottla's own that the node serves: KEY:LOWEST-HIGHEST version of each. The node reports it; it cannot "
    "be set.",
)

_KNOWN = frozenset(ConfigResourceType)


def handle(node: Core, request: Request) -> DescribeConfigsResponse | Parked:
    body: DescribeConfigsRequest = request.body
    if any(resource.resource_type not in _KNOWN for resource in body.resources):
        error = ErrorCode.INVALID_REQUEST
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(error, error.message, resource.resource_type, resource.resource_name)
                for resource in body.resources
            ]
        )
    if len(body.resources) > ANSWERED_AT_ONCE_MAX:
        return node.slices.begin(request, _long_answer(node, request), is_long=True)
    return DescribeConfigsResponse(results=[_describe(node, request, resource) for resource in body.resources])


def _long_answer(node: Core, request: Request) -> Work:
    """The parts of an answer about many resources, a slice at a time.

    A resource's properties need a hundred times the bytes of its name. So resources with equal configurations share
    these bytes, and an answer of gigabytes becomes a list of references to a few of them.
    """
    body: DescribeConfigsRequest = request.body
    parts: list[bytes] = []
    size = 0
    known: dict[Hashable, bytes] = {}
    for position, resource in enumerate(body.resources):
        pieces = _result_in_pieces(node, request, resource, known)
        parts += pieces
        size += sum(len(piece) for piece in pieces)
        if len(pieces) == 1 or position % SLICE_STEPS == 0:
            yield
        if size > ANSWER_BYTES_MAX:
            why = f"the answer to a DescribeConfigs is above {ANSWER_BYTES_MAX} bytes"
            node.outbox.add(Close(request.identity.address.connection_id, why))
            return []
    empty = DescribeConfigsResponse()
    node.throttle.charge_message(request.now, request, empty)
    return answer_of_parts(request, empty, request.version >= _FLEXIBLE_SINCE, len(body.resources), parts)


def _result_in_pieces(
    node: Core, request: Request, resource: DescribeConfigsResource, known: dict[Hashable, bytes]
) -> list[bytes]:
    """One encoded result: whole if it is the first of its kind, otherwise its head and the `known` properties."""
    nothing = NO_ELEMENTS[request.version >= _FLEXIBLE_SINCE]
    name = bytearray()
    DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name).encode(
        name, request.version
    )
    del name[-len(nothing) :]
    likeness = _likeness(node, request, resource)
    if likeness in known:
        return [bytes(name), known[likeness]]
    result = _describe(node, request, resource)
    whole = bytearray()
    result.encode(whole, request.version)
    if likeness is not None and not result.error_code:
        known[likeness] = bytes(whole[len(name) :])
    return [bytes(whole)]


def _likeness(node: Core, request: Request, resource: DescribeConfigsResource) -> Hashable:
    """Equal for resources that have the same properties to report; None if there may be nothing to report."""
    kind, name = resource.resource_type, resource.resource_name
    if denial(node, request, Operation.DESCRIBE_CONFIGS, kind, name) is not None:
        return None
    asked = tuple(resource.configuration_keys or ())
    match kind:
        case ConfigResourceType.TOPIC:
            topic = node.image.topics.get(name)
            return None if topic is None else (kind, asked, tuple(topic.configs.items()))
        case ConfigResourceType.GROUP:
            return (kind, asked, tuple(node.settings.of_group(name).items())) if name else None
        case _:
            return (kind, asked, name)


def _describe(node: Core, request: Request, resource: DescribeConfigsResource) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        denied = denial(node, request, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
        if denied is not None:
            raise ResourceRefusedError(denied)
        entries = _entries(node, request, resource.resource_type, resource.resource_name)
    except ResourceRefusedError as refused:
        result.error_code, result.error_message = refused.error_code, refused.sentence
        return result
    asked = frozenset(resource.configuration_keys or ())
    names = [name for name in entries if name in asked] if asked else list(entries)
    result.configs = [_printed(name, entries[name](), request.body) for name in names]
    return result


def _entries(node: Core, request: Request, resource_type: int, name: str) -> Mapping[str, Callable[[], Entry]]:
    """Raises ResourceRefusedError."""
    match resource_type:
        case ConfigResourceType.TOPIC:
            return topic_entries(node.settings.current, existing_topic(node, name).configs)
        case ConfigResourceType.BROKER:
            if not name:
                return cluster_entries(node.settings.current)
            broker_id_of(node, name, "expected {} or empty string, but received {}")
            given = {**_listeners(node, request), "log.dirs": (node.directory,)}
            return {**broker_entries(node.settings.current, given), PRIVATE_KEY.name: _private_requests}
        case ConfigResourceType.BROKER_LOGGER:
            if not name:
                raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
            broker_id_of(node, name, "expected {} but received {}")
            return {}
        case ConfigResourceType.GROUP:
            if not name:
                raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
            return group_entries(node.settings.current, node.settings.of_group(name))
        case _:
            raise ResourceRefusedError(ErrorCode.INVALID_REQUEST, "This node does not collect client metrics.")


def _listeners(node: Core, request: Request) -> dict[str, tuple[str, ...]]:
    """Every listener of the node. A listener without a fixed advertised address shows this client the address it
    used."""
    address = request.identity.address
    here = node.listening or (Listening(address.listener, *address.advertised, None),)
    return {
        "listeners": tuple(_text(each.name, (each.host, each.port)) for each in here),
        "advertised.listeners": tuple(_text(each.name, each.advertised or address.advertised) for each in here),
    }


def _private_requests() -> Entry:
    served = private_requests.shown({key: spec.versions for key, spec in PRIVATE.items()})
    return Entry(PRIVATE_KEY, served, [], read_only=True)


def _text(name: str, at: tuple[str, int]) -> str:
    host, port = at
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"


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
