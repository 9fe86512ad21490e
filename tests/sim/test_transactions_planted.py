"""The checkers of transactions can fail: each test breaks the node in one place, and a seed must notice.

The seeds are some that notice; any other would do, perhaps later.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ottla.txn.shard
import ottla.txn.transaction
from ottla.broker.coordinators.shards import ShardHost
from ottla.broker.coordinators.verification import Verifier
from ottla.broker.partitions.partition import Partition
from ottla.groups.offsets import Offsets
from ottla.log import producers
from ottla.log.compaction.compaction import Compaction, Transactions
from ottla.log.compaction.filtering import BatchFilter
from ottla.log.index.transactions import TransactionIndex
from ottla.log.offsets import LogOffsets
from ottla.log.recovery import state as recovered
from ottla.machine import NO_PRODUCER_ID, Decision
from ottla.metadata.producer_ids import ProducerIds
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import ATTRIBUTES_CONTROL
from ottla.protocol.records.control import EndTransactionMarker
from ottla.sim.workloads.transactions_run import TransactionsRun
from ottla.txn.markers import MarkerProgress, Markers
from ottla.txn.shard import TransactionShard
from ottla.txn.transaction import Initialized, Producer, State, Transaction
from tests.harness.node_stage import NodeStage
from tests.txn import test_transaction_shard as by_hand
from tests.txn import test_transactions_node as on_a_node

Patch = pytest.MonkeyPatch


def plant_markers_that_a_restart_forgets(patch: Patch) -> None:
    """A transaction that was prepared when the node died is not ended by the next life."""
    original = TransactionShard.loaded

    def forgetful(self: TransactionShard, now: int) -> Decision:
        decision = original(self, now)
        return Decision((), decision.answers, ()) if decision.asks else decision

    patch.setattr(TransactionShard, "loaded", forgetful)


def plant_no_verification(patch: Patch) -> None:
    """A batch that was long under way opens a transaction, in the first version."""
    patch.setattr(Verifier, "asks", lambda self, *, second_version: second_version)


def plant_epochs_of_zombies(patch: Patch) -> None:
    """An older epoch is as good as the present one."""

    def lenient(known: Transaction | None, producer: Producer) -> ErrorCode:
        if known is None or known.producer_id != producer.id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.CONCURRENT_TRANSACTIONS if known.state.is_prepared else ErrorCode.NONE

    patch.setattr(ottla.txn.shard, "add_error", lenient)
    patch.setattr(ottla.txn.shard, "verify_error", lenient)


def plant_a_last_stable_offset_that_waits_for_nothing(patch: Patch) -> None:
    patch.setattr(LogOffsets, "last_stable_offset", property(lambda self: self.high_watermark))


def plant_a_last_stable_offset_that_goes_back(patch: Patch) -> None:
    """What opens a transaction takes a record away that readers were shown."""
    original = LogOffsets.last_stable_offset.fget
    assert original is not None

    def early(self: LogOffsets) -> int:
        stable = original(self)
        return stable - 1 if self.log_start_offset < stable < self.high_watermark else stable

    patch.setattr(LogOffsets, "last_stable_offset", property(early))


def plant_ends_that_free_nobody(patch: Patch) -> None:
    """The last stable offset stays where the last transaction began."""
    original = LogOffsets.unstable_from

    def late(self: LogOffsets, offset: int | None) -> None:
        if offset is not None:
            original(self, offset)

    patch.setattr(LogOffsets, "unstable_from", late)


def plant_an_end_that_is_answered_before_it_is_durable(patch: Patch) -> None:
    original = ShardHost._carry_out

    def hasty(self: ShardHost, now: int, hosted: Any, decision: Decision) -> None:
        if isinstance(hosted.shard, TransactionShard) and decision.records:
            original(self, now, hosted, Decision(decision.records, (), decision.asks))
            high = hosted.partition.log.high_watermark
            hosted.partition.log.offsets.high_watermark = hosted.partition.log.log_end_offset
            original(self, now, hosted, Decision((), decision.answers, ()))
            hosted.partition.log.offsets.high_watermark = high
        else:
            original(self, now, hosted, decision)

    patch.setattr(ShardHost, "_carry_out", hasty)


def plant_offsets_that_show_before_the_commit(patch: Patch) -> None:
    original = Offsets.apply

    def eager(self: Offsets, group_id: str, topic: str, partition: int, committed: Any, producer_id: int) -> None:
        original(self, group_id, topic, partition, committed, NO_PRODUCER_ID)

    patch.setattr(Offsets, "apply", eager)


def plant_an_index_that_is_lost_in_a_restart(patch: Patch) -> None:
    """And nobody says that anything was cut off, nor compares it with the snapshot."""

    def lost(self: TransactionIndex, base_offset: int, next_offset: int) -> bool:
        self._aborted, self.entries = [], 0
        return False

    patch.setattr(TransactionIndex, "cut_unsound", lost)
    patch.setattr(recovered, "_verify_transaction_indexes", lambda *_: 0)


def plant_a_time_out_that_aborts_what_is_prepared(patch: Patch) -> None:
    """It decides anew what was decided, while the markers are under way."""
    original = TransactionShard._go_on

    def racing(
        self: TransactionShard, now: int, name: str, known: Transaction, outcome: MarkerProgress, made: Any
    ) -> None:
        original(self, now, name, known, outcome, made)
        if (
            known.state is State.PREPARE_COMMIT
            and outcome is MarkerProgress.UNDER_WAY
            and known.producer_epoch % 3 == 0
        ):
            self._markers.forget(name)
            self._abort(now, name, known, made)

    patch.setattr(TransactionShard, "_go_on", racing)


def plant_epochs_without_an_end(patch: Patch) -> None:
    """The same producer id goes on when its epochs are used up, from the first epoch."""
    original = ottla.txn.shard.completed

    def again(known: Transaction, wall_ms: Any) -> Transaction:
        after = original(known, wall_ms)
        return after if after.producer_id == known.producer_id else after._replace(producer_id=known.producer_id)

    patch.setattr(ottla.txn.shard, "completed", again)


def plant_a_beginning_that_is_answered_and_forgotten(patch: Patch) -> None:
    """Every other transaction of the first version is not written down when its first partitions are added."""
    original = ottla.txn.transaction.with_partitions

    def forgetful(known: Transaction, partitions: Any, client_version: int, wall_ms: Any) -> Transaction | None:
        is_lost = client_version < 2 and known.state is State.COMPLETE_COMMIT and known.last_update_ms % 2
        return None if is_lost else original(known, partitions, client_version, wall_ms)

    patch.setattr(ottla.txn.shard, "with_partitions", forgetful)


def plant_answers_to_markers_of_another_transaction(patch: Patch) -> None:
    """What is said of some partitions is taken for all (KAFKA-16352)."""
    original = Markers.answered

    def generous(self: Markers, number: int, answer: object) -> Any:
        found = original(self, number, answer)
        if found is not None and found[0] in self._sending:
            self._sending[found[0]].missing.clear()
            return found[0], MarkerProgress.WRITTEN
        return found

    patch.setattr(Markers, "answered", generous)


def plant_aborts_that_are_commits(patch: Patch) -> None:
    """A time-out commits what is there."""
    original = ottla.txn.shard.fenced

    def committing(*args: Any) -> Transaction:
        return original(*args)._replace(state=State.PREPARE_COMMIT)

    patch.setattr(ottla.txn.shard, "fenced", committing)


def plant_markers_of_offsets(patch: Patch, *, commit: bool) -> None:
    """Every transaction's offsets end like this, however it ended."""
    original = Offsets.apply_marker
    patch.setattr(Offsets, "apply_marker", lambda self, producer_id, committed: original(self, producer_id, commit))


