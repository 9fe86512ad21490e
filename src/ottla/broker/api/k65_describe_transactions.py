"""DescribeTransactions, key 65, version 0: the state of the transactions of transactional ids.

The handler asks each id's coordinator for its state, its producer and the partitions that its transaction writes to.
Topics that the client may not describe are left out.

Source: TransactionCoordinator.handleDescribeTransactions; KIP-664.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of
from ottla.broker.api.transaction_calls import place_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.machine import Call
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_TRANSACTIONS,
    versions=(0, 0),
    acl=(
        (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


class _Describe(CoordinatorRequest):
    """`described` starts with the ids that the client may not see, and gets all others."""

    __slots__ = ("described", "node", "order")

    def __init__(
        self, node: Core, calls: list[tuple[int, Call]], order: list[str], refused: dict[str, TransactionState]
    ) -> None:
        super().__init__(calls)
        self.node = node
        self.order = order
        self.described = refused

    def finish(self, request: Request) -> DescribeTransactionsResponse:
        for reply in self.replies:
            for state in reply.transaction_states:
                state.topics = [
                    topic
                    for topic in state.topics
                    if self.node.access.quiet.on_topic(request, Operation.DESCRIBE, topic.topic)
                ]
                self.described[state.transactional_id] = state
        return DescribeTransactionsResponse(transaction_states=[self.described[name] for name in self.order])


def handle(node: Core, request: Request) -> Any:
    return node.slices.each(request, partial(_describe, node), "transactional_ids", "transaction_states")


def _describe(node: Core, request: Request) -> Any:
    body: DescribeTransactionsRequest = request.body
    if TRANSACTION_STATE_TOPIC not in node.image.topics:
        return DescribeTransactionsResponse(
            transaction_states=[
                TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name)
                for name in body.transactional_ids
            ]
        )
    error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    refused: dict[str, TransactionState] = {}
    calls: list[tuple[int, Call]] = []
    for name in dict.fromkeys(body.transactional_ids):
        if node.access.allows(request.identity, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name, request):
            calls.append(place_of(node, name, call_of(request, DescribeTransactionsRequest([name]))))
        else:
            refused[name] = TransactionState(error_code=error, transactional_id=name)
    return node.coordinators.transactions.submit(
        request.now, request, _Describe(node, calls, body.transactional_ids, refused)
    )
