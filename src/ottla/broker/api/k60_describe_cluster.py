"""DescribeCluster, key 60, versions 0 to 2: the cluster's id, nodes and controller.

Versions: 1 endpoint types (KIP-919), 2 fenced brokers are listed on demand (KIP-1073).

Not supported: controller endpoints (MISMATCHED_ENDPOINT_TYPE, as from a Kafka broker).

Source: AuthHelper.computeDescribeClusterResponse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import NOT_ASKED
from ottla.protocol.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    acl=((Operation.DESCRIBE, ResourceType.CLUSTER),),
)


BROKERS = 1
CONTROLLERS = 2


def handle(node: Core, request: Request) -> DescribeClusterResponse:
    body: DescribeClusterRequest = request.body
    if body.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER",
        )
    if body.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {body.endpoint_type}",
        )
    operations = NOT_ASKED
    if body.include_cluster_authorized_operations:
        operations = 0
        if node.access.quiet.on_cluster(request, Operation.DESCRIBE):
            operations = node.access.authorized_operations(request, ResourceType.CLUSTER, CLUSTER_NAME)
    brokers = [DescribeClusterBroker(*each) for each in node.members.shown(request.identity.address)]
    if body.include_fenced_brokers:
        fenced = node.members.fenced(request.identity.address)
        brokers += [DescribeClusterBroker(*each, is_fenced=True) for each in fenced]
    return DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=node.members.controller_id,
        brokers=brokers,
        cluster_authorized_operations=operations,
    )
