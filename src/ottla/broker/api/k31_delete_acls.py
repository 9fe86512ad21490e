"""DeleteAcls, key 31, versions 1 to 3: remove the access control lists that match filters.

The controller removes what all filters match at once, a large number in slices. An ACL that several filters match is in
the result of each. Without an authorizer each result is SECURITY_DISABLED, as from a Kafka broker without one.

Versions: 2 flexible, 3 user principals made by names (no effect here).

Source: AclApis.handleDeleteAcls, AclControlManager.deleteAcls; KIP-140, KIP-290.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.k29_describe_acls import filter_of
from ottla.broker.api.k30_create_acls import DISABLED
from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned, RowBatch, RowChange
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.machine import Millis
from ottla.metadata.acls import ACLS, AclBinding
from ottla.metadata.store import StoreError
from ottla.protocol.acls import ANY, MATCH, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DELETE_ACLS,
    versions=(1, 3),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


FILTERS_AT_ONCE = 20


def handle(node: Core, request: Request) -> Any:
    return node.slices.begin(request, _answer(node, request), is_long=len(request.body.filters) > FILTERS_AT_ONCE)


def refused(request: Request, error: ErrorCode, sentence: str | None) -> DeleteAclsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(error, sentence)] * len(request.body.filters))


def _answer(node: Core, request: Request) -> Work:
    body: DeleteAclsRequest = request.body
    if not node.access.on_cluster(request, Operation.ALTER):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return refused(request, denied, denied.message)
    if node.access.authorizer is None:
        return refused(request, ErrorCode.SECURITY_DISABLED, DISABLED)
    results: list[DeleteAclsFilterResult] = []
    before = list(node.image[ACLS])
    for first in range(0, len(body.filters), FILTERS_AT_ONCE):
        found = [_matched(before, each) for each in body.filters[first : first + FILTERS_AT_ONCE]]
        matched = [acl for each in found if not isinstance(each, str) for acl in each]
        error, sentence = (yield partial(_deleting, node, matched)) if matched else (ErrorCode.NONE, None)
        for each in found:
            if isinstance(each, str):
                results.append(DeleteAclsFilterResult(ErrorCode.INVALID_REQUEST, each))
            else:
                results.append(DeleteAclsFilterResult(error, sentence, [] if error else [_told(acl) for acl in each]))
    return DeleteAclsResponse(filter_results=results)


def _matched(acls: Sequence[AclBinding], asked: DeleteAclsFilter) -> list[AclBinding] | str:
    """The ACLs that the filter matches; the reason to refuse it, in Kafka's words, if it is not valid."""
    if asked.resource_type_filter not in (ANY, *ResourceType) or asked.pattern_type_filter not in (
        ANY,
        MATCH,
        *PatternType,
    ):
        return "Unknown patternFilter."
    if asked.operation not in (ANY, *Operation) or asked.permission_type not in (ANY, *PermissionType):
        return "Unknown entryFilter."
    wanted = filter_of(asked)
    return [acl for acl in acls if wanted.matches(acl)]


def _deleting(node: Core, acls: Sequence[AclBinding], now: Millis) -> Planned:
    """The plan to remove these ACLs; it returns the error code and the sentence of its answer."""
    try:
        yield RowBatch([RowChange(acl.key, None) for acl in dict.fromkeys(acls)], (), node.members.guards())
    except StoreError as failed:
        node.notes(f"ACLs could not be removed: {failed}")
        return error_of(failed), str(failed)
    return ErrorCode.NONE, None


def _told(acl: AclBinding) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
