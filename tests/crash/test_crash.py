"""A slice of the crash loop: a node killed under load loses and doubles nothing (tools/crash_loop.py)."""

from pathlib import Path

import pytest

from tools import crash_loop

ROUNDS = 3


TOO = pytest.mark.slow("tests/crash/test_crash.py::test_kill_9_under_load")


@pytest.mark.parametrize("durability", ["page-cache", pytest.param("fsync", marks=TOO)])
def test_kill_9_under_load(tmp_path: Path, durability: str) -> None:
    said: list[str] = []
    failures = crash_loop.run(ROUNDS, 11, str(tmp_path), durability, say=said.append)
    assert not failures, "\n".join([*failures, *said])