def plant_offsets_that_an_abort_commits(patch: Patch) -> None:
    plant_markers_of_offsets(patch, commit=True)


def plant_a_commit_that_is_completed_as_an_abort(patch: Patch) -> None:
    """Its markers are right, and so is the answer."""
    original = ottla.txn.shard.completed

    def other(known: Transaction, wall_ms: Any) -> Transaction:
        after = original(known, wall_ms)
        return after._replace(state=State.COMPLETE_ABORT) if after.state is State.COMPLETE_COMMIT else after

    patch.setattr(ottla.txn.shard, "completed", other)


def plant_ends_that_a_restart_forgets(patch: Patch) -> None:
    original = TransactionShard.loaded

    def forgetful(self: TransactionShard, now: int) -> Decision:
        for name, known in self._known.items():
            if known.state.is_complete:
                self._known[name] = known._replace(state=State.EMPTY)
        return original(self, now)

    patch.setattr(TransactionShard, "loaded", forgetful)


def plant_aborted_records_that_take_committed_ones_away(patch: Patch) -> None:
    """Compaction takes their keys for written."""
    original = Compaction._build_map

    def careless(self: Compaction, dirty: Any) -> Any:
        with patch.context() as meanwhile:
            meanwhile.setattr(Transactions, "is_settled", lambda *_: False)
            yield from original(self, dirty)

    patch.setattr(Compaction, "_build_map", careless)


