"""Run franz-go's transactions and groups of both protocols against a node, and its guess of the node's version.

    python -m tools.conform_franz_go [--nodes 3]

With three nodes there are three copies of everything, and one node after the other is killed with SIGKILL and started
again every few seconds while transactions and groups go on. Fails too when a node logs an error of its own.

Needs Go; its module proxy gives franz-go the first time. What is done stands in tools/franz_go/main.go; the
guess, which kminion and Redpanda Console make as well, in tools/franz_go/guess/main.go.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.killed_nodes import KilledNodes, begin_nodes

PROGRAM = Path(__file__).resolve().parent / "franz_go"
SECONDS = {1: 5, 3: 40}
"""For how long the producer writes, by the number of nodes."""
KILL_EVERY_S = 4.0


def run(command: list[str], nodes: KilledNodes, *, killing: bool) -> int:
    """The exit code of a program; nodes are killed while it runs."""
    process = subprocess.Popen(command)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, choices=tuple(SECONDS), default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-franz-go-") as directory:
        subprocess.run(["go", "build", "-o", f"{directory}/", "./..."], cwd=PROGRAM, check=True)
        nodes = begin_nodes(given.nodes, Path(directory))
        exactly_once = [f"{directory}/exactlyonce", nodes.bootstrap, str(SECONDS[given.nodes])]
        try:
            codes = [run([f"{directory}/guess", nodes.bootstrap.partition(",")[0]], nodes, killing=False)]
            codes += [run([*exactly_once, *words], nodes, killing=given.nodes > 1) for words in ([], ["848"])]
        finally:
            errors = nodes.stop()
    for error in errors:
        print(error)
    return 1 if any(codes) or errors else 0


if __name__ == "__main__":
    sys.exit(main())
