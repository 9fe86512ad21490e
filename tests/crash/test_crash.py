"""A slice of the crash loop: a node killed under load loses and doubles nothing (tools/crash_loop.py)."""

from pathlib import Path

import pytest

from tools import crash_loop

ROUNDS = 3


@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_kill_9_under_load(tmp_path: Path, durability: str) -> None:
    said: list[str] = []
    failures = crash_loop.run(ROUNDS, 11, str(tmp_path), durability, say=said.append)
    assert not failures, "\n".join([*failures, *said])
