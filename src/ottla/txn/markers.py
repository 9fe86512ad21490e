"""Tracks which partitions still lack the marker that ends a prepared transaction, and the answers of their leaders.

It knows the requests in flight and relates each answer to its transaction. An answer to an older request is ignored:
its transaction may be complete, and another one prepared (KAFKA-16352). All of this is soft state. A replayed shard
sends the markers of every prepared transaction again, and leaders may receive them twice without harm.

Source: Kafka's TransactionMarkerChannelManager.scala, TransactionMarkerRequestCompletionHandler.scala.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from ottla.machine import ShardCall
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.txn.settings import NO_LEADER, NodeView
from ottla.txn.transaction import TopicPartition, Transaction

_FENCED: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)
"""The partition has seen a later coordinator or producer epoch: this coordinator's markers are no longer accepted."""


class MarkerProgress(Enum):
    """The progress of a transaction's markers after an answer."""

    WRITTEN = "every partition has its marker"
    UNDER_WAY = "all that is missing has been asked for"
    AGAIN = "some partitions have to be asked again"
    FENCED = "a partition heard of a later coordinator or a later epoch"


class _Request(NamedTuple):
    """A request for markers without an answer yet."""

    node_id: int
    partitions: tuple[TopicPartition, ...]


class _Sending:
    """The markers of one transaction. `missing`: partitions without one; `under_way`: requests in flight."""

    __slots__ = ("missing", "under_way")

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.missing: dict[TopicPartition, None] = dict.fromkeys(partitions)
        self.under_way: dict[int, _Request] = {}

    @property
    def outcome(self) -> MarkerProgress:
        """The progress of the markers."""
        if not self.missing:
            return MarkerProgress.WRITTEN
        asked = {partition for each in self.under_way.values() for partition in each.partitions}
        return MarkerProgress.UNDER_WAY if asked.issuperset(self.missing) else MarkerProgress.AGAIN

    def is_asked(self, partition: TopicPartition, leader: int) -> bool:
        """Whether a request for the partition's marker is in flight to this leader."""
        return any(leader == each.node_id and partition in each.partitions for each in self.under_way.values())


class Markers:
    """The markers of all prepared transactions of a shard."""

    __slots__ = ("_asked", "_coordinator_epoch", "_next_number", "_node", "_sending")

    def __init__(self, node: NodeView, coordinator_epoch: int) -> None:
        self._node = node
        self._coordinator_epoch = coordinator_epoch
        self._sending: dict[str, _Sending] = {}
        self._asked: dict[int, str] = {}
        self._next_number = 1

    def begin(self, transactional_id: str, transaction: Transaction) -> tuple[list[ShardCall], MarkerProgress]:
        """Start sending the markers of a prepared transaction. Returns the requests to send, and the progress."""
        self.forget(transactional_id)
        self._sending[transactional_id] = _Sending(transaction.partitions)
        return self.send(transactional_id, transaction)

    def send(self, transactional_id: str, transaction: Transaction) -> tuple[list[ShardCall], MarkerProgress]:
        """Request missing markers from the present leaders, unless a request to them is in flight. Deleted partitions
        need no marker."""
        sending = self._sending[transactional_id]
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in list(sending.missing):
            leader = self._node.leader_of(*partition)
            if leader is None:
                del sending.missing[partition]
            elif leader != NO_LEADER and not sending.is_asked(partition, leader):
                by_leader.setdefault(leader, []).append(partition)
        asks: list[ShardCall] = []
        for leader, partitions in by_leader.items():
            number, self._next_number = self._next_number, self._next_number + 1
            sending.under_way[number] = _Request(leader, tuple(partitions))
            self._asked[number] = transactional_id
            asks.append(ShardCall(number, leader, self._request(transaction, partitions)))
        return asks, sending.outcome

    def _request(self, transaction: Transaction, partitions: list[TopicPartition]) -> WriteTxnMarkersRequest:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=transaction.state.commits,
            topics=[WritableTxnMarkerTopic(topic, indexes) for topic, indexes in topics.items()],
            coordinator_epoch=self._coordinator_epoch,
            transaction_version=transaction.client_version,
        )
        return WriteTxnMarkersRequest([marker])

    def answered(self, number: int, answer: object) -> tuple[str, MarkerProgress] | None:
        """The transactional id of these markers, and their progress; None for an answer that no longer matters."""
        transactional_id = self._asked.pop(number, None)
        sending = None if transactional_id is None else self._sending.get(transactional_id)
        if transactional_id is None or sending is None or number not in sending.under_way:
            return None
        _, partitions = sending.under_way.pop(number)
        if isinstance(answer, WriteTxnMarkersResponse):
            told = {
                TopicPartition(topic.name, each.partition_index): each.error_code
                for marker in answer.markers
                for topic in marker.topics
                for each in topic.partitions
            }
            for partition in partitions:
                error = told.get(partition)
                if error in _FENCED:
                    return transactional_id, MarkerProgress.FENCED
                if error == 0:
                    sending.missing.pop(partition, None)
        return transactional_id, sending.outcome

    def forget(self, transactional_id: str) -> None:
        """Drop the markers: the transaction is complete, or this coordinator may not write them any more."""
        sending = self._sending.pop(transactional_id, None)
        if sending is not None:
            for number in sending.under_way:
                del self._asked[number]

    def is_sending(self, transactional_id: str) -> bool:
        return transactional_id in self._sending

    def check(self) -> None:
        known = {number: of for of, sending in self._sending.items() for number in sending.under_way}
        assert known == self._asked, f"requests under way: {known} and {self._asked}"
