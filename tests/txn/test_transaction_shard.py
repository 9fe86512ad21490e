"""The transaction coordinator's shard: every state and request, in both versions of the protocol, and replay."""

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.machine import (
    AppliedBatch,
    AppliedRecord,
    Call,
    Decision,
    ShardCall,
    ShardRecord,
    Unanswered,
    WallClock,
)
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from ottla.txn.records import decode, encode
from ottla.txn.settings import NO_LEADER, TransactionSettings
from ottla.txn.shard import FENCED_AGAIN_MS, MARKERS_AGAIN_MS, UNDER_WAY_AGAIN_MS, TransactionShard
from ottla.txn.transaction import EXHAUSTED_EPOCH, Producer, State, TopicPartition, Transaction

AHEAD = 1_800_000_000_000
LAST = EXHAUSTED_EPOCH


class World:
    """Two nodes that lead partitions, and producer ids from 100 on."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[str, int], int] = {("t", index): 1 + index % 2 for index in range(4)}
        self.next_id = 100
        self.transaction_version = 2

    def leader_of(self, topic: str, index: int) -> int | None:
        return self.leaders.get((topic, index))

    def new_producer_id(self) -> int | None:
        taken, self.next_id = self.next_id, self.next_id + 1
        return taken


class Stage:
    """A shard with a log of its own; requests for markers wait until the test answers them."""

    def __init__(self, **settings: int) -> None:
        self.world = World()
        self.settings = TransactionSettings(**settings)
        self.log: list[AppliedBatch] = []
        self.now = 1_000
        self.asks: list[ShardCall] = []
        self.shard = self._new()
        self.do(self.shard.loaded(self.now))

    def _new(self) -> TransactionShard:
        return TransactionShard(self.settings, self.world, 5, wall=WallClock(AHEAD))

    def restart(self) -> None:
        before = self.shard.image()
        self.load(expecting=before)

    def load(self, expecting: object = None) -> None:
        """A new shard reads the log."""
        self.asks.clear()
        self.shard = self._new()
        for batch in self.log:
            read = [each._replace(meaning=None) for each in batch.records]
            self.shard.apply(self.now, batch._replace(records=read))
        assert expecting is None or self.shard.image() == expecting
        self.do(self.shard.loaded(self.now))

    def do(self, decision: Decision) -> list[Any]:
        if decision.records:
            base = sum(len(batch.records) for batch in self.log)
            assert all(decode(each.key, each.value) == each.meaning for each in decision.records)
            rows = [AppliedRecord(base + at, AHEAD, *each) for at, each in enumerate(decision.records)]
            self.log.append(AppliedBatch(base, rows))
            self.shard.apply(self.now, self.log[-1])
        self.asks += decision.asks
        self.shard.check()
        return [answer.reply for answer in decision.answers]

    def call(self, key: int, version: int, body: object) -> Any:
        (reply,) = self.do(self.shard.decide(self.now, 1, Call(key, version, "c", "/h", body)))
        return reply

    def init(self, given: tuple[int, int] = (-1, -1), *, timeout_ms: int = 60_000, version: int = 5) -> tuple[int, ...]:
        reply = self.call(22, version, InitProducerIdRequest("id", timeout_ms, *given))
        return reply.error_code, reply.producer_id, reply.producer_epoch

    def add(self, producer: tuple[int, int], *indexes: int, version: int = 3, verify: bool = False) -> E:
        body = AddPartitionsToTxnTransaction("id", *producer, verify, [AddPartitionsToTxnTopic("t", list(indexes))])
        reply = self.call(24, version, body)
        (error,) = {each.partition_error_code for each in reply.topic_results[0].results_by_partition}
        return E(error)

    def end(self, producer: tuple[int, int], *, commit: bool = True, version: int = 4) -> Any:
        reply = self.call(26, version, EndTxnRequest("id", *producer, commit))
        return E(reply.error_code) if version < 5 else (E(reply.error_code), reply.producer_id, reply.producer_epoch)

    def marked(self, error: E = E.NONE) -> None:
        """The oldest request for markers is answered."""
        ask = self.asks.pop(0)
        (marker,) = ask.message.markers  # type: ignore[attr-defined]
        results = [
            WritableTxnMarkerTopicResult(
                topic.name, [WritableTxnMarkerPartitionResult(index, error) for index in topic.partition_indexes]
            )
            for topic in marker.topics
        ]
        answer = WriteTxnMarkersResponse([WritableTxnMarkerResult(marker.producer_id, results)])
        self.do(self.shard.answered(self.now, ask.number, answer))

    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        while (due := self.shard.deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(self.shard.expire(self.now))
        self.now = until

    def put(self, transaction: Transaction) -> None:
        """Let the log say so."""
        record = encode("id", transaction)
        self.log.append(AppliedBatch(1_000, [AppliedRecord(1_000, AHEAD, record.key, record.value)]))
        self.load()

    @property
    def state(self) -> Transaction:
        found: Any = self.shard.image()
        return found["id"]


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.restart()


def test_a_transaction_of_the_first_version(stage: Stage) -> None:
    assert stage.init() == (E.NONE, 100, 0)
    assert stage.add((100, 0), 0, 1) is E.NONE
    assert stage.add((100, 0), 2) is E.NONE
    assert stage.end((100, 0)) is E.NONE
    assert (stage.state.state, stage.state.producer_epoch) == (State.PREPARE_COMMIT, 0)
    assert stage.add((100, 0), 0) is E.CONCURRENT_TRANSACTIONS
    assert sorted(ask.node_id for ask in stage.asks) == [1, 2]
    (marker,) = stage.asks[0].message.markers  # type: ignore[attr-defined]
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (100, 0, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 0)
    stage.marked()
    assert stage.state.state is State.PREPARE_COMMIT
    stage.marked()
    assert stage.state == Transaction(
        100, 0, 60_000, State.COMPLETE_COMMIT, (), stage.state.start_ms, stage.state.last_update_ms
    )
    assert stage.add((100, 0), 0) is E.NONE


def test_a_transaction_of_the_second_version_has_an_epoch_of_its_own(stage: Stage) -> None:
    stage.init()
    assert stage.add((100, 0), 0, version=5) is E.NONE
    assert stage.end((100, 0), version=5) == (E.NONE, 100, 1)
    (marker,) = stage.asks[0].message.markers  # type: ignore[attr-defined]
    assert (marker.producer_epoch, marker.transaction_version) == (1, 2)
    stage.marked()
    assert stage.end((100, 0), version=5) == (E.NONE, 100, 1)  # the answer was lost
    assert stage.add((100, 0), 0, version=5) is E.PRODUCER_FENCED
    assert stage.add((100, 1), 0, version=5) is E.NONE


def test_epochs_that_are_used_up_go_on_under_another_id(stage: Stage) -> None:
    stage.put(Transaction(50, LAST, 1000, State.ONGOING, (TopicPartition("t", 0),), client_version=2))
    assert stage.end((50, LAST), version=5) == (E.NONE, 100, 0)
    assert (stage.state.producer_epoch, stage.state.next_producer_id) == (LAST + 1, 100)
    stage.marked()
    assert stage.end((50, LAST), version=5) == (E.NONE, 100, 0)


def ongoing(stage: Stage, epoch: int, version: int) -> Producer:
    """A producer with a transaction open in partition 0, in this epoch."""
    stage.put(Transaction(50, epoch, 60_000, last_update_ms=AHEAD))  # type: ignore[arg-type]
    producer = Producer(50, epoch)
    assert stage.add(producer, 0, version=4 if version == 2 else 3) is E.NONE
    return producer


def test_a_time_out_in_the_last_epoch_leaves_none_behind_it(stage: Stage) -> None:
    """The producer goes on under another id, as it would have after any other end."""
    producer = ongoing(stage, LAST, version=2)
    stage.pass_time(60_000)
    assert stage.state.state is State.PREPARE_ABORT
    assert stage.end(producer, commit=False, version=5)[0] is E.CONCURRENT_TRANSACTIONS
    stage.marked()
    assert (stage.state.producer_id, stage.state.producer_epoch) == (100, 0)
    stage.restart()
    assert stage.end(producer, commit=False, version=5) == (E.NONE, 100, 0)
    assert stage.end(producer, commit=True, version=5)[0] is E.INVALID_TXN_STATE
    assert stage.add((100, 0), 1, version=4) is E.NONE


def test_the_epoch_behind_the_last_one_begins_nothing(stage: Stage) -> None:
    """It is for fencing only: who has it takes another id, and its end can't be asked for beyond it."""
    producer = ongoing(stage, LAST, version=1)
    stage.pass_time(60_000)
    stage.marked()
    assert stage.state.producer_epoch == LAST + 1
    assert stage.end(producer) is E.PRODUCER_FENCED
    behind = Producer(50, LAST + 1)
    assert stage.add(behind, 0) is E.PRODUCER_FENCED
    assert stage.add(behind, 0, version=4) is E.PRODUCER_FENCED
    assert stage.end(behind, commit=False, version=5) == (E.NONE, 100, 0)
    assert stage.state.producer_id == 100


