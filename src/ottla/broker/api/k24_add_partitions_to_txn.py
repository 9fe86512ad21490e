"""AddPartitionsToTxn, key 24, versions 0 to 5: a transaction is about to write to these partitions.

The handler refuses unknown and unauthorized topics and partitions; clients are not authorized for the broker's internal
topics. One refusal fails the whole transaction: its other partitions get OPERATION_NOT_ATTEMPTED. Otherwise the
transactional id decides. Up to version 3 clients send it, for one transaction. From version 4 on nodes send it
(ClusterAction), for several transactions, and possibly only to verify (KIP-890).

Versions: 2 PRODUCER_FENCED (before: INVALID_PRODUCER_EPOCH), 3 flexible, 4 many transactions and verify_only, 5
TRANSACTION_ABORTABLE is known.

Not supported: more than 20,000 partitions of one transaction in a request: the connection is closed.

Source: KafkaApis.handleAddPartitionsToTxnRequest, TransactionCoordinator; KIP-98, KIP-890.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.group_calls import call_of
from ottla.broker.api.transaction_calls import place_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request, RequestRefusedError
from ottla.broker.slices import steps_of
from ottla.machine import Call
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.txn.refusals import partitions_answer

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ADD_PARTITIONS_TO_TXN,
    versions=(0, 5),
    acl=(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.WRITE, ResourceType.TOPIC),
        (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
    needs_lease=True,
    between_nodes=True,
    loaded_with=TRANSACTION_STATE_TOPIC,
)


_BETWEEN_NODES_SINCE = 4
PARTITIONS_MAX: Final = 20_000
"""A transaction's partitions are checked and added in one step, as they are accepted together or not at all."""


class _Additions(CoordinatorRequest):
    """The transactions of one request that their ids are asked about; `refused` are answered already."""

    __slots__ = ("refused",)

    def __init__(self, calls: list[tuple[int, Call]], refused: list[AddPartitionsToTxnResult]) -> None:
        super().__init__(calls)
        self.refused = refused

    def finish(self, request: Request) -> AddPartitionsToTxnResponse:
        return _answer(request, [*self.refused, *self.replies])


def handle(node: Core, request: Request) -> Any:
    body: AddPartitionsToTxnRequest = request.body
    named = (body.v3_and_below_topics, *(each.topics for each in body.transactions))
    if max(map(steps_of, named)) > PARTITIONS_MAX:
        raise RequestRefusedError(f"AddPartitionsToTxn names more than {PARTITIONS_MAX} partitions of a transaction")
    if request.version < _BETWEEN_NODES_SINCE:
        return _serve(node, request)
    return node.slices.each(request, partial(_serve, node), "transactions", "results_by_transaction")


def _serve(node: Core, request: Request) -> Any:
    body: AddPartitionsToTxnRequest = request.body
    transactions = body.transactions
    if request.version < _BETWEEN_NODES_SINCE:
        transactions = [
            AddPartitionsToTxnTransaction(
                body.v3_and_below_transactional_id,
                body.v3_and_below_producer_id,
                body.v3_and_below_producer_epoch,
                verify_only=False,
                topics=body.v3_and_below_topics,
            )
        ]
    elif not node.access.on_cluster(request, Operation.CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    calls: list[tuple[int, Call]] = []
    refused: list[AddPartitionsToTxnResult] = []
    for each in transactions:
        refusal = _refusal_of(node, request, each)
        if refusal is not None:
            refused.append(refusal)
        else:
            calls.append(place_of(node, each.transactional_id, call_of(request, each)))
    if not calls:
        return _answer(request, refused)
    return node.coordinators.transactions.submit(request.now, request, _Additions(calls, refused))


def _answer(request: Request, results: list[AddPartitionsToTxnResult]) -> AddPartitionsToTxnResponse:
    if request.version < _BETWEEN_NODES_SINCE:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)
    return AddPartitionsToTxnResponse(results_by_transaction=results)


def _refusal_of(node: Core, request: Request, asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult | None:
    """The answer to a transaction that does not reach its id."""
    from_client = request.version < _BETWEEN_NODES_SINCE
    if from_client and not node.access.allows(
        request.identity, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, asked.transactional_id, request
    ):
        return partitions_answer(asked, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    errors: dict[tuple[str, int], ErrorCode] = {}
    for topic in asked.topics:
        may_write = not from_client or (
            topic.name not in INTERNAL_TOPICS and node.access.on_topic(request, Operation.WRITE, topic.name)
        )
        known = node.image.topics.get(topic.name)
        for index in topic.partitions:
            if not may_write:
                errors[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif known is None or not 0 <= index < len(known.partitions):
                errors[topic.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if errors:
        return AddPartitionsToTxnResult(
            asked.transactional_id,
            [
                AddPartitionsToTxnTopicResult(
                    topic.name,
                    [
                        AddPartitionsToTxnPartitionResult(
                            index, errors.get((topic.name, index), ErrorCode.OPERATION_NOT_ATTEMPTED)
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in asked.topics
            ],
        )
    if not asked.transactional_id:
        return partitions_answer(asked, ErrorCode.INVALID_REQUEST)
    return None
