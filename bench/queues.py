"""How fast queues are on an Ottla node: share groups, workers, records in flight, back-off, KMQ, and other queues.

    python bench/queues.py [--only PATTERN ...] [--quick] [--peer HOST:PORT[,PID]] [--json FILE]
    python bench/queues.py --list

Works as bench/run.py does: a node of its own, rounds in turns with a peer, medians with their spread. Below a table
stand the floors that its figures have to meet. docs/benchmarks.md says how to read it.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import kmq
import queue_groups
import queue_others
import queue_window
import queue_workers
from brokers import BenchFailed, Broker, Nodes
from confluent_kafka import KafkaException
from figures import Rounds, Scale, number, table
from machine import machine, machine_line
from run import Bench, Measurement

from ottla.client import ClientFailure

FULL, FULL_RECORDS = Scale(seconds=2, rounds=3, warmup=1, partitions=1, gigabytes=0), 1_000_000
QUICK, QUICK_RECORDS = Scale(seconds=0.1, rounds=1, warmup=0, partitions=1, gigabytes=0), 10_000
MESSAGES_PER_S = 10_000
"""How much the other queues get per second of a window: about what their clients in Python take."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What the median of a figure has to be: at least `least`, at most `most`."""

    measurement: str
    figure: str
    least: float | None = None
    most: float | None = None

    def verdict(self, rounds: Rounds) -> str | None:
        """A line for people; None where the figure was not measured."""
        values = [figures[self.figure] for figures in rounds["ottla"] if self.figure in figures]
        if not values:
            return None
        value = statistics.median(values)
        met = (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        asked = f"at least {number(self.least)}" if self.least is not None else f"at most {number(self.most or 0)}"
        return f"  floor {'met' if met else 'MISSED'}: {self.figure} {number(value)}, asked {asked}"


FLOORS = (
    *(Floor("workers-5ms-1p", f"{n} workers of linear /s", least=0.9) for n in queue_workers.WORKERS[1:]),
    Floor("in-flight", "resident in flight MB", most=200),
    Floor("in-flight", "acknowledge many / few", most=1.5),
    Floor("kmq-throughput", "kmq / plain /s", least=0.2),
    Floor("kmq-work-1ms", "kmq / plain /s", least=0.95),
    Floor("kmq-latency-500", "kmq added p95 ms", most=100),
)


def measurements(records: int, others: queue_others.Others | None = None) -> list[Measurement]:
    """Those of a whole run, in its order."""
    named = [find(name) for name in (*queue_groups.NAMES, *queue_workers.NAMES)]
    said = f"{records:,} records in flight in one group: memory, and one acknowledgement in the middle"
    waits = f"{records:,} released records on back-off: memory and CPU while they wait and when they are due"
    return [
        *(each for each in named if each is not None),
        Measurement("in-flight", said, on_nodes=lambda nodes, _: queue_window.in_flight(nodes, records), once=True),
        Measurement("back-off", waits, on_nodes=lambda nodes, _: queue_window.back_off(nodes, records), once=True),
        *(each for each in map(find, kmq.NAMES) if each is not None),
        Measurement(
            "others",
            queue_others.describe(),
            on_broker=lambda broker, scale: beside(others, broker, max(1_000, int(MESSAGES_PER_S * scale.seconds))),
        ),
    ]


def beside(others: queue_others.Others | None, broker: Broker, count: int) -> dict[str, float]:
    assert others is not None
    return others.measure(broker, count)


def find(name: str) -> Measurement | None:
    """A measurement whose name says what it does, also where a whole run has none of this name."""
    for kind in (queue_groups.GroupLoad, queue_groups.GroupPace, queue_workers.Work, kmq.QueueLoad):
        load = kind.named(name)
        if load is not None:
            return Measurement(name, load.describe(), load.measure)
    return None


def chosen(patterns: list[str], every: list[Measurement]) -> list[Measurement]:
    """What `--only` asks for, in the order given. Raises BenchFailed for a name that means nothing."""
    picked: dict[str, Measurement] = {}
    for pattern in patterns:
        found = [each for each in every if fnmatch.fnmatchcase(each.name, pattern)]
        if not found and (made := find(pattern)) is not None:
            found = [made]
        if not found:
            raise BenchFailed(f"No measurement is called {pattern!r}; see --list.")
        picked |= {each.name: each for each in found}
    return list(picked.values())


def main() -> int:
    options = parser().parse_args()
    records = options.records or (QUICK_RECORDS if options.quick else FULL_RECORDS)
    if options.list:
        for each in measurements(records):
            print(f"{each.name:<20} {each.says}")
        return 0
    try:
        chosen(options.only, measurements(records))
        given = Broker.parse("ottla", options.node) if options.node else None
        peer = Broker.parse("peer", options.peer) if options.peer else None
    except BenchFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    nodes = Nodes(options.data, "page-cache")
    others = queue_others.Others(nodes.base / "others")
    try:
        return run(
            Bench(nodes, scale_of(options), given, peer), chosen(options.only, measurements(records, others)), options
        )
    except KeyboardInterrupt:
        return 130
    finally:
        others.close()
        nodes.close()


def run(bench: Bench, picked: list[Measurement], options: argparse.Namespace) -> int:
    """Measure and print; 1 where a measurement could not be made. A missed floor is told, not an error."""
    scale = bench.scale
    print(machine_line())
    print(f"{scale.rounds} rounds of about {scale.seconds:g} s after {scale.warmup} that do not count")
    print("median [lowest to highest]; of two brokers also the ratio ottla / peer, round by round", flush=True)
    results: dict[str, Rounds] = {}
    failures: dict[str, str] = {}
    verdicts: dict[str, list[str]] = {}
    for measurement in picked:
        name = measurement.name
        print(f"\n{name}: {measurement.says}{' (once)' if measurement.once else ''}", flush=True)
        try:
            results[name] = rounds = bench.measure(measurement)
        except (BenchFailed, ClientFailure, KafkaException) as failure:
            failures[name] = str(failure)
            print(f"  not measured: {failure}", flush=True)
            continue
        found = [floor.verdict(rounds) for floor in FLOORS if floor.measurement == name]
        verdicts[name] = [verdict.strip() for verdict in found if verdict]
        print("\n".join([*table(rounds), *(verdict for verdict in found if verdict)]), flush=True)
    if options.json:
        document = {"machine": machine(), "results": results, "floors": verdicts, "failures": failures}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failures else 0


def scale_of(options: argparse.Namespace) -> Scale:
    base = QUICK if options.quick else FULL
    return Scale(
        seconds=base.seconds if options.seconds is None else options.seconds,
        rounds=base.rounds if options.rounds is None else options.rounds,
        warmup=base.warmup if options.warmup is None else options.warmup,
        partitions=base.partitions,
        gigabytes=base.gigabytes,
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--only", metavar="PATTERN", nargs="+", default=["*"], help="by name, or shell patterns of names: 'workers-*'")
    add("--list", action="store_true", help="the names and what they measure")
    add("--quick", action="store_true", help="does it run: one short round of everything; no figures to believe")
    add("--peer", metavar="HOST:PORT[,PID]", help="a broker to measure in turns; CPU with its process id")
    add("--node", metavar="HOST:PORT[,PID]", help="measure this running node where that is enough, start none")
    add("--data", metavar="DIR", help="where the nodes' data is kept (/dev/shm, else a temporary directory)")
    add("--seconds", type=float, help=f"about the length of a measurement ({FULL.seconds:g})")
    add("--rounds", type=int, help=f"rounds that count ({FULL.rounds})")
    add("--warmup", type=int, help=f"rounds before them ({FULL.warmup})")
    add("--records", type=int, help=f"for `in-flight` and `back-off` ({FULL_RECORDS:,})")
    add("--json", metavar="FILE", help="also write every round's figures to this file")
    return made


if __name__ == "__main__":
    sys.exit(main())
