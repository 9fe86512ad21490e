"""AlterClientQuotas, key 49, versions 0 to 1: set and remove quotas.

What it does: checks each entry as Kafka does. Quotas are not built yet: one that is to be set is refused in a sentence
(INVALID_REQUEST) rather than taken and not kept to; there is none to remove, so removing always succeeds.

What changed per version: 1 flexible.

What is skipped: setting a quota.

Source: ClientQuotaControlManager.alterClientQuotas; KIP-546, KIP-612.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.k48_describe_client_quotas import ENTITY_TYPES
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntryData,
    ResponseEntityData,
    ResponseEntryData,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
NOT_BUILT = "Quotas can't be set: this version of Ottla has none."


def handle(node: Node, request: Request) -> Any:
    return node.slices.each(request, partial(_answer, node), "entries", "entries")


def _answer(node: Node, request: Request) -> AlterClientQuotasResponse:
    body: AlterClientQuotasRequest = request.body
    allowed = node.access.on_cluster(request, Operation.ALTER_CONFIGS)
    return AlterClientQuotasResponse(entries=[_of_entry(entry, allowed) for entry in body.entries])


def _of_entry(entry: RequestEntryData, allowed: bool) -> ResponseEntryData:
    error, sentence = ErrorCode.NONE, None
    if not allowed:
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif (fault := _fault(entry)) is not None:
        error, sentence = ErrorCode.INVALID_REQUEST, fault
    entity = [ResponseEntityData(each.entity_type, each.entity_name) for each in entry.entity]
    return ResponseEntryData(error, sentence, entity)


def _fault(entry: RequestEntryData) -> str | None:
    """Why this entry is refused; None where it only removes."""
    if not entry.entity:
        return "Invalid empty client quota entity"
    for each in entry.entity:
        if each.entity_type not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {each.entity_type}"
    faults = (_fault_of(op) for op in entry.ops)
    return next((fault for fault in faults if fault is not None), None)


def _fault_of(op: OpData) -> str | None:
    if op.key not in KEYS:
        return f"Invalid configuration key {op.key}"
    if op.remove:
        return None
    if op.value <= 0:
        return f"Quota {op.key} must be greater than 0"
    return NOT_BUILT
