"""DescribeClientQuotas, key 48, versions 0 to 1: the quotas of users, clients and addresses.

The handler checks the filter as Kafka does, and returns the matching entities.

Versions: 1 flexible.

Source: ClientQuotasImage.describe; KIP-546, KIP-612.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_in_slices
from ottla.metadata.quotas import IP, QUOTAS, Entity, entity_of
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    acl=((Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)


EXACT, DEFAULT, SPECIFIED = 0, 1, 2
ENTITY_TYPES = ("user", "client-id", IP)

Fault = tuple[ErrorCode, str | None]


def handle(node: Core, request: Request) -> Any:
    body: DescribeClientQuotasRequest = request.body
    fault = _fault(body.components)
    if not node.access.on_cluster(request, Operation.DESCRIBE_CONFIGS):
        fault = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None
    if fault is None:
        return node.slices.begin(request, _answer(node, request), is_long=len(node.image[QUOTAS]) > SLICE_STEPS)
    error, sentence = fault
    return DescribeClientQuotasResponse(error_code=error, error_message=sentence, entries=None)


def _answer(node: Core, request: Request) -> Work:
    quotas = sorted(node.image[QUOTAS].items())
    asked: DescribeClientQuotasRequest = request.body
    entries = (
        EntryData(
            [EntityData(kind, name) for kind, name in entity.items()],
            [ValueData(key, float(value)) for key, value in limits.items()],
        )
        for entity, limits in ((entity_of(name), limits) for name, limits in quotas)
        if _fits(entity, asked.components, asked.strict)
    )
    told = yield from encoded_in_slices(entries, request.version)
    return DescribeClientQuotasResponse(error_message="", entries=told)


def _fits(entity: Entity, components: list[ComponentData], strict: bool) -> bool:
    """Whether the filter lets this entity through: each component does; a strict one wants nothing beside."""
    if strict and len(entity) != len(components):
        return False
    return all(
        each.entity_type in entity and (each.match_type == SPECIFIED or entity[each.entity_type] == each.match)
        for each in components
    )


def _fault(components: list[ComponentData]) -> Fault | None:
    """The fault of a filter, if it has one."""
    seen: list[str] = []
    for each in components:
        if fault := _fault_of(each, seen):
            return fault
        seen.append(each.entity_type)
    if IP in seen and len(seen) > 1:
        return (
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. "
            "IP filter component should not be used with user or clientId filter component.",
        )
    return None


def _fault_of(asked: ComponentData, seen: list[str]) -> Fault | None:
    kind = asked.entity_type
    if not kind:
        return ErrorCode.INVALID_REQUEST, "Invalid empty entity type."
    if kind in seen:
        return ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
    if kind not in ENTITY_TYPES:
        return ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}"
    if asked.match_type not in (EXACT, DEFAULT, SPECIFIED):
        return ErrorCode.INVALID_REQUEST, f"Unknown match type {asked.match_type}"
    if asked.match_type == EXACT and asked.match is None:
        return ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
    if asked.match_type != EXACT and asked.match is not None:
        name = "MATCH_TYPE_DEFAULT" if asked.match_type == DEFAULT else "MATCH_TYPE_SPECIFIED"
        return ErrorCode.INVALID_REQUEST, f"Request specified {name}, but also specified a match string."
    return None
