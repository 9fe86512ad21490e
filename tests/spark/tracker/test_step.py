"""The tracker's steps without Spark: against the standalone tracker's machine, and the bytes of the state."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.kmq.config import KmqConfig
from ottla.kmq.events import (
    Copied,
    DeadLetter,
    EndReached,
    HandOver,
    MarkersRead,
    ReadRecord,
    Reason,
    RecordGone,
    RecordRead,
    Redeliver,
    WriteEnd,
)
from ottla.kmq.external_tracker import CONFIRM_MS, decided
from ottla.kmq.figures import PartitionFigures
from ottla.kmq.machine import MarkersPartition
from ottla.kmq.markers import END, Kind, Start, pack_key, start

pytest.importorskip("pyarrow", reason="needs the extra spark")

import itertools

from ottla.spark.tracker.batches import Markers
from ottla.spark.tracker.chunks import (
    CHUNK,
    Chunk,
    Ledger,
    StateUnreadableError,
    decode_chunk,
    decode_ledger,
    encode_chunk,
    encode_ledger,
)
from ottla.spark.tracker.redelivering import RedeliveryResult
from ottla.spark.tracker.running import CaughtUp, Progress
from ottla.spark.tracker.step import step

PARTITION = 3
SPREAD = CHUNK // 3 + 1
"""Offsets of the twins stand so far apart that they are in several chunks."""
CONFIG = KmqConfig(queue="q", use_now_after_ms=50, max_redeliveries=2, backoff_ms=40, backoff_ms_max=100)


class Store:
    """Chunks in memory."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.calls = 0

    def get(self, number: int) -> bytes | None:
        self.calls += 1
        return self.kept.get(number)

    def put(self, number: int, octets: bytes) -> None:
        self.calls += 1
        self.kept[number] = octets

    def drop(self, number: int) -> None:
        self.calls += 1
        del self.kept[number]


@dataclass
class World:
    """The queue and its markers, and a tracker that reads them at times given."""

    config: KmqConfig = CONFIG
    log: list[tuple[int, bytes | None, bytes | None]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    position: int = 0
    done: list[tuple[int, object]] = field(default_factory=list)
    """(when, what was done)"""

    def __post_init__(self) -> None:
        """Where a tracker is made."""

    def does(self, now: int, effect: Redeliver | DeadLetter) -> None:
        self.done.append((now, effect))
        self.log.append((now, pack_key(PARTITION, effect.offset), END))

    def found(self, offset: int) -> int | RecordGone:
        return self.counts.get(offset, 0) if offset % 7 else RecordGone(offset)


class Standalone(World):
    """The machine as its shell steps it, everything succeeding at once."""

    def __post_init__(self) -> None:
        self.machine = MarkersPartition(PARTITION, self.config, 0)

    def look(self, now: int) -> None:
        chunk = self.log[self.position :]
        event: Any = EndReached(self.position)
        if chunk:
            times, keys, values = zip(*chunk, strict=True)
            event = MarkersRead(range(self.position, len(self.log)), times, keys, values)
            self.position = len(self.log)
        self.carry_out(now, self.machine.step(now, event))
        self.machine.check()

    def carry_out(self, now: int, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case ReadRecord(offset):
                    found = self.found(offset)
                    event = RecordRead(offset, found) if isinstance(found, int) else found
                    self.carry_out(now, self.machine.step(now, event))
                case Redeliver() | DeadLetter():
                    self.does(now, effect)
                    self.machine.step(now, Copied(effect.offset))
                case WriteEnd():
                    raise AssertionError("the end was written with the copy")


class OnSpark(World):
    """Turns as the stateful query takes them; the state goes through its bytes each time."""

    def __post_init__(self) -> None:
        self.store = Store()
        self.ledger = encode_ledger(Ledger())

    def look(self, now: int) -> None:
        chunk = self.log[self.position :]
        markers = None
        if chunk:
            times, keys, values = (list(each) for each in zip(*chunk, strict=True))
            offsets = np.arange(self.position, len(self.log))
            markers = Markers(offsets, np.array(times), keys, values)
            self.position = len(self.log)
        ledger = decode_ledger(self.ledger)
        result = step(PARTITION, self.config, ledger, self.store, now, 0, markers)
        self.ledger = encode_ledger(ledger)
        for due in result.due:
            does = decided(self.config, due, self.found(due.offset))
            if does is not None:
                self.does(now, does)
        check(ledger, self.store)


def check(ledger: Ledger, store: Store) -> None:
    """The ledger says what is in the chunks."""
    assert ledger.chunks.tolist() == sorted(store.kept)
    for number, count, due, marker in zip(ledger.chunks, ledger.counts, ledger.dues, ledger.markers, strict=True):
        chunk = decode_chunk(int(number), store.kept[int(number)])
        assert (len(chunk), chunk.dues().min(), chunk.markers.min()) == (count, due, marker)
        assert (np.diff(chunk.offsets) > 0).all()
        assert set(chunk.offsets >> 12) == {number}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 9), st.sampled_from((0, 30, 30, 200))),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
        st.tuples(
            st.sampled_from((Kind.EXTEND, Kind.FAILED, Kind.REJECTED)), st.integers(0, 9), st.sampled_from((0, 70))
        ),
        st.tuples(st.just("nonsense"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("time"), st.sampled_from((1, 10, 60, 400)), st.just(0)),
    ),
    max_size=60,
)


