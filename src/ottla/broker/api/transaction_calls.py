"""Brings the requests of the transaction APIs, or parts of them, to the coordinator, as an id's shard sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.slices import SubRequest, Work
from ottla.machine import Call
from ottla.metadata.store import StoreError
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction

if TYPE_CHECKING:
    from ottla.broker.core import Core


def place_of(node: Core, transactional_id: str, call: Call) -> tuple[int, Call]:
    """A call with the shard that has to answer it."""
    return node.coordinators.transactions.partition_for(transactional_id), call


def ask_transaction(node: Core, request: Request, transactional_id: str) -> Any:
    """Submit the whole request to its transactional id, once a producer id is available."""
    if node.topics.producer_ids.is_used_up:
        return node.slices.begin(request, _ask_once_claimed(node, request, transactional_id), is_long=False)
    return _ask(node, request, transactional_id)


def _ask_once_claimed(node: Core, request: Request, transactional_id: str) -> Work:
    """Claim producer ids first. If none is available, the coordinator refuses the requests that need one."""
    try:
        yield node.topics.claiming_producer_ids
    except StoreError as failed:
        node.notes(f"could not allocate a producer id: {failed}")
    return (yield SubRequest(request, request.body, lambda piece: _ask(node, piece, transactional_id)))


def _ask(node: Core, request: Request, transactional_id: str) -> Any:
    asked = CoordinatorRequest([place_of(node, transactional_id, call_of(request))])
    return node.coordinators.transactions.submit(request.now, request, asked)


def addition(body: Any, topics: list[AddPartitionsToTxnTopic]) -> AddPartitionsToTxnTransaction:
    """These partitions, to be added to the transaction that a request names."""
    return AddPartitionsToTxnTransaction(
        body.transactional_id, body.producer_id, body.producer_epoch, verify_only=False, topics=topics
    )
