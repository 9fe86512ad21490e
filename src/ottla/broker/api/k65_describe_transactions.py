"""DescribeTransactions, key 65, version 0: where the transactions of transactional ids stand.

What it does: transactions are not built yet, so no transactional id is known (TRANSACTIONAL_ID_NOT_FOUND).

Source: TransactionCoordinator.handleDescribeTransactions; KIP-664.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> Any:
    return node.slices.each(request, partial(_answer, node), "transactional_ids", "transaction_states")


def _answer(node: Node, request: Request) -> DescribeTransactionsResponse:
    body: DescribeTransactionsRequest = request.body
    return DescribeTransactionsResponse(
        transaction_states=[_of_id(node, request, name) for name in body.transactional_ids]
    )


def _of_id(node: Node, request: Request, name: str) -> TransactionState:
    error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if not node.access.allows(request.session, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return TransactionState(error_code=error, transactional_id=name)
