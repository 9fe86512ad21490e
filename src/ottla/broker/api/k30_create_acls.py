"""CreateAcls, key 30, versions 1 to 3: add access control lists.

Each result is that there is no authorizer (SECURITY_DISABLED), as from a Kafka broker without one.

Versions: 2 flexible, 3 user principals made by names (no effect here).

Source: AclApis.handleCreateAcls; KIP-140, KIP-290.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.CREATE_ACLS,
    versions=(1, 3),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
)


DISABLED = "No Authorizer is configured."


def handle(node: Core, request: Request) -> CreateAclsResponse:
    body: CreateAclsRequest = request.body
    result = AclCreationResult(ErrorCode.SECURITY_DISABLED, DISABLED)
    if not node.access.on_cluster(request, Operation.ALTER):
        result = AclCreationResult(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    return CreateAclsResponse(results=[result] * len(body.creations))
