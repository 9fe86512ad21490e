"""ListTransactions, key 66, versions 0 to 2: the transactions that this coordinator knows.

The handler asks every shard on this node, filtered by states, producer ids, duration and a pattern of the id. The
answer names the filter's states that Kafka does not know. Ids that the client may not describe are left out. Long
filters are read and many shards asked in slices.

Versions: 1 by duration (KIP-994), 2 by a pattern of the transactional id (KIP-1152).

Not supported: patterns of more than 4,096 characters.

Source: TransactionCoordinator.handleListTransactions; KIP-664.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.listings import listed_in_slices, sorted_out
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work
from ottla.expressions import InvalidExpressionError, matching
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from ottla.txn.transaction import NAMES, UNKEPT_NAMES

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.LIST_TRANSACTIONS,
    versions=(0, 2),
    acl=((Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),),
    needs_lease=True,
)


STATES = frozenset((*NAMES.values(), *UNKEPT_NAMES))


def handle(node: Core, request: Request) -> Any:
    body: ListTransactionsRequest = request.body
    if body.transactional_id_pattern:
        try:
            matching(body.transactional_id_pattern, ())
        except InvalidExpressionError:
            return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    is_long = len(body.state_filters) + len(body.producer_id_filters) > SLICE_STEPS
    return node.slices.begin(request, _list(node, request), is_long=is_long)


def _list(node: Core, request: Request) -> Work:
    asked: ListTransactionsRequest = request.body
    states, unknown = yield from sorted_out(asked.state_filters, STATES)
    if asked.state_filters and not states:
        states = unknown[:1]  # which nothing is in
    body = ListTransactionsRequest(
        states, asked.producer_id_filters, asked.duration_filter, asked.transactional_id_pattern
    )
    told = yield from listed_in_slices(
        node.coordinators.transactions, request, body, "transaction_states", lambda each: _may_see(node, request, each)
    )
    if isinstance(told, ErrorCode):
        return ListTransactionsResponse(error_code=told)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=told)


def _may_see(node: Core, request: Request, state: TransactionState) -> bool:
    name = state.transactional_id
    return node.access.quiet.allows(request.identity, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
