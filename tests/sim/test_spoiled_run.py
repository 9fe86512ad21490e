"""Whole runs with disks that lie: fresh seeds, the seeds that failed once, and that each kind of harm is done."""

import pytest

from ottla.sim.workloads.spoiled_run import SpoiledRun
from tests.sim.test_seeds import each_of, kept

FRESH = (2_003, 2_005)
"""The first one has five nodes, two of which lie; the second one alone has every kind of harm."""
KEPT = kept("spoiled")
HARM = ("bit", "cut from", "has lost /data/", "restored from a backup", "metadata store")


@pytest.mark.parametrize("seed", each_of(KEPT[-1:], KEPT[:-1]))
def test_all_promises_hold(seed: int) -> None:
    outcome = SpoiledRun(seed).outcome()
    assert outcome.failure is None, f"again: python -m ottla.sim --workload spoiled --seed {seed}"
    assert outcome.acknowledged > 100


@pytest.mark.slow("tests/sim/test_spoiled_run.py::test_all_promises_hold")
def test_each_kind_of_harm_is_done() -> None:
    done: set[str] = set()
    for seed in FRESH:
        run = SpoiledRun(seed)
        assert run.outcome().failure is None, seed
        done |= {kind for kind in HARM for strike in run.trouble.strikes if kind in strike}
    assert done == set(HARM)