@given(steps=STEPS, counts=st.lists(st.integers(0, 3), min_size=10, max_size=10), plain=st.booleans())
@settings(max_examples=300, deadline=None)
def test_both_trackers_do_the_same_at_the_same_times(steps: list[Any], counts: list[int], plain: bool) -> None:
    """The same markers, looked at at the same times: the same copies and letters. Ends that they write themselves are
    read at the next look by both."""
    config = replace(CONFIG, backoff_ms=0) if plain else CONFIG
    known = {number * SPREAD: count for number, count in enumerate(counts)}
    twins = [Standalone(config, counts=known), OnSpark(config, counts=known)]
    now = 1_000_000
    for what, number, ms in [*steps, *[("time", 400, 0), ("time", 60, 0)] * 3]:
        if what == "time":
            for twin in twins:
                twin.look(now)
            now += number
            continue
        key = pack_key(PARTITION, number * SPREAD)
        value = {"start": start(ms), "end": END, "nonsense": b"\x01short"}.get(what) or start(ms, what, "because")
        for twin in twins:
            twin.log.append((now, key, value))
            if what == "nonsense":
                twin.log.append((now, b"key", END))
    one, other = twins
    assert times_of(one) == times_of(other)
    assert one.machine.open_count == decode_ledger(other.ledger).open_count == 0
    assert one.machine.commit_offset == decode_ledger(other.ledger).commit_offset or one.position != other.position


def times_of(twin: World) -> list[tuple[int, object]]:
    return sorted(twin.done, key=repr)


def test_a_message_whose_end_does_not_come_is_handed_over_again_and_again() -> None:
    world = OnSpark(replace(CONFIG, backoff_ms=0))
    world.log.append((1_000, pack_key(PARTITION, 5), start(30)))
    world.does = lambda now, effect: world.done.append((now, effect))  # type: ignore[method-assign]
    for now in range(1_000, 100_000, 500):
        world.look(now)
    times = [now for now, _ in world.done]
    assert times[0] == 1_500
    assert all(CONFIRM_MS <= after - before <= 31_000 for before, after in itertools.pairwise(times))
    assert len(times) == 5
    assert {effect for _, effect in world.done} == {Redeliver(5, 1)}


def test_back_off_names_a_message_at_each_of_its_times_and_carries_it_out_once() -> None:
    config = replace(CONFIG, backoff_ms=1_000, backoff_ms_max=4_000, max_redeliveries=5)
    for count, after_ms in ((0, 1_000), (1, 2_000), (2, 4_000), (4, 4_000), (5, 0)):
        world = OnSpark(config, counts={5: count})
        world.log.append((100_000, pack_key(PARTITION, 5), start(50)))
        for now in range(100_000, 108_000, 10):
            world.look(now)
        ((at, effect),) = world.done
        expected = DeadLetter(5, 5, Reason.TIMED_OUT, "") if count == 5 else Redeliver(5, count + 1)
        assert effect == expected
        assert 0 <= at - (100_050 + after_ms) <= 120


def test_nothing_is_handed_over_before_what_was_there_at_the_start_was_read() -> None:
    """Overdue starts whose ends come in a later batch: the original's issue 158."""
    store, ledger = Store(), Ledger()
    config = replace(CONFIG, backoff_ms=0)

    def batch(first: int, values: bytes, times: int) -> Markers:
        keys: list[bytes | None] = [pack_key(PARTITION, offset) for offset in range(100)]
        return Markers(np.arange(first, first + 100), np.full(100, times), keys, [values] * 100)

    run_ms = 1_000_000
    assert step(PARTITION, config, ledger, store, run_ms, run_ms, batch(0, start(1), 1_000)).due == []
    assert step(PARTITION, config, ledger, store, run_ms, run_ms, batch(100, start(1), 50_000)).due == []
    assert step(PARTITION, config, ledger, store, run_ms + 1, run_ms, batch(200, END, 60_000)).due == []
    assert ledger.open_count == 0
    assert ledger.replaying
    after = step(PARTITION, config, ledger, store, run_ms + 2_000, run_ms, batch(300, start(1_000), run_ms + 1))
    assert after.due == []
    assert not ledger.replaying
    assert ledger.commit_offset == 300
    assert after.wake_ms is not None
    assert len(step(PARTITION, config, ledger, store, after.wake_ms, run_ms, None).due) == 100


