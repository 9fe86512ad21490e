"""A recovery that did not end, by a kill or by a disk that failed, and the one that comes after it."""

from __future__ import annotations

import errno
import itertools
import os
import random
from pathlib import Path
from typing import Any

import pytest

from ottla.log.answers import StorageError
from ottla.log.files import DiskFiles
from ottla.log.log import Log
from ottla.sim.kernel.disk import Disk, PowerCut
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, open_log, put, small, values

KILLED: dict[str, Any] = {"clean_shutdown": False}
POWER: dict[str, Any] = {"clean_shutdown": False, "same_boot": False}
AGAIN: dict[str, Any] = {"clean_shutdown": False, "interrupted": True}
CONFIG = small(segment_bytes=100_000)
FIRST = f"{DIRECTORY}/00000000000000000000"


def filled(files: Disk, count: int, log: Log | None = None) -> Log:
    log = log or open_log(files, CONFIG)
    for number in range(log.log_end_offset, log.log_end_offset + count):
        put(log, batch(b"old %d" % number, at=NOW + number))
    return log


def with_a_hole(files: Disk, log: Log, offset: int) -> None:
    """Zeros for the batch at this offset, as a power cut leaves them between writes that were kept."""
    log.flush()
    assert log.active is not None
    found = log.active.find(offset)
    assert found is not None
    start, size = found[0], found[1][1] + 12
    file = files.open(f"{FIRST}.log")
    octets = file.read(0, file.size())
    file.truncate(0)
    file.write(octets[:start] + bytes(size) + octets[start + size :])
    file.sync()
    files.kill()