def plant_transactions_that_end_with_a_group_of_segments(patch: Patch) -> None:
    """Compaction forgets what is open where the next segment begins that it writes."""
    original = Compaction._clean_group

    def forgetful(self: Compaction, group: Any, _: Transactions) -> Any:
        yield from original(self, group, Transactions(self._committed))

    patch.setattr(Compaction, "_clean_group", forgetful)


def plant_markers_that_compaction_keeps(patch: Patch) -> None:
    original = BatchFilter.__call__

    def keeping(self: BatchFilter, header: Any, batch: memoryview, settled: bool) -> Any:
        if header[5] & ATTRIBUTES_CONTROL:
            return batch, header[8]
        return original(self, header, batch, settled)

    patch.setattr(BatchFilter, "__call__", keeping)


def plant_producers_that_compaction_forgets(patch: Patch) -> None:
    """Their last batches go with their records."""
    patch.setattr(BatchFilter, "_must_stay", lambda self, header: header[0] + header[6] + 1 in self._ends)


def plant_markers_that_say_something_else_elsewhere(patch: Patch) -> None:
    """In the second partition of each topic."""
    original = Partition.append_marker

    def other(
        self: Partition, now: int, producer_id: int, epoch: int, marker: EndTransactionMarker, version: int
    ) -> Any:
        if self.index == 1:
            marker = EndTransactionMarker(not marker.committed, marker.coordinator_epoch)
        return original(self, now, producer_id, epoch, marker, version)

    patch.setattr(Partition, "append_marker", other)


def plant_offsets_that_a_commit_drops(patch: Patch) -> None:
    plant_markers_of_offsets(patch, commit=False)


def plant_offsets_that_nobody_waits_for(patch: Patch) -> None:
    """Whoever asks is told what was committed before the transaction that is open (KIP-447)."""
    original = Offsets._fetch_group

    def hasty(self: Offsets, asked: Any, require_stable: bool) -> Any:
        return original(self, asked, False)

    patch.setattr(Offsets, "_fetch_group", hasty)


def plant_an_epoch_that_is_given_twice(patch: Patch) -> None:
    original = ottla.txn.shard.initialize

    def same(known: Transaction, given: Producer | None, *args: Any) -> Any:
        after = original(known, given, *args)
        if given is None and isinstance(after, Initialized):
            after = after._replace(transaction=after.transaction._replace(producer_epoch=known.producer_epoch))
        return after

    patch.setattr(ottla.txn.shard, "initialize", same)


def plant_producer_ids_that_are_given_out_again(patch: Patch) -> None:
    """Every block of them begins with the first."""
    original = ProducerIds.next_block

    def again(self: ProducerIds, stored: Any) -> Any:
        return 0, *original(self, stored)[1:]

    patch.setattr(ProducerIds, "next_block", again)


def plant_an_epoch_that_is_shut_out_while_markers_are_outstanding(patch: Patch) -> None:
    """Who aborts right after an end has the current epoch already, and is taken for one that it has not."""
    original = ottla.txn.shard.end_error_v2

    def strict(known: Transaction | None, producer: Producer, *, commits: bool) -> ErrorCode | None:
        if known is not None and known.state.is_prepared and producer == (known.producer_id, known.producer_epoch):
            return ErrorCode.PRODUCER_FENCED
        return original(known, producer, commits=commits)

    patch.setattr(ottla.txn.shard, "end_error_v2", strict)