def test_a_batch_reads_and_writes_the_chunks_that_it_is_about_and_no_others() -> None:
    store, ledger, config = Store(), Ledger(), replace(CONFIG, backoff_ms=0)
    keys: list[bytes | None] = [pack_key(PARTITION, offset) for offset in range(100 * CHUNK)]
    every = Markers(np.arange(len(keys)), np.full(len(keys), 1_000), keys, [start(60_000)] * len(keys))
    step(PARTITION, config, ledger, store, 1_000, 0, every)
    assert (ledger.open_count, len(store.kept)) == (100 * CHUNK, 100)
    assert sum(map(len, store.kept.values())) < 11 * len(keys)
    store.calls = 0
    some = [pack_key(PARTITION, offset) for offset in (1, CHUNK + 1, CHUNK + 2)]
    step(
        PARTITION,
        config,
        ledger,
        store,
        1_001,
        0,
        Markers(np.arange(3) + len(keys), np.full(3, 1_001), [*some], [END] * 3),
    )
    assert store.calls == 4
    assert ledger.open_count == 100 * CHUNK - 3
    check(ledger, store)


def test_due_messages_are_taken_up_in_the_order_in_which_they_came_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.spark.tracker.step.HANDED_MAX", 700)
    store, ledger, config = Store(), Ledger(), replace(CONFIG, backoff_ms=0)
    order = list(range(3_000))
    random.Random(5).shuffle(order)
    keys: list[bytes | None] = [pack_key(PARTITION, offset * 10) for offset in order]
    values: list[bytes | None] = [start(60_000)] * 3_000
    step(PARTITION, config, ledger, store, 0, 0, Markers(np.arange(3_000), np.arange(3_000) * 10, keys, values))
    found: list[HandOver] = []
    for now in range(100_000, 100_005):
        result = step(PARTITION, config, ledger, store, now, 0, None)
        assert len(result.due) == min(700, 3_000 - len(found))
        found += result.due
    assert [each.offset for each in found] != sorted(each.offset for each in found)
    assert sorted(each.offset // 10 for each in found) == list(range(3_000))
    for part in range(0, 3_000, 700):
        assert {each.offset // 10 for each in found[part : part + 700]} == set(order[part : part + 700])


@given(
    rows=st.dictionaries(
        st.integers(0, CHUNK - 1),
        st.tuples(
            st.integers(0, 2**40),
            st.integers(0, 2**45),
            st.none() | st.tuples(st.integers(0, 2**45), st.none() | st.integers(0, 2**45)),
            st.none() | st.tuples(st.integers(0, 2**40), st.sampled_from(Kind), st.text(max_size=20)),
        ),
        min_size=1,
        max_size=30,
    ),
    number=st.integers(0, 2**40),
)
def test_a_chunk_goes_through_its_bytes(rows: dict[int, Any], number: int) -> None:
    opened: Any = {}
    asked: dict[int, int] = {}
    for row, (marker, deadline, extra, said) in rows.items():
        offset = number * CHUNK + row
        opened[offset] = (marker, extra[0] if extra else deadline, deadline, Start(*said) if said else None)
        if extra and extra[1] is not None:
            asked[offset] = extra[1]
    chunk = Chunk().replaced(np.zeros(0, np.int64), opened, asked)
    again = decode_chunk(number, encode_chunk(chunk))
    assert again.rows(np.ones(len(again), bool)) == (opened, asked)
    assert again.dues().tolist() == [opened[offset][1] for offset in sorted(opened)]


def test_state_of_another_format_is_refused() -> None:
    opened: Any = {5: (1, 2, 2, None)}
    octets = encode_chunk(Chunk().replaced(np.zeros(0, np.int64), opened, {}))
    with pytest.raises(StateUnreadableError, match="format 9"):
        decode_chunk(0, b"\x09" + octets[1:])
    with pytest.raises(StateUnreadableError, match="format 9"):
        decode_ledger(b"\x09" + encode_ledger(Ledger())[1:])


@pytest.mark.parametrize(("open_count", "caught_up"), [(0, True), (2, False)])
def test_a_replay_with_nothing_open_holds_up_no_end(open_count: int, caught_up: bool) -> None:
    """Its markers were all read before the run's first, nothing is open: no timer comes that would end the replay."""
    config = KmqConfig(queue="jobs", use_now_after_ms=0)
    progress, outcome = Progress(config), RedeliveryResult()
    outcome.partitions[0] = (28, PartitionFigures(0, open_count, 0, True, 5 if open_count else None, None))
    progress.add(outcome)
    caught = CaughtUp(config, {0: 28}, 0.0)
    for _ in range(2):
        caught.look(progress, outcome)
    assert caught.up.is_set() is caught_up
