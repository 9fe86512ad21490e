"""Retention, deadlines, syncs, failures of the disk, and many logs at once."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.log.answers import Isolation, StorageError
from ottla.log.config import DAY_MS, LogConfig
from ottla.log.files import DiskFiles
from ottla.log.log import Log
from ottla.sim.kernel.disk import Disk, PowerCut
from tests.harness.log.support import (
    DIRECTORY,
    NOW,
    batch,
    delete_old_segments,
    disk,
    maintain,
    open_log,
    put,
    raw,
    small,
    values,
)


def fill(log: Log, count: int, *, step: int = 1, size: int = 20) -> None:
    for number in range(count):
        put(log, batch(b"v" * size, at=NOW + number * step), now=NOW + number * step)


def fails_once(call: int) -> Callable[[str, str], None]:
    """Trouble for a simulated disk: call number `call` that changes something fails, the one after it too."""
    met = 0

    def trouble(operation: str, path: str) -> None:
        nonlocal met
        if operation != "read":
            met += 1
            if call < met <= call + 2:
                raise OSError(errno.ENOSPC, "No space left on device", path)

    return trouble


def test_an_idle_empty_log_has_no_deadline() -> None:
    assert open_log(disk()).deadline(NOW) is None


def test_retention_by_time_comes_when_the_oldest_segment_is_too_old() -> None:
    log = open_log(disk(), small(retention_ms=1000))
    fill(log, 60, step=10)
    maintain(log, NOW + 600)
    now = NOW + 40_000
    log = open_log(log.files, small(retention_ms=100_000))
    deadline = log.deadline(now)
    oldest = log.segments[0].largest_timestamp(log.wall)
    assert deadline is not None
    assert deadline == oldest + 100_001
    assert maintain(log, deadline - 1) is False
    assert maintain(log, deadline + 300_000) is True
    assert log.log_start_offset == log.segments[0].base_offset > 0


def test_everything_too_old_leaves_an_empty_segment() -> None:
    files = disk()
    log = open_log(files, small(file_delete_delay_ms=500))
    fill(log, 60)
    maintain(log, NOW + 8 * DAY_MS)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes, len(log.segments)) == (60, 60, 0, 1)
    assert log.deadline(NOW + 8 * DAY_MS) == NOW + 8 * DAY_MS + 500, "to unlink the files"
    maintain(log, NOW + 8 * DAY_MS + 500)
    assert not any(name.endswith(".deleted") for name in files.listdir(DIRECTORY))
    assert log.deadline(NOW + 9 * DAY_MS) is None
    assert open_log(files, small()).log_end_offset == 60
    assert put(log, batch(b"more")) == 60


def test_retention_waits_for_the_high_watermark() -> None:
    log = open_log(disk(), small(retention_bytes=0))
    for number in range(60):
        log.append_as_leader(batch(b"v", at=NOW + number), now=NOW, leader_epoch=0)
    assert delete_old_segments(log, NOW) == 0
    log.advance_high_watermark(log.bases[2])
    assert delete_old_segments(log, NOW) == 2
    assert log.log_start_offset == log.high_watermark


def test_compact_only_logs_keep_everything_above_their_start() -> None:
    log = open_log(disk(), small(retention_bytes=0, cleanup_policy=frozenset({"compact"})))
    fill(log, 60)
    assert delete_old_segments(log, NOW) == 0
    log.delete_records_before(30)
    assert delete_old_segments(log, NOW) > 0
    assert log.log_start_offset == 30


def test_flush_configs_are_reported() -> None:
    log = open_log(disk(), LogConfig(flush_messages=5))
    fill(log, 4)
    assert not log.flush_due(NOW)
    fill(log, 1)
    assert log.flush_due(NOW)
    log.flush()
    assert not log.flush_due(NOW)
    assert log.recovery_point == log.log_end_offset
    log.configure(LogConfig(flush_ms=50))
    maintain(log, NOW)
    fill(log, 1)
    assert log.deadline(NOW + 7) == NOW + 57
    assert not log.flush_due(NOW + 56)
    assert log.flush_due(NOW + 57)
    log.flush()
    assert not log.flush_due(NOW + 500)


def test_producers_expire_with_upkeep() -> None:
    log = open_log(disk(), LogConfig(retention_ms=-1))
    put(log, batch(b"a", producer_id=3, producer_epoch=0, base_sequence=0))
    now = NOW
    while log.producers.entries:
        deadline = log.deadline(now)
        assert deadline is not None
        assert deadline > now
        now = deadline
        maintain(log, now)
    assert NOW + DAY_MS <= now <= NOW + DAY_MS + 600_000


def test_syncs_may_overlap_and_finish_in_order() -> None:
    log = open_log(disk(), small())
    rounds: list[tuple[int, list[Any]]] = []
    for _ in range(3):
        fill(log, 15)
        rounds.append((log.log_end_offset, log.pending_sync()))
    for up_to, files in rounds:
        for file in files:
            file.sync()
        log.synced(up_to)
        assert log.recovery_point == up_to
    assert log.unflushed == 0
    assert log.pending_sync() is not None


def test_a_failed_sync_closes_the_log() -> None:
    log = open_log(disk())
    fill(log, 3)
    log.pending_sync()
    log.pending_sync()
    log.sync_failed(OSError("no"))
    log.synced(3)
    assert log.recovery_point == 0
    with pytest.raises(StorageError):
        put(log, batch(b"x"))
    with pytest.raises(StorageError):
        log.flush()
    assert values(log) == [b"v" * 20] * 3


@pytest.mark.parametrize("room", range(0, 400, 7))
def test_a_full_disk_at_any_byte(room: int) -> None:
    """Appends are refused without a trace, what was whole is read on, and with room the same log goes on."""
    files = disk()
    log = open_log(files, small())
    fill(log, 8)
    octets = raw(log)
    files.capacity = files.used + room
    written, refused = 8, 0
    while refused < 3:
        try:
            put(log, batch(b"w" * 30))
            written += 1
        except StorageError:
            refused += 1
    assert log.failed is None
    assert log.high_watermark == log.log_end_offset == written
    assert raw(log)[: len(octets)] == octets
    assert len(values(log)) == written
    files.capacity = None
    assert put(log, batch(b"more")) == written
    files.kill()
    again = open_log(files, small(), clean_shutdown=False)
    assert len(values(again)) == again.log_end_offset == written + 1
    assert raw(again)[: len(octets)] == octets
    assert put(again, batch(b"more")) == written + 1


@pytest.mark.parametrize("call", range(60))
def test_no_call_of_an_append_may_fail_half(call: int) -> None:
    """Segments roll, indexes and snapshots are written, an epoch begins; the call that fails is another each time."""
    files = disk()
    log = open_log(files, small(index_interval_bytes=1))
    files.trouble = fails_once(call)
    taken: list[bytes] = []
    for number in range(40):
        value = b"%d" % number
        before = log.log_end_offset
        for attempt in range(3):
            octets = batch(value * 20, producer_id=7, producer_epoch=0, base_sequence=number)
            try:
                assert put(log, octets, epoch=number // 20) == before
            except StorageError:
                assert attempt < 2
                assert log.log_end_offset == log.high_watermark == before
                assert values(log) == taken
                continue
            break
        taken.append(value * 20)
        assert log.read(before, 1 << 20, Isolation.LOG_END).slice is not None
    assert values(log) == taken
    log.check()
    files.kill()
    again = open_log(files, small(), clean_shutdown=False)
    assert values(again) == taken
    assert again.producers.entries[7].batches[-1].last_sequence == 39


def test_index_entries_that_found_no_room_are_written_later() -> None:
    """The append counts, for an index can be made again; a consumer of the next offset is not out of range."""
    files = disk()
    log = open_log(files, LogConfig(index_interval_bytes=1))
    fill(log, 62)
    while log.active is None or log.active.offset_index.pending_entries < 63:
        fill(log, 1)
    size = len(batch(b"v" * 20, at=NOW))
    files.capacity = files.used + size
    fill(log, 1)
    assert log.read(log.log_end_offset, 1000).slice is None
    files.capacity = None
    fill(log, 1)
    assert log.active.offset_index.pending_entries == 0
    assert files.size(f"{DIRECTORY}/00000000000000000000.index") == 8 * log.active.offset_index.entries
    assert len(values(log)) == log.log_end_offset


def test_a_full_disk_from_the_operating_system(tmp_path: Path) -> None:
    log = open_log(DiskFiles(), LogConfig(), f"{tmp_path}/t-0")
    fill(log, 5)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log.segments[0].file.fileno())
    os.close(full)
    with pytest.raises(StorageError) as failure:
        put(log, batch(b"x"))
    assert isinstance(failure.value.__cause__, OSError)
    assert failure.value.__cause__.errno == errno.ENOSPC


def test_a_thousand_logs_share_few_descriptors(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=50)
    logs = [open_log(files, LogConfig(), f"{tmp_path}/t-{number}") for number in range(1000)]
    assert os.listdir(tmp_path) == []
    for number in range(0, 1000, 5):
        put(logs[number], batch(b"%d" % number))
    assert len(files._with_descriptor) <= 50
    for log in logs:
        log.close(NOW)
    assert len(os.listdir(tmp_path)) == 200
    files = DiskFiles(open_files_max=50)
    for number in range(1000):
        log = open_log(files, LogConfig(), f"{tmp_path}/t-{number}")
        assert values(log) == ([b"%d" % number] if number % 5 == 0 else [])
        assert log.deadline(NOW) == (NOW + 30_000 if number % 5 == 0 else None)
    assert len(files._with_descriptor) <= 50


def test_a_slice_outlives_retention_and_deletion(tmp_path: Path) -> None:
    log = open_log(DiskFiles(open_files_max=1), small(file_delete_delay_ms=0), f"{tmp_path}/t-0")
    fill(log, 60)
    result = log.read(0, 500, Isolation.LOG_END)
    assert result.slice is not None
    octets = result.slice.read()
    log.configure(log.config._replace(retention_bytes=0))
    delete_old_segments(log, NOW)
    maintain(log, NOW)
    assert result.slice.read() == octets
    second = log.read(log.log_start_offset, 500, Isolation.LOG_END)
    log.delete()
    assert os.listdir(tmp_path) == []
    assert result.slice.read() == octets
    assert second.slice is None or second.slice.read()


def test_reads_need_little_of_the_disk() -> None:
    """A sequential reader neither walks nor loads: one read of a base offset for each slice that is cut off."""
    files = Counting(disk())
    log = open_log(files, LogConfig(index_interval_bytes=200))  # type: ignore[arg-type]
    fill(log, 3000)
    offset = log.read(0, 5000).next_offset
    files.reads = 0
    slices = 0
    while offset < log.log_end_offset:
        offset = log.read(offset, 5000).next_offset
        slices += 1
    assert slices > 20
    assert files.reads <= slices
    for _ in range(10):  # at the tail: nothing
        put(log, batch(b"x"))
        files.reads = 0
        assert log.read(log.log_end_offset - 1, 5000).slice is not None
        assert files.reads == 0


class Counting:
    """A disk that counts reads of files."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, path: str, create: bool = False) -> Any:
        return CountingFile(self, self.inner.open(path, create))


class CountingFile:
    def __init__(self, disk: Counting, inner: Any) -> None:
        self.disk = disk
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def read(self, position: int, length: int) -> bytes:
        self.disk.reads += 1
        return self.inner.read(position, length)


@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_while_retention_takes_everything_leaves_the_log_where_it_was(seed: int) -> None:
    """The segment that takes the next records is there by name before the others are not."""
    for step in itertools.count(1):
        files = disk(100 * seed + step)
        log = open_log(files, small(retention_ms=1_000, file_delete_delay_ms=0))
        fill(log, 8)
        log.flush()
        files.fuse = step
        try:
            delete_old_segments(log, NOW + 5_000)
            delete_old_segments(log, NOW + 6_000)
        except PowerCut:
            done = False
        else:
            done = True
        files.crash()
        again = open_log(files, small(), clean_shutdown=False, same_boot=False, recovery_point=8)
        assert again.log_end_offset == 8, step
        if done:
            return
