"""AlterClientQuotas, key 49, versions 0 to 1: set and remove quotas.

The controller checks each entry as Kafka does and writes all valid ones at once, a large number in slices. Every node
applies a quota as soon as its image has it.

Versions: 1 flexible.

Not supported: host names, which a node does not resolve (INVALID_REQUEST). Addresses must be IP addresses.

Source: ClientQuotaControlManager.alterClientQuotas; KIP-546, KIP-612.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.k48_describe_client_quotas import ENTITY_TYPES
from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned, RowBatch, RowChange
from ottla.broker.config.addresses import host
from ottla.broker.config.key import INT_MAX
from ottla.broker.observations.config_changes import Resource
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.machine import Millis
from ottla.metadata.quotas import CONNECTION_CREATION_RATE, IP, PREFIX, QUOTAS, key_of
from ottla.metadata.store import StoreError
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.config_resources import QUOTA
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
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    acl=((Operation.ALTER_CONFIGS, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


WHOLE = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)
"""Limits that are whole numbers."""
KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
KEYS_OF_ADDRESSES = (CONNECTION_CREATION_RATE,)
ENTRIES_AT_ONCE = 200
_EPSILON = 1e-6

Outcome = tuple[ErrorCode, str | None]


def handle(node: Core, request: Request) -> Any:
    return node.slices.begin(request, _answer(node, request), is_long=len(request.body.entries) > ENTRIES_AT_ONCE)


def refused(request: Request, error: ErrorCode, sentence: str) -> AlterClientQuotasResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return _told(request, [(error, sentence)] * len(request.body.entries))


def _answer(node: Core, request: Request) -> Work:
    body: AlterClientQuotasRequest = request.body
    if not node.access.on_cluster(request, Operation.ALTER_CONFIGS):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _told(request, [(denied, denied.message)] * len(body.entries))
    times = Counter(map(_key, body.entries))
    outcomes: list[Outcome] = []
    for first in range(0, len(body.entries), ENTRIES_AT_ONCE):
        some = body.entries[first : first + ENTRIES_AT_ONCE]
        faults = [_fault(entry, times[_key(entry)]) for entry in some]
        valid = [entry for entry, fault in zip(some, faults, strict=True) if fault is None]
        failed = (yield partial(_altering, node, request, valid)) if valid and not body.validate_only else None
        done = failed or (ErrorCode.NONE, None)
        outcomes += [done if fault is None else (ErrorCode.INVALID_REQUEST, fault) for fault in faults]
    return _told(request, outcomes)


def _told(request: Request, outcomes: Sequence[Outcome]) -> AlterClientQuotasResponse:
    entries = [
        ResponseEntryData(
            error, sentence, [ResponseEntityData(each.entity_type, each.entity_name) for each in entry.entity]
        )
        for entry, (error, sentence) in zip(request.body.entries, outcomes, strict=True)
    ]
    return AlterClientQuotasResponse(entries=entries)


def _altering(node: Core, request: Request, entries: list[RequestEntryData], now: Millis) -> Planned:
    """The plan to make these changes; it returns why they could not be stored, None if they were."""
    rows: list[RowChange] = []
    changed: list[tuple[Resource, Mapping[str, str], Mapping[str, str]]] = []
    for entry in entries:
        key = _key(entry)
        before = node.image[QUOTAS].get(key.removeprefix(PREFIX), {})
        after = {**before, **{op.key: repr(float(op.value)) for op in entry.ops}}
        for op in entry.ops:
            if op.remove:
                del after[op.key]
        if after != before:
            rows.append(RowChange(key, after or None))
            changed.append((Resource(QUOTA, _shown(entry)), before, after))
    try:
        if rows:
            yield RowBatch(rows, (), node.members.guards())
    except StoreError as failed:
        node.notes(f"quotas could not be kept: {failed}")
        return error_of(failed), str(failed)
    for each in changed:
        node.observations.configured(now, request, *each)
    return None


def _shown(entry: RequestEntryData) -> str:
    """The users, clients or addresses of a quota, by type: "client-id <default>, user ada"."""
    entity = sorted((each.entity_type, each.entity_name or "<default>") for each in entry.entity)
    return ", ".join(f"{kind} {name}" for kind, name in entity)


def _key(entry: RequestEntryData) -> str:
    return key_of({each.entity_type: each.entity_name for each in entry.entity})


def _fault(entry: RequestEntryData, times: int) -> str | None:
    """The reason to refuse this entry, in Kafka's words if it has them; `times`: how often its entity is named."""
    kinds = [each.entity_type for each in entry.entity]
    if not kinds:
        return "Invalid empty client quota entity"
    for each in entry.entity:
        if each.entity_type not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {each.entity_type}"
        if each.entity_name == "":
            return f"Empty {each.entity_type} not supported"
    if len(set(kinds)) < len(kinds):
        return "Invalid empty client quota entity, duplicate entity entry"
    if IP in kinds and len(kinds) > 1:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    if IP in kinds and not _is_address(entry.entity[0].entity_name):
        return f"{entry.entity[0].entity_name} is not a valid IP or resolvable host."
    if times > 1:
        return "Ignoring duplicate entity"
    if len({op.key for op in entry.ops}) < len(entry.ops):
        return "Duplicate quota key"
    faults = (_fault_of(op, KEYS_OF_ADDRESSES if IP in kinds else KEYS) for op in entry.ops)
    return next((fault for fault in faults if fault is not None), None)


def _is_address(name: str | None) -> bool:
    """Whether this names an address, or all that are not named."""
    return name is None or not isinstance(host(name), str)


def _fault_of(op: OpData, keys: Sequence[str]) -> str | None:
    if op.remove:
        return None
    if op.key not in keys:
        return f"Invalid configuration key {op.key}"
    if not op.value > 0:
        return f"Quota {op.key} must be greater than 0"
    if op.key in WHOLE and not abs(op.value - int(min(op.value, 2**63 - 1) + _EPSILON)) <= _EPSILON:
        return f"{op.key} cannot be a fractional value."
    if op.key == CONNECTION_CREATION_RATE and op.value > INT_MAX:
        return f"Proposed value for {op.key} is too large for an INT."
    return None
