"""UnregisterBroker, key 64, version 0: remove a node that does not return from the cluster.

The controller removes the node's registration. An unknown node is refused as in Kafka (BROKER_ID_NOT_REGISTERED). A
node that is serving, or that partitions still have among their replicas, is refused with INVALID_REQUEST; Kafka leaves
both checks to its operators. If the node starts later, it registers again.

Source: ReplicationControlManager.unregisterBroker; KIP-500.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned, RowBatch, RowChange
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.metadata.nodes import PREFIX, NodeState
from ottla.metadata.store import StoreError
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.UNREGISTER_BROKER,
    versions=(0, 0),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
    forwarding=Forwarding.WHOLE,
)


def handle(node: Core, request: Request) -> UnregisterBrokerResponse | Parked:
    body: UnregisterBrokerRequest = request.body
    if not node.access.on_cluster(request, Operation.ALTER):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return node.slices.begin(request, _answer(node, body.broker_id), is_long=False)


def refused(request: Request, error: ErrorCode, sentence: str) -> UnregisterBrokerResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return _refused(error, sentence)


def _answer(node: Core, node_id: int) -> Work:
    try:
        return (yield lambda _: _forgetting(node, node_id))
    except StoreError as failed:
        node.notes(f"node {node_id} could not be unregistered: {failed}")
        return _refused(error_of(failed))


def _forgetting(node: Core, node_id: int) -> Planned:
    known = node.image.nodes.get(str(node_id))
    if known is None and not (node.members.is_alone and node_id == node.node_id):
        return _refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered")
    if known is None or known.state is not NodeState.FENCED:
        return _refused(ErrorCode.INVALID_REQUEST, f"Node {node_id} serves: stop it before it is unregistered.")
    held = sum(node_id in each.replicas for topic in node.image.topics.values() for each in topic.partitions)
    if held:
        return _refused(
            ErrorCode.INVALID_REQUEST,
            f"Node {node_id} has replicas of {held} partitions: move them to other nodes before it is unregistered.",
        )
    yield RowBatch([RowChange(f"{PREFIX}{node_id}", None, known.version)], (), node.members.guards())
    return UnregisterBrokerResponse(error_message=None)


def _refused(error: ErrorCode, sentence: str | None = None) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error, error_message=sentence or error.message)
