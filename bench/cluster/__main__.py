"""What a cluster of three nodes on this machine costs and how soon it goes on, and how that grows.

    python -m bench.cluster [--only PATTERN ...] [--quick] [--partitions N] [--simulated N] [--kafka DIR] [--json FILE]

Starts nodes of its own with `ottla cluster start`, their data on /dev/shm where there is one. docs/benchmarks.md says
how to read it. Loopback only; every wait has an end.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from bench.cluster import growth, kafka, life, spread
from bench.figures import Scale
from bench.measurement import Measurement, measure_nodes, node_parser
from bench.program import first_line

FULL = Scale(seconds=3, rounds=3, warmup=0, partitions=10_000, gigabytes=0)
QUICK = Scale(seconds=0.2, rounds=1, warmup=0, partitions=100, gigabytes=0)
FULL_SIMULATED, QUICK_SIMULATED = 100_000, 1_000


def measurements(simulated: int, tools: Path | None) -> list[Measurement]:
    """Those of a whole run, in its order. `tools`: where kafka-peer is."""
    grows = first_line(growth.growth)
    beside = None if tools is None else partial(kafka.start, tools)
    return [
        Measurement("start", first_line(life.start), on_nodes=life.start, on_peer=beside),
        Measurement("failover", first_line(life.failover), on_nodes=life.failover),
        Measurement("spread", first_line(spread.spread), on_nodes=spread.spread),
        Measurement("partitions", first_line(life.partitions), on_nodes=life.partitions, once=True),
        Measurement("growth", grows, on_nodes=lambda _, __: growth.growth(simulated), once=True),
    ]


def main() -> int:
    made = node_parser("bench.cluster", __doc__, FULL, "how long a leader is under load before it is stopped")
    made.add_argument("--partitions", type=int, help=f"for `partitions` ({FULL.partitions:,})")
    made.add_argument("--simulated", type=int, help=f"partitions for `growth` ({FULL_SIMULATED:,})")
    made.add_argument(
        "--kafka", metavar="DIR", type=Path, help="where kafka-peer is: `start` beside three of its nodes"
    )
    options = made.parse_args()
    simulated = options.simulated or (QUICK_SIMULATED if options.quick else FULL_SIMULATED)
    return measure_nodes(
        options, measurements(simulated, options.kafka), lambda _: None, QUICK if options.quick else FULL
    )


if __name__ == "__main__":
    sys.exit(main())
