"""Groups of both protocols under every trouble there is: fresh seeds, and those that failed once.

The longer slice is `make sim SEEDS=200 ARGS="--workload groups"`.
"""

import pytest

from ottla.sim.workloads.groups_run import GroupsRun
from tests.sim.test_seeds import each_of, kept

FRESH = range(1_000, 1_002)


@pytest.mark.parametrize("seed", each_of(FRESH, kept("groups")))
def test_every_promise_holds(seed: int) -> None:
    outcome = GroupsRun(seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload groups --seed {seed}"]
    )
    assert outcome.seen
