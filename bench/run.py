"""How fast an Ottla node is, and how it stands to a peer when one is given.

    python bench/run.py [--only PATTERN ...] [--quick] [--peer HOST:PORT[,PID]] [--json FILE]
    python bench/run.py --list

Starts a node of its own (its data on /dev/shm where there is one), runs the measurements one after the other, each in
turns on the node and on the peer (A B, B A, ...), and prints per figure the median of the rounds, their spread and the
ratio node / peer. docs/benchmarks.md says how to read it. Loopback only; every wait has an end.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import latency
import life
import raw
import throughput
from brokers import BenchFailed, Broker, Nodes, OttlaNode
from confluent_kafka import KafkaException
from figures import Figures, Rounds, Scale, measure_in_turns, table
from machine import machine, machine_line

from ottla.client import ClientFailure

FULL = Scale(seconds=3, rounds=5, warmup=1, partitions=10_000, gigabytes=10)
QUICK = Scale(seconds=0.2, rounds=1, warmup=0, partitions=100, gigabytes=0.1)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing that can be asked for by name.

    `on_broker` runs on any broker, in turns; with `alone` our side of it is a fresh node instead of the one that the
    others share, and there is one round only. `on_nodes` makes its own nodes: a peer has no part in it.
    """

    name: str
    says: str
    on_broker: Callable[[Broker, Scale], Figures] | None = None
    on_nodes: Callable[[Nodes, Scale], Figures] | None = None
    alone: bool = False
    once: bool = False


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


def chosen(patterns: list[str]) -> list[Measurement]:
    """What `--only` asks for, in the order of a whole run. Raises BenchFailed for a name that means nothing."""
    every = measurements()
    picked: dict[str, Measurement] = {}
    for pattern in patterns:
        found = [each for each in every if fnmatch.fnmatchcase(each.name, pattern)]
        made = None if found else find(pattern)
        if not found and made is None:
            raise BenchFailed(f"No measurement is called {pattern!r}; see --list.")
        picked |= {each.name: each for each in ([made] if made else found)}
    order = [each.name for each in every]
    return sorted(picked.values(), key=lambda each: order.index(each.name) if each.name in order else len(order))


class Bench:
    """One run: the node that most measurements share, started when it is first needed, and the peer."""

    def __init__(self, nodes: Nodes, scale: Scale, given: Broker | None, peer: Broker | None) -> None:
        self.nodes = nodes
        self.scale = scale
        self.given = given
        self.peer = peer
        self._shared: OttlaNode | None = None

    def measure(self, measurement: Measurement) -> Rounds:
        """Raises BenchFailed, ClientFailure and KafkaException."""
        scale = self.scale
        if measurement.once:
            scale = Scale(scale.seconds, 1, 0, scale.partitions, scale.gigabytes)
        if measurement.on_nodes is not None:
            figures = [measurement.on_nodes(self.nodes, scale) for _ in range(scale.warmup + scale.rounds)]
            return {"ottla": figures[scale.warmup :]}
        assert measurement.on_broker is not None
        with self._ours(measurement.alone) as ours:
            brokers = [ours] if self.peer is None else [ours, self.peer]
            return measure_in_turns(brokers, scale, measurement.on_broker)

    @contextlib.contextmanager
    def _ours(self, alone: bool) -> Iterator[Broker]:
        if self.given is not None:
            yield self.given
        elif alone:
            with self.nodes.running() as node:
                yield node
        else:
            if self._shared is None:
                self._shared = self.nodes.make()
                self._shared.start()
            yield self._shared


def main() -> int:
    options = parser().parse_args()
    if options.list:
        for each in measurements():
            print(f"{each.name:<36} {each.says}")
        return 0
    try:
        picked = chosen(options.only) if options.only else measurements()
        given = Broker.parse("ottla", options.node) if options.node else None
        peer = Broker.parse("peer", options.peer) if options.peer else None
    except BenchFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    nodes = Nodes(options.data, options.durability)
    try:
        return run(Bench(nodes, scale_of(options), given, peer), picked, options)
    except KeyboardInterrupt:
        return 130
    finally:
        nodes.close()


def run(bench: Bench, picked: list[Measurement], options: argparse.Namespace) -> int:
    """Measure and print; 1 where a measurement could not be made."""
    scale = bench.scale
    where = f"node at {options.node}" if options.node else f"data on {bench.nodes.base.parent}, {options.durability}"
    print(machine_line())
    print(f"{where}; {scale.rounds} rounds of {scale.seconds:g} s after {scale.warmup} that do not count")
    print("median [lowest to highest]; of two brokers also the ratio ottla / peer, round by round", flush=True)
    results: dict[str, Rounds] = {}
    failures: dict[str, str] = {}
    for measurement in picked:
        print(f"\n{measurement.name}: {measurement.says}{' (once)' if measurement.once else ''}", flush=True)
        try:
            results[measurement.name] = rounds = bench.measure(measurement)
        except (BenchFailed, ClientFailure, KafkaException) as failure:
            failures[measurement.name] = str(failure)
            print(f"  not measured: {failure}", flush=True)
        else:
            print("\n".join(table(rounds)), flush=True)
    if options.json:
        document = {"machine": machine(), "durability": options.durability, "results": results, "failures": failures}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failures else 0


def scale_of(options: argparse.Namespace) -> Scale:
    base = QUICK if options.quick else FULL
    return Scale(
        seconds=base.seconds if options.seconds is None else options.seconds,
        rounds=base.rounds if options.rounds is None else options.rounds,
        warmup=base.warmup if options.warmup is None else options.warmup,
        partitions=base.partitions if options.partitions is None else options.partitions,
        gigabytes=base.gigabytes if options.gigabytes is None else options.gigabytes,
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--only", metavar="PATTERN", nargs="+", help="measurements by name, or shell patterns of names: 'raw-*'")
    add("--list", action="store_true", help="the names and what they measure")
    add("--quick", action="store_true", help="does it run: one short round of everything; no figures to believe")
    add("--peer", metavar="HOST:PORT[,PID]", help="a broker to measure in turns; CPU and memory with its process id")
    add("--node", metavar="HOST:PORT[,PID]", help="measure this running node where that is enough, start none")
    add("--data", metavar="DIR", help="where the nodes' data is kept (/dev/shm, else a temporary directory)")
    add("--durability", choices=("page-cache", "fsync"), default="page-cache", help="of the nodes (page-cache)")
    add("--seconds", type=float, help=f"the window of a measurement ({FULL.seconds:g})")
    add("--rounds", type=int, help=f"rounds that count ({FULL.rounds})")
    add("--warmup", type=int, help=f"rounds before them ({FULL.warmup})")
    add("--partitions", type=int, help=f"for `partitions`, and at most 1,000 of them for `restart` ({FULL.partitions})")
    add("--gigabytes", type=float, help=f"for `restart` ({FULL.gigabytes:g})")
    add("--json", metavar="FILE", help="also write every round's figures to this file")
    return made


def first_line(function: Callable[..., object]) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((function.__doc__ or "").split())
    return text.partition(". ")[0].partition("; ")[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
