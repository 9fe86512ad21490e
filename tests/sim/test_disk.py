"""The simulated disk: alive it behaves as the real one (a twin test), after a power cut it keeps what it promised."""

import contextlib
import errno
import random
from pathlib import Path

import pytest

from ottla.log.files import DiskFiles, FileSystem
from ottla.sim.kernel.disk import Disk, PowerCut
from tests.harness.sim.toy import WorstCase

NAMES = ("a", "b", "c", "d/a", "d/b", "e/a")


def apply_random(files: FileSystem, root: str, rng: random.Random) -> str:
    """One random operation; what it answered, as text."""
    verb = rng.choice(("write", "write", "truncate", "rename", "unlink", "atomic", "read", "list", "rmtree", "reopen"))
    first, second = (f"{root}/{rng.choice(NAMES)}" for _ in range(2))
    octets = rng.randbytes(rng.randrange(40))
    cut = rng.random()
    try:
        match verb:
            case "write":
                files.open(first, create=True).write(octets + b"+" + octets)
            case "truncate":
                file = files.open(first)
                file.truncate(int(cut * file.size()))
            case "rename" if first != second:
                files.rename(first, second)
            case "unlink":
                files.unlink(first)
            case "atomic":
                files.write_atomically(first, octets)
            case "read":
                file = files.open(first)
                return f"{file.size()} {files.size(first)} {file.read(3, 30)!r} {files.read_bytes(first)!r}"
            case "list":
                return repr([files.listdir(root), files.listdir(f"{root}/d"), files.exists(first)])
            case "rmtree":
                files.rename(f"{root}/e", f"{root}/f")
                held = files.open(f"{root}/f/a", create=True)
                kept = held.size()
                path = held.path.removeprefix(root)
                files.rmtree(f"{root}/f")
                files.makedirs(f"{root}/e")
                return f"{len(held.read(0, 10_000)) == kept} {path}"
            case _:
                files.open(first).close()
    except OSError as error:
        return f"{verb} {type(error).__name__}"
    return verb


@pytest.mark.parametrize("seed", range(15))
def test_alive_it_is_the_real_one(seed: int, tmp_path: Path) -> None:
    disk = Disk(random.Random(0))
    for files, root in ((disk, "/x"), (DiskFiles(), str(tmp_path))):
        files.makedirs(f"{root}/d")
        files.makedirs(f"{root}/e")
    rng, twin_rng = random.Random(seed), random.Random(seed)
    real = DiskFiles()
    for _ in range(150):
        assert apply_random(disk, "/x", rng) == apply_random(real, str(tmp_path), twin_rng)


def keep_nothing(disk: Disk) -> None:
    """A cut after which only what was promised is left."""
    disk.rng = WorstCase()
    disk.crash()


def test_what_was_synced_survives_the_worst_cut() -> None:
    disk = Disk(random.Random(0))
    disk.makedirs("/data/p")
    disk.sync_directory("/")
    disk.sync_directory("/data")
    file = disk.open("/data/p/log", create=True)
    file.write(b"synced")
    file.sync()
    disk.sync_directory("/data/p")
    file.write(b"lost")
    disk.open("/data/p/other", create=True).write(b"x")
    disk.rename("/data/p/log", "/data/p/renamed")
    assert disk.open("/data/p/renamed").read(0, 99) == b"syncedlost"
    keep_nothing(disk)
    assert disk.listdir("/data/p") == ["log"]
    assert disk.read_bytes("/data/p/log") == b"synced"


def test_a_synced_file_under_a_lost_name_is_lost() -> None:
    disk = Disk(random.Random(0))
    disk.makedirs("/data")
    disk.sync_directory("/")
    disk.open("/data/log", create=True).write(b"x")
    disk.open("/data/log").sync()
    keep_nothing(disk)
    assert disk.listdir("/data") == []


def test_write_atomically_leaves_the_old_or_the_new() -> None:
    seen: set[bytes] = set()
    for seed in range(300):
        rng = random.Random(seed)
        disk = Disk(rng)
        disk.makedirs("/data")
        disk.sync_directory("/")
        disk.write_atomically("/data/f", b"old")
        disk.fuse = rng.randrange(1, 8)
        try:
            disk.write_atomically("/data/f", b"brand-new")
        except PowerCut:
            disk.crash()
            found = disk.read_bytes("/data/f")
            assert found in (b"old", b"brand-new")
        else:
            disk.fuse = None
            keep_nothing(disk)
            found = disk.read_bytes("/data/f")
            assert found == b"brand-new"
        seen.add(found)
    assert seen == {b"old", b"brand-new"}


def test_a_rename_without_a_sync_may_leave_an_empty_file() -> None:
    """The classic: the model must be able to show it, or no test of recovery means anything."""
    found: set[bytes] = set()
    for seed in range(100):
        disk = Disk(random.Random(seed))
        disk.makedirs("/data")
        disk.sync_directory("/")
        disk.write_atomically("/data/f", b"contents", durable=False)
        disk.crash()
        if disk.exists("/data/f"):
            found.add(disk.read_bytes("/data/f"))
    assert {b"", b"contents"} < found


def test_a_killed_process_loses_nothing() -> None:
    disk = Disk(random.Random(0))
    disk.makedirs("/data")
    file = disk.open("/data/f", create=True)
    file.write(b"there")
    disk.kill()
    assert disk.read_bytes("/data/f") == b"there"
    with pytest.raises(PowerCut):
        file.write(b"ghost")


def test_a_full_disk_takes_a_part_and_says_so() -> None:
    disk = Disk(random.Random(0))
    disk.makedirs("/data")
    file = disk.open("/data/f", create=True)
    disk.capacity = disk.used + 4
    with pytest.raises(OSError, match="No space left") as caught:
        file.write(b"123456")
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 4
    disk.capacity = None
    file.write(b"!")
    assert file.read(0, 9) == b"1234!"


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    disk = Disk(random.Random(0))
    disk.makedirs("/data")
    file = disk.open("/data/f", create=True)
    disk.sync_directory("/")
    disk.sync_directory("/data")
    file.write(b"before")
    mark = file.begin_sync()
    file.write(b"after")
    file.end_sync(mark)
    keep_nothing(disk)
    assert disk.read_bytes("/data/f") == b"before"


def test_the_fuse_ends_everything_until_the_next_life() -> None:
    disk = Disk(random.Random(0))
    disk.makedirs("/data")
    file = disk.open("/data/f", create=True)
    disk.fuse = 1
    with pytest.raises(PowerCut):
        file.write(b"x" * 100)
    for act in (file.size, lambda: disk.exists("/data"), lambda: disk.open("/data/f")):
        with pytest.raises(PowerCut), contextlib.suppress(Exception):
            act()
    disk.kill()
    assert 0 <= disk.open("/data/f").size() <= 100