def plant_batches_that_are_taken_twice(patch: Patch) -> None:
    patch.setattr(producers, "verify_sequence", lambda *_: None)
    patch.setattr(producers, "duplicate_of", lambda *_: None)


PLANTED: list[tuple[Callable[[Patch], None], int, str]] = [
    (plant_markers_that_a_restart_forgets, 1, "after everything healed"),
    (plant_no_verification, 3006, "nobody will end"),
    (plant_epochs_of_zombies, 10, "was given to another"),
    (plant_a_last_stable_offset_that_waits_for_nothing, 0, "nobody asked for that"),
    (plant_a_last_stable_offset_that_goes_back, 0, "the last stable offset goes back"),
    (plant_ends_that_free_nobody, 0, "after everything healed"),
    (plant_an_end_that_is_answered_before_it_is_durable, 107, "was told that it aborted"),
    (plant_offsets_that_show_before_the_commit, 0, "never committed"),
    (plant_an_index_that_is_lost_in_a_restart, 1, "nobody asked for that"),
    (plant_a_time_out_that_aborts_what_is_prepared, 3, "was told that it committed"),
    (plant_epochs_without_an_end, 36, "was given to another"),
    (plant_a_beginning_that_is_answered_and_forgotten, 2, "answers 48"),
    (plant_answers_to_markers_of_another_transaction, 43, "nobody will end"),
    (plant_aborts_that_are_commits, 0, "nobody asked for that"),
    (plant_offsets_that_an_abort_commits, 0, "never committed"),
    (plant_aborted_records_that_take_committed_ones_away, 0, "the newest is None"),
    (plant_transactions_that_end_with_a_group_of_segments, 18, "ends transactions"),
    (plant_markers_that_compaction_keeps, 0, "stays without its data"),
    (plant_producers_that_compaction_forgets, 13, "nothing is left of epoch"),
    (plant_a_commit_that_is_completed_as_an_abort, 0, "was told that it committed"),
    (plant_ends_that_a_restart_forgets, 3, "its coordinator has"),
    (plant_markers_that_say_something_else_elsewhere, 0, "has it committed"),
    (plant_offsets_that_a_commit_drops, 0, "lost its committed offset"),
    (plant_offsets_that_nobody_waits_for, 185, "has its effect twice"),
    (plant_an_epoch_that_is_given_twice, 2, "twice"),
    (plant_producer_ids_that_are_given_out_again, 2, "belongs to"),
    (plant_an_epoch_that_is_shut_out_while_markers_are_outstanding, 5, "no other client has asked"),
    (plant_batches_that_are_taken_twice, 20, "behind"),
]


@pytest.mark.slow("tests/sim/test_cluster_planted.py::test_a_story_finds_a_planted_bug")
@pytest.mark.parametrize(("plant", "seed", "words"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[Patch], None], seed: int, words: str
) -> None:
    plant(monkeypatch)
    failure = TransactionsRun(seed).outcome().failure
    assert failure is not None, f"seed {seed} does not notice"
    assert words in failure


def test_a_story_finds_that_nobody_was_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run needs luck for it: the batch has to arrive behind its transaction's end, and ahead of the next one's."""
    plant_no_verification(monkeypatch)
    stage = NodeStage(tmp_path)
    stage.create(on_a_node.TOPIC, 2, {})
    with pytest.raises(AssertionError, match="INVALID_TXN_STATE"):
        on_a_node.test_14053_what_was_long_under_way_opens_nothing(stage)


def test_a_story_finds_that_what_is_prepared_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run needs luck for it: mostly the markers of the commit come first, and those of the abort end nothing."""
    plant_a_time_out_that_aborts_what_is_prepared(monkeypatch)
    with pytest.raises(AssertionError, match="PREPARE_ABORT"):
        by_hand.test_a_transaction_of_the_first_version(by_hand.Stage())
