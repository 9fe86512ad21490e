"""Which data directories are copies: the list of a node's incarnations, and the files that hold it."""

import os
import shutil
from pathlib import Path

import pytest

from ottla.log.checkpoints import IDENTITY_FILE, INCARNATIONS_FILE, LAST_INCARNATION_FILE, note_incarnation
from ottla.log.files import DiskFiles


def begin(directory: Path, incarnation: str, *, clean: bool = False) -> list[str] | None:
    return note_incarnation(DiskFiles(), str(directory), incarnation, clean=clean)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    assert begin(directory, "a") == []
    assert begin(directory, "b") == ["a"]
    return directory


def test_a_copy_in_the_place_of_the_directory_counts_only_after_a_clean_stop(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "copy")
    assert begin(tmp_path / "copy", "c") is None
    assert begin(tmp_path / "copy", "d") == ["a", "b", "c"], "from then on it is a directory like any other"
    shutil.copytree(data, tmp_path / "moved")
    assert begin(tmp_path / "moved", "c", clean=True) == ["a", "b"]


@pytest.mark.parametrize("name", [INCARNATIONS_FILE, LAST_INCARNATION_FILE])
def test_a_copy_put_over_the_directory_is_noticed(data: Path, name: str) -> None:
    temporary = data / "temporary"
    shutil.copy(data / name, temporary)
    os.replace(temporary, data / name)
    assert begin(data, "c", clean=True) is None


def test_other_owners_modes_and_names_of_the_directory_are_no_copy(data: Path, tmp_path: Path) -> None:
    (data / INCARNATIONS_FILE).chmod(0o600)
    moved = data.rename(tmp_path / "elsewhere")
    assert begin(moved, "c") == ["a", "b"]


def test_a_directory_of_a_version_that_noted_no_identity_is_no_copy(data: Path) -> None:
    (data / IDENTITY_FILE).unlink()
    assert begin(data, "c") == ["a", "b"]
