"""The machine against a twin that keeps every marker for ever and works everything out anew each time it is asked.

Time, markers good and bad, ends of the topic, redeliveries that succeed, fail, find nothing or are overtaken by a
worker, trackers that die and begin again at the committed position: in any order. The machine has to know of the same
messages, redeliver none before it is due, close all in the end, and never commit past what is still open.
"""

import dataclasses
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.kmq import markers
from ottla.kmq.config import KmqConfig
from ottla.kmq.deadlines import GRANULARITY_MS
from ottla.kmq.events import (
    Copied,
    DeadLetter,
    Effect,
    EndReached,
    Failed,
    MarkersRead,
    ReadRecord,
    Reason,
    RecordBeyondEnd,
    RecordGone,
    RecordRead,
    Redeliver,
    Rewind,
    Tick,
    WriteEnd,
)
from ottla.kmq.machine import UNDERWAY_MS, MarkersPartition
from ottla.kmq.markers import END, Kind, Start, pack_key, start

PARTITION = 3
OFFSETS = st.integers(0, 7)
PLAIN = KmqConfig(
    queue="q", use_now_after_ms=50, max_redeliveries=2, backoff_ms=40, backoff_ms_max=100, in_flight_max=3
)


def read(*records: tuple[int, int, bytes | None, bytes | None]) -> MarkersRead:
    """Markers of (marker_offset, timestamp_ms, key, value)."""
    return MarkersRead(*zip(*records, strict=True))


@dataclass
class Twin:
    """The markers topic, and what follows from all of it up to a position."""

    log: list[tuple[int, bytes | None, bytes | None]] = field(default_factory=list)
    """(timestamp_ms, key, value)"""

    def open_at(self, position: int, since: int = 0) -> dict[int, tuple[int, int, Start]]:
        """offset -> (marker_offset of its start, timestamp_ms, last marker): what is open to a reader of this part."""
        found: dict[int, tuple[int, int, Start]] = {}
        for marker_offset, (timestamp_ms, key, value) in enumerate(self.log[since:position], since):
            try:
                partition, offset = markers.decode_key(key)
                said = markers.decode(value)
            except markers.InvalidMarkerError:
                continue
            if partition != PARTITION:
                continue
            if said is None:
                found.pop(offset, None)
            elif said.kind is Kind.BEGIN:
                found[offset] = (marker_offset, timestamp_ms, said)
            elif offset in found:
                found[offset] = (found[offset][0], timestamp_ms, said)
        return found


