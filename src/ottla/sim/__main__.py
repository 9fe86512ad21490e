"""`python -m ottla.sim`, in a checkout: run seeds, say which failed and how to run them again.

python -m ottla.sim --seeds 200                          seeds 0 to 199 of every workload
python -m ottla.sim --workload share --seeds 50 --from 1000
python -m ottla.sim --workload log --seed 17 --trace     one seed, with every line of its trace
"""

import argparse
import sys
import time
from collections.abc import Sequence

from ottla.sim.workloads.cluster_run import ClusterRun
from ottla.sim.workloads.clustered_access import ClusteredAccessRun
from ottla.sim.workloads.clustered_admins import ClusteredAdminsRun
from ottla.sim.workloads.clustered_groups import ClusteredGroupsRun
from ottla.sim.workloads.clustered_run import ClusteredRun
from ottla.sim.workloads.clustered_share import ClusteredShareRun
from ottla.sim.workloads.clustered_transactions import ClusteredTransactionsRun
from ottla.sim.workloads.groups_run import GroupsRun
from ottla.sim.workloads.run import Run, SeedResult
from ottla.sim.workloads.share_run import ShareRun
from ottla.sim.workloads.spoiled_clients import SpoiledShareRun, SpoiledTransactionsRun
from ottla.sim.workloads.spoiled_run import SpoiledRun
from ottla.sim.workloads.transactions_run import TransactionsRun

WORKLOADS: dict[str, type[Run] | type[ClusterRun] | type[ClusteredRun]] = {
    "log": Run,
    "share": ShareRun,
    "transactions": TransactionsRun,
    "groups": GroupsRun,
    "cluster": ClusterRun,
    "spoiled": SpoiledRun,
    "cluster-transactions": ClusteredTransactionsRun,
    "cluster-groups": ClusteredGroupsRun,
    "cluster-share": ClusteredShareRun,
    "cluster-admins": ClusteredAdminsRun,
    "cluster-access": ClusteredAccessRun,
    "spoiled-transactions": SpoiledTransactionsRun,
    "spoiled-share": SpoiledShareRun,
}
TAIL_LINES = 30


def main(arguments: list[str] | None = None) -> int:
    """0: every seed passed. 1: some failed. Failures are printed as they occur."""
    parser = argparse.ArgumentParser(prog="python -m ottla.sim", description="Run the node in a simulated world.")
    parser.add_argument("--workload", choices=WORKLOADS, default=None, help="which one to run (all of them)")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many seeds to run (100)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="the first of them (0)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="print every line of the trace")
    asked = parser.parse_args(arguments)
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    workloads = WORKLOADS if asked.workload is None else [asked.workload]
    passed = [_run_seeds(workload, seeds, traced=asked.trace) for workload in workloads]
    return 0 if all(passed) else 1


def _run_seeds(workload: str, seeds: Sequence[int], *, traced: bool) -> bool:
    """Run these seeds of one workload; whether all of them passed."""
    began = time.monotonic()
    failed: list[int] = []
    lives = acknowledged = deliveries = transactions = simulated_ms = 0
    outcome: SeedResult | None = None
    for seed in seeds:
        outcome = WORKLOADS[workload](seed, keep_all=traced).outcome()
        lives += outcome.lives
        acknowledged += outcome.acknowledged
        deliveries += outcome.deliveries
        transactions += outcome.transactions
        simulated_ms += outcome.simulated_ms
        if traced:
            print(*outcome.lines, sep="\n")
        if outcome.failure is not None:
            failed.append(seed)
            _tell(workload, outcome, traced=traced)
    seconds = time.monotonic() - began
    delivered = f", {deliveries} delivered to share groups" if deliveries else ""
    committed = f", {transactions} transactions committed" if transactions else ""
    print(
        f"{workload}: {len(seeds)} seeds, {len(failed)} failed; {lives} lives of the node, {acknowledged} records "
        f"acknowledged{delivered}{committed}, {simulated_ms // 1000} s simulated in {seconds:.1f} s "
        f"({1000 * seconds / max(1, len(seeds)):.0f} ms a seed)"
    )
    if outcome is not None and len(seeds) == 1:
        print(f"trace {outcome.digest}, {outcome.events} events")
    if failed:
        print(f"failed: {' '.join(map(str, failed))}")
    return not failed


def _tell(workload: str, outcome: SeedResult, *, traced: bool) -> None:
    print(f"\nseed {outcome.seed} FAILED: {outcome.failure}")
    if not traced:
        print(*list(outcome.lines)[-TAIL_LINES:], sep="\n")
    print(f"again: python -m ottla.sim --workload {workload} --seed {outcome.seed} --trace\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
