"""DeleteAcls, key 31, versions 1 to 3: remove the access control lists that match filters.

The result of each filter is that there is no authorizer (SECURITY_DISABLED), as from a Kafka broker without one.

Versions: 2 flexible, 3 user principals made by names (no effect here).

Source: AclApis.handleDeleteAcls; KIP-140, KIP-290.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.k30_create_acls import DISABLED
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DELETE_ACLS,
    versions=(1, 3),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
)


def handle(node: Core, request: Request) -> DeleteAclsResponse:
    body: DeleteAclsRequest = request.body
    result = DeleteAclsFilterResult(ErrorCode.SECURITY_DISABLED, DISABLED)
    if not node.access.on_cluster(request, Operation.ALTER):
        result = DeleteAclsFilterResult(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    return DeleteAclsResponse(filter_results=[result] * len(body.filters))
