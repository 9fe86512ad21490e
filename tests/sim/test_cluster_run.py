"""Clusters of three and five nodes under every trouble there is: fresh seeds, and those that failed once.

The longer slice is `make sim SEEDS=200 ARGS="--workload cluster"`.
"""

import pytest

from ottla.log import cost
from ottla.sim.workloads.cluster_run import ClusterRun
from tests.sim.test_seeds import each_of, kept

FRESH = (1_000,)


@pytest.mark.parametrize("seed", each_of(FRESH, kept("cluster")))
def test_every_promise_holds(seed: int) -> None:
    outcome = ClusterRun(seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload cluster --seed {seed}"]
    )
    assert outcome.acknowledged + outcome.seen > 10


def test_every_promise_holds_if_each_slice_is_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas of these topics would follow the metadata in one slice otherwise."""
    monkeypatch.setattr(cost, "SLICE_US", 0)
    outcome = ClusterRun(FRESH[0]).outcome()
    assert outcome.failure is None, "\n".join(list(outcome.lines)[-20:])
