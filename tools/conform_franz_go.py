"""Run franz-go's transactions and groups of both protocols against a node, and its guess of the node's version.

    python -m tools.conform_franz_go

Needs Go; its module proxy gives franz-go the first time. What is done stands in tools/franz_go/main.go; the
guess, which kminion and Redpanda Console make as well, in tools/franz_go/guess/main.go.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools.node_process import NodeProcess

PROGRAM = Path(__file__).resolve().parent / "franz_go"
RUNS = (("guess",), ("exactlyonce",), ("exactlyonce", "848"))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ottla-franz-go-") as directory:
        subprocess.run(["go", "build", "-o", f"{directory}/", "./..."], cwd=PROGRAM, check=True)
        node = NodeProcess(Path(directory) / "node")
        node.start()
        try:
            codes = [
                subprocess.run([f"{directory}/{words[0]}", node.bootstrap, *words[1:]]).returncode for words in RUNS
            ]
        finally:
            node.stop()
    return 1 if any(codes) or node.tracebacks else 0


if __name__ == "__main__":
    sys.exit(main())
