"""Runs against a dict, one entry an offset."""

from importlib import import_module

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.share.runs import Runs


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks so small that a few dozen runs fill several."""
    module = import_module("ottla.share.runs")
    monkeypatch.setattr(module, "RUNS_PER_CHUNK_MAX", 8)
    monkeypatch.setattr(module, "RUNS_PER_CHUNK_FEW", 3)


class RunsTwin(RuleBasedStateMachine):
    @initialize(start=st.integers(0, 1000))
    def begin(self, start: int) -> None:
        self.runs: Runs[int] = Runs(start)
        self.twin: dict[int, int] = {}
        self.start = self.end = start

    @rule(length=st.integers(1, 40), value=st.integers(0, 3))
    def append(self, length: int, value: int) -> None:
        self.runs.append(self.end + length, value)
        self.twin.update(dict.fromkeys(range(self.end, self.end + length), value))
        self.end += length

    @rule(at=st.floats(0, 1), length=st.integers(1, 60), value=st.integers(0, 3))
    def assign(self, at: float, length: int, value: int) -> None:
        if self.start < self.end:
            first = self.start + int(at * (self.end - self.start - 1))
            end = min(first + length, self.end)
            self.runs.assign(first, end, value)
            self.twin.update(dict.fromkeys(range(first, end), value))

    @rule(step=st.integers(1, 3), value=st.integers(4, 5))
    def scatter(self, step: int, value: int) -> None:
        for offset in range(self.start, self.end, step):
            self.runs.assign(offset, offset + 1, value + offset % 2)
            self.twin[offset] = value + offset % 2

    @rule(length=st.integers(0, 50))
    def trim(self, length: int) -> None:
        start = self.start + length
        self.runs.trim(start)
        self.twin = {offset: value for offset, value in self.twin.items() if offset >= start}
        self.start = start
        self.end = max(self.end, start)

    @rule(length=st.integers(0, 30))
    def cut(self, length: int) -> None:
        if self.end - length > self.start:
            self.end -= length
            self.runs.cut(self.end)
            self.twin = {offset: value for offset, value in self.twin.items() if offset < self.end}

    @rule(a=st.floats(0, 1), b=st.floats(0, 1))
    def look(self, a: float, b: float) -> None:
        length = self.end - self.start
        first, end = sorted((self.start - 2 + int(a * (length + 4)), self.start - 2 + int(b * (length + 4))))
        seen = {o: value for low, high, value in self.runs.within(first, end) for o in range(low, high)}
        assert seen == {o: v for o, v in self.twin.items() if first <= o < end}
        for offset in list(self.twin)[:: max(1, len(self.twin) // 5)]:
            low, high, value = self.runs.at(offset)
            assert low <= offset < high
            assert {self.twin[o] for o in range(low, high)} == {value}

    @invariant()
    def same(self) -> None:
        if hasattr(self, "runs"):
            self.runs.check()
            assert (self.runs.start, self.runs.end) == (self.start, self.end)
            assert {o: v for a, b, v in self.runs.within(0, 1 << 60) for o in range(a, b)} == self.twin
            first = self.runs.first_run()
            assert (first is None) == (not self.twin)
            if first is not None:
                assert first[1] == self.twin[self.start]


TestRunsTwin = RunsTwin.TestCase
TestRunsTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_change_in_a_million_runs_costs_no_more_than_in_a_thousand() -> None:
    """Counted in pointers moved, not in time: no chunk outgrows its bound."""
    runs: Runs[int] = Runs(0)
    runs.append(10_000, 0)
    for offset in range(0, 10_000, 2):
        runs.assign(offset, offset + 1, 1)
    runs.check()
    assert runs.count == 10_000
    runs.assign(5_000, 5_001, 0)
    assert runs.count in (9_998, 9_999)  # one less where the chunks meet
    runs.assign(0, 10_000, 2)
    assert runs.count == 1