@pytest.mark.parametrize(("level", "goes_on"), [(0, False), (1, False), (2, True)])
def test_whose_transaction_was_aborted_goes_on_in_the_epoch_after_it(stage: Stage, level: int, goes_on: bool) -> None:
    """It says who it believes to be (KIP-588); who does so behind another life is fenced."""
    stage.world.transaction_version = level
    producer = ongoing(stage, 7, version=1)
    stage.pass_time(60_000)
    stage.marked()
    for _ in range(2):
        assert stage.init(producer)[0] == (E.NONE if goes_on else E.PRODUCER_FENCED)
        assert stage.state.producer_epoch == 8
    assert stage.init() == (E.NONE, 50, 9)
    assert stage.init(producer)[0] is E.PRODUCER_FENCED


def test_nobody_goes_on_in_the_epoch_behind_the_last_one(stage: Stage) -> None:
    producer = ongoing(stage, LAST, version=1)
    stage.pass_time(60_000)
    stage.marked()
    assert stage.state.producer_epoch == LAST + 1
    assert stage.init(producer)[0] is E.PRODUCER_FENCED
    assert stage.init() == (E.NONE, 100, 0)


def test_whose_transaction_was_aborted_in_the_last_epoch_goes_on_under_another_id(stage: Stage) -> None:
    producer = ongoing(stage, LAST, version=2)
    stage.pass_time(60_000)
    stage.marked()
    assert stage.init(producer) == (E.NONE, 100, 0)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_nobody_ends_is_aborted_in_the_version_that_the_cluster_is_at(stage: Stage, level: int) -> None:
    stage.world.transaction_version = level
    ongoing(stage, 7, version=1)
    stage.pass_time(60_000)
    (marker,) = stage.asks[0].message.markers  # type: ignore[attr-defined]
    assert (marker.producer_epoch, marker.transaction_version) == (8, level)
    stage.marked()
    assert (stage.state.producer_epoch, stage.state.client_version) == (8, level)
    if level:  # a client of the second version that asks for that goes on in the next epoch
        assert stage.end((50, 7), commit=False, version=5) == (E.NONE, 50, 8)
        assert stage.end((50, 7), commit=True, version=5)[0] is E.INVALID_TXN_STATE


