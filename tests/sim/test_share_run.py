"""Share groups in the simulated world: seeds that must pass, and planted bugs that must be found."""

from typing import Any

import pytest

from ottla.broker.delivery.dead_letters import DeadLetters
from ottla.broker.delivery.host import ShareHost
from ottla.share.failures import Failures, Reason
from ottla.share.partition import SharePartition
from ottla.sim.workloads.share_run import ShareRun
from tests.sim.test_seeds import each_of

FOUND = (3, 5, 10, 35, 233, 260, 265, 5_037)
"""Seeds that once failed: a start offset that went back behind a pending write, a coordinator whose loading nobody was
told to go on with, and the checkers' own mistakes."""


@pytest.mark.parametrize("seed", each_of(range(2), [*FOUND]))
def test_every_promise_holds(seed: int) -> None:
    assert ShareRun(seed).outcome().failure is None


@pytest.mark.parametrize("seed", [100, 102])
def test_every_promise_holds_where_batches_are_cut(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.delivery.reading.CUT_BYTES_MIN", 0)
    assert ShareRun(seed).outcome().failure is None


def test_every_promise_holds_where_acknowledgements_come_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what members held that left, and locks that end."""
    monkeypatch.setattr("ottla.broker.delivery.requests.ACKNOWLEDGED_AT_ONCE", 1)
    monkeypatch.setattr("ottla.broker.delivery.host.RUNS_PER_STEP", 1)
    assert ShareRun(4).outcome().failure is None


def found_by(seeds: range) -> str:
    for seed in seeds:
        failure = ShareRun(seed).outcome().failure
        if failure is not None:
            return failure
    return ""


def test_acknowledgements_that_are_not_remembered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.share.partition._batches", lambda changes, start: [])
    failure = found_by(range(30))
    assert "it was done as number" in failure or "came back" in failure


def test_sessions_that_outlive_their_connections_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShareHost, "disconnected", lambda self, now, connection: None)
    assert "share sessions of connections" in found_by(range(8, 12))


def test_letters_that_are_not_written_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(self: DeadLetters, now: int, parcel: Any) -> None:
        self._let_go(now, parcel)

    monkeypatch.setattr(DeadLetters, "_send", lose)
    assert "has no letter of it" in found_by(range(30))


def test_reasons_that_are_not_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failures, "explain", lambda self, first, end, reason: True)
    assert "says None, its member" in found_by(range(4))


def test_reasons_of_other_records_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = Failures.explain

    def explain_the_next(self: Failures, first: int, end: int, reason: Reason) -> bool:
        return explain(self, first + 1, end + 1, reason)

    monkeypatch.setattr(Failures, "explain", explain_the_next)
    assert "the dead letter of" in found_by(range(4))


def test_a_start_offset_that_runs_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are still held are passed over."""
    start_after = SharePartition._start_after

    def run_ahead(self: SharePartition, changes: Any) -> int:
        start = start_after(self, changes)
        return min(start + 1, self.end) if changes and start > self.start else start

    monkeypatch.setattr(SharePartition, "_start_after", run_ahead)
    assert found_by(range(30))
