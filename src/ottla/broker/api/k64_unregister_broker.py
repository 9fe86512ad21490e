"""UnregisterBroker, key 64, version 0: the cluster is to forget a broker that does not come back.

What it does: a broker that nobody knows is refused as Kafka does (BROKER_ID_NOT_REGISTERED).

What is skipped: forgetting one that is known, which is refused in a sentence (UNSUPPORTED_VERSION).

Source: ReplicationControlManager.unregisterBroker; KIP-500.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> UnregisterBrokerResponse:
    body: UnregisterBrokerRequest = request.body
    error, sentence = ErrorCode.UNSUPPORTED_VERSION, "Nodes can't be unregistered in this version of Ottla."
    if not node.access.on_cluster(request, Operation.ALTER):
        error, sentence = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message
    elif body.broker_id != node.node_id and str(body.broker_id) not in node.image.nodes:
        error = ErrorCode.BROKER_ID_NOT_REGISTERED
        sentence = f"Broker ID {body.broker_id} is not currently registered"
    return UnregisterBrokerResponse(error_code=error, error_message=sentence)