def test_records_are_flexible_from_level_1_on_and_where_they_say_what_others_can_not(stage: Stage) -> None:
    def version() -> int:
        return int.from_bytes(stage.log[-1].records[-1].value[:2], "big")

    stage.world.transaction_version = 0
    stage.init()
    stage.add((100, 0), 0)
    stage.end((100, 0))
    stage.marked()
    assert version() == 0
    stage.add((100, 0), 0, version=4)
    assert version() == 1
    stage.world.transaction_version = 1
    stage.init()
    assert version() == 1


def test_a_client_of_the_second_version_loses_nothing_where_the_cluster_is_at_the_first(stage: Stage) -> None:
    stage.world.transaction_version = 0
    producer = ongoing(stage, LAST, version=2)
    assert stage.end(producer, version=5) == (E.NONE, 100, 0)
    stage.restart()
    stage.marked()
    assert (stage.state.producer_id, stage.state.producer_epoch) == (100, 0)
    assert stage.end(producer, version=5) == (E.NONE, 100, 0)


def known(state: State, version: int, epoch: int = 7) -> Transaction:
    partitions = (
        () if state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT) else (TopicPartition("t", 0),)
    )
    return Transaction(50, epoch, 60_000, state, partitions, client_version=version)


@pytest.mark.parametrize("state", list(State))
def test_a_producer_begins_anew(stage: Stage, state: State) -> None:
    stage.put(known(state, 0))
    if state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert stage.init()[0] == stage.init((50, 7))[0] == E.CONCURRENT_TRANSACTIONS
        return
    if state is State.ONGOING:
        assert stage.init() == (E.CONCURRENT_TRANSACTIONS, -1, -1)
        assert (stage.state.state, stage.state.producer_epoch) == (State.PREPARE_ABORT, 8)
        stage.marked()
        assert stage.init() == (E.NONE, 50, 9)
        return
    assert stage.init() == (E.NONE, 50, 8)
    assert stage.init((50, 8)) == (E.NONE, 50, 9)
    assert stage.init((50, 8)) == (E.NONE, 50, 9)  # the answer was lost
    assert stage.init((50, 7))[0] == E.PRODUCER_FENCED
    assert stage.init((50, 7), version=3)[0] == E.INVALID_PRODUCER_EPOCH
    assert stage.init((49, 9))[0] == E.PRODUCER_FENCED
    stage.restart()
    assert stage.init((50, 8))[0] == E.PRODUCER_FENCED  # no record has the last epoch


