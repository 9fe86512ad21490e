"""The compiled loops' files: made once however many want one, never loaded when damaged or somebody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark.codec.native import ARGUMENTS, machine_code
from ottla.spark.platform.caches import directories

WANTS_IT = """
import hashlib, sys
from ottla.spark.codec.native import ARGUMENTS, loops, machine_code
module = sys.argv[1]
assert set(loops(module)) == set(ARGUMENTS[module])
print(hashlib.sha256(machine_code(module)).hexdigest(), "numba" in sys.modules)
"""
ENCODES = """
import sys
import pyarrow as pa
from ottla.spark.codec.encode import Destination
from ottla.spark.codec.encode import EncodeOptions, Encoder
encoder = Encoder(EncodeOptions("a", 5000, 1000), lambda topic: Destination(topic, 2, (0, 1), 5000))
print(len(encoder.encode(pa.table({"value": [b"v"]}))), "numba" in sys.modules)
"""


@pytest.fixture(params=ARGUMENTS)
def module(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTTLA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made_files(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if not path.name.endswith(".lock")]


@pytest.mark.slow("tests/spark/codec/test_native.py::test_each_module_has_a_file_of_its_own")
@pytest.mark.parametrize("module", ["encode_kernels", pytest.param("decode_kernels", marks=pytest.mark.long)])
def test_of_two_at_once_one_compiles(cache: Path, module: str) -> None:
    command = [sys.executable, "-c", WANTS_IT, module]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=200)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0][0] == said[1][0]
    assert sorted(compiled for _, compiled in said) == ["False", "True"]
    assert len(made_files(cache)) == 1


@pytest.mark.slow("tests/spark/codec/test_native.py::test_each_module_has_a_file_of_its_own")
def test_a_worker_that_writes_does_not_load_the_compiler(cache: Path) -> None:
    said = [subprocess.check_output([sys.executable, "-c", ENCODES], text=True).split() for _ in range(2)]
    assert said == [["1", "True"], ["1", "False"]]


def test_each_module_has_a_file_of_its_own(cache: Path) -> None:
    for _ in range(2):
        assert [machine_code(name, str.encode) for name in ARGUMENTS] == [name.encode() for name in ARGUMENTS]
    assert len(made_files(cache)) == len(ARGUMENTS)


def test_the_file_serves_until_it_is_damaged(cache: Path, module: str) -> None:
    assert machine_code(module, lambda _: b"first") == b"first"
    assert machine_code(module, lambda _: b"second") == b"first"
    (path,) = made_files(cache)
    path.write_bytes(path.read_bytes()[:-1])
    assert machine_code(module, lambda _: b"third") == b"third"
    assert machine_code(module, lambda _: b"fourth") == b"third"


def test_a_file_that_others_may_write_is_not_loaded(cache: Path, module: str) -> None:
    machine_code(module, lambda _: b"first")
    (path,) = made_files(cache)
    path.chmod(0o666)
    assert machine_code(module, lambda _: b"second") == b"second"
    assert path.stat().st_mode & 0o022 == 0


def test_a_directory_that_others_may_write_is_passed_over(cache: Path) -> None:
    assert next(directories()) == cache
    cache.chmod(0o777)
    assert next(directories()) != cache


def test_without_a_place_to_write_the_next_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setenv("OTTLA_CACHE_DIR", "/proc/no-such-place")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no-such-place")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert machine_code(module, lambda _: b"made") == b"made"
    assert len(made_files(tmp_path / "home" / ".cache" / "ottla")) == 1
    monkeypatch.setenv("HOME", "/proc/no-such-place")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert list(directories())[-1] == tmp_path / f"ottla-{os.getuid()}"
    assert machine_code(module, lambda _: b"again") == b"again"
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    assert machine_code(module, lambda _: b"kept nowhere") == b"kept nowhere"
