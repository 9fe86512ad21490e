"""What the handlers of transactions share: a request, or a part of it, as the shard of its id sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.machine import Call
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction

if TYPE_CHECKING:
    from ottla.broker.node import Node


def place_of(node: Node, transactional_id: str, call: Call) -> tuple[int, Call]:
    """A call with the shard that has to answer it."""
    return node.transactions.partition_for(transactional_id), call


def ask_transaction(node: Node, request: Request, transactional_id: str) -> Any:
    """Hand the whole request to its transactional id."""
    asked = CoordinatorRequest([place_of(node, transactional_id, call_of(request))])
    return node.transactions.submit(request.now, request, asked)


def addition(body: Any, topics: list[AddPartitionsToTxnTopic]) -> AddPartitionsToTxnTransaction:
    """These partitions, to be added to the transaction that a request names."""
    return AddPartitionsToTxnTransaction(
        body.transactional_id, body.producer_id, body.producer_epoch, verify_only=False, topics=topics
    )
