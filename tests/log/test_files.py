"""The real file system: descriptors come and go, names move, readers keep what they hold."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ottla.log.files import DiskFiles


def test_descriptors_stay_below_the_bound_and_come_back(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=8)
    handles = [files.open(f"{tmp_path}/{number}", create=True) for number in range(40)]
    for lap in range(3):
        for number, handle in enumerate(handles):
            handle.write(b"%d-%d;" % (number, lap))
            assert len(files._with_descriptor) <= 8
    for number, handle in enumerate(handles):
        assert handle.read(0, 100) == b"".join(b"%d-%d;" % (number, lap) for lap in range(3))


def test_pinned_files_are_not_evicted(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=2)
    pinned = files.open(f"{tmp_path}/pinned", create=True)
    pinned.pin()
    descriptor = pinned.fileno()
    for number in range(10):
        files.open(f"{tmp_path}/{number}", create=True).write(b"x")
    assert pinned.fileno() == descriptor
    pinned.sync()
    pinned.unpin()


def test_a_reader_keeps_a_file_that_is_evicted_renamed_and_unlinked(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=1)
    file = files.open(f"{tmp_path}/a", create=True)
    file.write(b"hello")
    files.open(f"{tmp_path}/other", create=True).write(b"x")
    files.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    assert file.path == f"{tmp_path}/b"
    assert file.read(1, 3) == b"ell"
    files.open(f"{tmp_path}/other").write(b"x")
    files.unlink(f"{tmp_path}/b")
    assert file.read(0, 5) == b"hello"
    assert not os.path.exists(f"{tmp_path}/b")


def test_unlinked_descriptors_close_with_their_last_reader(tmp_path: Path) -> None:
    files = DiskFiles()
    file = files.open(f"{tmp_path}/a", create=True)
    descriptor = file.fileno()
    files.unlink(f"{tmp_path}/a")
    os.fstat(descriptor)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_renaming_a_directory_moves_its_handles(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=1)
    files.makedirs(f"{tmp_path}/t-0")
    file = files.open(f"{tmp_path}/t-0/log", create=True)
    file.write(b"hello")
    files.open(f"{tmp_path}/other", create=True)
    files.rename(f"{tmp_path}/t-0", f"{tmp_path}/t-0-delete")
    assert file.read(0, 5) == b"hello"
    files.rmtree(f"{tmp_path}/t-0-delete")
    assert file.read(0, 5) == b"hello"
    assert os.listdir(tmp_path) == ["other"]


def test_opening_twice_gives_the_same_handle(tmp_path: Path) -> None:
    files = DiskFiles()
    file = files.open(f"{tmp_path}/a", create=True)
    assert files.open(f"{tmp_path}/a") is file
    file.close()
    assert files.open(f"{tmp_path}/a") is not file


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DiskFiles().open(f"{tmp_path}/a")
    assert os.listdir(tmp_path) == []


def test_atomic_writes_replace_and_leave_nothing_behind(tmp_path: Path) -> None:
    files = DiskFiles()
    reader = files.open(f"{tmp_path}/a", create=True)
    reader.write(b"old")
    for durable in (True, False):
        files.write_atomically(f"{tmp_path}/a", b"new", durable=durable)
        assert files.read_bytes(f"{tmp_path}/a") == b"new"
    assert reader.read(0, 10) == b"old"
    assert files.open(f"{tmp_path}/a").read(0, 10) == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_writes_of_any_buffer_and_truncation_are_followed(tmp_path: Path) -> None:
    file = DiskFiles().open(f"{tmp_path}/a", create=True)
    for octets in (b"ab", bytearray(b"cd"), memoryview(b"ef")):
        file.write(octets)
    assert file.size() == 6
    file.truncate(3)
    file.write(b"X")
    assert file.read(0, 10) == b"abcX"


def test_a_full_disk_raises_and_tells_how_much_was_written(tmp_path: Path) -> None:
    script = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from ottla.log.files import DiskFiles  # before the limit, under which Python keeps half of a compiled module
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = DiskFiles().open({str(tmp_path)!r} + "/a", create=True)
file.write(b"x" * 900)
try:
    file.write(b"y" * 200)
except OSError as error:
    print(error.errno, file.size())
"""
    import errno
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG), "1000"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