def test_a_producer_whose_epochs_are_used_up_begins_under_another_id(stage: Stage) -> None:
    stage.put(known(State.EMPTY, 0, epoch=LAST))
    assert stage.init((50, LAST)) == (E.NONE, 100, 0)
    assert stage.init((50, LAST)) == (E.NONE, 100, 0)  # the answer was lost
    stage.put(known(State.ONGOING, 0, epoch=LAST))
    assert stage.init()[0] == E.CONCURRENT_TRANSACTIONS
    assert stage.state.producer_epoch == LAST + 1
    stage.marked()
    assert stage.init()[:1] == (E.NONE,)
    assert (stage.state.producer_epoch, stage.state.previous_producer_id) == (0, 50)


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_later_transaction_is_not_told_to_the_id_before(stage: Stage, commit: bool) -> None:
    """Who was fenced under an id whose epochs are used up hears so, not how its successor ended its own (version 1)."""
    stage.put(known(State.EMPTY, 0, epoch=LAST))
    assert stage.init() == (E.NONE, 100, 0)
    stage.add((100, 0), 0)
    assert stage.end((100, 0), commit=commit) is E.NONE
    stage.marked()
    for asked in (True, False):
        assert stage.end((50, LAST), commit=asked, version=5)[0] is E.INVALID_PRODUCER_ID_MAPPING


def test_timeouts_are_bounded(stage: Stage) -> None:
    assert stage.init(timeout_ms=0)[0] == E.INVALID_TRANSACTION_TIMEOUT
    assert stage.init(timeout_ms=900_001)[0] == E.INVALID_TRANSACTION_TIMEOUT


def test_what_takes_too_long_is_aborted_in_the_next_epoch(stage: Stage) -> None:
    stage.init(timeout_ms=5_000)
    stage.add((100, 0), 0)
    stage.pass_time(4_999)
    assert stage.state.state is State.ONGOING
    stage.restart()
    stage.pass_time(1)
    assert (stage.state.state, stage.state.producer_epoch) == (State.PREPARE_ABORT, 1)
    assert stage.end((100, 0), version=1) is E.INVALID_PRODUCER_EPOCH  # KIP-588: it may abort and go on
    stage.marked()
    assert stage.init((100, 0)) == (E.NONE, 100, 1)


def test_ids_that_nobody_uses_are_forgotten(stage: Stage) -> None:
    stage.init()
    stage.pass_time(stage.settings.id_expiration_ms + stage.settings.id_expiration_interval_ms)
    assert stage.shard.image() == {}
    assert stage.add((100, 0), 0) is E.INVALID_PRODUCER_ID_MAPPING


def test_verification_says_what_is_in_the_transaction(stage: Stage) -> None:
    stage.init()
    stage.add((100, 0), 0)
    assert stage.add((100, 0), 0, version=5, verify=True) is E.NONE
    assert stage.add((100, 0), 1, version=5, verify=True) is E.TRANSACTION_ABORTABLE
    assert stage.add((101, 0), 0, version=5, verify=True) is E.INVALID_PRODUCER_ID_MAPPING
    assert stage.add((100, 1), 0, version=5, verify=True) is E.PRODUCER_FENCED
    stage.end((100, 0))
    assert stage.add((100, 0), 0, version=5, verify=True) is E.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("error", [E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.REQUEST_TIMED_OUT])
def test_markers_that_could_not_be_written_are_sent_again(stage: Stage, error: E) -> None:
    stage.init()
    stage.add((100, 0), 0)
    stage.end((100, 0))
    stage.marked(error)
    assert not stage.asks
    stage.pass_time(MARKERS_AGAIN_MS)
    stage.world.leaders[("t", 0)] = 2
    stage.do(stage.shard.answered(stage.now, stage.asks.pop().number, Unanswered("gone")))
    stage.pass_time(MARKERS_AGAIN_MS)
    assert [ask.node_id for ask in stage.asks] == [2]
    stage.marked()
    assert stage.state.state is State.COMPLETE_COMMIT


def test_markers_are_asked_of_the_next_leader_while_the_last_one_has_yet_to_answer(stage: Stage) -> None:
    stage.init()
    stage.add((100, 0), 0, 1)
    stage.end((100, 0))
    slow, quick = stage.asks.pop(0), stage.asks[0]
    assert (slow.node_id, quick.node_id) == (1, 2)
    stage.world.leaders[("t", 1)] = 3
    stage.marked(E.NOT_LEADER_OR_FOLLOWER)
    stage.pass_time(MARKERS_AGAIN_MS)
    assert [ask.node_id for ask in stage.asks] == [3]
    stage.marked()
    assert stage.state.state is State.PREPARE_COMMIT
    stage.world.leaders[("t", 0)] = 2
    stage.pass_time(UNDER_WAY_AGAIN_MS)
    assert [ask.node_id for ask in stage.asks] == [2]
    stage.marked()
    assert stage.state.state is State.COMPLETE_COMMIT
    assert stage.do(stage.shard.answered(stage.now, slow.number, Unanswered("gone"))) == []


