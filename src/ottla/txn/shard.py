"""Coordinates the transactional ids whose records are in one partition of `__transaction_state`.

It dispatches requests, ends transactions that exceed their timeout, deletes unused ids, and ensures that every prepared
transaction gets its markers.

A prepared transaction is certain to end: EndTxn is answered when its record is committed. Only then are the markers
sent (`Decision.asks`), and repeated until every partition's leader has written its own. Loading starts with the
transactions that are prepared in the log.

A request that finds a transaction prepared gets CONCURRENT_TRANSACTIONS, and the client retries. Timeouts are exact,
while Kafka checks every 10 s, because a transaction blocks all readers of committed records in its partitions.

Invariants (`check`): every prepared transaction has marker requests in flight or a retry time, and every open one a
timeout. Also, as a test shows, replay of the log gives the same durable state.

Sources: Kafka's TransactionCoordinator.scala, TransactionStateManager.scala; KIP-98, KIP-588, KIP-664, KIP-890.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from ottla.expressions import matching
from ottla.machine import (
    Answer,
    AppliedBatch,
    Call,
    Decision,
    Millis,
    ShardCall,
    ShardRecord,
    Ticket,
    WallClock,
    WallMillis,
)
from ottla.machine.timers import Timers
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from ottla.protocol.messages.list_transactions import TransactionState as ListedTransaction
from ottla.txn.markers import MarkerProgress, Markers
from ottla.txn.records import Stored, decode, encode
from ottla.txn.refusals import partitions_answer, refuse, said_to
from ottla.txn.settings import NodeView, TransactionSettings
from ottla.txn.transaction import (
    NAMES,
    NO_EPOCH,
    NO_ID,
    Initialized,
    Producer,
    State,
    TopicPartition,
    Transaction,
    add_error,
    completed,
    end_error,
    end_error_v2,
    fenced,
    initialize,
    may_initialize,
    needs_rotation,
    prepared,
    rotated,
    verify_error,
    with_partitions,
)

MARKERS_AGAIN_MS: Final = 100
"""The pause before another request to partitions that could not write their marker."""
UNDER_WAY_AGAIN_MS: Final = 1_000
"""The time without an answer after which partitions with a new leader get another request."""
FENCED_AGAIN_MS: Final = 10_000
"""The pause after an answer that names a later coordinator: this one will probably learn that it was replaced."""
TOMBSTONES_PER_STEP: Final = 500
_PAUSE_MS: Final = 1
_SECOND_VERSION_SINCE: Final[dict[int, int]] = {ApiKey.ADD_PARTITIONS_TO_TXN: 4, ApiKey.END_TXN: 5}
"""API key: the first version whose clients use the second version of the protocol."""


class _Timer(IntEnum):
    TIMEOUT = 0
    """Per transactional id: the transaction's timeout."""
    MARKERS = 1
    """Per transactional id: retry the markers that were not written."""
    EXPIRE = 2
    """Per shard: find ids that were unused for a long time, or continue to do so."""


_EXPIRE: Final = (_Timer.EXPIRE, "")


class _Building:
    """A decision under construction."""

    __slots__ = ("answers", "asks", "records")

    def __init__(self) -> None:
        self.records: list[ShardRecord] = []
        self.answers: list[Answer] = []
        self.asks: list[ShardCall] = []

    def answer(self, ticket: Ticket, reply: object) -> None:
        self.answers.append(Answer(ticket, reply))

    def build(self) -> Decision:
        return Decision(tuple(self.records), tuple(self.answers), tuple(self.asks))


def _silent(note: str) -> None:
    """Discard the note."""


