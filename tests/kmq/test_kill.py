"""Workers and trackers are killed while they work; and that the judge of it would see a fault."""

from pathlib import Path

from ottla.kmq.markers import Kind, Start
from tests.harness.kmq.kill_loop import KillLoop, was_due


def test_every_message_is_done_or_a_dead_letter_whoever_is_killed(tmp_path: Path) -> None:
    verdict = KillLoop(tmp_path, seed=7, workers=2, trackers=2).run(6)
    assert verdict.faults == [], verdict
    assert verdict.killed_workers
    assert verdict.killed_trackers
    assert verdict.dead_letters
    assert verdict.copies > verdict.dead_letters


def test_the_judge_knows_when_a_message_was_due() -> None:
    begun = (1_000, Start(500))
    assert was_due([begun], 1_500)
    assert not was_due([begun], 1_499)
    assert not was_due([begun, (1_400, None)], 1_600), "it was finished in time"
    assert was_due([begun, (1_500, None)], 1_600), "it was finished too late"
    assert not was_due([begun, (1_200, Start(500, Kind.EXTEND))], 1_600)
    assert was_due([begun, (1_200, Start(0, Kind.FAILED))], 1_200)
    assert not was_due([], 9_999)