class TrackerAndTwin(RuleBasedStateMachine):
    config = PLAIN

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.twin = Twin()
        self.committed = 0
        self.begin()

    # ---- the tracker's life ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.machine = MarkersPartition(PARTITION, self.config, len(self.twin.log))
        self.replay_end = len(self.twin.log)
        self.position = self.since = self.furthest = self.committed
        self.reading: set[int] = set()
        self.copying: set[int] = set()
        self.written = 0
        self.caught_up = False

    def step(self, event: object) -> list[Effect]:
        effects = self.machine.step(self.now, event)  # type: ignore[arg-type]
        for effect in effects:
            match effect:
                case ReadRecord(offset):
                    self.may_redeliver(offset)
                    self.reading.add(offset)
                case Redeliver(offset) | DeadLetter(offset):
                    self.may_redeliver(offset)
                    self.copying.add(offset)
                case WriteEnd(offset):
                    self.append(offset, END)
                case Rewind(position):
                    assert position < self.position
                    self.position = position
                    self.caught_up = False
        self.machine.check()
        return effects

    def may_redeliver(self, offset: int) -> None:
        assert self.caught_up
        known = self.twin.open_at(self.position, self.since)
        _, timestamp_ms, said = known[offset]
        assert timestamp_ms + said.duration_ms <= self.machine.clock(self.now) <= self.now

    def append(self, offset: int, value: bytes | None, partition: int = PARTITION) -> None:
        self.twin.log.append((self.now, pack_key(partition, offset), value))

    # ---- the world -------------------------------------------------------------------------------------------------

    @rule(offset=OFFSETS, duration_ms=st.sampled_from((0, 30, 30, 200)))
    def a_worker_begins(self, offset: int, duration_ms: int) -> None:
        self.append(offset, start(duration_ms))

    @rule(offset=OFFSETS)
    def a_worker_ends(self, offset: int) -> None:
        self.append(offset, END)

    @rule(offset=OFFSETS, kind=st.sampled_from(Kind), duration_ms=st.sampled_from((0, 70, 300)))
    def a_worker_says_more(self, offset: int, kind: Kind, duration_ms: int) -> None:
        self.append(offset, start(duration_ms, kind, "because"))

    @rule(offset=OFFSETS, value=st.sampled_from((None, b"", b"\x01", b"\x01short")), partition=st.sampled_from((3, 4)))
    def somebody_writes_nonsense(self, offset: int, value: bytes | None, partition: int) -> None:
        self.append(offset, value, partition)
        self.twin.log.append((self.now, b"key", END))

    @rule(ms=st.sampled_from((1, 10, 60, 400)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule(count=st.integers(1, 12))
    def markers_are_read(self, count: int) -> None:
        chunk = self.twin.log[self.position : self.position + count]
        if not chunk:
            return
        self.position += len(chunk)
        self.furthest = max(self.furthest, self.position)
        first = self.position - len(chunk)
        self.caught_up |= self.position >= self.replay_end
        self.step(read(*((first + index, *marker) for index, marker in enumerate(chunk))))

    @rule()
    def the_end_is_reached(self) -> None:
        while self.position < len(self.twin.log):
            self.markers_are_read(12)
        self.caught_up = True
        self.furthest = max(self.furthest, self.position)
        self.step(EndReached(self.position))

    @rule()
    def the_clock_ticks(self) -> None:
        self.step(Tick())

    @precondition(lambda self: self.reading)
    @rule(
        pick=st.integers(0), count=st.integers(0, 4), what=st.sampled_from(("read", "read", "gone", "beyond", "fail"))
    )
    def a_record_is_read(self, pick: int, count: int, what: str) -> None:
        offset = sorted(self.reading)[pick % len(self.reading)]
        self.reading.discard(offset)
        if what != "read":
            self.step({"gone": RecordGone, "beyond": RecordBeyondEnd, "fail": Failed}[what](offset))
            return
        for effect in self.step(RecordRead(offset, count)):
            match effect:
                case Redeliver(found, redeliveries) if found == offset:
                    assert redeliveries == count + 1 <= self.config.max_redeliveries
                case DeadLetter(found, redeliveries, reason) if found == offset:
                    assert redeliveries == count
                    assert reason is Reason.REJECTED or count >= self.config.max_redeliveries

    @precondition(lambda self: self.copying)
    @rule(pick=st.integers(0), well=st.booleans())
    def a_copy_is_written(self, pick: int, well: bool) -> None:
        offset = sorted(self.copying)[pick % len(self.copying)]
        self.copying.discard(offset)
        self.step(Copied(offset) if well else Failed(offset))

    @rule(fresh=st.booleans())
    def it_commits(self, fresh: bool) -> None:
        found = self.machine.commit_offset
        assert found is None or found >= self.committed or self.position < self.committed
        if found is not None:
            self.committed = found

    @rule()
    def it_dies(self) -> None:
        self.begin()

    # ---- what must hold at any time --------------------------------------------------------------------------------

    @invariant()
    def it_knows_what_is_open(self) -> None:
        assert sorted(self.machine._open) == sorted(self.twin.open_at(self.position, self.since))

    @invariant()
    def nothing_open_is_behind_the_commit(self) -> None:
        found = self.machine.commit_offset
        for marker_offset, _, _ in self.twin.open_at(len(self.twin.log)).values():
            assert found is None or found <= marker_offset
            assert self.committed <= marker_offset

    def teardown(self) -> None:
        """Left alone, with everything succeeding, it comes to an end: every message is closed."""
        for _ in range(400):
            self.the_end_is_reached()
            while self.reading:
                self.a_record_is_read(0, 0, "read")
            while self.copying:
                self.a_copy_is_written(0, True)
            if not self.machine.open_count and self.position == len(self.twin.log):
                break
            if not self.reading:
                due = self.machine.deadline()
                assert due is not None
                self.now = max(self.now + 1, due)
        assert not self.twin.open_at(len(self.twin.log))
        assert self.machine.commit_offset == len(self.twin.log)


class FullTrackerAndTwin(TrackerAndTwin):
    """The same with room for two messages: it may know less than the twin, never more.

    After a rewind it still knows what it learned further on.
    """

    config = dataclasses.replace(PLAIN, open_max=2)

    @invariant()
    def it_knows_what_is_open(self) -> None:
        self.furthest = max(self.furthest, self.position)
        known = {offset for at in (self.position, self.furthest) for offset in self.twin.open_at(at, self.since)}
        assert set(self.machine._open) <= known


TestTwin = TrackerAndTwin.TestCase
TestTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFullTwin = FullTrackerAndTwin.TestCase
TestFullTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_extension_counts_when_the_copy_under_way_fails() -> None:
    pair = TrackerAndTwin()
    pair.a_worker_says_more(offset=2, kind=Kind.BEGIN, duration_ms=0)
    pair.the_end_is_reached()
    assert pair.reading == {2}
    pair.a_record_is_read(pick=0, count=2, what="read")
    assert pair.copying == {2}
    pair.a_worker_says_more(offset=2, kind=Kind.EXTEND, duration_ms=300)
    pair.the_end_is_reached()
    pair.a_copy_is_written(pick=0, well=False)
    pair.time_passes(250)
    pair.the_clock_ticks()
    assert not pair.reading
    pair.teardown()


def test_deadlines_are_rounded_up_and_delays_are_not() -> None:
    assert GRANULARITY_MS > 1
    machine = MarkersPartition(0, dataclasses.replace(PLAIN, use_now_after_ms=0))
    machine.step(0, read((0, 1, pack_key(0, 5), start(32))))
    machine.step(0, EndReached(1))
    assert machine.deadline() == 40 + UNDERWAY_MS
    assert machine.step(39 + UNDERWAY_MS, Tick()) == []
    assert machine.step(40 + UNDERWAY_MS, Tick()) == [ReadRecord(5)]
    machine.step(0, read((1, 1, pack_key(0, 6), start(32))))
    assert machine.step(0, read((2, 3, pack_key(0, 6), start(0, Kind.FAILED)))) == [ReadRecord(6)]
