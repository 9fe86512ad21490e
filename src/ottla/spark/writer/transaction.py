"""Writes each micro-batch as one transaction: readers of committed records see all of it or nothing.

This module sends the requests of a transactional producer in the right order; `publishing.py` sends the batches. It
uses the first version of the protocol, which every Kafka since 2.5 understands. Each micro-batch begins with
InitProducerId and therefore has its own epoch. Requests of an earlier driver that are still in flight cannot become
part of it.

The transaction includes the number of the micro-batch: an offset, the number plus one, committed for a group with the
name of the transactional id. A restarted driver reads this offset. It thus learns the outcome of a transaction whose
end was never acknowledged, wherever it was killed.

Invariants:

- InitProducerId is answered when the open transaction of the transactional id has ended; only then is the last
  micro-batch read.
- A micro-batch is begun only if its number is higher than the last one's.

Source: KIP-98, KIP-447 (offsets that are still pending), KIP-360; TransactionManager.java and, for the offset as a
mark, Kafka Connect's exactly-once sources (KIP-618).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ottla.client import BrokerError, Client, ClientError
from ottla.client.client import GROUP
from ottla.client.errors import check
from ottla.client.transactions import TRANSACTION
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.wire import Message
from ottla.spark.writer.publishing import PartitionQueue, Publisher

PREFIX = "ottla-sink-"
"""Prefix of transactional ids, and of the groups with their names."""
_NEWEST: dict[type[Message], int] = {
    InitProducerIdRequest: 5,
    AddPartitionsToTxnRequest: 3,
    AddOffsetsToTxnRequest: 4,
    TxnOffsetCommitRequest: 4,
    EndTxnRequest: 4,
    OffsetFetchRequest: 7,
}
"""The last versions of the first protocol version of transactions; later ones make the broker count epochs
(KIP-890)."""
_FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}


class Transactions:
    """The transactions of one query, or of one batch write; `producer_id` and `epoch` are the current ones. Methods
    raise PublishFailedError."""

    def __init__(self, publisher: Publisher, owner: str, timeout_ms: int) -> None:
        self.name = PREFIX + owner
        self._publisher = publisher
        self._timeout_ms = timeout_ms
        self.producer_id, self.epoch = -1, -1

    def begin(self) -> int:
        """End a transaction that an earlier driver left open, and take a new epoch.

        Return the number of the last micro-batch whose transaction was committed; -1 without one.
        """
        answer = self._ask(InitProducerIdRequest(self.name, self._timeout_ms))
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return self._last_committed()

    def write(self, batch_id: int, queues: Sequence[PartitionQueue]) -> None:
        """Send the batches and the micro-batch's number, and commit. If that fails, no reader of committed records sees
        any of it."""
        try:
            self._add(queues)
            self._publisher.transactional_id = self.name
            self._publisher.send(list(queues))
            self._publisher.transactional_id = None
            self._mark(batch_id, min((queue.topic, queue.partition) for queue in queues))
            self._ask(EndTxnRequest(self.name, self.producer_id, self.epoch, committed=True))
        except Exception:
            self._abort()
            raise

    # ---- requests --------------------------------------------------------------------------------------------------

    def _last_committed(self) -> int:
        """Return the greatest of the group's offsets; its topic depends on what a micro-batch wrote."""
        answer = self._ask(OffsetFetchRequest(self.name, None, require_stable=True), GROUP)
        offsets = [part.committed_offset for topic in answer.topics for part in topic.partitions]
        return max(offsets, default=0) - 1

    def _add(self, queues: Sequence[PartitionQueue]) -> None:
        partitions: dict[str, list[int]] = {}
        for queue in queues:
            partitions.setdefault(queue.topic, []).append(queue.partition)
        topics = [AddPartitionsToTxnTopic(topic, each) for topic, each in partitions.items()]
        self._ask(AddPartitionsToTxnRequest(self.name, self.producer_id, self.epoch, topics))

    def _mark(self, batch_id: int, place: tuple[str, int]) -> None:
        """Commit the micro-batch's number with the transaction."""
        self._ask(AddOffsetsToTxnRequest(self.name, self.producer_id, self.epoch, self.name))
        part = TxnOffsetCommitRequestPartition(place[1], batch_id + 1)
        topics = [TxnOffsetCommitRequestTopic(place[0], [part])]
        self._ask(TxnOffsetCommitRequest(self.name, self.name, self.producer_id, self.epoch, topics=topics), GROUP)

    def _abort(self) -> None:
        """Abort, so that readers can continue at once. If that fails too, the next driver or the time-out aborts."""
        self._publisher.transactional_id = None
        request = EndTxnRequest(self.name, self.producer_id, self.epoch, committed=False)
        with contextlib.suppress(ClientError, OSError):
            self._send(self._publisher.client, request, TRANSACTION)

    def _ask(self, request: Message, key_type: int = TRANSACTION) -> Any:
        return self._publisher.ask(lambda client: self._send(client, request, key_type), self._explained)

    def _send(self, client: Client, request: Message, key_type: int) -> Any:
        """Ask the coordinator. Raises BrokerError for the first error in its answer."""
        version = min(client.any_broker().version_of(request.API_KEY), _NEWEST[type(request)])
        answer = client.send_to_coordinator(self.name, request, version, key_type)
        for code in codes_in(answer):
            check(code, f"{type(request).__name__.removesuffix('Request')} of transactional id {self.name}")
        return answer

    def _explained(self, failure: BrokerError) -> str:
        """Describe what a refusal means for the query."""
        if failure.code in _FENCED:
            return (
                f"The transaction of {self.name} was ended by another program: this query is running twice, or the "
                f"micro-batch took longer than {self._timeout_ms} ms ('kafka.transaction.timeout.ms'): {failure}"
            )
        if failure.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            return (
                f"Option 'kafka.transaction.timeout.ms' is {self._timeout_ms}, more than the cluster's "
                f"transaction.max.timeout.ms allows: {failure}"
            )
        return f"The cluster refuses: {failure}"


def codes_in(answer: Any) -> list[int]:
    """Return every error of an answer, causes before errors that only follow from them."""
    codes = [getattr(answer, "error_code", 0)]
    for topic in getattr(answer, "results_by_topic_v3_and_below", ()):
        codes += [part.partition_error_code for part in topic.results_by_partition]
    for topic in getattr(answer, "topics", ()):
        codes += [part.error_code for part in topic.partitions]
    return sorted((code for code in codes if code), key=lambda code: code == ErrorCode.OPERATION_NOT_ATTEMPTED)
