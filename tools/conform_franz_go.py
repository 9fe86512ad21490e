"""Run franz-go's transactions and groups of both protocols against a node.

    python -m tools.conform_franz_go

Needs Go; its module proxy gives franz-go the first time. What is done stands in tools/franz_go/main.go.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tools.node_process import NodeProcess

PROGRAM = Path(__file__).resolve().parent / "franz_go"
MODES = ((), ("848",))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ottla-franz-go-") as directory:
        binary = Path(directory) / "exactlyonce"
        subprocess.run(["go", "build", "-o", str(binary), "."], cwd=PROGRAM, check=True)
        node = NodeProcess(Path(directory) / "node")
        node.start()
        try:
            codes = [subprocess.run([str(binary), node.bootstrap, *mode]).returncode for mode in MODES]
        finally:
            node.stop()
    return 1 if any(codes) or node.tracebacks else 0


if __name__ == "__main__":
    sys.exit(main())
