"""Sends damaged logins to a node until it breaks, or until the time is over.

    python -m tools.fuzz_login [--visits 20000] [--seed N]

Each visit is that of a client without a password (`tests/harness/server/strangers.py`). It ends with 1 if the
node has told one of them something, has logged an error, is gone, or takes more memory than `--memory-mb` above its
start.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.server.strangers import Strangers, guarded_node, recorded_login


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--memory-mb", type=int, default=64)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as folder, guarded_node(Path(folder)) as (node, certificate):
        tokens = recorded_login(node.ports["SASL"])
        before = node.resident_bytes
        strangers = Strangers(given.seed, node.ports["SASL"], node.ports["TLS"], certificate, tokens)
        for number in range(given.visits):
            strangers.visit()
            if number % 1_000 == 999:
                print(f"{number + 1} visits, {(node.resident_bytes - before) >> 20} MiB more", flush=True)
        recorded_login(node.ports["SASL"])
        said = node.said()
        grown = (node.resident_bytes_max - before) >> 20
    faults = [line for line in said.splitlines() if "Traceback" in line or '"ERROR"' in line]
    print(f"{given.visits} visits, {grown} MiB more at most, {len(faults)} errors in the log")
    print("\n".join(faults[:5]))
    return 1 if faults or grown > given.memory_mb else 0


if __name__ == "__main__":
    sys.exit(main())
