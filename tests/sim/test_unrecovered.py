"""Recoveries that do not end: a disk that fails while a log is opened, a start that is killed. What comes after them
knows that it is not done, whatever boot it is by then."""

import errno
import itertools
import os
import random

import pytest

from ottla.log.answers import StorageError
from ottla.sim.kernel.disk import Disk, PowerCut
from ottla.sim.kernel.store import SimStore
from tests.harness.sim.stage import Stage

WHOLE = [b"old %d" % number for number in range(4)]


def with_a_hole(seed: int, *, durability: str = "page-cache", rolls: bool = True) -> Stage:
    """A node whose machine lost its power. Zeros stand in t-0 behind its fourth record, and sound records behind them,
    in the next segment too where there is one."""
    stage = Stage(seed, durability)
    stage.create("t", 2, {"index.interval.bytes": "0"})
    log = stage.node.replicas.by_name["t"].partitions[0].log
    for number in range(10):
        stage.put("t", 0, b"old %d" % number)
        if rolls and number == 7:
            log.roll(stage.now)
    log.flush()
    found = log.segments[0].find(4)
    assert found is not None
    start, end = found[0], found[0] + found[1][1] + 12
    file = stage.disk.open(f"{log.segments[0].path}.log")
    octets = file.read(0, file.size())
    file.truncate(0)
    file.write(octets[:start] + bytes(end - start) + octets[end:])
    file.sync()
    stage.disk.crash()
    stage.now += 1000
    return stage


def no_sync_of(stage: Stage, part: str) -> None:
    def trouble(operation: str, path: str) -> None:
        if operation == "sync" and part in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    stage.disk.trouble = trouble


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
@pytest.mark.parametrize("then", ["tick", "kill", "two kills", "clean stop"])
def test_a_log_that_no_start_could_open_since_a_power_cut_is_checked_whole(then: str, durability: str) -> None:
    stage = with_a_hole(1, durability=durability)
    no_sync_of(stage, "/t-0/")
    stage.start(same_boot=False)
    with pytest.raises(StorageError):
        stage.put("t", 0, b"refused")
    stage.put("t", 1, b"taken")
    if then == "two kills":
        stage.restart(clean=False, power_cut=False)
    if then == "clean stop":
        stage.end()
        stage.disk.trouble = None
        stage.start()
    elif then != "tick":
        stage.disk.trouble = None
        stage.restart(clean=False, power_cut=False)
    stage.disk.trouble = None
    stage.tick(15_000)
    assert stage.stored("t", 0) == WHOLE
    assert stage.stored("t", 1) == [b"taken"]
    stage.put("t", 0, b"new")
    stage.restart(clean=False, power_cut=False)
    assert stage.stored("t", 0) == [*WHOLE, b"new"]
    assert not stage.disk.exists("/data/unrecovered-checkpoint")


def test_a_partition_that_goes_leaves_nothing_to_recover() -> None:
    stage = with_a_hole(1)
    no_sync_of(stage, "/t-0/")
    stage.start(same_boot=False)
    stage.disk.trouble = None
    assert stage.disk.exists("/data/unrecovered-checkpoint")
    stage.delete("t")
    assert not stage.disk.exists("/data/unrecovered-checkpoint")


def test_a_kill_is_no_power_cut_for_the_others() -> None:
    """Their newest records are in memory only, and no recovery point may say otherwise."""
    for seed in range(20):
        stage = with_a_hole(seed)
        no_sync_of(stage, "/t-0/")
        stage.start(same_boot=False)
        for number in range(5):
            stage.put("t", 1, b"%d" % number)
        stage.restart(clean=False, power_cut=False)
        point = stage.node.replicas.by_name["t"].partitions[1].log.recovery_point
        stage.restart(clean=False, power_cut=True)
        assert stage.node.replicas.by_name["t"].partitions[1].log.log_end_offset >= point, seed


@pytest.mark.parametrize("seed", range(12))
def test_what_a_start_cut_off_does_not_come_back_though_it_was_killed(seed: int) -> None:
    for step in itertools.count(1):
        stage = with_a_hole(seed, rolls=False)
        stage.disk.rng = random.Random(f"{seed}/{step}")
        stage.disk.fuse = step
        try:
            stage.start(same_boot=False)
            killed = False
        except PowerCut:
            stage.disk.kill()
            killed = True
            stage.start(same_boot=False)
        stage.disk.fuse = None
        assert stage.stored("t") == WHOLE
        log = stage.node.replicas.by_name["t"].partitions[0].log
        stage.put("t", 0, b"new 4")
        point = log.recovery_point
        stage.restart(clean=False, power_cut=True)
        assert stage.stored("t") in (WHOLE, [*WHOLE, b"new 4"]), step
        assert stage.node.replicas.by_name["t"].partitions[0].log.log_end_offset >= point, step
        if not killed:
            assert step > 10
            return


@pytest.mark.parametrize("seed", range(12))
def test_a_stop_was_clean_for_one_start_only_wherever_that_is_killed(seed: int) -> None:
    """The marker's name went, and it may come back with the next power cut."""
    for step in itertools.count(1):
        stage = Stage(seed, "page-cache")
        stage.create("t", 1, {})
        stage.put("t", 0, b"old")
        stage.end()
        stage.disk.rng = random.Random(f"{seed}/{step}")
        stage.disk.fuse = step
        try:
            stage.start()
            killed = False
        except PowerCut:
            stage.disk.kill()
            killed = True
            stage.start()
        stage.disk.fuse = None
        stage.put("t", 0, b"new")
        stage.notes.clear()
        stage.restart(clean=False, power_cut=True)
        assert any("did not stop cleanly" in note for note in stage.notes), step
        if not killed:
            return


@pytest.mark.parametrize("seed", range(12))
def test_a_new_data_directory_survives_the_power_cut_wherever_its_first_start_is_killed(seed: int) -> None:
    for step in itertools.count(1):
        stage = Stage(seed)
        stage.disk = Disk(random.Random(f"{seed}/{step}"))
        stage.store = SimStore(stage.disk)
        stage.disk.fuse = step
        try:
            stage.start()
            killed = False
        except PowerCut:
            stage.disk.kill()
            killed = True
            stage.start()
        stage.disk.fuse = None
        stage.create("t", 1, {})
        stage.put("t", 0, b"kept")
        stage.restart(clean=False, power_cut=True)
        assert stage.stored("t") == [b"kept"], step
        if not killed:
            return
