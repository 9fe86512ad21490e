"""Who may use a data directory, and what a start says that can't."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.client import Client, ClientError
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.server import directory as server_directory
from ottla.server.directory import DirectoryLock, identity, note_boot, same_boot, unusable
from ottla.server.listeners import ServeRefusedError
from ottla.testing import EmbeddedBroker
from tests.harness.waiting import soon

HOLDS_A_RECORD_LOCK = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
sys.stdin.read()
"""

TRIES_A_RECORD_LOCK = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused")
else:
    print("admitted")
"""


@contextmanager
def a_running_kafka(directory: Path) -> Iterator[None]:
    """Another process that holds what Java's FileChannel.lock takes."""
    command = [sys.executable, "-c", HOLDS_A_RECORD_LOCK, str(directory / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        yield
        assert child.stdin is not None
        child.stdin.close()


def kafka_would_start(directory: Path) -> bool:
    command = [sys.executable, "-c", TRIES_A_RECORD_LOCK, str(directory / ".lock")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout == "admitted\n"


def test_a_running_kafka_keeps_a_node_out(tmp_path: Path) -> None:
    with a_running_kafka(tmp_path), pytest.raises(ServeRefusedError, match="is locked by another node"):
        EmbeddedBroker(directory=tmp_path).start()
    DirectoryLock(str(tmp_path)).release()


def test_a_running_node_keeps_a_kafka_out(tmp_path: Path) -> None:
    with EmbeddedBroker(directory=tmp_path) as broker:
        # What drops a process's record locks: any descriptor of the file is closed.
        with pytest.raises(ServeRefusedError, match="is locked by another node"):
            DirectoryLock(str(tmp_path))
        (tmp_path / ".lock").read_bytes()
        assert not kafka_would_start(tmp_path)
        with EmbeddedBroker() as other:
            assert other.port != broker.port
        assert not kafka_would_start(tmp_path)
    assert kafka_would_start(tmp_path)


def test_a_node_ends_when_another_process_uses_its_directory_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system that keeps the locks of each machine apart."""
    monkeypatch.setattr(server_directory, "_flock", lambda *_: None)
    monkeypatch.setattr(server_directory, "_record_lock", lambda *_: None)
    asked = ApiVersionsRequest("probe", "1")
    with (
        EmbeddedBroker(directory=tmp_path) as first,
        Client(first.bootstrap_servers) as client,
        EmbeddedBroker(directory=tmp_path) as second,
        Client(second.bootstrap_servers) as other,
    ):
        with pytest.raises(ClientError):
            soon(lambda: client.send(asked) is None)
        assert other.send(asked).error_code == 0


def test_a_second_node_is_kept_out_when_the_lock_file_is_removed(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path))
    (tmp_path / ".lock").unlink()
    with pytest.raises(ServeRefusedError, match="is locked by another node"):
        DirectoryLock(str(tmp_path))
    lock.release()
    lock.release()
    DirectoryLock(str(tmp_path)).release()


def test_a_forked_process_does_not_keep_the_directory(tmp_path: Path) -> None:
    lock = DirectoryLock(str(tmp_path))
    kept = [os.dup(descriptor) for descriptor in lock._descriptors]
    lock.release()
    DirectoryLock(str(tmp_path)).release()
    for descriptor in kept:
        os.close(descriptor)


def test_file_systems_without_locks_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        DirectoryLock(str(tmp_path)).release()
        patched.setattr(fcntl, "fcntl", no_locks)
        with pytest.raises(ServeRefusedError, match=r"can't be locked: No locks available\. Choose one"):
            DirectoryLock(str(tmp_path))


def test_a_boot_id_that_is_no_text_is_another_boot(tmp_path: Path) -> None:
    assert not same_boot(str(tmp_path))
    note_boot(str(tmp_path))
    assert same_boot(str(tmp_path))
    written = (tmp_path / ".boot-id").stat().st_mtime_ns
    note_boot(str(tmp_path))
    assert (tmp_path / ".boot-id").stat().st_mtime_ns == written
    (tmp_path / ".boot-id").write_bytes(b"\xff\xfe\x00\x80")
    assert not same_boot(str(tmp_path))
    with EmbeddedBroker(directory=tmp_path):
        assert same_boot(str(tmp_path))


def test_a_directory_on_a_disk_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = os.open

    def read_only(path: str, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opening(path, flags, *mode)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(
        ServeRefusedError, match=r"is not writable: Read-only file system\. Mount it writable or choose"
    ):
        DirectoryLock(str(tmp_path))


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EACCES, "Give the file to the user of the node"),
        (errno.EROFS, "Mount it writable"),
        (errno.EIO, "Look at the disk"),
        (errno.ENAMETOOLONG, "Put that right"),
    ],
)
def test_a_start_that_fails_names_the_file_and_the_remedy(number: int, remedy: str) -> None:
    sentence = unusable("/d", OSError(number, os.strerror(number), "/d/x-0"))
    assert sentence == (
        f"The data directory /d can't be used: /d/x-0: {os.strerror(number)}. {remedy} or choose another with --data."
    )


def test_a_copy_of_a_directory_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    known = identity(str(tmp_path / "data"))
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert identity(str(tmp_path / "copy")) != known
    (tmp_path / "data").rename(tmp_path / "moved")
    assert identity(str(tmp_path / "moved")) == known
