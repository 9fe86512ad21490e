"""Clusters of three and five nodes under every trouble there is: fresh seeds, those that failed once, one trace each.

The longer slice is `make sim SEEDS=200 ARGS="--workload cluster"`.
"""

import pytest

from ottla.sim.workloads.cluster_run import ClusterRun
from tests.sim.test_seeds import kept, printed_under_hash_seeds

FRESH = range(1_000, 1_002)


@pytest.mark.parametrize("seed", [*kept("cluster"), *FRESH])
def test_every_promise_holds(seed: int) -> None:
    outcome = ClusterRun(seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload cluster --seed {seed}"]
    )
    assert outcome.acknowledged + outcome.seen > 10


def test_one_seed_is_one_trace_under_any_hash_seed() -> None:
    script = "from ottla.sim.workloads.cluster_run import ClusterRun; print(ClusterRun(4).outcome().digest)"
    digests = printed_under_hash_seeds(script)
    assert len(digests) == 1, digests
