"""The files of a SQLite store are replaced while a process has them open."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ottla.metadata.sqlite import SqliteStore
from ottla.metadata.store import CommitUnknownError, Put, StoreGoneError


def merge(path: Path) -> None:
    """What SQLite does by itself now and then: bring the log into the file."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 0


def moved_over(path: Path, backup: Path) -> None:
    os.replace(backup, path)


def copied_over(path: Path, backup: Path) -> None:
    path.write_bytes(backup.read_bytes())
    os.utime(path)


def removed(path: Path, backup: Path) -> None:
    path.unlink()


def log_removed(path: Path, backup: Path) -> None:
    Path(f"{path}-wal").unlink()


@pytest.mark.parametrize(
    ("how", "word"),
    [(moved_over, "replaced"), (copied_over, "overwritten"), (removed, "removed"), (log_removed, "removed")],
)
def test_a_store_whose_files_are_replaced_says_so_and_takes_nothing(
    tmp_path: Path, how: Callable[[Path, Path], None], word: str
) -> None:
    path, backup = tmp_path / "metadata.sqlite", tmp_path / "backup"
    store = SqliteStore(str(path), is_shared=True)
    store.commit([Put("a", b"1")])
    merge(path)
    shutil.copy(path, backup)
    store.commit([Put("a", b"2")])
    merge(path)
    assert store.gone() is None
    how(path, backup)
    why = store.gone()
    assert why is not None
    assert word in why
    with pytest.raises(StoreGoneError, match=word):
        store.commit([Put("a", b"3")])
    store.close()


def test_a_commit_to_a_file_that_is_gone_is_not_known_to_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced right before SQLite commits. The log stays, and the next start may find the commit there."""
    path, backup = tmp_path / "metadata.sqlite", tmp_path / "backup"
    SqliteStore(str(backup)).close()
    store = SqliteStore(str(path), is_shared=True)
    monkeypatch.setattr(SqliteStore, "_write", replaced_before(SqliteStore._write, backup, path))
    with pytest.raises(CommitUnknownError, match="replaced"):
        store.commit([Put("a", b"1")])
    with pytest.raises(StoreGoneError, match="replaced"):
        store.get("a")
    store.close()


def replaced_before(write: Callable[..., int], backup: Path, path: Path) -> Callable[..., int]:
    def replaced(*arguments: object) -> int:
        os.replace(backup, path)
        return write(*arguments)

    return replaced


def test_other_writers_and_checkpoints_are_no_replacement(tmp_path: Path) -> None:
    path = str(tmp_path / "metadata %3f#?.sqlite")
    one, two = SqliteStore(path, is_shared=True), SqliteStore(path, is_shared=True)
    for number in range(40):
        (one if number % 2 else two).commit([Put(f"k{number}", bytes(200_000))])  # 50 pages: a checkpoint each 20
        assert (one.gone(), two.gone()) == (None, None)
    merge(Path(path))
    two.close()
    assert one.gone() is None
    one.close()
