"""Measurements of a node: on a broker, in turns with a peer, or on nodes of their own. What `node` and `queues` run."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from bench.brokers import Broker, Nodes, OttlaNode, default_data
from bench.figures import Figures, Rounds, Scale, measure_in_turns
from bench.program import Floor, in_words, main, parser, scaled


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing that can be asked for by name.

    `on_broker` runs on any broker, in turns; with `alone` our side of it is a fresh node instead of the one that the
    others share, and there is one round only. `on_nodes` makes its own nodes: a peer has no part in it, but one that
    `on_peer` starts, in turns.
    """

    name: str
    about: str
    on_broker: Callable[[Broker, Scale], Figures] | None = None
    on_nodes: Callable[[Nodes, Scale], Figures] | None = None
    on_peer: Callable[[Nodes, Scale], Figures] | None = None
    alone: bool = False
    once: bool = False

    @property
    def says(self) -> str:
        return f"{self.about}{' (once)' if self.once else ''}"


class Bench:
    """One run: the node that most measurements share, started when it is first needed, and the peer."""

    def __init__(self, nodes: Nodes, scale: Scale, given: Broker | None, peer: Broker | None) -> None:
        self.nodes = nodes
        self.scale = scale
        self.given = given
        self.peer = peer
        self._shared: OttlaNode | None = None

    def measure(self, measurement: Measurement) -> Rounds:
        """Raises BenchFailedError, ClientError and KafkaException."""
        scale = self.scale
        if measurement.once:
            scale = Scale(scale.seconds, 1, 0, scale.partitions, scale.gigabytes)
        if measurement.on_nodes is not None:
            sides = {"ottla": measurement.on_nodes, "peer": measurement.on_peer}
            return measure_in_turns(
                {name: partial(run, self.nodes, scale) for name, run in sides.items() if run}, scale
            )
        assert measurement.on_broker is not None
        with self._ours(measurement.alone) as ours:
            brokers = [ours] if self.peer is None else [ours, self.peer]
            sides = {broker.name: partial(measurement.on_broker, broker, scale) for broker in brokers}
            return measure_in_turns(sides, scale)

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


def node_parser(program: str, text: str | None, full: Scale, seconds: str) -> argparse.ArgumentParser:
    """The options of a program that measures nodes."""
    made = parser(program, text, full, seconds=seconds)
    add = made.add_argument
    add("--peer", metavar="HOST:PORT[,PID]", help="a broker to measure in turns; CPU and memory with its process id")
    add("--node", metavar="HOST:PORT[,PID]", help="measure this running node where that is enough, start none")
    return made


def measure_nodes(
    options: argparse.Namespace,
    every: Sequence[Measurement],
    find: Callable[[str], Measurement | None],
    base: Scale,
    *,
    durability: str = "page-cache",
    floors: Sequence[Floor] = (),
) -> int:
    """Do what the options ask for; the exit code."""
    scale = scaled(base, options)
    where = f"node at {options.node}" if options.node else f"data on {options.data or default_data()}, {durability}"
    heading = f"{where}; {in_words(scale)}; of two brokers also the ratio ottla / peer, round by round"

    def measuring(nodes: Nodes) -> contextlib.AbstractContextManager[Callable[[Measurement], Rounds]]:
        given = Broker.parse("ottla", options.node) if options.node else None
        peer = Broker.parse("peer", options.peer) if options.peer else None
        return contextlib.nullcontext(Bench(nodes, scale, given, peer).measure)

    return main(options, every, measuring, heading, find=find, durability=durability, floors=floors)
