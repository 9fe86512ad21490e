"""Answers requests about transactions that never reached their shard.

It knows which fields carry an error in each API, and which error replaces PRODUCER_FENCED for older clients. Source:
the getErrorResponse methods of Kafka's request classes.
"""

from __future__ import annotations

from typing import Final

from ottla.machine import Call
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

_FENCED_SINCE: Final[dict[int, int]] = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
"""API key: the first version whose clients know PRODUCER_FENCED."""


def said_to(call: Call, error: ErrorCode) -> ErrorCode:
    """The error in the form that clients of this version know."""
    if error is ErrorCode.PRODUCER_FENCED and call.version < _FENCED_SINCE.get(call.api_key, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def partitions_answer(body: AddPartitionsToTxnTransaction, error: ErrorCode) -> AddPartitionsToTxnResult:
    """An answer with the same error for every partition in the request."""
    return AddPartitionsToTxnResult(
        body.transactional_id,
        [
            AddPartitionsToTxnTopicResult(
                topic.name, [AddPartitionsToTxnPartitionResult(index, error) for index in topic.partitions]
            )
            for topic in body.topics
        ],
    )


def refuse(call: Call, error: ErrorCode) -> object:
    """The answer to a call that never reached its transactional id: its coordinator is loading, gone or on another
    node."""
    match call.body:
        case InitProducerIdRequest():
            return InitProducerIdResponse(error_code=said_to(call, error), producer_id=-1, producer_epoch=-1)
        case AddPartitionsToTxnTransaction() as body:
            return partitions_answer(body, said_to(call, error))
        case EndTxnRequest():
            return EndTxnResponse(error_code=said_to(call, error))
        case DescribeTransactionsRequest() as body:
            return DescribeTransactionsResponse(
                transaction_states=[
                    TransactionState(error_code=error, transactional_id=each) for each in body.transactional_ids
                ]
            )
        case ListTransactionsRequest():
            return ListTransactionsResponse(error_code=error)
        case other:
            raise AssertionError(f"no coordinator of transactions answers {type(other).__name__}")
