"""Closed segments' indexes below the recovery point, which no recovery looks into: they must be on the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from ottla.log.answers import Isolation, Origin, StorageError
from ottla.log.log import Log
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import NOW, batch, disk, marker, open_log, small

KILLED: dict[str, Any] = {"clean_shutdown": False}
POWER: dict[str, Any] = {"clean_shutdown": False, "same_boot": False}
CONFIG = small(segment_bytes=100_000)
INDEXES = (".index", ".timeindex")


def append(log: Log, count: int) -> None:
    """Batches that rise in time; nobody is told of them."""
    for number in range(log.log_end_offset, log.log_end_offset + count):
        log.append_as_leader(batch(b"v" * 60, at=NOW + number), now=NOW, leader_epoch=0)


def abort(log: Log) -> None:
    """One aborted transaction, for the transaction index."""
    at = NOW + log.log_end_offset
    octets = batch(b"v", at=at, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_as_leader(octets, now=NOW, leader_epoch=0)
    end = marker(5, commit=False, at=at + 1)
    log.append_as_leader(end, now=NOW, leader_epoch=0, origin=Origin.COORDINATOR)


def sync(log: Log) -> None:
    """A round on the disk thread."""
    up_to = log.log_end_offset
    for file in log.pending_sync():
        file.sync()
    log.synced(up_to)


def check_after_power_cut(files: Disk, log: Log) -> None:
    end, point = log.log_end_offset, log.recovery_point
    assert len(log.bases) > 1
    assert point > log.bases[-1], "the closed segment is trusted"
    files.crash()
    after = open_log(files, CONFIG, recovery_point=point, **POWER)
    assert after.log_end_offset == end
    for offset in range(end):
        found = after.offset_for_timestamp(NOW + offset)
        assert found is not None
        assert found.offset == offset
    aborted = after.read(0, 1 << 20, Isolation.TXN_COMMITTED).aborted
    assert [each.first_offset for each in aborted or ()] == [20]


def half_full(files: Disk) -> Log:
    """A log with one segment, which is on the disk but for the second half of its indexes."""
    log = open_log(files, CONFIG)
    append(log, 20)
    assert log.active is not None
    log.active.flush_indexes()
    for kind in INDEXES:
        files.open(f"{log.active.path}{kind}").sync()  # as a kernel does in its own time
    abort(log)
    append(log, 20)
    sync(log)
    return log


def failing_sync(files: Disk, ending: str, doing: Callable[[], None]) -> OSError:
    """Do this while the disk syncs no file whose name ends so; what was raised."""

    def trouble(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(ending):
            raise OSError(errno.EIO, "no", path)

    files.trouble = trouble
    with pytest.raises((OSError, StorageError)) as failed:
        doing()
    files.trouble = None
    return OSError(str(failed.value))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("write_again", [False, True], ids=["trusting the page cache", "writing again"])
def test_a_segment_closed_before_a_kill(write_again: bool, seed: int) -> None:
    files = disk(seed)
    log = half_full(files)
    log.roll(NOW)
    append(log, 1)
    files.kill()
    again = open_log(files, CONFIG, recovery_point=log.recovery_point, write_again=write_again, **KILLED)
    append(again, 1)
    sync(again)
    check_after_power_cut(files, again)


@pytest.mark.parametrize("seed", range(6))
def test_a_segment_closed_after_a_kill_with_nothing_new_for_its_indexes(seed: int) -> None:
    files = disk(seed)
    log = half_full(files)
    assert log.active is not None
    log.active.complete_indexes()
    files.kill()
    again = open_log(files, CONFIG, recovery_point=log.recovery_point, **KILLED)
    again.roll(NOW)
    append(again, 1)
    sync(again)
    check_after_power_cut(files, again)


@pytest.mark.parametrize("seed", range(4))
def test_an_aborted_transaction_that_a_killed_process_had_not_synced(seed: int) -> None:
    """A snapshot behind it spares the replay that would find it again."""
    files = disk(seed)
    log = open_log(files, CONFIG)
    append(log, 20)
    abort(log)
    files.kill()
    again = open_log(files, CONFIG, recovery_point=0, **KILLED)
    again.write_snapshot()
    again.roll(NOW)
    append(again, 1)
    sync(again)
    check_after_power_cut(files, again)


@pytest.mark.parametrize("by", ["round", "flush"])
@pytest.mark.parametrize("failing", INDEXES)
def test_a_closed_segment_whose_index_could_not_be_synced(failing: str, by: str) -> None:
    """A second fsync would say that all is well: what the first should have covered has to be written again."""
    files = disk()
    log = half_full(files)
    log.roll(NOW)
    append(log, 1)
    if by == "flush":
        failing_sync(files, failing, log.flush)
    else:
        log.sync_failed(failing_sync(files, failing, lambda: sync(log)))
    assert log.reopen(NOW)
    append(log, 2)
    sync(log)
    check_after_power_cut(files, log)


@pytest.mark.parametrize("failing", INDEXES)
def test_a_kill_right_after_an_index_could_not_be_synced(failing: str) -> None:
    """All batches are on the disk, so no record is in doubt."""
    files = disk()
    log = half_full(files)
    log.roll(NOW)
    log.sync_failed(failing_sync(files, failing, lambda: sync(log)))
    files.kill()
    again = open_log(files, CONFIG, recovery_point=log.recovery_point, **KILLED)
    append(again, 2)
    sync(again)
    check_after_power_cut(files, again)
