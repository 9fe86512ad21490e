"""What security costs on a node, and how it compares with an Apache Kafka that has the same certificates.

    python -m bench.secure [--only PATTERN ...] [--quick] [--kafka DIR] [--json FILE]
    python -m bench.secure --list

A name has two parts: the listener, and a measurement of bench.node or `connections`. `tls-throughput-1kB` is
librdkafka over TLS, `sasl-...` over TLS with a login by SCRAM-SHA-512, `plain-...` without both. `cost-...` compares
the node's TLS listener with its plain one. `acls` compares a node with 10,000 ACLs with one without an authorizer.

With `--kafka DIR`, the directory of a `kafka-peer` script, each row is measured in turns on the node and on a Kafka,
both with their data on /dev/shm where there is one. Loopback only; every wait has an end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.brokers import BenchFailedError, Broker, Nodes, default_data
from bench.figures import Figures, Rounds, Scale, measure_in_turns
from bench.node import latency, raw, throughput
from bench.program import first_line, in_words, main, parser, scaled
from bench.secure import permissions
from bench.secure.sides import PROTOCOLS, Files, Side, kafka, ottla
from bench.secure.visits import visits

FULL = Scale(seconds=3, rounds=5, warmup=1, partitions=0, gigabytes=0)
QUICK = Scale(seconds=0.1, rounds=1, warmup=0, partitions=0, gigabytes=0)
COST = "cost"
ACLS = "acls"
ACLS_LOAD = "raw-produce-1x200B"

NAMES = [
    *(f"tls-{what}" for what in ("throughput-100B", "throughput-1kB", "latency-100", "connections")),
    *(f"sasl-{what}" for what in ("throughput-100B", "throughput-1kB", "latency-100", "connections")),
    *(f"plain-{what}" for what in ("throughput-100B", "throughput-1kB", "latency-100", "connections")),
    *(f"cost-{what}" for what in ("throughput-1kB", "raw-produce-1x200B", "raw-fetch-1000x1kB")),
    ACLS,
]


@dataclass(frozen=True, slots=True)
class Row:
    """`listener`: whose clients are measured; COST for the node's two; ACLS for nodes of its own."""

    name: str
    listener: str
    says: str
    measure: Callable[[Broker, Scale], Figures]


def row(name: str) -> Row | None:
    """The row of this name."""
    if name == ACLS:
        what = load(ACLS_LOAD)
        assert what is not None
        return Row(name, ACLS, f"{permissions.ACLS:,} ACLs beside no authorizer: {what[0]}", what[1])
    listener, _, rest = name.partition("-")
    found = load(rest) if listener in (*PROTOCOLS, COST) else None
    if found is None:
        return None
    how = "TLS and plain" if listener == COST else PROTOCOLS[listener]
    return Row(name, listener, f"{how}: {found[0]}", found[1])


def load(name: str) -> tuple[str, Callable[[Broker, Scale], Figures]] | None:
    """What a measurement of one broker does, in words, and itself."""
    if name == "connections":
        return first_line(visits), visits
    for kind in (throughput.Load, raw.RawLoad, latency.Pace):
        made = kind.named(name)
        if made is not None:
            return made.describe(), made.measure
    return None


class Bench:
    """One run: the node and the Kafka that all rows share."""

    def __init__(self, nodes: Nodes, scale: Scale, sides: list[Side]) -> None:
        self._nodes, self._scale, self._sides = nodes, scale, sides

    def measure(self, what: Row) -> Rounds:
        """Raises BenchFailedError, ClientError and KafkaException."""
        if what.listener == ACLS:
            with permissions.sides(self._nodes) as brokers:
                return self._in_turns(what, brokers)
        if what.listener == COST:
            return self._in_turns(what, {name: self._sides[0].at(name) for name in ("tls", "plain")})
        brokers = [side.at(what.listener) for side in self._sides]
        return self._in_turns(what, {broker.name: broker for broker in brokers})

    def _in_turns(self, what: Row, brokers: dict[str, Broker]) -> Rounds:
        return measure_in_turns(
            {name: partial(what.measure, broker, self._scale) for name, broker in brokers.items()}, self._scale
        )


@contextlib.contextmanager
def measuring(tools: Path | None, scale: Scale, nodes: Nodes) -> Iterator[Callable[[Row], Rounds]]:
    with contextlib.ExitStack() as running:
        files = Files(nodes.base)
        sides = [running.enter_context(ottla(nodes, files))]
        if tools is not None:
            sides.append(running.enter_context(kafka(tools, nodes.base / "kafka", files)))
        yield Bench(nodes, scale, sides).measure


def run() -> int:
    made = parser("bench.secure", __doc__, FULL, seconds="the window of a measurement")
    made.add_argument("--kafka", metavar="DIR", type=Path, help="where kafka-peer is: measure a Kafka in turns")
    options = made.parse_args()
    scale = scaled(QUICK if options.quick else FULL, options)
    rows = [found for found in map(row, NAMES) if found is not None]
    heading = f"data on {options.data or default_data()}; {in_words(scale)}; of two sides also the ratio first / second"
    try:
        return main(options, rows, partial(measuring, options.kafka, scale), heading, find=row)
    except BenchFailedError as failure:
        print(failure, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run())