class TransactionShard:
    """A `machine.AskingShard`. See the module's docstring. `coordinator_epoch`: the leader epoch of its partition."""

    TOPIC = TRANSACTION_STATE_TOPIC

    def __init__(
        self,
        settings: TransactionSettings,
        node: NodeView,
        coordinator_epoch: int,
        notes: Callable[[str], None] = _silent,
        wall: WallClock | None = None,
    ) -> None:
        self.coordinator_epoch = coordinator_epoch
        self._wall = wall if wall is not None else WallClock()
        self._settings = settings
        self._node = node
        self._notes = notes
        self._known: dict[str, Transaction] = {}
        self._last_epochs: dict[str, int] = {}
        """The epoch before the present one, which a repeated InitProducerId may carry; no record contains it."""
        self._markers = Markers(node, coordinator_epoch)
        self._timers: Timers[tuple[int, str]] = Timers()
        self._to_expire: deque[str] = deque()

    @staticmethod
    def refuse(call: Call, error: ErrorCode) -> object:
        """The answer if no shard is available."""
        return refuse(call, error)

    # ---- for metrics -----------------------------------------------------------------------------------------------

    def standings(self) -> list[tuple[str, WallMillis]]:
        """(Kafka's name of the state, start of the transaction) of each transactional id."""
        return [(NAMES[known.state], known.start_ms) for known in self._known.values()]

    # ---- requests --------------------------------------------------------------------------------------------------

    def decide(self, now: Millis, ticket: Ticket, call: Call) -> Decision:
        decision = _Building()
        match call.body:
            case InitProducerIdRequest() as body:
                self._initialize(now, ticket, call, body, decision)
            case AddPartitionsToTxnTransaction() as body if body.verify_only:
                self._verify(ticket, call, body, decision)
            case AddPartitionsToTxnTransaction() as body:
                self._add(now, ticket, call, body, decision)
            case EndTxnRequest() as body:
                self._end(now, ticket, call, body, decision)
            case DescribeTransactionsRequest() as body:
                states = [self._describe(each) for each in body.transactional_ids]
                decision.answer(ticket, DescribeTransactionsResponse(transaction_states=states))
            case ListTransactionsRequest() as body:
                decision.answer(ticket, self._list(now, body))
            case other:
                raise AssertionError(f"no coordinator of transactions answers {type(other).__name__}")
        return decision.build()

    def abandon(self, ticket: Ticket) -> None:
        """Do nothing: this shard parks no tickets."""

    def _initialize(
        self, now: Millis, ticket: Ticket, call: Call, body: InitProducerIdRequest, decision: _Building
    ) -> None:
        found = self._initialized(now, body, decision)
        if isinstance(found, ErrorCode):
            decision.answer(ticket, refuse(call, found))
            return
        transactional_id = body.transactional_id or ""
        self._last_epochs[transactional_id] = found.last_epoch
        self._record(transactional_id, found.transaction, decision)
        answer = InitProducerIdResponse(
            producer_id=found.transaction.producer_id, producer_epoch=found.transaction.producer_epoch
        )
        decision.answer(ticket, answer)

    def _initialized(self, now: Millis, body: InitProducerIdRequest, decision: _Building) -> Initialized | ErrorCode:
        transactional_id, timeout_ms, wall_ms = body.transactional_id or "", body.transaction_timeout_ms, self._at(now)
        if not 0 < timeout_ms <= self._settings.timeout_ms_max:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        given = None if body.producer_id == NO_ID else Producer(body.producer_id, body.producer_epoch)
        known = self._known.get(transactional_id)
        if known is None:
            producer_id = self._node.new_producer_id()
            if producer_id is None:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            fresh = Transaction(producer_id, 0, timeout_ms, last_update_ms=wall_ms)
            return Initialized(fresh, NO_EPOCH)
        if known.state.is_prepared:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if not may_initialize(known, given):
            return ErrorCode.PRODUCER_FENCED
        if known.state is State.ONGOING:
            self._abort(now, transactional_id, known, decision)
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if not needs_rotation(known, given):
            return initialize(known, given, self._last_epochs.get(transactional_id, NO_EPOCH), timeout_ms, wall_ms)
        producer_id = self._node.new_producer_id()
        if producer_id is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return rotated(known, given, producer_id, timeout_ms, wall_ms)

    def _verify(self, ticket: Ticket, call: Call, body: AddPartitionsToTxnTransaction, decision: _Building) -> None:
        """Check whether these partitions are in the transaction; called before the first batch is appended
        (KIP-890)."""
        known = self._known.get(body.transactional_id)
        error = verify_error(known, Producer(body.producer_id, body.producer_epoch))
        if error is not ErrorCode.NONE or known is None:
            decision.answer(ticket, partitions_answer(body, said_to(call, error)))
            return
        inside = set(known.partitions)
        topics = [
            AddPartitionsToTxnTopicResult(
                topic.name,
                [
                    AddPartitionsToTxnPartitionResult(
                        index,
                        ErrorCode.NONE
                        if TopicPartition(topic.name, index) in inside
                        else ErrorCode.TRANSACTION_ABORTABLE,
                    )
                    for index in topic.partitions
                ],
            )
            for topic in body.topics
        ]
        decision.answer(ticket, AddPartitionsToTxnResult(body.transactional_id, topics))

    def _add(
        self, now: Millis, ticket: Ticket, call: Call, body: AddPartitionsToTxnTransaction, decision: _Building
    ) -> None:
        known = self._known.get(body.transactional_id)
        error = add_error(known, Producer(body.producer_id, body.producer_epoch))
        if error is ErrorCode.NONE and known is not None:
            partitions = [TopicPartition(topic.name, index) for topic in body.topics for index in topic.partitions]
            after = with_partitions(known, partitions, self._version_of(call), self._at(now))
            if after is not None:
                self._record(body.transactional_id, after, decision)
                if known.state is not State.ONGOING:
                    self._timers.set((_Timer.TIMEOUT, body.transactional_id), now + after.timeout_ms)
        decision.answer(ticket, partitions_answer(body, said_to(call, error)))

    def _end(self, now: Millis, ticket: Ticket, call: Call, body: EndTxnRequest, decision: _Building) -> None:
        known = self._known.get(body.transactional_id)
        producer, commits, version = Producer(body.producer_id, body.producer_epoch), body.committed, 0
        if self._version_of(call) >= 2:
            version = 2
            error = end_error_v2(known, producer, commits=commits)
        else:
            error = end_error(known, producer, commits=commits)
        next_producer_id: int | None = NO_ID
        if error is None and version >= 2 and known is not None and known.is_exhausted:
            next_producer_id = self._node.new_producer_id()
            if next_producer_id is None:
                error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if error not in (None, ErrorCode.NONE):
            decision.answer(ticket, refuse(call, error))
            return
        assert known is not None
        after = known
        if error is None:
            assert next_producer_id is not None
            self._last_epochs[body.transactional_id] = known.producer_epoch if version >= 2 else NO_EPOCH
            after = prepared(
                known,
                commits=commits,
                client_version=version,
                next_producer_id=next_producer_id,
                wall_ms=self._at(now),
            )
            self._prepare(now, body.transactional_id, after, decision)
        decision.answer(ticket, EndTxnResponse(0, ErrorCode.NONE, *after.successor))

    def _version_of(self, call: Call) -> int:
        """The client's version of the transaction protocol."""
        since = _SECOND_VERSION_SINCE.get(call.api_key)
        return 2 if since is not None and call.version >= since else 0

    # ---- the end of a transaction ----------------------------------------------------------------------------------

    def _abort(self, now: Millis, transactional_id: str, known: Transaction, decision: _Building) -> None:
        """Abort an open transaction without a request of its producer.

        In the second version the producer asks for its next epoch, or it initializes with its old epoch (KIP-588). If
        all epochs are used and no new producer id is available, it gets the last epoch. No transaction can begin in
        that epoch, so the producer has to initialize again.
        """
        self._last_epochs.pop(transactional_id, None)
        version, next_producer_id = self._node.transaction_version, None
        if known.is_exhausted and known.client_version >= 2 and version >= 2:
            next_producer_id = self._node.new_producer_id()
        if next_producer_id is None:
            next_producer_id = NO_ID
        if version >= 2 and (next_producer_id != NO_ID or not known.is_exhausted):
            self._last_epochs[transactional_id] = known.producer_epoch
        self._prepare(now, transactional_id, fenced(known, version, next_producer_id, self._at(now)), decision)

    def _prepare(self, now: Millis, transactional_id: str, after: Transaction, decision: _Building) -> None:
        """Record the decided result, and request the markers once the record is committed."""
        self._timers.cancel((_Timer.TIMEOUT, transactional_id))
        self._record(transactional_id, after, decision)
        asks, outcome = self._markers.begin(transactional_id, after)
        decision.asks += asks
        self._go_on(now, transactional_id, after, outcome, decision)

    def _go_on(
        self, now: Millis, transactional_id: str, known: Transaction, outcome: MarkerProgress, decision: _Building
    ) -> None:
        """Continue according to the progress of the markers."""
        match outcome:
            case MarkerProgress.WRITTEN:
                self._markers.forget(transactional_id)
                self._timers.cancel((_Timer.MARKERS, transactional_id))
                self._record(transactional_id, completed(known, self._at(now)), decision)
            case MarkerProgress.AGAIN:
                self._timers.set((_Timer.MARKERS, transactional_id), now + MARKERS_AGAIN_MS)
            case MarkerProgress.FENCED:
                self._notes(
                    f"the markers of transaction {transactional_id} (producer {known.producer_id}, epoch "
                    f"{known.producer_epoch}, coordinator epoch {self.coordinator_epoch}) were refused: a later "
                    "coordinator or a later epoch has written there"
                )
                self._markers.forget(transactional_id)
                self._timers.set((_Timer.MARKERS, transactional_id), now + FENCED_AGAIN_MS)
            case MarkerProgress.UNDER_WAY:
                self._timers.set((_Timer.MARKERS, transactional_id), now + UNDER_WAY_AGAIN_MS)

    def answered(self, now: Millis, number: int, answer: object) -> Decision:
        """Handle the answer of a partition's leader to a request for markers."""
        decision = _Building()
        found = self._markers.answered(number, answer)
        if found is not None:
            transactional_id, outcome = found
            self._go_on(now, transactional_id, self._known[transactional_id], outcome, decision)
        return decision.build()

    def _send_again(self, now: Millis, transactional_id: str, decision: _Building) -> None:
        known = self._known.get(transactional_id)
        if known is None or not known.state.is_prepared:
            return
        if self._markers.is_sending(transactional_id):
            asks, outcome = self._markers.send(transactional_id, known)
        else:
            asks, outcome = self._markers.begin(transactional_id, known)
        decision.asks += asks
        self._go_on(now, transactional_id, known, outcome, decision)

    # ---- deadlines -------------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        return self._timers.deadline()

    def expire(self, now: Millis) -> Decision:
        """Handle expired deadlines, up to the first that writes records: they must be applied before the next
        deadline."""
        decision = _Building()
        while not decision.records:
            timer = self._timers.pop(now)
            if timer is None:
                break
            kind, transactional_id = timer
            if kind == _Timer.TIMEOUT:
                known = self._known.get(transactional_id)
                if known is not None and known.state is State.ONGOING:
                    self._abort(now, transactional_id, known, decision)
            elif kind == _Timer.MARKERS:
                self._send_again(now, transactional_id, decision)
            else:
                self._expire_ids(now, decision)
        return decision.build()

    def _expire_ids(self, now: Millis, decision: _Building) -> None:
        """Delete ids that were unused for a long time, in a sweep over all ids, in steps."""
        if not self._to_expire:
            self._to_expire.extend(self._known)
        wall_ms = self._at(now)
        while self._to_expire and len(decision.records) < TOMBSTONES_PER_STEP:
            transactional_id = self._to_expire.popleft()
            known = self._known.get(transactional_id)
            if (
                known is not None
                and known.is_idle
                and wall_ms - known.last_update_ms >= self._settings.id_expiration_ms
            ):
                self._record(transactional_id, None, decision)
        later = _PAUSE_MS if self._to_expire else self._settings.id_expiration_interval_ms
        self._timers.set(_EXPIRE, now + later)

    def _at(self, now: Millis) -> WallMillis:
        return self._wall.at(now)

    # ---- durable state ---------------------------------------------------------------------------------------------

    def _record(self, transactional_id: str, after: Transaction | None, decision: _Building) -> None:
        decision.records.append(encode(transactional_id, after, flexible=self._node.transaction_version >= 1))

    def apply(self, now: Millis, batch: AppliedBatch) -> None:
        for each in batch.records:
            try:
                stored = each.meaning if isinstance(each.meaning, Stored) else decode(each.key or b"", each.value)
            except MalformedFrameError as error:
                self._notes(f"{self.TOPIC}: the record at offset {each.offset} does not parse and is skipped: {error}")
                continue
            transactional_id, after = stored
            if after is None:
                self._known.pop(transactional_id, None)
                self._last_epochs.pop(transactional_id, None)
            else:
                self._known[transactional_id] = after

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """Do nothing: no transaction writes to this topic."""

    def loaded(self, now: Millis) -> Decision:
        """Send the markers of every prepared transaction, possibly again, and set the remaining timeouts of open
        ones."""
        decision = _Building()
        for transactional_id, known in self._known.items():
            if known.state.is_prepared:
                asks, outcome = self._markers.begin(transactional_id, known)
                decision.asks += asks
                self._go_on(now, transactional_id, known, outcome, decision)
            elif known.state is State.ONGOING:
                ends = self._wall.moment(known.start_ms + known.timeout_ms)
                self._timers.set((_Timer.TIMEOUT, transactional_id), max(now, min(ends, now + known.timeout_ms)))
        self._timers.set(_EXPIRE, now + self._settings.id_expiration_interval_ms)
        return decision.build()

    # ---- for display -----------------------------------------------------------------------------------------------

    def _describe(self, transactional_id: str) -> TransactionState:
        if not transactional_id:
            return TransactionState(error_code=ErrorCode.INVALID_REQUEST)
        known = self._known.get(transactional_id)
        if known is None:
            return TransactionState(error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id)
        topics: dict[str, list[int]] = {}
        for topic, index in known.partitions:
            topics.setdefault(topic, []).append(index)
        return TransactionState(
            ErrorCode.NONE,
            transactional_id,
            NAMES[known.state],
            known.timeout_ms,
            known.start_ms,
            known.producer_id,
            known.producer_epoch,
            [TopicData(topic, indexes) for topic, indexes in topics.items()],
        )

    def _list(self, now: Millis, body: ListTransactionsRequest) -> ListTransactionsResponse:
        """The transactions that match the filters; the pattern has already been validated."""
        wall_ms = self._at(now)
        pattern, states, producer_ids = body.transactional_id_pattern, body.state_filters, set(body.producer_id_filters)
        matched = self._known if not pattern else set(matching(pattern, self._known))
        listed = [
            ListedTransaction(transactional_id, each.producer_id, NAMES[each.state])
            for transactional_id, each in self._known.items()
            if transactional_id in matched
            and (not producer_ids or each.producer_id in producer_ids)
            and (not states or NAMES[each.state] in states)
            and (body.duration_filter < 0 or wall_ms - each.start_ms > body.duration_filter)
        ]
        return ListTransactionsResponse(transaction_states=listed)

    def image(self) -> dict[str, Transaction]:
        """The durable state as plain values; two shards that applied the same log have equal images."""
        return dict(self._known)

    def check(self) -> None:
        self._timers.check()
        self._markers.check()
        for transactional_id, known in self._known.items():
            timed = (_Timer.TIMEOUT, transactional_id) in self._timers
            assert timed == (known.state is State.ONGOING), f"{transactional_id} is {known.state.name}, timed: {timed}"
            if known.state.is_prepared:
                sending = self._markers.is_sending(transactional_id)
                again = (_Timer.MARKERS, transactional_id) in self._timers
                assert sending or again, f"{transactional_id} is prepared, and nobody sends its markers"
