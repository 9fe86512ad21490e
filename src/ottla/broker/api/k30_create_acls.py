"""CreateAcls, key 30, versions 1 to 3: add access control lists.

The controller checks each ACL as Kafka does and writes all valid ones at once, a large number in slices. An ACL that
exists is created without effect. Every node decides by an ACL as soon as its image has it. Without an authorizer each
result is SECURITY_DISABLED, as from a Kafka broker without one.

Versions: 2 flexible, 3 user principals made by names (no effect here).

Source: AclApis.handleCreateAcls, AclControlManager.validateNewAcl; KIP-140, KIP-290.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned, RowBatch, RowChange
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.machine import Millis
from ottla.metadata.acls import ACLS, PREFIX, AclBinding
from ottla.metadata.store import StoreError
from ottla.protocol.acls import ANY, CLUSTER_NAME, MATCH, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.CREATE_ACLS,
    versions=(1, 3),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


DISABLED = "No Authorizer is configured."
ACLS_AT_ONCE = 200


def handle(node: Core, request: Request) -> Any:
    return node.slices.begin(request, _answer(node, request), is_long=len(request.body.creations) > ACLS_AT_ONCE)


def refused(request: Request, error: ErrorCode, sentence: str | None) -> CreateAclsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return CreateAclsResponse(results=[AclCreationResult(error, sentence)] * len(request.body.creations))


def _answer(node: Core, request: Request) -> Work:
    body: CreateAclsRequest = request.body
    if not node.access.on_cluster(request, Operation.ALTER):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return refused(request, denied, denied.message)
    if node.access.authorizer is None:
        return refused(request, ErrorCode.SECURITY_DISABLED, DISABLED)
    results: list[AclCreationResult] = []
    for first in range(0, len(body.creations), ACLS_AT_ONCE):
        checked = [_checked(each) for each in body.creations[first : first + ACLS_AT_ONCE]]
        valid = [each for each in checked if isinstance(each, AclBinding)]
        error, sentence = (yield partial(creating, node, valid)) if valid else (ErrorCode.NONE, "")
        for each in checked:
            outcome = (error, sentence) if isinstance(each, AclBinding) else (ErrorCode.INVALID_REQUEST, each)
            results.append(AclCreationResult(*outcome))
    return CreateAclsResponse(results=results)


def creating(node: Core, acls: Sequence[AclBinding], now: Millis) -> Planned:
    """The plan to store these ACLs; it returns the error code and the sentence of its answer."""
    known = node.image[ACLS].by_row
    rows = [RowChange(acl.key, acl) for acl in dict.fromkeys(acls) if acl.key.removeprefix(PREFIX) not in known]
    try:
        if rows:
            yield RowBatch(rows, (), node.members.guards())
    except StoreError as failed:
        node.notes(f"ACLs could not be kept: {failed}")
        return error_of(failed), str(failed)
    return ErrorCode.NONE, ""


def _checked(asked: AclCreation) -> AclBinding | str:
    """The ACL; the reason to refuse it, in Kafka's words, if it is not valid."""
    if asked.resource_type == ResourceType.CLUSTER and asked.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not asked.resource_name:
        return "Invalid empty resource name"
    for what, kind, code in (
        ("resourceType", ResourceType, asked.resource_type),
        ("patternType", PatternType, asked.resource_pattern_type),
        ("operation", Operation, asked.operation),
        ("permissionType", PermissionType, asked.permission_type),
    ):
        if code not in list(kind):
            return f"Invalid {what} {_name_of(kind, code)}"
    if ":" not in asked.principal:
        return (
            f"Could not parse principal from `{asked.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    return AclBinding(
        ResourceType(asked.resource_type),
        PatternType(asked.resource_pattern_type),
        asked.resource_name,
        asked.principal,
        asked.host,
        Operation(asked.operation),
        PermissionType(asked.permission_type),
    )


def _name_of(kind: type, code: int) -> str:
    """Kafka's name of a code that no ACL can have."""
    if code == ANY:
        return "ANY"
    return "MATCH" if kind is PatternType and code == MATCH else "UNKNOWN"
