"""Run franz-go's transactions and groups of both protocols against a node, and its guess of the node's version.

    python -m tools.conform_franz_go [--nodes 3] [--suite CHECKOUT]

With three nodes there are three copies of everything, and one node after the other is killed with SIGKILL and started
again every few seconds while transactions and groups go on. Fails too when a node logs an error of its own.

--suite is a checkout of franz-go, whose ETL tests then run too. Nodes are killed only during the share group test:
the others fail with any error that a poll returns, such as a connection refused by a node that is starting.

Needs Go; its module proxy gives franz-go the first time. What is done stands in tools/franz_go/main.go; the
guess, which kminion and Redpanda Console make as well, in tools/franz_go/guess/main.go.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.killed_nodes import KilledNodes, begin_nodes

PROGRAM = Path(__file__).resolve().parent / "franz_go"
SECONDS = {1: 5, 3: 40}
"""For how long the producer writes, by the number of nodes."""
KILL_EVERY_S = 4.0
SUITE = {"TestTxnEtl": False, "TestGroupETL": False, "TestShareGroupETL": True}
"""The tests of franz-go's own, and whether they bear that nodes are killed."""
SUITE_RECORDS = 50_000


def run(command: list[str], nodes: KilledNodes, *, killing: bool, environment: Mapping[str, str] | None = None) -> int:
    """The exit code of a program; nodes are killed while it runs."""
    process = subprocess.Popen(command, env=os.environ | dict(environment or {}))
    kills = 0
    try:
        while killing and process.poll() is None:
            nodes.kill(away_s=0.0)
            kills += 1
            time.sleep(KILL_EVERY_S)
        if kills:
            print(f"{kills} times a node was killed and came back in sync", flush=True)
        return process.wait()
    finally:
        process.kill()  # where a node did not come back


def own_tests(suite: str, nodes: KilledNodes, count: int) -> Iterator[int]:
    """Yields the exit code of each test of SUITE, undisturbed and, where it bears that, while nodes are killed."""
    environment = {
        "KGO_SEEDS": nodes.bootstrap,
        "KGO_TEST_RF": str(count),
        "KGO_TEST_RECORDS": str(SUITE_RECORDS),
        "KGO_LOG_LEVEL": "none",
    }
    for test, bears_kills in SUITE.items():
        command = [suite, "-test.run", f"^{test}$", "-test.timeout", "15m"]
        for killing in (False, True) if bears_kills and count > 1 else (False,):
            code = run(command, nodes, killing=killing, environment=environment)
            print(f"{test}{' while nodes are killed' if killing else ''}: {'FAILED' if code else 'passed'}", flush=True)
            yield code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, choices=tuple(SECONDS), default=1)
    parser.add_argument("--suite", metavar="CHECKOUT", help="run franz-go's own ETL tests too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-franz-go-") as directory:
        subprocess.run(["go", "build", "-o", f"{directory}/", "./..."], cwd=PROGRAM, check=True)
        if given.suite:
            subprocess.run(["go", "test", "-c", "-o", f"{directory}/suite", "./pkg/kgo"], cwd=given.suite, check=True)
        nodes = begin_nodes(given.nodes, Path(directory))
        exactly_once = [f"{directory}/exactlyonce", nodes.bootstrap, str(SECONDS[given.nodes])]
        try:
            codes = [run([f"{directory}/guess", nodes.bootstrap.partition(",")[0]], nodes, killing=False)]
            codes += [run([*exactly_once, *words], nodes, killing=given.nodes > 1) for words in ([], ["848"])]
            if given.suite:
                codes += list(own_tests(f"{directory}/suite", nodes, given.nodes))
        finally:
            errors = nodes.stop()
    for error in errors:
        print(error)
    return 1 if any(codes) or errors else 0


if __name__ == "__main__":
    sys.exit(main())
