"""The log against a list of batches, under hypothesis: every operation, in any order, with reopenings in between."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.log.answers import Isolation, OffsetOutOfRangeError
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.log.syncing import Syncable
from ottla.protocol.records import decode_records, iter_batches
from tests.harness.log.support import DIRECTORY, NOW, TOPIC_ID, batch, delete_old_segments, disk, maintain

CONFIG = LogConfig(
    segment_bytes=800, index_interval_bytes=100, retention_bytes=-1, retention_ms=-1, file_delete_delay_ms=50
)


@dataclass
class Twin:
    """One batch as the dumb twin remembers it."""

    base: int
    count: int
    epoch: int
    timestamp: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.count


class LogTwin(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        self.disk = disk(seed)
        self.now = NOW
        self.epoch = 0
        self.batches: list[Twin] = []
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.syncs: list[tuple[int, list[Syncable]]] = []
        self.log: Log = self.opened(clean_shutdown=True, same_boot=True, recovery_point=0)

    def opened(self, **how: object) -> Log:
        return Log.open(
            self.disk,
            DIRECTORY,
            CONFIG,
            topic_id=TOPIC_ID,
            now=self.now,
            log_start_offset=self.start,
            high_watermark=self.high_watermark,
            **how,  # type: ignore[arg-type]
        )

    @rule(count=st.integers(1, 4), size=st.integers(0, 110), step=st.integers(-20, 40), commit=st.booleans())
    def append(self, count: int, size: int, step: int, commit: bool) -> None:
        self.now += max(step, 0)
        octets = batch(*[b"v" * size] * count, at=self.now + min(step, 0))
        appended = self.log.append_as_leader(octets, now=self.now, leader_epoch=self.epoch)
        assert appended == (self.end, self.end + count - 1, -1, False)
        self.batches.append(Twin(self.end, count, self.epoch, self.now + min(step, 0), len(octets)))
        self.end += count
        if commit:
            self.commit()

    @rule()
    def commit(self) -> None:
        assert self.log.advance_high_watermark(self.end) is (self.end > self.high_watermark)
        self.high_watermark = self.end

    @rule()
    def new_epoch(self) -> None:
        self.epoch += 1
        self.log.assign_epoch(self.epoch)
        assert self.log.end_offset_for(self.epoch) == (self.epoch, self.end)

    @rule(data=st.data(), max_bytes=st.integers(1, 900), isolation=st.sampled_from(Isolation))
    def read(self, data: st.DataObject, max_bytes: int, isolation: Isolation) -> None:
        offset = data.draw(st.integers(self.start - 1, self.end + 1))
        limit = self.end if isolation is Isolation.LOG_END else self.high_watermark
        if not self.start <= offset <= self.end:
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(offset, max_bytes, isolation)
            return
        result = self.log.read(offset, max_bytes, isolation)
        expected = [twin for twin in self.batches if twin.end > offset and twin.base < limit]
        assert (result.slice is None) == (offset >= limit)
        assert (result.log_start_offset, result.log_end_offset) == (self.start, self.end)
        assert result.high_watermark == result.last_stable_offset == self.high_watermark
        if result.slice is None:
            return
        found = list(iter_batches(memoryview(result.slice.read())))
        assert len(found) >= 1
        assert [header.base_offset for header, _ in found] == [twin.base for twin in expected[: len(found)]]
        assert [header.partition_leader_epoch for header, _ in found] == [twin.epoch for twin in expected[: len(found)]]
        assert result.slice.length <= max_bytes or len(found) == 1
        assert result.next_offset == found[-1][0].next_offset

    @rule(data=st.data())
    def read_not_even_one(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        result = self.log.read(offset, 10, Isolation.LOG_END, min_one_batch=False)
        assert result.slice is None

    @rule(data=st.data())
    def by_timestamp(self, data: st.DataObject) -> None:
        asked = data.draw(st.integers(NOW - 25, self.now + 5))
        expected = next((twin for twin in self.batches if twin.end > self.start and twin.timestamp >= asked), None)
        found = self.log.offset_for_timestamp(asked)
        if expected is None:
            assert found is None
        else:
            assert found == (expected.timestamp, max(expected.base, self.start), expected.epoch)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        asked = data.draw(st.integers(max(self.start - 3, 0), self.end + 2))
        whole = not self.log.segments or asked < self.log.segments[0].base_offset
        moved = self.log.truncate_to(asked, now=self.now)
        assert moved is (asked < self.end)
        if not moved:
            return
        straddled = next((twin for twin in self.batches if twin.base < asked < twin.end), None)
        self.end = asked if whole or straddled is None else straddled.base
        self.batches = [] if whole else [twin for twin in self.batches if twin.end <= asked]
        self.start = min(self.start, self.end)
        self.high_watermark = min(self.high_watermark, self.end)
        self.epoch = max(self.epoch, self.log.latest_epoch)

    @rule(ahead=st.integers(0, 20))
    def truncate_fully(self, ahead: int) -> None:
        self.end = self.start = self.high_watermark = self.end + ahead
        self.batches = []
        self.log.truncate_fully_and_start_at(self.end, now=self.now)
        self.log.assign_epoch(self.epoch)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        asked = data.draw(st.integers(0, self.end))
        if asked > self.high_watermark:
            with pytest.raises(OffsetOutOfRangeError):
                self.log.delete_records_before(asked)
            return
        assert self.log.delete_records_before(asked) is (asked > self.start)
        self.start = max(self.start, asked)

    @rule(keep=st.integers(0, 2000))
    def retain_by_size(self, keep: int) -> None:
        self.log.configure(CONFIG._replace(retention_bytes=keep))
        delete_old_segments(self.log, self.now)
        self.log.configure(CONFIG)
        self.follow_retention()
        if self.high_watermark == self.end:
            assert self.log.size_bytes < keep + 800 + 800

    @rule(age=st.integers(0, 200))
    def retain_by_time(self, age: int) -> None:
        self.log.configure(CONFIG._replace(retention_ms=age))
        delete_old_segments(self.log, self.now)
        self.log.configure(CONFIG)
        self.follow_retention()

    def follow_retention(self) -> None:
        """Whole segments went, all below the high watermark."""
        first = self.log.segments[0].base_offset if self.log.segments else self.start
        assert first <= self.high_watermark
        self.start = max(self.start, first)
        self.batches = [twin for twin in self.batches if twin.base >= first]

    @rule(later=st.integers(0, 100))
    def upkeep(self, later: int) -> None:
        self.now += later
        deadline = self.log.deadline(self.now)
        assert deadline is None or deadline >= 0
        maintain(self.log, self.now)
        self.follow_retention()
        again = self.log.deadline(self.now)
        assert again is None or again > self.now

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule()
    def begin_sync(self) -> None:
        self.syncs.append((self.end, self.log.pending_sync()))

    @precondition(lambda self: self.syncs)
    @rule()
    def end_sync(self) -> None:
        up_to, files = self.syncs.pop(0)
        for file in files:
            file.sync()
        self.log.synced(up_to)

    @rule(how=st.sampled_from(["clean", "killed", "power"]))
    def reopen(self, how: str) -> None:
        """Nothing is lost that was there; only a power cut may take what was not synced."""
        recovery_point = self.log.recovery_point
        while self.syncs:
            self.end_sync()
        if how == "clean":
            self.log.close(self.now)
            self.disk.kill()
            self.log = self.opened(clean_shutdown=True, same_boot=True, recovery_point=self.end)
        elif how == "killed":
            self.disk.kill()
            self.log = self.opened(clean_shutdown=False, same_boot=True, recovery_point=recovery_point)
        else:
            recovery_point = self.log.recovery_point
            self.disk.crash()
            self.log = self.opened(clean_shutdown=False, same_boot=False, recovery_point=recovery_point)
            assert self.log.log_end_offset >= recovery_point
            self.follow_a_power_cut()
        assert self.log.log_end_offset == self.end
        self.log.assign_epoch(self.epoch)

    def follow_a_power_cut(self) -> None:
        log = self.log
        self.end = log.log_end_offset
        first = log.segments[0].base_offset if log.segments else log.log_start_offset
        self.batches = [twin for twin in self.batches if twin.end <= self.end and twin.base >= first]
        self.start = log.log_start_offset
        self.high_watermark = min(max(self.high_watermark, self.start), self.end)
        offset, octets = self.start, b""
        while (result := log.read(offset, 1 << 20, Isolation.LOG_END)).slice is not None:
            octets += result.slice.read()
            offset = result.next_offset
        found = [header for header, _ in iter_batches(memoryview(octets))]
        assert [header.base_offset for header in found] == [twin.base for twin in self.batches if twin.end > self.start]

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "log"):
            return
        self.log.check()
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert self.log.high_watermark == self.high_watermark

    @invariant()
    def epochs_match_batches(self) -> None:
        if not hasattr(self, "log"):
            return
        for twin in self.batches:
            if twin.base >= self.start:
                assert self.log.epochs.epoch_at(twin.base) == twin.epoch, (twin, self.log.epochs.entries)

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        for twin in self.batches:
            if twin.end <= self.start:
                continue
            result = self.log.read(max(twin.base, self.start), 1, Isolation.LOG_END)
            assert result.slice is not None
            assert len(decode_records(result.slice.read())) == twin.count


TestLogTwin = LogTwin.TestCase
TestLogTwin.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
