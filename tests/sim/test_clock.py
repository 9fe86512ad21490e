"""The wall clock is set while the node runs: deadlines do not notice, timestamps follow."""

from dataclasses import replace

import pytest

from ottla.sim.clients import admins
from ottla.sim.kernel.clock import BOOTED_MS, EPOCH_MS, MS, HostClock
from ottla.sim.workloads.run import Run, SeedResult
from ottla.sim.workloads.share_run import ShareRun
from ottla.sim.workloads.workload import Plan

HOUR_MS = 3_600_000
SHARE_TOO = pytest.mark.slow("tests/sim/test_clock.py::test_nobody_notices_that_the_wall_clock_was_set")
STEPS = (-HOUR_MS, 15_000, HOUR_MS)
WEEK_MS = str(7 * 24 * HOUR_MS)
BY_TIMESTAMP = ("segment.ms", "retention.ms", "delete.retention.ms")


class CalmRun(Run):
    """Nothing goes wrong but the wall clock, which is set by `by_ms` once everybody is at work. No log has a reason to
    roll or to drop anything by its records' timestamps: that would, rightly, come sooner or later. No power is
    cut, not at the last death either: timestamps that do not rise make, rightly, no entries in time indexes, and what a
    cut leaves of the files is drawn from one random stream, by how much was written to each."""

    def __init__(self, seed: int, by_ms: int) -> None:
        super().__init__(seed, keep_all=True)
        self.faults.calm()
        configs_of = self.workload.configs_of
        self.workload.configs_of = lambda rule: [each for each in configs_of(rule) if each[0] not in BY_TIMESTAMP]
        self.world.agenda.after(3_000 * MS, self.world.jump_wall, by_ms)

    def make_plan(self) -> Plan:
        plan = super().make_plan()
        return replace(plan, power_cuts=False, settings={**plan.settings, "log.roll.ms": WEEK_MS})


class CalmShareRun(CalmRun, ShareRun):
    """The same with share groups."""


def told(outcome: SeedResult) -> list[str]:
    assert outcome.failure is None, outcome.failure
    return [line for line in outcome.lines if "the wall clock was set" not in line]


@pytest.mark.parametrize("kind", [CalmRun, pytest.param(CalmShareRun, marks=SHARE_TOO)])
def test_nobody_notices_that_the_wall_clock_was_set(kind: type[CalmRun], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is answered when, who is in which group, which locks end: to the microsecond as if it had not been."""
    monkeypatch.setattr(admins, "HARMLESS_CONFIGS", [("flush.ms", ("50", "1000", "100000"))])
    undisturbed = told(kind(5, 0).outcome())
    for by_ms in STEPS:
        assert told(kind(5, by_ms).outcome()) == undisturbed, f"set by {by_ms} ms"


@pytest.fixture
def one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug that was: the shell gives the node the time of a clock that somebody can set."""

    def set_by(clock: HostClock) -> int:
        return clock.wall_ahead_ms - (EPOCH_MS - BOOTED_MS)

    shown = property(lambda clock: BOOTED_MS + clock.world.now_us // MS + set_by(clock))
    monkeypatch.setattr(HostClock, "now_ms", shown)
    monkeypatch.setattr(HostClock, "us_of", lambda clock, moment: (moment - BOOTED_MS - set_by(clock)) * MS)


@pytest.mark.usefixtures("one_clock")
@pytest.mark.parametrize(
    ("kind", "by_ms", "noticed"),
    [
        (CalmShareRun, -HOUR_MS, "past its deadline"),
        (CalmRun, 15_000, "before its session ends"),
        (CalmRun, HOUR_MS, "before its session ends"),
        (Run, None, "before its session ends"),
    ],
)
def test_deadlines_on_a_clock_that_is_set_are_noticed(kind: type[Run], by_ms: int | None, noticed: str) -> None:
    """In one of a few runs: where the clock is set in every one, and where it is one of the random faults."""
    runs = (kind(seed) if by_ms is None else kind(seed, by_ms) for seed in (5, 20, 7, 13, *range(18, 50)))  # type: ignore[arg-type]
    assert any(noticed in (run.outcome().failure or "") for run in runs)
