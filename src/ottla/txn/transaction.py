"""Keeps one transactional id: its producer, its state, and the transitions that requests may cause.

    Empty --AddPartitions--> Ongoing --EndTxn--> PrepareCommit --all markers--> CompleteCommit
      ^                         |                PrepareAbort  --all markers--> CompleteAbort
      +-----InitProducerId------+--timeout, InitProducerId of another producer--> PrepareAbort, in a higher epoch

It has the rules of both versions of the protocol. In the first an epoch lasts for a producer's lifetime. In the second
(KIP-890) it lasts for one transaction, so that late requests of an earlier transaction are recognised by their epoch.

Every function returns the next `Transaction` or the error for the client, and changes nothing.

Sources: Kafka's TransactionMetadata.java, TransactionCoordinator.scala; KIP-98, KIP-360, KIP-588, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple

from ottla.machine import WallMillis
from ottla.protocol.errors import ErrorCode

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = WallMillis(-1)
EXHAUSTED_EPOCH: Final = 2**15 - 2
"""A producer id that reaches this epoch gets a successor: the one epoch after it is reserved for fencing it."""
FENCING_EPOCH: Final = EXHAUSTED_EPOCH + 1
"""The last epoch: no transaction may begin in it, because none could be fenced."""


class State(IntEnum):
    """The state of a transactional id, with the numbers in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_prepared(self) -> bool:
        """Whether the result is decided, but not yet written to every partition."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        """Whether the result is written to every partition."""
        return self in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

    @property
    def commits(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


NAMES: Final = {
    State.EMPTY: "Empty",
    State.ONGOING: "Ongoing",
    State.PREPARE_COMMIT: "PrepareCommit",
    State.PREPARE_ABORT: "PrepareAbort",
    State.COMPLETE_COMMIT: "CompleteCommit",
    State.COMPLETE_ABORT: "CompleteAbort",
}
UNKEPT_NAMES: Final = ("Dead", "PrepareEpochFence")
"""States of Kafka that a transactional id never has here."""


class TopicPartition(NamedTuple):
    """A partition that a transaction writes to."""

    topic: str
    partition: int


class Producer(NamedTuple):
    """A producer id in one of its epochs."""

    id: int
    epoch: int


class Transaction(NamedTuple):
    """The state in the newest record of a transactional id. Partitions of one topic are adjacent, as in the record.
    `client_version`: the protocol version of the request that began or ended the transaction, or the cluster's level if
    the coordinator itself ended it.

    `next_producer_id`: the successor after a prepared transaction is complete, if the epochs of this producer id are
    used up.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    start_ms: WallMillis = NO_TIME
    last_update_ms: WallMillis = NO_TIME
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EXHAUSTED_EPOCH

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or prepared."""
        return self.state is not State.ONGOING and not self.state.is_prepared

    @property
    def successor(self) -> Producer:
        """The producer id and epoch of the next transaction."""
        if self.next_producer_id != NO_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.producer_epoch)


# ---- InitProducerId ------------------------------------------------------------------------------------------------


class Initialized(NamedTuple):
    """The next state, and the previous epoch, which a repeated request may carry."""

    transaction: Transaction
    last_epoch: int


def initialize(
    known: Transaction, given: Producer | None, last_epoch: int, timeout_ms: int, wall_ms: WallMillis
) -> Initialized | ErrorCode:
    """Start a producer in the next epoch, if no transaction is in progress. The caller has checked `needs_rotation`.

    `given`: the producer id and epoch in the request, None for a new producer. PRODUCER_FENCED if another producer
    started since.
    """
    epoch = known.producer_epoch
    if given is None or given.epoch == epoch:
        last = NO_EPOCH if given is None else epoch
        return Initialized(_emptied(known, epoch + 1, timeout_ms, wall_ms), last)
    if given.epoch == last_epoch and last_epoch != NO_EPOCH:
        return Initialized(_emptied(known, epoch, timeout_ms, wall_ms), last_epoch)
    return ErrorCode.PRODUCER_FENCED


def may_initialize(known: Transaction, given: Producer | None) -> bool:
    """Whether the producer is the present one, or the one before it whose epochs were used up."""
    if given is None or given.id == known.producer_id:
        return True
    return given.id == known.previous_producer_id and given.epoch >= EXHAUSTED_EPOCH


def needs_rotation(known: Transaction, given: Producer | None) -> bool:
    """Whether the next epoch needs another producer id."""
    return known.is_exhausted and (given is None or given.epoch == known.producer_epoch)


def rotated(
    known: Transaction, given: Producer | None, producer_id: int, timeout_ms: int, wall_ms: WallMillis
) -> Initialized:
    """Continue with this new producer id."""
    emptied = _emptied(known, 0, timeout_ms, wall_ms)
    last = NO_EPOCH if given is None else known.producer_epoch
    return Initialized(emptied._replace(producer_id=producer_id, previous_producer_id=known.producer_id), last)


def _emptied(known: Transaction, epoch: int, timeout_ms: int, wall_ms: WallMillis) -> Transaction:
    return known._replace(
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=State.EMPTY,
        partitions=(),
        start_ms=NO_TIME,
        last_update_ms=wall_ms,
        next_producer_id=NO_ID,
    )


# ---- AddPartitionsToTxn --------------------------------------------------------------------------------------------


def add_error(known: Transaction | None, producer: Producer) -> ErrorCode:
    """The error for a producer that adds partitions to the transaction; NONE if it may. While markers are outstanding,
    every producer must retry, because only the completed transaction shows the current producer id and epoch."""
    if known is not None and known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return verify_error(known, producer)


def verify_error(known: Transaction | None, producer: Producer) -> ErrorCode:
    """The error for a producer that verifies partitions of the transaction; NONE if it may."""
    if known is None or known.producer_id != producer.id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer.epoch or producer.epoch == FENCING_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if known.state.is_prepared else ErrorCode.NONE


def with_partitions(
    known: Transaction, partitions: Iterable[TopicPartition], client_version: int, wall_ms: WallMillis
) -> Transaction | None:
    """The transaction with these partitions added; None if it has all of them already."""
    going_on = known.state is State.ONGOING
    before = known.partitions if going_on else ()
    topics: dict[str, dict[TopicPartition, None]] = {}
    for each in (*before, *partitions):
        topics.setdefault(each.topic, {})[each] = None
    after = tuple(chain.from_iterable(topics.values()))
    if going_on and len(after) == len(before):
        return None
    return known._replace(
        state=State.ONGOING,
        partitions=after,
        start_ms=known.start_ms if going_on else wall_ms,
        last_update_ms=wall_ms,
        previous_producer_id=NO_ID,  # its last transaction is no longer the newest: its result is not kept
        client_version=client_version,
    )


# ---- EndTxn --------------------------------------------------------------------------------------------------------


def end_error(known: Transaction | None, producer: Producer, *, commits: bool) -> ErrorCode | None:
    """The error code for an EndTxn of the first version that changes nothing; None if the transaction is to be
    ended."""
    if known is None or known.producer_id != producer.id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state is State.ONGOING:
        return None
    return _again(known, commits)


def end_error_v2(known: Transaction | None, producer: Producer, *, commits: bool) -> ErrorCode | None:
    """The same for the second version, in which the epoch distinguishes a repeated request from the next one.

    While markers are outstanding every client must retry: the current epoch may be that of a producer which aborts its
    next transaction before it has written anything (KAFKA-18464). A client may abort a transaction that has not begun,
    because after a lost answer it does not know whether it has.
    """
    if known is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    overflowed = (
        producer == (known.previous_producer_id, EXHAUSTED_EPOCH)
        and known.producer_epoch == 0
        and known.state.is_complete
    )
    if known.producer_id != producer.id and not overflowed:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    raised = known.client_version >= 1  # by a client of the second version, or by a coordinator that aborted
    repeated = overflowed or (raised and producer.epoch == known.producer_epoch - 1)
    if repeated and known.state.is_complete:
        return _again(known, commits)
    if producer.epoch != known.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state is State.ONGOING or not commits:
        return None
    return ErrorCode.INVALID_TXN_STATE


def _again(known: Transaction, commits: bool) -> ErrorCode:
    """The error code for EndTxn of a transaction whose result is already decided."""
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if known.state is State.EMPTY or known.state.commits != commits:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def prepared(
    known: Transaction, *, commits: bool, client_version: int, next_producer_id: int, wall_ms: WallMillis
) -> Transaction:
    """The transaction after the client decided its result. In the second version the next transaction has the next
    epoch."""
    bumps = client_version >= 2
    return known._replace(
        producer_epoch=min(known.producer_epoch + bumps, FENCING_EPOCH),
        state=State.PREPARE_COMMIT if commits else State.PREPARE_ABORT,
        partitions=known.partitions if known.state is State.ONGOING else (),
        start_ms=known.start_ms if known.state is State.ONGOING else wall_ms,
        last_update_ms=wall_ms,
        next_producer_id=next_producer_id,
        client_version=client_version,
    )


def fenced(known: Transaction, server_version: int, next_producer_id: int, wall_ms: WallMillis) -> Transaction:
    """The transaction after the coordinator aborted it, in the next epoch, so that its producer is fenced."""
    return known._replace(
        producer_epoch=known.producer_epoch + 1,
        state=State.PREPARE_ABORT,
        last_update_ms=wall_ms,
        next_producer_id=next_producer_id,
        client_version=server_version,
    )


def completed(known: Transaction, wall_ms: WallMillis) -> Transaction:
    """The transaction after all markers are written."""
    producer_id, producer_epoch = known.successor
    rotates = producer_id != known.producer_id
    return known._replace(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        state=State.COMPLETE_COMMIT if known.state.commits else State.COMPLETE_ABORT,
        partitions=(),
        last_update_ms=wall_ms,
        previous_producer_id=known.producer_id if rotates else known.previous_producer_id,
        next_producer_id=NO_ID,
    )
