"""Faults that Kafka and others had with transactions, by their numbers: what must come of each here.

More of them stand where their subject does: 5121, 14053 and 17507 in `test_transactions_node.py`, 16352 in
`test_transaction_shard.py`, those of groups in `tests/groups/test_consumer_groups.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_transactions_node import GROUP, NAME, TOPIC, Producer, committed, fetch, stable

from ottla.log.index.transactions import TransactionIndex
from ottla.log.producers import ProducerState
from ottla.machine import WallMillis
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.sim.clients.batches import decode_batches
from ottla.sim.clients.readers import AbortedProducers
from ottla.txn.transaction import EXHAUSTED_EPOCH
from tests.harness.node_stage import DiskStage, NodeStage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[NodeStage]:
    made = NodeStage(tmp_path)
    made.create(TOPIC, 2, {})
    made.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
    yield made
    made.check()


def shown(stage: NodeStage) -> dict[int, bytes]:
    """What a reader of committed records gets of partition 0, by offset."""
    found: dict[int, bytes] = {}
    position = 0
    while position < stable(stage)[0]:
        part = stage.ask(fetch(offset=position), 12).responses[0].partitions[0]
        assert part.error_code == E.NONE
        aborted = AbortedProducers(part.aborted_transactions)
        for batch in decode_batches(bytes(part.records or b"")):
            assert batch.base_offset not in found, "an offset is given twice"
            if not aborted.hide(batch):
                found.update((note.offset, note.value or b"") for note in batch.notes)
            position = batch.last_offset + 1
    return found


def test_7866_an_index_that_takes_no_entry_gives_no_offset_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = DiskStage()
    stage.create(TOPIC, 2, {})
    producer = Producer(stage)
    producer.add()
    producer.write(b"bad")

    def full(self: TransactionIndex) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TransactionIndex, "flush", full)
        assert producer.end(commit=False) is E.NONE
    assert producer.add() is producer.write(b"good") is producer.end() is E.NONE
    assert shown(stage) == {2: b"good"}
    stage.restart(clean=False)
    stage.run()
    assert shown(stage) == {2: b"good"}


def test_9144_the_time_of_a_marker_keeps_the_epoch_of_its_coordinator() -> None:
    state = ProducerState(1_000)
    state.add(7, 0, 0, 0, 0, 1_000, transactional=True)
    ended = state.end_transaction(7, 0, 5, 1, 1_900, aborted=True)
    assert ended is not None
    state.complete(ended)
    assert state.expire(WallMillis(2_500)) == 0
    assert state.entries[7].coordinator_epoch == 5


def test_10702_an_empty_transaction_leaves_nothing_behind(stage: NodeStage) -> None:
    producer = Producer(stage)
    for commit in (False, True, False):
        assert producer.add() is producer.end(commit=commit) is E.NONE
    log = stage.node.replicas.get(TOPIC, 0).log  # type: ignore[union-attr]
    assert stable(stage) == (3, 3)
    assert [segment.txn_index.aborted() for segment in log.segments] == [[]]
    assert not log.producers.open
    assert not log.producers.ended


def test_12671_requests_that_come_in_the_wrong_order_hold_nobody_for_ever(stage: NodeStage) -> None:
    """The addition of a partition and a batch come after the end of their transaction: the time-out ends what they
    have opened."""
    producer = Producer(stage)
    late = producer.request(b"late")
    assert producer.add(1) is producer.end(commit=False) is E.NONE
    addition = AddPartitionsToTxnRequest(NAME, producer.id, producer.epoch, [AddPartitionsToTxnTopic(TOPIC, [0])])
    stage.ask(addition, 3)
    stage.ask(late, 9)
    assert stable(stage) == (0, 1)
    stage.run(61_000)
    assert stable(stage) == (2, 2)
    assert shown(stage) == {}


@pytest.mark.parametrize("version", [1, 2])
def test_19690_an_older_epoch_fails_so_that_its_producer_can_recover(stage: NodeStage, version: int) -> None:
    producer = Producer(stage, version)
    assert version == 2 or producer.add() is E.NONE
    assert producer.write(b"a") is E.NONE
    Producer(stage, version)
    assert producer.write(b"b") is E.INVALID_PRODUCER_EPOCH
    assert producer.end() in (E.PRODUCER_FENCED, E.INVALID_TXN_STATE)
    producer.begin_anew()
    assert version == 2 or producer.add() is E.NONE
    assert producer.write(b"c") is producer.end() is E.NONE
    assert list(shown(stage).values()) == [b"c"]


def test_19367_who_begins_anew_while_something_is_open_takes_two_epochs_and_no_more(stage: NodeStage) -> None:
    producer = Producer(stage, 2)
    first = producer.epoch
    for life in range(1, 4):
        assert producer.write(b"a") is E.NONE
        producer.begin_anew()
        assert producer.epoch == first + 2 * life
    assert EXHAUSTED_EPOCH + 1 == 2**15 - 1
    assert shown(stage) == {}


def test_19999_a_marker_that_is_sent_again_is_taken_again(stage: NodeStage) -> None:
    producer = Producer(stage, 2)
    assert producer.write(b"a") is producer.end() is E.NONE
    log = stage.node.replicas.get(TOPIC, 0).log  # type: ignore[union-attr]
    places, coordinator_epoch = (
        [WritableTxnMarkerTopic(TOPIC, [0])],
        log.producers.entries[producer.id].coordinator_epoch,
    )
    marker = WritableTxnMarker(producer.id, producer.epoch, True, places, coordinator_epoch, 2)
    for _ in range(2):
        answer = stage.ask(WriteTxnMarkersRequest([marker]), 2)
        assert answer.markers[0].topics[0].partitions[0].error_code == E.NONE
    assert producer.write(b"b") is producer.end() is E.NONE
    assert list(shown(stage).values()) == [b"a", b"b"]


def pending(stage: NodeStage, offset: int) -> Producer:
    """A producer whose transaction is about to commit this offset."""
    producer = Producer(stage)
    stage.ask(AddOffsetsToTxnRequest(NAME, producer.id, producer.epoch, GROUP), 3)
    assert producer.commit_offset(offset) is E.NONE
    return producer


def test_19163_a_group_with_pending_offsets_does_not_expire(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path, offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000")
    stage.create(TOPIC, 2, {})
    stage.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
    producer = pending(stage, 5)
    stage.run(50_000)
    assert producer.end() is E.NONE
    assert committed(stage) == (5, E.NONE)


def test_19164_what_was_pending_of_a_deleted_group_does_not_come_back(stage: NodeStage) -> None:
    producer = pending(stage, 5)
    stage.ask(DeleteGroupsRequest([GROUP]), 2)
    assert producer.end() is E.NONE
    before = committed(stage)
    stage.restart(clean=False)
    stage.run()
    assert committed(stage) == before
    assert pending(stage, 7).end() is E.NONE
    assert committed(stage) == (7, E.NONE)


def test_redpanda_compaction_does_not_take_what_was_aborted_for_the_last_word() -> None:
    """Nor what is open, right after a start, when nobody has looked at coordinators yet."""
    stage = DiskStage(log_cleaner_backoff_ms="10")
    configs = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    stage.create(TOPIC, 2, configs)
    producer = Producer(stage)
    assert producer.add() is producer.write(b"good") is producer.end() is E.NONE
    assert producer.add() is producer.write(b"bad") is E.NONE
    for _ in range(2):
        stage.append(TOPIC, value=b"other", timestamp=stage.now)
        stage.run(1_000)
        stage.restart(clean=False)
        stage.run(2_000)
    first = shown(stage)
    assert first[0] == b"good"
    assert producer.end(commit=False) is E.NONE
    stage.append(TOPIC, value=b"other", timestamp=stage.now)
    stage.run(5_000)
    assert b"bad" not in shown(stage).values()
