"""Answers the APIs that change the voters on Kafka's metadata: there is no Raft here, so they change nothing.

The answer is that of a Kafka whose configuration names its voters (kraft.version 0). A request for another cluster, or
with an incomplete voter, is refused as such. Any other request gets UNSUPPORTED_VERSION.

Source: KafkaRaftClient.handleAddVoterRequest, AddVoterHandler, RemoveVoterHandler; KIP-853.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.wire import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.core import Core


def refusal_of(node: Core, request: Request, change: str) -> tuple[ErrorCode, str]:
    """Why a request with a cluster and a voter can't be done. `change`: "add" or "remove", for the sentence."""
    body = request.body
    if not node.access.on_cluster(request, Operation.ALTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message
    if body.cluster_id is not None and body.cluster_id != node.cluster_id:
        return (
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f'The given id "{body.cluster_id}" doesn\'t match the cluster id "{node.cluster_id}"',
        )
    if body.voter_id < 0 or body.voter_directory_id == ZERO_UUID:
        return ErrorCode.INVALID_REQUEST, f"{change.title()} voter request didn't include a valid voter"
    return ErrorCode.UNSUPPORTED_VERSION, f"Can't {change} a voter: Ottla's metadata has no Raft quorum."
