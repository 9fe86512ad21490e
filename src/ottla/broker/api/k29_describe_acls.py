"""DescribeAcls, key 29, versions 1 to 3: which access control lists exist.

The answer is that there is no authorizer (SECURITY_DISABLED), as from a Kafka broker without one.

Versions: 2 flexible, 3 user principals made by names (no effect here).

Source: AclApis.handleDescribeAcls; KIP-140, KIP-290.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_acls import DescribeAclsResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_ACLS,
    versions=(1, 3),
    acl=((Operation.DESCRIBE, ResourceType.CLUSTER),),
)


DISABLED = "No Authorizer is configured on the broker"


def handle(node: Core, request: Request) -> DescribeAclsResponse:
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        return DescribeAclsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=DISABLED)
