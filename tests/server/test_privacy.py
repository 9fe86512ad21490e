"""Other users of the machine read nothing of a node's, whatever the umask is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import private
from ottla.metadata.sqlite import SqliteStore
from ottla.metadata.store import Put
from ottla.server.directory import DirectoryLock
from tools.node_process import held_ports

GROUP_AND_OTHERS = 0o077


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def ottla(*words: str) -> str:
    """What the command says, run with a umask that takes nothing away."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla", *words], capture_output=True, text=True, timeout=120, umask=0, check=True
    )
    return done.stdout


def open_things(directory: Path) -> list[str]:
    """What of a cluster's directory others can read, write or enter, but for what is in closed directories."""
    found = [directory, *directory.iterdir(), *(directory / "1").glob("ottla.pid"), *(directory / "members").iterdir()]
    return [str(path.relative_to(directory)) for path in found if mode(path) & GROUP_AND_OTHERS]


def test_a_cluster_is_closed_to_others_and_an_open_one_is_closed_at_its_next_start(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with held_ports(1) as port:
        start = ("cluster", "start", "--nodes", "1", "--data", str(directory), "--listen", f"127.0.0.1:{port}")
        for _ in range(2):
            ottla(*start, "--detach")
            try:
                assert {"1", "members", "metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm"} <= {
                    path.name for path in directory.iterdir()
                }
                assert open_things(directory) == []
                assert mode(directory) == mode(directory / "1") == 0o700
            finally:
                ottla("cluster", "stop", "--data", str(directory))
            for path in (directory, *directory.rglob("*")):
                path.chmod(0o777 if path.is_dir() else 0o666)


@pytest.mark.usefixtures("open_umask")
def test_a_new_data_directory_is_closed(tmp_path: Path) -> None:
    DirectoryLock(str(tmp_path / "data")).release()
    assert (mode(tmp_path / "data"), mode(tmp_path / "data" / ".lock")) == (0o700, 0o600)


def test_a_directory_that_is_open_to_a_group_stays_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    DirectoryLock(str(tmp_path)).release()
    assert mode(tmp_path) == 0o750


def test_a_directory_that_is_open_to_everybody_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    DirectoryLock(str(tmp_path)).release()
    assert mode(tmp_path) == 0o700


def test_a_directory_of_other_things_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    tmp_path.chmod(0o755)
    sentence = private.make_directory(tmp_path)
    assert sentence is not None
    assert "choose a directory of its own" in sentence
    assert mode(tmp_path) == 0o755


@pytest.mark.usefixtures("open_umask")
def test_the_metadata_store_is_closed_also_where_it_was_open(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    for _ in range(2):
        store = SqliteStore(str(path))
        store.commit([Put("k", b"secret")])
        assert [each.name for each in sorted(tmp_path.iterdir()) if mode(each) & GROUP_AND_OTHERS] == []
        assert len(list(tmp_path.iterdir())) == 4
        # As a killed process leaves them, of a version that did not close them.
        for each in tmp_path.iterdir():
            each.chmod(0o666)
        again = SqliteStore(str(path))
        assert [each.name for each in sorted(tmp_path.iterdir()) if mode(each) & GROUP_AND_OTHERS] == []
        again.close()
        store.close()
