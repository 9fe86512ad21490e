"""`python -m ottla.sim`: run seeds, say which failed and how to run them again.

python -m ottla.sim --seeds 200            seeds 0 to 199
python -m ottla.sim --seeds 50 --from 1000
python -m ottla.sim --seed 17 --trace      one seed, with every line of its trace
"""

import argparse
import sys
import time

from ottla.sim.run import Outcome, run_seed

TAIL_LINES = 30


def main(arguments: list[str] | None = None) -> int:
    """0: every seed passed. 1: some failed. Failures are told as they come."""
    parser = argparse.ArgumentParser(prog="python -m ottla.sim", description="Run the node in a simulated world.")
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many seeds to run (100)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="the first of them (0)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="print every line of the trace")
    asked = parser.parse_args(arguments)
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    began = time.monotonic()
    failed: list[int] = []
    lives = acknowledged = simulated_ms = 0
    outcome: Outcome | None = None
    for seed in seeds:
        outcome = run_seed(seed, keep_all=asked.trace)
        lives += outcome.lives
        acknowledged += outcome.acknowledged
        simulated_ms += outcome.simulated_ms
        if asked.trace:
            print(*outcome.lines, sep="\n")
        if outcome.failure is not None:
            failed.append(seed)
            _tell(outcome, traced=asked.trace)
    seconds = time.monotonic() - began
    count = len(seeds)
    print(
        f"{count} seeds, {len(failed)} failed; {lives} lives of the node, {acknowledged} records acknowledged, "
        f"{simulated_ms // 1000} s simulated in {seconds:.1f} s ({1000 * seconds / count:.0f} ms a seed)"
    )
    if outcome is not None and count == 1:
        print(f"trace {outcome.digest}, {outcome.events} events")
    if failed:
        print(f"failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


def _tell(outcome: Outcome, *, traced: bool) -> None:
    print(f"\nseed {outcome.seed} FAILED: {outcome.failure}")
    if not traced:
        print(*list(outcome.lines)[-TAIL_LINES:], sep="\n")
    print(f"again: python -m ottla.sim --seed {outcome.seed} --trace\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
