"""The tracker on Spark is killed while it works: one slice of tracker_kill_loop.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.spark.tracker.tracker_kill_loop import SparkKillLoop


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_message_is_done_or_a_dead_letter_whoever_is_killed(tmp_path: Path) -> None:
    loop = SparkKillLoop(tmp_path, seed=7)
    verdict = loop.run_kills(3)
    assert verdict.faults == [], f"{verdict}\n{(tmp_path / 'trackers.log').read_text()[-3000:]}"
    assert loop.counts == {"driver": 1, "worker": 1, "python": 1, "node": 0}
    assert verdict.copies > verdict.dead_letters > 0