def fails_to_open(files: Disk, ending: str, **how: Any) -> None:
    """Open the log while the disk syncs no file whose name ends so."""

    def trouble(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(ending):
            raise OSError(errno.EIO, "no", path)

    files.trouble = trouble
    with pytest.raises(OSError, match="no"):
        open_log(files, CONFIG, **how)
    files.trouble = None


@pytest.mark.parametrize("died", [False, True], ids=["in the same life", "after a kill"])
def test_what_a_recovery_cut_does_not_come_back_where_its_sync_failed(died: bool) -> None:
    old = [b"old %d" % number for number in range(4)]
    for seed in range(100):
        files = disk(seed)
        with_a_hole(files, filled(files, 10), 4)
        fails_to_open(files, ".log", **POWER)
        if died:
            files.kill()
        again = open_log(files, CONFIG, same_boot=died, **AGAIN)
        assert values(again) == old
        put(again, batch(b"new 4", at=NOW + 4))
        files.crash()
        assert values(open_log(files, CONFIG, **POWER)) in (old, [*old, b"new 4"]), seed


def test_a_log_whose_recovery_did_not_end_is_checked_whole_though_the_boot_is_the_same() -> None:
    """The hole lies below the last index entry, which a kill would leave to be trusted."""
    files = disk()
    log = filled(files, 20)
    assert log.active is not None
    log.active.flush_indexes()
    with_a_hole(files, log, 4)
    fails_to_open(files, ".log", **POWER)
    files.kill()
    again = open_log(files, CONFIG, **AGAIN)
    assert again.log_end_offset == 4
    assert values(again) == [b"old %d" % number for number in range(4)]


def test_a_recovery_after_one_that_did_not_end_does_not_take_the_page_cache_for_the_disk() -> None:
    """Nobody knows what came between: records that were appended, perhaps, and are nowhere but in memory."""
    for seed in range(30):
        files = disk(seed)
        log = filled(files, 10)
        log.flush()
        log.roll(NOW)
        filled(files, 10, log)
        files.kill()
        again = open_log(files, CONFIG, recovery_point=10, **AGAIN)
        assert again.log_end_offset == 20
        point = again.recovery_point
        files.crash()
        assert open_log(files, CONFIG, recovery_point=point, **POWER).log_end_offset >= point, seed


@pytest.mark.parametrize("died", [False, True], ids=["in the same life", "after a kill"])
def test_what_a_recovery_could_not_sync_is_written_again(died: bool) -> None:
    """A closed segment that a killed process had not brought to the disk; a second fsync would say that it is there."""
    for seed in range(10):
        files = disk(seed)
        log = filled(files, 10)
        log.roll(NOW)
        filled(files, 1, log)
        files.kill()
        fails_to_open(files, "0000.log", **KILLED)
        if died:
            files.kill()
        again = open_log(files, CONFIG, **AGAIN)
        filled(files, 1, again)
        again.flush()
        assert again.recovery_point == 12
        files.crash()
        after = open_log(files, CONFIG, recovery_point=12, **POWER)
        assert values(after) == [b"old %d" % number for number in range(12)], seed


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("missing", [".index", ".timeindex"])
@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
def test_an_index_made_anew_counts_once_it_is_on_the_disk(how: dict[str, Any], missing: str, seed: int) -> None:
    """The segment lies below the recovery point: what a recovery that was cut short left of its indexes is trusted."""
    config = small(segment_bytes=100_000, index_interval_bytes=0)
    whole = disk()
    log = filled(whole, 200, open_log(whole, config))
    log.roll(NOW)
    filled(whole, 1, log)
    log.flush()
    whole.unlink(f"{FIRST}{missing}")
    for step in itertools.count(1):
        files = whole.clone(random.Random(f"{seed}/{step}"))
        files.fuse = step
        cut = False
        try:
            open_log(files, config, recovery_point=201, **how)
        except PowerCut:
            cut = True
        files.kill()
        again = open_log(files, config, recovery_point=201, **how)
        filled(files, 1, again)
        again.flush()
        files.crash()
        after = open_log(files, config, recovery_point=202, **POWER)
        for offset in range(0, 202, 7):
            found = after.offset_for_timestamp(NOW + offset)
            assert found is not None, (step, offset)
            assert found.offset == offset, step
        if not cut:
            assert step > 5
            return


def test_a_file_that_was_put_back_is_read_by_the_next_attempt(tmp_path: Path) -> None:
    """An attempt that failed keeps no descriptor of the file that stood there."""
    directory = str(tmp_path / "t-0")
    log = open_log(DiskFiles(), CONFIG, directory)
    for number in range(5):
        put(log, batch(b"old %d" % number, at=NOW + number))
    log.close(NOW)
    path = f"{directory}/00000000000000000000.log"
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:100])
    files, checkpoint = DiskFiles(), Path(f"{directory}/leader-epoch-checkpoint")
    checkpoint.rename(f"{directory}/aside")
    checkpoint.mkdir()
    with pytest.raises(IsADirectoryError):
        open_log(files, CONFIG, directory, **KILLED)
    assert not files._with_descriptor
    checkpoint.rmdir()
    Path(f"{directory}/aside").rename(checkpoint)
    Path(f"{path}.restored").write_bytes(whole)
    os.replace(f"{path}.restored", path)
    assert values(open_log(files, CONFIG, directory, **KILLED)) == [b"old %d" % number for number in range(5)]


def test_a_failed_sync_is_remembered_on_a_full_disk() -> None:
    """The page cache still shows the records whose pages the failed fsync has dropped; a power cut takes these."""
    files = disk()
    log = filled(files, 3)
    log.roll(NOW)
    log.flush()
    filled(files, 2, log)
    files.capacity, files.sync_failures = files.used, 1.0
    with pytest.raises(StorageError):
        log.flush()
    files.capacity, files.sync_failures = None, 0.0
    files.kill()
    again = open_log(files, CONFIG, recovery_point=3, high_watermark=5, **KILLED)
    filled(files, 1, again)
    again.flush()
    files.crash()
    assert len(values(open_log(files, CONFIG, recovery_point=6, **POWER))) == 6
