"""ListTransactions, key 66, versions 0 to 2: the transactions that this coordinator knows.

What it does: transactions are not built yet, so there is none. Names the states that Kafka does not know.

What changed per version: 1 by duration (KIP-994), 2 by a pattern of the transactional id (KIP-1152).

What is skipped: RE2 decides in Kafka whether a pattern is one; Python's `re` does here.

Source: TransactionCoordinator.handleListTransactions; KIP-664.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

if TYPE_CHECKING:
    from ottla.broker.node import Node


STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def handle(node: Node, request: Request) -> ListTransactionsResponse:
    body: ListTransactionsRequest = request.body
    if body.transactional_id_pattern:
        try:
            re.compile(body.transactional_id_pattern)
        except (re.error, OverflowError, RecursionError):
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    return ListTransactionsResponse(unknown_state_filters=[name for name in body.state_filters if name not in STATES])
