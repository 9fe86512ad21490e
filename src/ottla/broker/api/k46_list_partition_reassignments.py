"""ListPartitionReassignments, key 46, version 0: which replicas are being moved.

What it does: on one node nothing ever moves, so the list is empty.

Source: ReplicationControlManager.listPartitionReassignments; KIP-455.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> ListPartitionReassignmentsResponse:
    answer = ListPartitionReassignmentsResponse(error_message=None)
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        answer.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return answer
