"""Asks the transaction coordinator, before a transaction's first batch in a partition, whether it has that partition.

In the first version of the protocol it asks whether the partitions were added; in the second version it asks to add
them. The caller holds a guard of each partition and appends with it (`log.producers.VerificationGuard`).

    # gives the errors by partition, NONE if it may be appended
    yield SubRequest(request, None, Verification(...).begin, is_light=True)

Sources: AddPartitionsToTxnManager.java, ReplicaManager.handleProduceAppend; KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from ottla.broker.cluster.peers import ADDITIONS_LINE, Peers
from ottla.broker.config.live import LiveSettings
from ottla.broker.coordinators.shards import ShardHost
from ottla.broker.effects import Parked
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import Request
from ottla.machine import Call, Millis, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

NOT_REACHED: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors that only mean that the transaction's coordinator can't be asked now."""

Errors = dict[tuple[str, int], ErrorCode]


class Verifier:
    """Asks in the name of a node."""

    def __init__(
        self, transactions: ShardHost, leadership: Leadership, parking: Parking, peers: Peers, settings: LiveSettings
    ) -> None:
        self.parking = parking
        self.peers = peers
        self.settings = settings
        self._transactions = transactions
        self._leadership = leadership

    def asks(self, second_version: bool) -> bool:
        """Whether this node asks about producers of this version: always in the second, where asking adds the partition
        to the transaction."""
        return second_version or bool(self.settings["transaction.partition.verification.enable"])

    def coordinator_of(self, transactional_id: str) -> int | None:
        """The node that coordinates this id; None while there is none."""
        leader = self._leadership.leader_of(
            self._transactions.topic_name, self._transactions.partition_for(transactional_id)
        )
        return None if leader is None or leader[0] < 0 else leader[0]

    def verify_here(
        self,
        now: Millis,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[tuple[str, int]],
        *,
        adds: bool,
    ) -> Errors | None:
        """The errors by partition if this node coordinates the id and knows them at once; None if the coordinator has
        to be asked.

        `adds`: the partitions are to be added now; otherwise they must have been added before.
        """
        if not transactional_id:
            return None
        index = self._transactions.partition_for(transactional_id)
        asked = _question(transactional_id, producer, partitions, adds=adds)
        call = Call(AddPartitionsToTxnRequest.API_KEY, AddPartitionsToTxnRequest.MAX_VERSION, "", "", asked)
        ask_here = self._transactions.change_here if adds else self._transactions.answer_here
        result = ask_here(now, index, call)
        told = None if result is None else _told_in(cast(AddPartitionsToTxnResult, result))
        if adds and told is not None and ErrorCode.CONCURRENT_TRANSACTIONS in told.values():
            return None  # a transaction that is just ending is waited for
        return told


class Verification(ParkedWork):
    """One question. `adds`: the partitions are to be added, and a transaction that is just ending is waited for."""

    __slots__ = (
        "_adds",
        "_give_up_at",
        "_partitions",
        "_piece",
        "_producer",
        "_ticket",
        "_transactional_id",
        "_verifier",
    )

    def __init__(
        self,
        verifier: Verifier,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[tuple[str, int]],
        *,
        adds: bool,
    ) -> None:
        self._verifier = verifier
        self._transactional_id = transactional_id
        self._producer = producer
        self._partitions = tuple(partitions)
        self._adds = adds
        self._ticket: Ticket = 0
        self._piece: Request
        self._give_up_at: Millis = 0

    def begin(self, piece: Request) -> Parked:
        """Ask; the piece is answered with `Errors`."""
        self._piece = piece
        self._give_up_at = piece.now + self._verifier.settings["add.partitions.to.txn.retry.backoff.max.ms"]
        self._ask(piece.now)
        return Parked(self._ticket)

    def _ask(self, now: Millis) -> None:
        self._ticket = self._verifier.parking.park(self._piece, None, self)
        node_id = self._verifier.coordinator_of(self._transactional_id)
        if node_id is None:
            self._wait(now)
            return
        asked = _question(self._transactional_id, self._producer, self._partitions, adds=self._adds)
        self._verifier.peers.ask(
            now, node_id, AddPartitionsToTxnRequest(transactions=[asked]), self, line=ADDITIONS_LINE
        )

    def answered(self, now: Millis, answer: object) -> None:
        """Handle the coordinator's answer, or the unknown outcome of the request."""
        errors = self._errors_in(answer)
        if self._adds and now < self._give_up_at and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values():
            self._wait(now)
        else:
            self._verifier.parking.answer(now, self._ticket, errors)

    def _errors_in(self, answer: object) -> Errors:
        told: Errors = {}
        overall = ErrorCode.NETWORK_EXCEPTION
        if isinstance(answer, AddPartitionsToTxnResponse):
            overall = ErrorCode.INVALID_TXN_STATE
            for transaction in answer.results_by_transaction:
                told |= _told_in(transaction)
        return {each: told.get(each, overall) for each in self._partitions}

    def _wait(self, now: Millis) -> None:
        """Ask again soon."""
        parking = self._verifier.parking
        if parking.take(self._ticket) is not None:
            backoff_ms = self._verifier.settings["add.partitions.to.txn.retry.backoff.ms"]
            self._ticket = parking.park(self._piece, now + backoff_ms, self)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        parking = self._verifier.parking
        if now < self._give_up_at or self._verifier.coordinator_of(self._transactional_id) is not None:
            parking.take(ticket)
            self._ask(now)
        else:
            parking.answer(now, ticket, dict.fromkeys(self._partitions, ErrorCode.NOT_COORDINATOR))

    def lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        """It waits in no partition."""

    def abandon(self, ticket: Ticket) -> None:
        """The client has disconnected: nothing is appended for it."""
        self._piece.take_answer(dict.fromkeys(self._partitions, ErrorCode.NETWORK_EXCEPTION))


def _question(
    transactional_id: str, producer: tuple[int, int], partitions: Iterable[tuple[str, int]], *, adds: bool
) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    named = [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in topics.items()]
    return AddPartitionsToTxnTransaction(transactional_id, *producer, not adds, named)


def _told_in(result: AddPartitionsToTxnResult) -> Errors:
    return {
        (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
