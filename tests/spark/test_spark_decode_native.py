"""The compiled loops' file: made once however many want it, never loaded when damaged or somebody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark.caches import directories
from ottla.spark.native import machine_code

WANTS_IT = """
import hashlib, sys
from ottla.spark.native import loops, machine_code
assert set(loops()) == {"scan", "fill"}
print(hashlib.sha256(machine_code()).hexdigest(), "numba" in sys.modules)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTTLA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made_files(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if not path.name.endswith(".lock")]


def test_of_two_at_once_one_compiles(cache: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", WANTS_IT], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=200)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0][0] == said[1][0]
    assert sorted(compiled for _, compiled in said) == ["False", "True"]
    assert len(made_files(cache)) == 1


def test_the_file_serves_until_it_is_damaged(cache: Path) -> None:
    assert machine_code(lambda: b"first") == b"first"
    assert machine_code(lambda: b"second") == b"first"
    (path,) = made_files(cache)
    path.write_bytes(path.read_bytes()[:-1])
    assert machine_code(lambda: b"third") == b"third"
    assert machine_code(lambda: b"fourth") == b"third"


def test_a_file_that_others_may_write_is_not_loaded(cache: Path) -> None:
    machine_code(lambda: b"first")
    (path,) = made_files(cache)
    path.chmod(0o666)
    assert machine_code(lambda: b"second") == b"second"
    assert path.stat().st_mode & 0o022 == 0


def test_a_directory_that_others_may_write_is_passed_over(cache: Path) -> None:
    assert next(directories()) == cache
    cache.chmod(0o777)
    assert next(directories()) != cache


def test_without_a_place_to_write_the_next_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_CACHE_DIR", "/proc/no-such-place")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-place")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert machine_code(lambda: b"made") == b"made"
    assert len(made_files(tmp_path / "home" / ".cache" / "ottla")) == 1
    monkeypatch.setenv("HOME", "/proc/no-such-place")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert list(directories())[-1] == tmp_path / f"ottla-{os.getuid()}"
    assert machine_code(lambda: b"again") == b"again"
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    assert machine_code(lambda: b"kept nowhere") == b"kept nowhere"
