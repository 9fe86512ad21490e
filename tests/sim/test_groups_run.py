"""Groups of both protocols under every trouble there is: fresh seeds, those that failed once, one trace each.

The longer slice is `make sim SEEDS=200 ARGS="--workload groups"`.
"""

import os
import subprocess
import sys

import pytest

from ottla.sim.workloads.groups_run import GroupsRun
from tests.sim.test_seeds import kept

FRESH = range(1_000, 1_003)


@pytest.mark.parametrize("seed", [*kept("groups"), *FRESH])
def test_every_promise_holds(seed: int) -> None:
    outcome = GroupsRun(seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload groups --seed {seed}"]
    )
    assert outcome.seen


def test_hashes_of_text_change_nothing() -> None:
    digests: set[str] = set()
    for hash_seed in ("1", "2"):
        code = "from ottla.sim.workloads.groups_run import GroupsRun; print(GroupsRun(4).outcome().digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1
