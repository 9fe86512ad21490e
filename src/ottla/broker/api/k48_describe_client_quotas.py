"""DescribeClientQuotas, key 48, versions 0 to 1: the quotas of users, clients and addresses.

What it does: checks the filter as Kafka does; there are no quotas yet, so the list is empty.

What changed per version: 1 flexible.

Source: ClientQuotasImage.describe; KIP-546, KIP-612.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


EXACT, DEFAULT, SPECIFIED = 0, 1, 2
IP = "ip"
ENTITY_TYPES = ("user", "client-id", IP)

Fault = tuple[ErrorCode, str | None]


def handle(node: Node, request: Request) -> DescribeClientQuotasResponse:
    body: DescribeClientQuotasRequest = request.body
    fault = _fault(body.components)
    if not node.access.on_cluster(request, Operation.DESCRIBE_CONFIGS):
        fault = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None
    if fault is None:
        return DescribeClientQuotasResponse(error_message="", entries=[])
    error, sentence = fault
    return DescribeClientQuotasResponse(error_code=error, error_message=sentence, entries=None)


def _fault(components: list[ComponentData]) -> Fault | None:
    """What is wrong with a filter."""
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
