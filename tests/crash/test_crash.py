"""A slice of the crash loop: a node killed under load loses and doubles nothing (tools/crash_loop.py)."""

from pathlib import Path

import pytest

from tools import crash_loop

ROUNDS = 3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["page-cache", "fsync"])
def test_kill_9_under_load(tmp_path: Path, durability: str) -> None:
    said: list[str] = []
    failures = crash_loop.run(ROUNDS, 11, str(tmp_path), durability, say=said.append)
    assert not failures, "\n".join([*failures, *said])


def test_the_check_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of records 0 to 4 that were acknowledged in order: one lost, one doubled, two swapped, one moved, one unknown."""
    writer = crash_loop.Writer("127.0.0.1:1", 0, 0.0)
    writer.sent = 5
    writer.acknowledged = {number: number for number in range(5)}

    def verdict(*numbers: int) -> str:
        stored = [(offset, b"%d" % number) for offset, number in enumerate(numbers)]
        monkeypatch.setattr(crash_loop, "read_all", lambda bootstrap, partition: stored)
        return " ".join(crash_loop.check_log("", [writer]))

    assert verdict(0, 1, 2, 3, 4) == ""
    assert "lost, the first is 4" in verdict(0, 1, 2, 3)
    assert "1 records are there twice" in verdict(0, 1, 2, 3, 4, 4)
    assert "order" in verdict(0, 2, 1, 3, 4)
    assert "stand elsewhere" in verdict(0, 2, 1, 3, 4)
    assert "record 9 was never sent" in verdict(0, 1, 2, 3, 4, 9)
