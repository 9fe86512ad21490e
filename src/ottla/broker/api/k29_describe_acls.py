"""DescribeAcls, key 29, versions 1 to 3: which access control lists match a filter.

Without an authorizer the answer is SECURITY_DISABLED, as from a Kafka broker without one. A filter with a code that
this version does not define matches nothing; with the code 0, for which Kafka closes the connection, it is
INVALID_REQUEST.

Versions: 2 flexible, 3 user principals made by names (no effect here).

Source: AclApis.handleDescribeAcls; KIP-140, KIP-290.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.metadata.acls import ACLS, AclBinding, AclFilter
from ottla.protocol.acls import UNKNOWN, Operation, PatternType, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_acls import DeleteAclsFilter
from ottla.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_ACLS,
    versions=(1, 3),
    acl=((Operation.DESCRIBE, ResourceType.CLUSTER),),
)


DISABLED = "No Authorizer is configured on the broker"


def handle(node: Core, request: Request) -> DescribeAclsResponse:
    body: DescribeAclsRequest = request.body
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeAclsResponse(error_code=denied, error_message=denied.message)
    if node.access.authorizer is None:
        return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=DISABLED)
    wanted = filter_of(body)
    if UNKNOWN in (wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission):
        return DescribeAclsResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="The filter has unknown elements."
        )
    found: dict[tuple[ResourceType, PatternType, str], list[AclBinding]] = {}
    for acl in node.image[ACLS]:
        if wanted.matches(acl):
            found.setdefault((acl.resource_type, acl.pattern_type, acl.name), []).append(acl)
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResource(
                kind,
                name,
                pattern,
                [AclDescription(each.principal, each.host, each.operation, each.permission) for each in acls],
            )
            for (kind, pattern, name), acls in found.items()
        ]
    )


def filter_of(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """The filter in a request."""
    return AclFilter(
        asked.resource_type_filter,
        asked.pattern_type_filter,
        asked.resource_name_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )
