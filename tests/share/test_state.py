"""The share coordinator's shard: against a dict of offsets, by replay, and error by error."""

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from ottla.machine import AppliedBatch, AppliedRecord, Call, Decision
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import delete_share_group_state as delete
from ottla.protocol.messages import initialize_share_group_state as initialize
from ottla.protocol.messages import read_share_group_state as read
from ottla.protocol.messages import read_share_group_state_summary as summary
from ottla.protocol.messages import write_share_group_state as write
from ottla.share.records import Key, encode_snapshot
from ottla.share.settings import ShareStateSettings
from ottla.share.state import BEHIND_MAX, ShareStateShard, TopicGone, coordinator_key

NOW = 1_800_000_000_000
TOPIC = bytes(range(16))


class Stage:
    """A shard with a log in memory."""

    def __init__(self, snapshot_updates: int = 500) -> None:
        self.log: list[AppliedRecord] = []
        self.snapshot_updates = snapshot_updates
        self.shard = self.fresh()

    def fresh(self) -> ShareStateShard:
        notes: list[str] = []
        return ShareStateShard(ShareStateSettings(self.snapshot_updates, 1000), notes.append)

    def carry_out(self, decision: Decision) -> object:
        base = len(self.log)
        records = [AppliedRecord(base + i, NOW, each.key, each.value) for i, each in enumerate(decision.records)]
        self.log += records
        if records:
            self.shard.apply(NOW, AppliedBatch(base, records))
        self.shard.check()
        return decision.answers[0].reply if decision.answers else None

    def ask(self, body: object) -> object:
        return self.carry_out(self.shard.decide(NOW, 1, Call(0, 0, "", "", body)))

    def initialize(self, start: int = 0, epoch: int = 0, group: str = "g", partition: int = 0) -> int:
        part = initialize.PartitionData(partition, epoch, start)
        topics = [initialize.InitializeStateData(TOPIC, [part])]
        return self.ask(initialize.InitializeShareGroupStateRequest(group, topics)).results[0].partitions[0].error_code

    def write(
        self,
        start: int,
        batches: list[tuple[int, int, int, int]],
        *,
        state_epoch: int = 0,
        leader_epoch: int = 0,
        complete: int = 0,
        group: str = "g",
    ) -> int:
        made = [write.StateBatch(*batch) for batch in batches]
        part = write.PartitionData(0, state_epoch, leader_epoch, start, complete, made)
        body = write.WriteShareGroupStateRequest(group, [write.WriteStateData(TOPIC, [part])])
        return self.ask(body).results[0].partitions[0].error_code

    def read(self, leader_epoch: int = 0, group: str = "g") -> read.PartitionResult:
        topics = [read.ReadStateData(TOPIC, [read.PartitionData(0, leader_epoch)])]
        return self.ask(read.ReadShareGroupStateRequest(group, topics)).results[0].partitions[0]

    def summarize(self, group: str = "g") -> summary.PartitionResult:
        topics = [summary.ReadStateSummaryData(TOPIC, [summary.PartitionData(0, 0)])]
        return self.ask(summary.ReadShareGroupStateSummaryRequest(group, topics)).results[0].partitions[0]

    def delete(self, group: str = "g") -> int:
        topics = [delete.DeleteStateData(TOPIC, [delete.PartitionData(0)])]
        return self.ask(delete.DeleteShareGroupStateRequest(group, topics)).results[0].partitions[0].error_code

    def replayed(self, since: int = 0) -> ShareStateShard:
        shard = self.fresh()
        for record in self.log[since:]:
            shard.apply(NOW, AppliedBatch(record.offset, [record]))
        shard.check()
        return shard


WRITES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.sampled_from([0, 2, 3, 4]), st.integers(1, 5))),
    ),
    max_size=30,
)


@given(writes=WRITES, snapshot_updates=st.sampled_from([0, 1, 3, 500]))
@settings(deadline=None, max_examples=150)
def test_writes_combine_as_offsets_do_and_replay_gives_the_same(
    writes: list[tuple[int, list[tuple[int, int, int, int]]]], snapshot_updates: int
) -> None:
    stage = Stage(snapshot_updates)
    assert stage.initialize() == 0
    start, twin = 0, dict[int, tuple[int, int]]()
    for forward, batches in writes:
        start += forward
        made = [(first, first + length, state, count) for first, length, state, count in batches]
        assert stage.write(start, made, complete=start) == 0
        for first, last, state, count in made:
            twin.update(dict.fromkeys(range(first, last + 1), (state, count)))
        twin = {offset: known for offset, known in twin.items() if offset >= start}
    got = stage.read()
    assert got.start_offset == start
    seen = {
        offset: (each.delivery_state, each.delivery_count)
        for each in got.state_batches
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    assert seen == twin
    assert stage.replayed().image() == stage.shard.image()
    assert stage.replayed(stage.shard.prunable_offset(len(stage.log))).image() == stage.shard.image()


def test_a_key_must_be_initialized() -> None:
    stage = Stage()
    assert stage.write(0, []) == ErrorCode.INVALID_REQUEST
    assert stage.read().error_code == ErrorCode.INVALID_REQUEST
    got = stage.summarize()
    assert (got.error_code, got.start_offset, got.delivery_complete_count) == (0, -1, -1)
    assert stage.initialize(start=-1) == 0
    assert stage.read().start_offset == -1
    assert stage.write(7, [(7, 9, 2, 1)], complete=3) == 0
    got = stage.summarize()
    assert (got.start_offset, got.delivery_complete_count) == (7, 3)


def test_epochs_fence() -> None:
    stage = Stage()
    stage.initialize(epoch=3)
    assert stage.write(0, [], state_epoch=2) == ErrorCode.FENCED_STATE_EPOCH
    assert stage.initialize(epoch=2) == ErrorCode.FENCED_STATE_EPOCH
    assert stage.read(leader_epoch=5).error_code == 0
    assert stage.write(0, [], state_epoch=3, leader_epoch=4) == ErrorCode.FENCED_LEADER_EPOCH
    assert stage.read(leader_epoch=4).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert stage.write(1, [], state_epoch=3, leader_epoch=5) == 0
    assert stage.replayed().image() == stage.shard.image()


def test_a_deleted_key_is_gone_and_so_is_what_a_topic_took_along() -> None:
    stage = Stage()
    for group in ("g", "h"):
        stage.initialize(group=group)
        stage.write(0, [(0, 4, 4, 1)], group=group)
    assert stage.delete() == 0
    assert stage.read().error_code == ErrorCode.INVALID_REQUEST
    assert stage.delete() == 0
    assert stage.read(group="h").error_code == 0
    stage.ask(TopicGone(TOPIC))
    assert stage.shard.known() == []
    assert stage.replayed().image() == {}
    assert stage.shard.prunable_offset(len(stage.log)) == len(stage.log)


class Unsearched(dict[Any, Any]):
    """A table in which a key is looked up and nothing is searched."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the whole table was searched")


def test_a_topic_that_goes_costs_what_it_had() -> None:
    stage = Stage()
    for group in ("g", "h"):
        stage.initialize(group=group)
    kept, stage.shard._kept = stage.shard._kept, Unsearched(stage.shard._kept)
    other, own = (stage.shard.decide(NOW, 1, Call(0, 0, "", "", TopicGone(each))) for each in (bytes(16), TOPIC))
    stage.shard._kept = kept
    assert (len(other.records), len(own.records)) == (0, 2)


def test_snapshots_follow_updates_but_never_outweigh_them() -> None:
    stage = Stage(snapshot_updates=10)
    stage.initialize()
    for i in range(50):
        stage.write(0, [(2 * i, 2 * i, 2, 1)])
    assert stage.shard.prunable_offset(len(stage.log)) > 20
    snapshot = next(r for r in stage.log if r.offset == stage.shard.prunable_offset(len(stage.log)))
    assert snapshot.value is not None
    after = len(stage.log) - snapshot.offset
    assert len(snapshot.value) < 70 * max(after, 10) * 2


def test_a_sleeping_key_does_not_hold_the_log_back() -> None:
    stage = Stage()
    stage.initialize(group="sleeps")
    stage.write(0, [(3, 3, 4, 5)], group="sleeps")
    stage.initialize(start=2)
    for i in range(BEHIND_MAX + 1):
        stage.write(i, [])
    assert stage.shard.prunable_offset(len(stage.log)) == 0
    assert stage.shard.deadline() is not None
    stage.carry_out(stage.shard.expire(NOW + 1000))
    assert stage.shard.prunable_offset(len(stage.log)) > BEHIND_MAX // 2
    assert stage.replayed(stage.shard.prunable_offset(len(stage.log))).image() == stage.shard.image()


@given(
    steps=st.lists(st.tuples(st.sampled_from("ghi"), st.sampled_from(["write", "write", "delete", "prune"]))),
    lag=st.integers(0, 4),
)
def test_what_is_pruned_is_not_missed_when_the_uncommitted_end_is_lost(steps: list[tuple[str, str]], lag: int) -> None:
    """A snapshot that a failed fsync, or a new leader, cut off again must not have cost the one before it."""
    stage = Stage(snapshot_updates=0)
    pruned = 0
    for i, (group, what) in enumerate(steps):
        if what == "write":
            stage.initialize(group=group)
            stage.write(i, [(i + 1, i + 1, 2, 1)], group=group)
        elif what == "delete":
            stage.delete(group)
        committed = max(0, len(stage.log) - lag)
        if what == "prune":
            pruned = stage.shard.prunable_offset(committed)
        whole, left = stage.fresh(), stage.fresh()
        for record in stage.log[:committed]:
            for shard in (whole, left) if record.offset >= pruned else (whole,):
                shard.apply(NOW, AppliedBatch(record.offset, [record]))
        assert left.image() == whole.image()
    needed = min((kept.snapshot_offset for kept in stage.shard._kept.values()), default=len(stage.log))
    assert stage.shard.prunable_offset(len(stage.log)) == needed, "what is committed is pruned in the end"


def test_keys_are_hashed_as_kafka_does() -> None:
    assert coordinator_key("group1", TOPIC, 0) == "group1:AAECAwQFBgcICQoLDA0ODw:0"


def test_what_does_not_parse_is_passed_over() -> None:
    stage = Stage()
    stage.initialize()
    bad = AppliedRecord(1, NOW, b"\x00\x09", b"")
    stage.shard.apply(NOW, AppliedBatch(1, [bad]))
    assert stage.read().error_code == 0
    assert encode_snapshot(Key("g", TOPIC, 0), stage.shard._kept[Key("g", TOPIC, 0)].snapshot(), NOW).value
