"""ListTransactions, key 66, versions 0 to 2: the transactions that this coordinator knows.

What it does: asks every shard that is here, by states, producer ids, duration and a pattern of the id, and names the
states that Kafka does not know. Ids that the client may not describe are left out.

What changed per version: 1 by duration (KIP-994), 2 by a pattern of the transactional id (KIP-1152).

What is skipped: RE2 decides in Kafka whether a pattern is one; Python's `re` does here.

Source: TransactionCoordinator.handleListTransactions; KIP-664.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from ottla.txn.transaction import NAMES, UNKEPT_NAMES

if TYPE_CHECKING:
    from ottla.broker.node import Node


STATES = (*NAMES.values(), *UNKEPT_NAMES)


class _List(CoordinatorRequest):
    """One call per shard. A shard that is not here has no ids; one that loads makes the list impossible."""

    __slots__ = ("node",)

    def __init__(self, node: Node, calls: list[tuple[int, Call]]) -> None:
        super().__init__(calls)
        self.node = node

    def finish(self, request: Request) -> ListTransactionsResponse:
        states: list[TransactionState] = []
        for reply in self.replies:
            if reply.error_code == ErrorCode.NONE:
                states += [each for each in reply.transaction_states if _may_see(self.node, request, each)]
            elif reply.error_code != ErrorCode.NOT_COORDINATOR:
                return ListTransactionsResponse(error_code=reply.error_code)
        unknown = [name for name in request.body.state_filters if name not in STATES]
        return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=states)


def handle(node: Node, request: Request) -> Any:
    body: ListTransactionsRequest = request.body
    if body.transactional_id_pattern:
        try:
            re.compile(body.transactional_id_pattern)
        except (re.error, OverflowError, RecursionError):
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    calls = [(index, call_of(request)) for index in node.transactions.active()]
    return node.transactions.submit(request.now, request, _List(node, calls))


def _may_see(node: Node, request: Request, state: TransactionState) -> bool:
    name = state.transactional_id
    return node.access.allows(request.session, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
