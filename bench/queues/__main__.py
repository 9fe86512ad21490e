"""How fast queues are on an Ottla node: share groups, workers, records in flight, back-off, KMQ, and other queues.

    python -m bench.queues [--only PATTERN ...] [--quick] [--peer HOST:PORT[,PID]] [--json FILE]
    python -m bench.queues --list

Works as bench.node does: a node of its own, rounds in turns with a peer, medians with their spread. Below a table
stand the floors that its figures have to meet. docs/benchmarks.md says how to read it.
"""

from __future__ import annotations

import sys

from bench.figures import Scale
from bench.measurement import Measurement, measure_nodes, node_parser
from bench.program import Floor
from bench.queues import groups, kmq, others, window, workers

FULL, FULL_RECORDS = Scale(seconds=2, rounds=3, warmup=1, partitions=1, gigabytes=0), 1_000_000
QUICK, QUICK_RECORDS = Scale(seconds=0.1, rounds=1, warmup=0, partitions=1, gigabytes=0), 10_000
MESSAGES_PER_S = 10_000
"""How much the other queues get per second of a window: about what their clients in Python take."""


FLOORS = (
    *(Floor("workers-5ms-1p", f"{n} workers of linear /s", least=0.9) for n in workers.WORKERS[1:]),
    Floor("in-flight", "resident in flight MB", most=200),
    Floor("in-flight", "acknowledge many / few", most=1.5),
    Floor("kmq-throughput", "kmq / plain /s", least=0.2),
    Floor("kmq-work-1ms", "kmq / plain /s", least=0.95),
    Floor("kmq-latency-500", "kmq added p95 ms", most=100),
)


def measurements(records: int, servers: others.Others) -> list[Measurement]:
    """Those of a whole run, in its order."""
    named = [find(name) for name in (*groups.NAMES, *workers.NAMES)]
    said = f"{records:,} records in flight in one group: memory, and one acknowledgement in the middle"
    waits = f"{records:,} released records on back-off: memory and CPU while they wait and when they are due"
    return [
        *(each for each in named if each is not None),
        Measurement("in-flight", said, on_nodes=lambda nodes, _: window.in_flight(nodes, records), once=True),
        Measurement("back-off", waits, on_nodes=lambda nodes, _: window.back_off(nodes, records), once=True),
        *(each for each in map(find, kmq.NAMES) if each is not None),
        Measurement("others", others.describe(), lambda broker, scale: servers.measure(broker, messages(scale))),
    ]


def messages(scale: Scale) -> int:
    """How many the other queues get in a round."""
    return max(1_000, int(MESSAGES_PER_S * scale.seconds))


def find(name: str) -> Measurement | None:
    """A measurement whose name says what it does, also where a whole run has none of this name."""
    for kind in (groups.GroupLoad, groups.GroupPace, workers.Work, kmq.QueueLoad):
        load = kind.named(name)
        if load is not None:
            return Measurement(name, load.describe(), load.measure)
    return None


def main() -> int:
    made = node_parser("bench.queues", __doc__, FULL, "about the length of a measurement")
    made.add_argument("--records", type=int, help=f"for `in-flight` and `back-off` ({FULL_RECORDS:,})")
    options = made.parse_args()
    records = options.records or (QUICK_RECORDS if options.quick else FULL_RECORDS)
    servers = others.Others(options.data)
    try:
        scale = QUICK if options.quick else FULL
        return measure_nodes(options, measurements(records, servers), find, scale, floors=FLOORS)
    finally:
        servers.close()


if __name__ == "__main__":
    sys.exit(main())
