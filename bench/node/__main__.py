"""How fast an Ottla node is, and how it stands to a peer when one is given.

    python -m bench.node [--only PATTERN ...] [--quick] [--peer HOST:PORT[,PID]] [--json FILE]
    python -m bench.node --list

Starts a node of its own (its data on /dev/shm where there is one), runs the measurements one after the other, each in
turns on the node and on the peer (A B, B A, ...), and prints per figure the median of the rounds, their spread and the
ratio node / peer. docs/benchmarks.md says how to read it. Loopback only; every wait has an end.
"""

from __future__ import annotations

import sys

from bench.figures import Scale
from bench.measurement import Measurement, measure_nodes, node_parser
from bench.node import latency, life, raw, throughput
from bench.program import first_line

FULL = Scale(seconds=3, rounds=5, warmup=1, partitions=10_000, gigabytes=10)
QUICK = Scale(seconds=0.2, rounds=1, warmup=0, partitions=100, gigabytes=0.1)


def measurements() -> list[Measurement]:
    """Those of a whole run, in its order."""
    named = [find(name) for name in (*throughput.NAMES, *raw.NAMES, *latency.NAMES)]
    return [
        Measurement("memory", "resident memory and open files, idle", life.memory, once=True),
        *(each for each in named if each is not None),
        Measurement("memory-after", "the same after all of the above", life.memory, once=True),
        Measurement("start-process", first_line(life.start_process), on_nodes=life.start_process),
        Measurement("start-embedded", first_line(life.start_embedded), on_nodes=life.start_embedded),
        Measurement("kill-9", first_line(life.kill_under_load), on_nodes=life.kill_under_load),
        Measurement("partitions", first_line(life.many_partitions), life.many_partitions, alone=True, once=True),
        Measurement("restart", first_line(life.full_restart), on_nodes=life.full_restart, once=True),
    ]


def find(name: str) -> Measurement | None:
    """A measurement whose name says what it does, also where a whole run has none of this name."""
    for kind in (throughput.Load, raw.RawLoad, latency.Pace):
        load = kind.named(name)
        if load is not None:
            return Measurement(name, load.describe(), load.measure)
    return None


def main() -> int:
    made = node_parser("bench.node", __doc__, FULL, "the window of a measurement")
    add = made.add_argument
    add("--durability", choices=("page-cache", "fsync"), default="page-cache", help="of the nodes (page-cache)")
    add("--partitions", type=int, help=f"for `partitions`, and at most 1,000 of them for `restart` ({FULL.partitions})")
    add("--gigabytes", type=float, help=f"for `restart` ({FULL.gigabytes:g})")
    options = made.parse_args()
    scale = QUICK if options.quick else FULL
    return measure_nodes(options, measurements(), find, scale, durability=options.durability)


if __name__ == "__main__":
    sys.exit(main())
