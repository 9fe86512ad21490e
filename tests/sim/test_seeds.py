"""Whole runs of the simulator: a slice of fresh seeds, the seeds that failed once, and determinism.

`./test` runs fresh seeds. Of those that failed, `.ci/run` runs the newest, and `make test-long` the others. The longer
slice is `make sim SEEDS=200`.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.broker.api import k00_produce
from ottla.sim.workloads.run import Run

SEEDS_FILE = Path(__file__).with_name("seeds.txt")
FRESH = range(1_001, 1_003)
KEPT_TOO = pytest.mark.slow("tests/sim/test_seeds.py::test_all_promises_hold")


def each_of(fresh: Iterable[int], kept: list[int], *before: object) -> list[object]:
    """The parameters of a test: fresh seeds, and those that failed once, each after the parameters `before`.

    What an older seed found has a test of its own, and the seed means something else by now: it is long.
    """
    newest = [pytest.param(*before, seed, marks=KEPT_TOO) for seed in kept[-1:]]
    older = [pytest.param(*before, seed, marks=pytest.mark.long) for seed in kept[:-1]]
    return [*(pytest.param(*before, seed) for seed in fresh), *newest, *older]


def kept(workload: str = "") -> list[int]:
    """The seeds of this workload that failed once: their lines begin with its name, those of the log with none."""
    words = [line.split() for line in SEEDS_FILE.read_text().splitlines() if line and not line.startswith("#")]
    if workload:
        return [int(line[1]) for line in words if line[0] == workload]
    return [int(line[0]) for line in words if line[0].isdigit()]


@pytest.mark.parametrize("seed", each_of(FRESH, kept()))
def test_all_promises_hold(seed: int) -> None:
    outcome = Run(seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload log --seed {seed}"]
    )
    assert outcome.acknowledged > 100
    assert outcome.seen > 100


@pytest.mark.parametrize("seed", [2_000, 2_006])
def test_all_promises_hold_where_each_partition_of_a_produce_is_a_slice(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(k00_produce, "SLICE_STEPS", 1)
    assert Run(seed).outcome().failure is None


def printed_under_hash_seeds(script: str) -> set[str]:
    """What the script prints, each different text once, under different orders of sets."""

    def printed(hash_seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    with ThreadPoolExecutor() as side_by_side:
        return set(side_by_side.map(printed, ("1", "2")))


TRACED = {"log": 2}
TRACED_TOO = {"share": 2, "transactions": 0, "groups": 0, "cluster": 4, "cluster-transactions": 4}
"""A short run of each kind of workload."""
THESE_TOO = pytest.mark.slow("tests/sim/test_seeds.py::test_one_seed_is_one_trace_under_any_hash_seed")


@pytest.mark.parametrize("traced", [TRACED, pytest.param(TRACED_TOO, marks=THESE_TOO)], ids=["one", "more"])
def test_one_seed_is_one_trace_under_any_hash_seed(traced: dict[str, int]) -> None:
    script = f"""
from ottla.sim.__main__ import WORKLOADS
for workload, seed in {traced}.items():
    print(workload, WORKLOADS[workload](seed).outcome().digest)
"""
    traces = printed_under_hash_seeds(script)
    assert len(traces) == 1, traces
    assert [line.split()[0] for line in traces.pop().splitlines()] == [*traced]
