"""Transactions under every trouble there is: fresh seeds, those that failed once, one trace each.

The longer slice is `make sim SEEDS=200 ARGS="--workload transactions"`.
"""

import os
import subprocess
import sys

import pytest

from ottla.sim.workloads.transactions_run import TransactionsRun
from tests.sim.test_seeds import kept

FRESH = range(1_000, 1_003)


@pytest.mark.parametrize("seed", [*kept("transactions"), *FRESH])
def test_every_promise_holds(seed: int) -> None:
    outcome = TransactionsRun(seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload transactions --seed {seed}"]
    )
    assert outcome.transactions


def test_hashes_of_text_change_nothing() -> None:
    digests: set[str] = set()
    for hash_seed in ("1", "2"):
        code = "from ottla.sim.workloads.transactions_run import TransactionsRun as R; print(R(4).outcome().digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1
