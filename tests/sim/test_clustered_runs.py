"""Transactions, groups, share groups and administrators on simulated clusters, under every trouble there is: fresh
seeds, those that failed once, one trace each.

The longer slice is `make sim SEEDS=200 ARGS="--workload cluster-transactions"`.
"""

import pytest

from ottla.sim.__main__ import WORKLOADS
from tests.sim.test_seeds import kept, printed_under_hash_seeds

CLUSTERED = ("cluster-transactions", "cluster-groups", "cluster-share")
FRESH = range(1_002, 1_004)


@pytest.mark.parametrize(("workload", "seed"), [(each, seed) for each in CLUSTERED for seed in (*kept(each), *FRESH)])
def test_every_promise_holds(workload: str, seed: int) -> None:
    outcome = WORKLOADS[workload](seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload {workload} --seed {seed}"]
    )
    assert outcome.acknowledged > 50
    assert outcome.seen > 50


@pytest.mark.parametrize("seed", [*kept("cluster-admins"), *FRESH])
def test_administrators_are_told_what_is_so(seed: int) -> None:
    outcome = WORKLOADS["cluster-admins"](seed).outcome()
    assert outcome.failure is None, outcome.failure
    assert outcome.lives > 3


def test_one_seed_is_one_trace_under_any_hash_seed() -> None:
    script = "from ottla.sim.__main__ import WORKLOADS; print(WORKLOADS['cluster-transactions'](4).outcome().digest)"
    digests = printed_under_hash_seeds(script)
    assert len(digests) == 1, digests
