"""Transactions, groups, share groups and administrators on simulated clusters, under every trouble there is: fresh
seeds, and those that failed once.

The longer slice is `make sim SEEDS=200 ARGS="--workload cluster-transactions"`.
"""

import pytest

from ottla.sim.__main__ import WORKLOADS
from ottla.sim.workloads.clustered_access import ClusteredAccessRun
from tests.sim.test_seeds import each_of, kept

CLUSTERED = ("cluster-transactions", "cluster-groups", "cluster-share")
FRESH = (1_002,)
EACH = [each for workload in CLUSTERED for each in each_of(FRESH, kept(workload), workload)]


@pytest.mark.parametrize(("workload", "seed"), EACH)
def test_every_promise_holds(workload: str, seed: int) -> None:
    outcome = WORKLOADS[workload](seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload {workload} --seed {seed}"]
    )
    assert outcome.acknowledged > 50
    assert outcome.seen > 50


@pytest.mark.parametrize("seed", each_of(FRESH, kept("cluster-admins")))
def test_administrators_are_told_what_is_so(seed: int) -> None:
    outcome = WORKLOADS["cluster-admins"](seed).outcome()
    assert outcome.failure is None, outcome.failure
    assert outcome.lives > 3


@pytest.mark.parametrize("seed", each_of((10,), kept("cluster-access")))
def test_rights_and_passwords_are_those_of_the_store(seed: int) -> None:
    """Both answers to each question were given often, also while nodes died and were cut off."""
    run = WORKLOADS["cluster-access"](seed)
    assert isinstance(run, ClusteredAccessRun)
    outcome = run.outcome()
    assert outcome.failure is None, outcome.failure
    checked = run.workload.rights.checked
    logins = {said: checked.pop(("logs in with", said)) for said in (True, False)}
    assert min(logins.values()) > 5
    assert len(checked) == 8, "denied, known, may write and may read: yes and no"
    assert min(checked.values()) > 10
