"""Keeps one transactional id: whose it is, what it is doing, and which request may lead it from one state to the next.

    Empty --AddPartitions--> Ongoing --EndTxn--> PrepareCommit --all markers--> CompleteCommit
      ^                         |                PrepareAbort  --all markers--> CompleteAbort
      +-----InitProducerId------+--time-out, InitProducerId of another life--> PrepareAbort, in a higher epoch

Knows the rules of both versions of the protocol: in the first an epoch lasts for a producer's life, in the second
(KIP-890) for one transaction, so that what comes late from an earlier one is known by its epoch. Does not know the log,
partitions' leaders, or time.

Every function gives the next `Transaction` or the error that the client hears, and changes nothing.

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
"""A producer id that has come to this epoch gets a successor: the one epoch behind it is left for fencing it."""
FENCING_EPOCH: Final = EXHAUSTED_EPOCH + 1
"""The last epoch there is: nothing may begin in it, as nothing could end it."""


class State(IntEnum):
    """What a transactional id is doing; the numbers stand in records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_prepared(self) -> bool:
        """The result is decided, and not yet written everywhere."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        """The result is written everywhere."""
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
"""States that Kafka has between two others, and that are never seen here."""


class TopicPartition(NamedTuple):
    """A partition that a transaction writes to."""

    topic: str
    partition: int


class Producer(NamedTuple):
    """A producer id in one of its epochs."""

    id: int
    epoch: int


class Transaction(NamedTuple):
    """What the newest record of a transactional id says. Partitions of one topic are next to each other, as they are in
    the record. `client_version`: of the protocol, that ended or began it; the cluster's level where the coordinator
    ended it by itself.

    `next_producer_id`: who goes on once a prepared transaction is complete, where the epochs of this one are used up.
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
        """Nothing is under way."""
        return self.state is not State.ONGOING and not self.state.is_prepared

    @property
    def successor(self) -> Producer:
        """Who writes the next transaction."""
        if self.next_producer_id != NO_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.producer_epoch)


# ---- InitProducerId ------------------------------------------------------------------------------------------------


class Initialized(NamedTuple):
    """The next state, and the epoch that a repeated request may name."""

    transaction: Transaction
    last_epoch: int


def initialize(
    known: Transaction, given: Producer | None, last_epoch: int, timeout_ms: int, wall_ms: WallMillis
) -> Initialized | ErrorCode:
    """Let a producer begin anew where nothing is under way, in the next epoch; `needs_rotation` was asked before.

    `given`: who it believes to be, None where it begins. PRODUCER_FENCED where another began since.
    """
    epoch = known.producer_epoch
    if given is None or given.epoch == epoch:
        last = NO_EPOCH if given is None else epoch
        return Initialized(_emptied(known, epoch + 1, timeout_ms, wall_ms), last)
    if given.epoch == last_epoch and last_epoch != NO_EPOCH:
        return Initialized(_emptied(known, epoch, timeout_ms, wall_ms), last_epoch)
    return ErrorCode.PRODUCER_FENCED


def may_initialize(known: Transaction, given: Producer | None) -> bool:
    """Whether the producer is the one that is known, or the one before it whose epochs were used up."""
    if given is None or given.id == known.producer_id:
        return True
    return given.id == known.previous_producer_id and given.epoch >= EXHAUSTED_EPOCH


def needs_rotation(known: Transaction, given: Producer | None) -> bool:
    """Whether the next epoch has to be one of another producer id."""
    return known.is_exhausted and (given is None or given.epoch == known.producer_epoch)


def rotated(
    known: Transaction, given: Producer | None, producer_id: int, timeout_ms: int, wall_ms: WallMillis
) -> Initialized:
    """Go on under this producer id."""
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
    """Whether this producer may add partitions to the transaction. While markers are outstanding every producer
    has to try again, as only the completed transaction shows which producer id and epoch are current."""
    if known is not None and known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return verify_error(known, producer)


def verify_error(known: Transaction | None, producer: Producer) -> ErrorCode:
    """Whether this producer may verify that partitions are in the transaction."""
    if known is None or known.producer_id != producer.id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer.epoch or producer.epoch == FENCING_EPOCH:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.CONCURRENT_TRANSACTIONS if known.state.is_prepared else ErrorCode.NONE


def with_partitions(
    known: Transaction, partitions: Iterable[TopicPartition], client_version: int, wall_ms: WallMillis
) -> Transaction | None:
    """The transaction with these partitions in it; None where they are already."""
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
        previous_producer_id=NO_ID,  # its last transaction is not the newest any more: nobody may ask how it ended
        client_version=client_version,
    )


# ---- the end -------------------------------------------------------------------------------------------------------


def end_error(known: Transaction | None, producer: Producer, *, commits: bool) -> ErrorCode | None:
    """What EndTxn of the first version is answered where it changes nothing; None: the transaction is to be ended."""
    if known is None or known.producer_id != producer.id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state is State.ONGOING:
        return None
    return _again(known, commits)


def end_error_v2(known: Transaction | None, producer: Producer, *, commits: bool) -> ErrorCode | None:
    """The same for the second version, in which the epoch tells a repeated request from the next one.

    While markers are outstanding every request has to be sent again: the current epoch may be that of a producer which
    aborts its next transaction before it has written anything (KAFKA-18464). Aborting what has not begun is allowed: a
    client that lost an answer does not know whether it has.
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
    """The answer to a request to end a transaction whose result is decided."""
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if known.state is State.EMPTY or known.state.commits != commits:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


def prepared(
    known: Transaction, *, commits: bool, client_version: int, next_producer_id: int, wall_ms: WallMillis
) -> Transaction:
    """The result is decided by the client. In the second version its next transaction has the next epoch."""
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
    """The coordinator aborts the transaction, in the next epoch, so that whoever wrote it is heard no more."""
    return known._replace(
        producer_epoch=known.producer_epoch + 1,
        state=State.PREPARE_ABORT,
        last_update_ms=wall_ms,
        next_producer_id=next_producer_id,
        client_version=server_version,
    )


def completed(known: Transaction, wall_ms: WallMillis) -> Transaction:
    """All markers are written."""
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
