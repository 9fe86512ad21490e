"""Simulates transactional producers, in both versions of the protocol: ones that die, hang, and return as zombies.

`transactional_states` has their states. They follow Kafka's producer. A batch with an unknown outcome is sent again
under its number, or the transaction is aborted. An EndTxn whose answer is lost is sent again. A fenced producer takes a
new epoch by InitProducerId and continues. A zombie, whose place another client has taken, continues as if nothing had
happened, until it is fenced.

In the first version of the protocol, an epoch lasts for many transactions, so a delayed request may affect a later one.
After a transaction with a lost answer, the producer therefore takes a new epoch, as Kafka's producer does for batches.
Requests that died with their node have no effect any more: the client keeps its epoch, as librdkafka always does.

Sources: Kafka's TransactionManager.java; KIP-98, KIP-360, KIP-588, KIP-890.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.wire import Message
from ottla.sim.clients.batches import encode_batch
from ottla.sim.clients.consumers import COORDINATOR_AWAY, FENCED
from ottla.sim.clients.history import Content
from ottla.sim.clients.kafka import MOVED, OF_GROUPS, OF_TRANSACTIONS
from ottla.sim.clients.producers import BY_TOPIC_ID_SINCE, RETRIABLE, BatchInFlight, Lane
from ottla.sim.clients.transaction_history import Ended, Identity, Source, Transaction
from ottla.sim.clients.transactional_client import RETRY_US, TransactionalClient
from ottla.sim.clients.transactional_states import NEXT, GroupOffsets, OpenTransaction, ProducerState, Reached
from ottla.sim.clients.workload_view import TransactionWorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.trace import InvariantError

IN_FLIGHT_MAX = 3
ABORTS_AT_ONCE = 0.3
"""The share of transactions that are aborted right after the last one, before anything is written."""
BUMPS_SINCE = 3
"""The version of InitProducerId since which a client sends its current identity."""

SHUT_OUT = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
LATER = RETRIABLE | COORDINATOR_AWAY | {ErrorCode.CONCURRENT_TRANSACTIONS}
NOT_DONE = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
"""Retriable errors that say for certain that the request had no effect."""
ABORTABLE = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})


class TransactionalProducer(TransactionalClient):
    """One producer."""

    def __init__(
        self,
        workload: TransactionWorkloadView,
        name: str,
        topics: tuple[str, ...],
        *,
        second_version: bool,
        timeout_ms: int,
        gap_us: Micros,
    ) -> None:
        super().__init__(workload, name, topics, second_version=second_version)
        self.timeout_ms = timeout_ms
        self.gap_us = gap_us
        self.lanes = [Lane(topic, i) for topic in topics for i in range(workload.rules[topic].partitions)]
        self.state = ProducerState.NEW
        self.makes = True
        self.hurries = False
        self.zombie = False
        self._open: OpenTransaction | None = None
        self._needs_epoch = False
        """An earlier request may still take effect under this epoch, so the next transaction needs another one."""
        self._requests = 0
        self._aborts_at_once = workload.aborts_at_once
        self._early = self.world.stream(f"aborts-at-once/{name}")
        self.after(self.rng.randrange(300 * MS), self.connect)
        self.after(self.rng.randrange(400 * MS), self._work)

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self._open is None

    @property
    def transaction(self) -> Transaction | None:
        """The open transaction."""
        return None if self._open is None else self._open.transaction

    def _enter(self, state: ProducerState) -> None:
        assert state in NEXT[self.state], f"{self.name}: {self.state.value} -> {state.value}"
        self.state = state

    # ---- making transactions ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        if self.state is ProducerState.OVER:
            return
        self.after(self.rng.randrange(1, 2 * self.gap_us), self._work)
        if self.state is ProducerState.READY and self.makes and self.connection is not None:
            opened = self.begin()
            opened.to_make = self.rng.randrange(1, 6)
            opened.commits = self.rng.random() < 0.75
            self._make()

    def begin(
        self,
        sources: Sequence[Source] = (),
        offsets: GroupOffsets | None = None,
        done: Callable[[bool], None] | None = None,
    ) -> OpenTransaction:
        """Open a transaction; `done` is called with whether it is known to be committed."""
        self._enter(ProducerState.OPEN)
        transaction = self.told.begin(self.transactional_id)
        transaction.sources += sources
        slow = self.rng.random() < 0.1 and not self.hurries
        end_at_us = self.world.clock.now_us + (self.rng.randrange(2 * self.timeout_ms) * MS if slow else 0)
        self._open = OpenTransaction(transaction, offsets, done, end_at_us)
        return self._open

    def _make(self) -> None:
        if self.state is not ProducerState.OPEN or self._open is None or not self._open.to_make:
            return
        self._open.to_make -= 1
        lane = self.rng.choice(self.lanes)
        self.put(lane, [self.note(lane) for _ in range(self.rng.randrange(1, 5))])
        self._pump()
        self.after(self.rng.randrange(1, self.gap_us), self._make)

    def put(self, lane: Lane, notes: list[Content]) -> None:
        """Add these records to the open transaction."""
        lane.parcels.append(BatchInFlight(notes))

    def go(self) -> None:
        """Send the added records."""
        self._pump()

    def note(self, lane: Lane, key: bytes | None = None) -> Content:
        """The next record in a lane."""
        assert self.transaction is not None
        number = lane.next_number
        lane.next_number += 1
        self.transaction.sent[(lane.topic, lane.index), number] = None
        label = f"{self.name}:{lane.index}:{number}:{self.transaction.number}"
        if self.workload.rules[lane.topic].compacted:
            key = f"{self.transactional_id}:{lane.index}:{self.rng.randrange(6)}".encode()
        return key or label.encode(), label.encode() + b"." * self.rng.randrange(100)

    # ---- the connection --------------------------------------------------------------------------------------------

    def gone(self) -> None:
        if not self.second_version and self._may_be_late:
            self._needs_epoch = True  # what was asked may still be done, in a later transaction
        self._may_be_late = False
        self._asking = False
        self._requests = 0
        if self.follows:
            self._has_coordinator = False
        for lane in self.lanes:
            for parcel in lane.parcels:
                parcel.in_flight = False
        if self.state is ProducerState.OPEN and self.rng.random() < 0.5:
            self.abort("the connection is lost")

    def retire(self) -> None:
        """Die permanently: an open transaction is never ended."""
        self._enter(ProducerState.OVER)
        self.running = False
        self._drop()
        self.hang_up(lingering=self.rng.random() < 0.5)

    def _ask(self, key: int, message: Message, answer: Callable[..., None], *args: object) -> None:
        """Ask the coordinator of the transactional id, or of the group for which offsets are committed."""
        at = self.coordinator
        if key == ApiKey.TXN_OFFSET_COMMIT and self._open is not None and self._open.offsets is not None:
            at = self.coordinators.get((OF_GROUPS, self._open.offsets.group))
        self._be_late(at)
        self._asking = True
        self.request(key, message, self._answered, answer, self.transaction, args, at=at)

    def _answered(
        self, message: Any, answer: Callable[..., None], of: Transaction | None, args: tuple[object, ...]
    ) -> None:
        """Handle an answer. Lost answers are handled in `gone`; answers for an earlier transaction are ignored."""
        if message is not None and of is self.transaction and self.state is not ProducerState.OVER:
            answer(message, *args)

    def _pump_later(self, code: int) -> None:
        """Retry after a temporary error: the coordinator is busy, or has moved."""
        if code in MOVED:
            self._has_coordinator = not self.follows
            self.miss_coordinator(OF_TRANSACTIONS, self.transactional_id)
            if self._open is not None and self._open.offsets is not None:
                self.miss_coordinator(OF_GROUPS, self._open.offsets.group)
        self.after(self.rng.randrange(RETRY_US, 4 * RETRY_US), self._pump)

    def _pump(self) -> None:
        """Send the next request."""
        if self.connection is None or self._asking or not self._has_coordinator:
            return
        if any(topic not in self.known for topic in self.topics):
            return
        match self.state:
            case ProducerState.NEW if self.makes:
                self._initialize()
            case ProducerState.OPEN:
                self._go_on()
            case ProducerState.ENDING if not self._requests:
                self._end()
            case ProducerState.NEW | ProducerState.ENDING | ProducerState.READY | ProducerState.OVER:
                pass

    # ---- identity --------------------------------------------------------------------------------------------------

    def _initialize(self) -> None:
        request = InitProducerIdRequest(self.transactional_id, self.timeout_ms)
        if self.identity is not None and self.versions[ApiKey.INIT_PRODUCER_ID] >= BUMPS_SINCE:
            request.producer_id, request.producer_epoch = self.identity
        self._ask(ApiKey.INIT_PRODUCER_ID, request, self._initialized, self.world.clock.now_us)

    def _initialized(self, message: Any, asked_us: Micros) -> None:
        self._asking = False
        code = message.error_code
        if code == ErrorCode.NONE:
            if self.told.is_new(message.producer_id):
                self.workload.check_new_producer_id(message.producer_id)
            identity = Identity(message.producer_id, message.producer_epoch)
            self.told.initialized(asked_us, self.world.clock.now_us, self.name, self.transactional_id, identity)
            self._enter(ProducerState.READY)
            self._needs_epoch = False
            self._become(identity)
            self.renewed()
        elif code in LATER:
            self._pump_later(code)
        elif code in SHUT_OUT and self.identity is not None:
            self._shut_out(code)
        else:
            raise InvariantError(f"{self.name}: InitProducerId answers {code}")

    def _become(self, identity: Identity) -> None:
        self.world.trace.add(self.name, f"is {identity.producer_id} in epoch {identity.epoch}")
        if identity != self.identity:
            self.identity = identity
            for lane in self.lanes:
                lane.take_identity(*identity, self.history.losses)

    def _shut_out(self, code: int) -> None:
        """Handle fencing: another client has the id, or the coordinator has aborted the transaction."""
        self.world.trace.add(self.name, f"is shut out: {code}")
        if self.identity is not None and code != ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            now_us = self.world.clock.now_us
            self.told.ends.shut_out(now_us, self.name, self.transactional_id, self._changing, self.identity)
        self._drop()
        self.identity = None
        self._enter(ProducerState.OVER if self.zombie else ProducerState.NEW)
        if self.zombie:
            self.running = False
            self.hang_up()
        else:
            self.after(self.rng.randrange(500 * MS), self._pump)

    def _drop(self) -> None:
        """Forget the open transaction."""
        opened, self._open = self._open, None
        for lane in self.lanes:
            lane.parcels.clear()
        if opened is not None and opened.done is not None:
            opened.done(False)

    def renewed(self) -> None:
        """Use the new epoch of an InitProducerId: everything begun under an older one is over."""

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        opened = self._opened()
        waiting = [lane for lane in self.lanes if lane.parcels]
        if not self.second_version:
            missing = [lane for lane in waiting if (lane.topic, lane.index) not in opened.added]
            if missing:
                if not self._requests:
                    self._add(missing)
                return
        if waiting:
            self._write()
        elif self._requests or opened.to_make:
            return
        elif opened.offsets is not None and not opened.offsets.done:
            self._commit_offsets(opened.offsets)
        elif self.world.clock.now_us >= opened.end_at_us:
            self._enter(ProducerState.ENDING)
            self._end()
        else:
            self.after(opened.end_at_us - self.world.clock.now_us, self._pump)

    def _opened(self) -> OpenTransaction:
        assert self._open is not None
        return self._open

    def _write(self) -> None:
        while self._requests < IN_FLIGHT_MAX:
            chosen = self.to_send()
            if not chosen:
                break
            topic = self.rng.choice(chosen)[0].topic
            chosen = [each for each in chosen if each[0].topic == topic]
            if len(chosen) > 1 and self.rng.random() < 0.3:
                chosen = chosen[:1]
            self._send(topic, chosen)

    def _send(self, topic: str, chosen: list[tuple[Lane, BatchInFlight]]) -> None:
        by_id = self.versions[ApiKey.PRODUCE] >= BY_TOPIC_ID_SINCE
        parts = [PartitionProduceData(lane.index, self._encode(lane, parcel)) for lane, parcel in chosen]
        message = ProduceRequest(
            self.transactional_id, -1, 3_000, [TopicProduceData(**self.topic_key(topic, by_id), partition_data=parts)]
        )
        leader = self.leader_of(chosen[0][0])
        self._opened().reach(Reached.ASKED)
        self._be_late(leader)
        self._requests += 1
        for _, parcel in chosen:
            parcel.in_flight, parcel.at = True, leader
        how = chosen, self.transaction, self.identity, self.world.clock.now_us
        self.request(ApiKey.PRODUCE, message, self._produced, *how, at=leader)

    def _encode(self, lane: Lane, parcel: BatchInFlight) -> bytes:
        lane.number(parcel)
        return encode_batch(
            parcel.notes,
            self.world.clock.wall_ms,
            producer_id=lane.producer_id,
            producer_epoch=lane.producer_epoch,
            base_sequence=parcel.base_sequence,
            transactional=True,
        )

    def _produced(
        self,
        message: Any,
        sent: list[tuple[Lane, BatchInFlight]],
        of: Transaction,
        identity: Identity,
        sent_us: Micros,
    ) -> None:
        if message is None:
            return
        self._requests -= 1
        answers = {part.index: part for topic in message.responses for part in topic.partition_responses}
        for lane, parcel in sent:
            answer = answers[lane.index]
            parcel.in_flight = False
            if answer.error_code == ErrorCode.NONE:
                if self._open is not None and of is self._open.transaction:
                    self._open.reach(Reached.REGISTERED)
                what = f"a batch for {lane.topic}-{lane.index}"
                self.told.taken(self.name, what, self.transactional_id, identity, sent_us)
                self.history.acknowledge(self.name, (lane.topic, lane.index), answer.base_offset, parcel.notes)
            if of is self.transaction and self.state is ProducerState.OPEN:
                self._take_answer(lane, parcel, answer)
        self._pump()

    def _take_answer(self, lane: Lane, parcel: BatchInFlight, answer: Any) -> None:
        code = answer.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            lane.parcels.remove(parcel)
            return
        self.world.trace.add(self.name, f"{lane.topic}-{lane.index} refused: {code} {answer.error_message}")
        self.pause_lane(lane, code, self._pump)
        if code in LATER or (code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and lane.parcels[0] is not parcel):
            return
        if code in SHUT_OUT or code in ABORTABLE:
            self.abort(f"{lane.topic}-{lane.index} answers {code}")
            return
        raise InvariantError(f"{self.name}: Produce to {lane.topic}-{lane.index} answers {code} {answer.error_message}")

    # ---- what a transaction is added -------------------------------------------------------------------------------

    def _add(self, lanes: list[Lane]) -> None:
        assert self.identity is not None
        topics: dict[str, list[int]] = {}
        for lane in lanes:
            topics.setdefault(lane.topic, []).append(lane.index)
        request = AddPartitionsToTxnRequest(
            self.transactional_id,
            *self.identity,
            [AddPartitionsToTxnTopic(topic, indexes) for topic, indexes in topics.items()],
        )
        self._opened().reach(Reached.ASKED)
        sent_us = self.world.clock.now_us
        self._ask(ApiKey.ADD_PARTITIONS_TO_TXN, request, self._partitions_added, self.identity, sent_us)

    def _partitions_added(self, message: Any, identity: Identity, sent_us: Micros) -> None:
        self._asking = False
        for topic in message.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                if each.partition_error_code:
                    self._add_refused("AddPartitionsToTxn", each.partition_error_code)
                    return
                self._opened().added.add((topic.name, each.partition_index))
                self._opened().reach(Reached.REGISTERED)
        self.told.taken(self.name, "AddPartitionsToTxn", self.transactional_id, identity, sent_us)
        self._pump()

    def _add_refused(self, what: str, code: int) -> None:
        if code in LATER:
            self._pump_later(code)
        elif code in SHUT_OUT:
            self._shut_out(code)
        elif code not in ABORTABLE and code not in FENCED:
            raise InvariantError(f"{self.name}: {what} answers {code}")
        elif self.state is ProducerState.OPEN:
            self.abort(f"{what} answers {code}")
        else:
            self._pump()

    def _commit_offsets(self, offsets: GroupOffsets) -> None:
        assert self.identity is not None
        self._opened().reach(Reached.ASKED)
        if not self.second_version and not offsets.added:
            request = AddOffsetsToTxnRequest(self.transactional_id, *self.identity, offsets.group)
            self._ask(ApiKey.ADD_OFFSETS_TO_TXN, request, self._offsets_added, offsets)
            return
        if self.follows and (OF_GROUPS, offsets.group) not in self.coordinators:
            self._find(OF_GROUPS, offsets.group)
            return
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for (topic, index), position in offsets.positions.items():
            topics.setdefault(topic, []).append(TxnOffsetCommitRequestPartition(index, position))
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            offsets.group,
            *self.identity,
            offsets.generation,
            offsets.member_id,
            offsets.instance,
            [TxnOffsetCommitRequestTopic(*each) for each in topics.items()],
        )
        transaction = self._opened().transaction
        if not transaction.commits:
            now_us = self.world.clock.now_us
            self.told.commit_offsets(now_us, transaction, offsets.group, offsets.positions)
        sent_us = self.world.clock.now_us
        self._ask(ApiKey.TXN_OFFSET_COMMIT, request, self._offsets_committed, offsets, self.identity, sent_us)

    def _offsets_added(self, message: Any, offsets: GroupOffsets) -> None:
        self._asking = False
        if message.error_code:
            self._add_refused("AddOffsetsToTxn", message.error_code)
        else:
            offsets.added = True
            self._opened().reach(Reached.REGISTERED)
            self._pump()

    def _offsets_committed(self, message: Any, offsets: GroupOffsets, identity: Identity, sent_us: Micros) -> None:
        self._asking = False
        for topic in message.topics:
            for each in topic.partitions:
                if each.error_code:
                    self._add_refused("TxnOffsetCommit", each.error_code)
                    return
        self.told.taken(self.name, "TxnOffsetCommit", self.transactional_id, identity, sent_us)
        offsets.done = True
        self._opened().reach(Reached.REGISTERED)
        self._pump()

    # ---- the end ---------------------------------------------------------------------------------------------------

    def abort(self, why: str) -> None:
        """Abort the open transaction."""
        opened = self._opened()
        self.world.trace.add(self.name, f"aborts {self.transaction}: {why}")
        if not self.second_version and any(p.base_sequence >= 0 for lane in self.lanes for p in lane.parcels):
            self._needs_epoch = True  # their outcome and the next sequence are unknown
        for lane in self.lanes:
            lane.parcels.clear()
        opened.commits, opened.to_make = False, 0
        self._enter(ProducerState.ENDING)
        if opened.reached is not Reached.NOTHING:
            self._pump()
        else:
            self._ended(committed=False)

    def _end(self) -> None:
        assert self.identity is not None
        opened = self._opened()
        opened.transaction.asked_to_commit = opened.commits
        request = EndTxnRequest(self.transactional_id, *self.identity, opened.commits)
        now_us = self.world.clock.now_us
        in_doubt, opened.in_doubt = opened.in_doubt, True  # until an answer says otherwise
        self._ask(ApiKey.END_TXN, request, self._end_answered, in_doubt, self.identity, now_us)

    def _end_answered(self, message: Any, in_doubt: bool, identity: Identity, sent_us: Micros) -> None:
        self._asking = False
        opened = self._opened()
        code, commits = message.error_code, opened.commits
        if code == ErrorCode.NONE:
            self.told.taken(self.name, "EndTxn", self.transactional_id, identity, sent_us)
            successor = Identity(message.producer_id, message.producer_epoch) if self.second_version else identity
            ended = Ended(commits, successor, self.name)
            self.told.ends.ended(self.world.clock.now_us, self.transactional_id, self._changing, ended)
            self._ended(committed=commits)
            if self.second_version and self.state is ProducerState.READY:
                self._become(successor)
                self._abort_at_once()
            return
        if code in LATER:
            opened.in_doubt = in_doubt or code not in NOT_DONE
            self._pump_later(code)
        elif code in SHUT_OUT or self._may_be_unknown(code, opened):
            if not in_doubt or code == ErrorCode.INVALID_TXN_STATE:
                self._conclude(committed=False)
            self._shut_out(code)
        else:
            raise InvariantError(f"{self.name}: EndTxn of {self.transaction} answers {code}")

    def _abort_at_once(self) -> None:
        """Abort the next transaction before anything is written in it, as applications do: Kafka's producer asks for
        that end in the second version, perhaps while the markers of the last one are outstanding."""
        if self._aborts_at_once and self.makes and self._early.random() < ABORTS_AT_ONCE:
            self.begin()
            self._opened().reach(Reached.ASKED)
            self.abort("it has nothing to write")

    def _may_be_unknown(self, code: int, opened: OpenTransaction) -> bool:
        """Whether the coordinator may answer that there is no transaction to end.

        In the first version, that is so for an abort of a transaction that it has not heard of, which is fatal to
        librdkafka. In the second version, it is so for a commit of a transaction that the coordinator has aborted.
        """
        is_registered = opened.reached is Reached.REGISTERED
        allowed = opened.commits if self.second_version else not (opened.commits or is_registered)
        return code == ErrorCode.INVALID_TXN_STATE and allowed

    def _conclude(self, *, committed: bool) -> None:
        self.told.conclude(self.world.clock.now_us, self.name, self._opened().transaction, committed=committed)

    def _ended(self, *, committed: bool) -> None:
        self.world.trace.add(self.name, f"{self.transaction} is {'committed' if committed else 'aborted'}")
        self._conclude(committed=committed)
        opened, self._open = self._opened(), None
        self._enter(ProducerState.NEW if self._needs_epoch else ProducerState.READY)
        if opened.done is not None:
            opened.done(committed)
        self._pump()