def test_a_partition_without_a_leader_is_waited_for_and_one_that_is_gone_is_not(stage: Stage) -> None:
    stage.init()
    stage.add((100, 0), 0, 1)
    stage.world.leaders[("t", 0)] = NO_LEADER
    del stage.world.leaders[("t", 1)]
    stage.end((100, 0))
    assert not stage.asks
    stage.world.leaders[("t", 0)] = 1
    stage.pass_time(MARKERS_AGAIN_MS)
    stage.marked()
    assert stage.state.state is State.COMPLETE_COMMIT


def test_a_later_coordinator_has_the_last_word(stage: Stage) -> None:
    stage.init()
    stage.add((100, 0), 0)
    stage.end((100, 0))
    stage.marked(E.TRANSACTION_COORDINATOR_FENCED)
    stage.pass_time(FENCED_AGAIN_MS - 1)
    assert not stage.asks
    stage.pass_time(1)
    stage.marked()
    assert stage.state.state is State.COMPLETE_COMMIT


def test_an_old_answer_does_not_complete_the_next_transaction(stage: Stage) -> None:
    """KAFKA-16352."""
    stage.init()
    stage.add((100, 0), 0)
    stage.end((100, 0))
    old = stage.asks.pop()
    stage.restart()  # the marker is sent once more, the first request is still under way
    stage.marked()
    stage.add((100, 0), 1)
    stage.end((100, 0))
    answer = WriteTxnMarkersResponse([])
    stage.do(stage.shard.answered(stage.now, old.number + 100, answer))
    assert stage.state.state is State.PREPARE_COMMIT
    stage.marked()
    assert stage.state.state is State.COMPLETE_COMMIT


def test_every_prepared_transaction_ends_after_a_restart(stage: Stage) -> None:
    stage.init()
    stage.add((100, 0), 0, 1)
    stage.end((100, 0), commit=False)
    stage.restart()
    assert len(stage.asks) == 2
    stage.marked()
    stage.marked()
    assert stage.state.state is State.COMPLETE_ABORT


def test_an_empty_transaction_of_the_second_version_ends_at_once(stage: Stage) -> None:
    stage.init()
    assert stage.end((100, 0), commit=False, version=5) == (E.NONE, 100, 1)
    assert stage.state.state is State.COMPLETE_ABORT


def test_the_list_obeys_its_filters(stage: Stage) -> None:
    stage.init()
    stage.add((100, 0), 0)
    stage.now += 1_000

    def listed(**filters: Any) -> list[str]:
        reply = stage.call(66, 2, ListTransactionsRequest(**filters))
        return [each.transactional_id for each in reply.transaction_states]

    assert listed() == listed(state_filters=["Ongoing"]) == listed(producer_id_filters=[100]) == ["id"]
    assert listed(duration_filter=999) == listed(transactional_id_pattern="i.") == ["id"]
    assert listed(state_filters=["Empty"]) == listed(producer_id_filters=[1]) == []
    assert listed(duration_filter=1_000) == listed(transactional_id_pattern="i") == []


def test_partitions_are_in_the_order_of_their_record() -> None:
    stage = Stage()
    _, producer_id, epoch = stage.init()
    for topic, index in (("b", 0), ("a", 1), ("b", 2), ("a", 1)):
        topics = [AddPartitionsToTxnTopic(topic, [index])]
        stage.call(24, 3, AddPartitionsToTxnTransaction("id", producer_id, epoch, False, topics))
    assert stage.state.partitions == (("b", 0), ("b", 2), ("a", 1))
    stage.restart()


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("state", list(State))
def test_records_say_what_was_written(state: State, version: int) -> None:
    whole = Transaction(
        1, 2, 3, state, () if state is State.EMPTY else (TopicPartition("a", 0), TopicPartition("a", 2)),
        WallClock(7).at(0), WallClock(8).at(0), *((9, 10, 2) if version else ()),
    )  # fmt: skip
    record: ShardRecord = encode("name", whole, flexible=version > 0)
    assert decode(record.key, record.value) == ("name", whole)
    assert decode(record.key, None) == ("name", None)
    assert whole.successor == (Producer(10, 0) if version else Producer(1, 2))
