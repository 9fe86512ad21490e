"""How fast pipelines are: Spark reading topics through `format("ottla")`, beside Spark's own Kafka connector.

    python -m bench.spark [--only PATTERN ...] [--quick] [--connector-python PYTHON --connector-jars DIR]
                          [--peer HOST:PORT[,PID]] [--json FILE]
    python -m bench.spark --list

Starts a node of its own, fills topics of four partitions, and has each reader read them in turns: our source, the
connector where its environment and jars are given, a plain loop with confluent-kafka, and the first two from the peer
where there is one. Every session is local[2] with the same settings and stays warm. Below a table stand the floors that
its figures have to meet. docs/benchmarks.md says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import Producer

from bench import program
from bench.brokers import BenchFailedError, Broker, Nodes, default_data
from bench.bulk import bulk_consumer
from bench.figures import Figures, Rounds, spread
from bench.machine import version_of
from bench.program import Floor, first_line, in_words, parser, scaled

PARTITIONS = 4
PER_TRIGGER = 500_000
TRICKLE_PER_S = 1_000
READER = Path(__file__).with_name("reader.py")
MEMORY = "2g"


@dataclass(frozen=True, slots=True)
class Scale:
    """`rows` of 200 B in a topic; of 1 kB a quarter of them. `seconds` of a trickle."""

    rows: int
    rounds: int
    warmup: int
    seconds: float


FULL = Scale(rows=4_000_000, rounds=5, warmup=4, seconds=15)
QUICK = Scale(rows=40_000, rounds=1, warmup=0, seconds=2)


class Session:
    """A Spark session in a process of its own, ours or the connector's."""

    def __init__(self, name: str, python: str, conf: dict[str, str]) -> None:
        command = [python, str(READER), name, json.dumps(conf)]
        environment = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "PYSPARK_PYTHON")}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.as_broker = Broker(name, "127.0.0.1:0", self.process.pid)
        self.version = self._answer()["pyspark"]

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Raises BenchFailedError with what Spark said."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"what": what, **more}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchFailedError("a Spark session ended")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchFailedError(answer["error"])
        return answer

    def cpu_s(self) -> float:
        """Of Python, the JVM and its workers."""
        spent = self.as_broker.cpu_s()
        return spent[0] if spent else 0.0

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read from one broker. Without a session: confluent-kafka, in this process."""

    name: str
    broker: Broker
    session: Session | None


@dataclass(frozen=True, slots=True)
class Measurement:
    """`readers`: whose figures there are; `part` of the scale's rows are in its topic, none with `size` 0."""

    name: str
    says: str
    size: int
    run: Callable[[Reading, str, int, Scale], Figures]
    readers: Literal["all", "spark", "ottla"] = "all"
    part: float = 1

    def takes(self, reading: Reading) -> bool:
        if self.readers == "ottla":
            return reading.name == "ottla"
        return self.readers == "all" or reading.session is not None


@dataclass(frozen=True, slots=True)
class Race(Floor):
    """A floor of a figure's ratio to Spark's connector."""

    def values(self, rounds: Rounds) -> list[float]:
        return ratios_of(rounds, "ottla", "connector", self.figure)

    def what(self) -> str:
        return f"{self.figure}, ottla / connector"


FLOORS = (
    Race("batch-200B", "noop rows/s", least=2.5),
    Race("batch-200B", "sum rows/s", least=2.5),
    Race("batch-1kB", "noop rows/s", least=2.0),
    Race("batch-1kB", "sum rows/s", least=2.0),
    Race("stream-200B", "rows/s", least=1.5),
    Race("stream-1kB", "rows/s", least=1.5),
    Race("trickle", "micro-batch p50 ms", most=1.2),
    Floor("archive", "archive / parquet /s", least=0.5),
)


# ---- what is measured ----------------------------------------------------------------------------------------------


def batch(reading: Reading, topic: str, rows: int, scale: Scale) -> Figures:
    """A whole topic into noop, and into sum(length(value))."""
    if reading.session is None:
        return plain_loop(reading.broker, topic, rows)
    figures: Figures = {}
    for what in ("batch", "sum"):
        before = reading.session.cpu_s()
        answer = reading.session.ask(what, broker=reading.broker.address, topic=topic)
        name = "noop" if what == "batch" else "sum"
        figures[f"{name} rows/s"] = rows / answer["seconds"]
        figures[f"{name} cpu us/row"] = (reading.session.cpu_s() - before) / rows * 1e6
        if "bytes" in answer and answer["bytes"] % rows:
            raise BenchFailedError(f"{answer['bytes']} bytes are not those of {rows} equal rows")
    return figures


def stream(reading: Reading, topic: str, rows: int, scale: Scale) -> Figures:
    """AvailableNow over a whole topic into noop, 500,000 offsets a batch."""
    assert reading.session is not None
    before = reading.session.cpu_s()
    answer = reading.session.ask("stream", broker=reading.broker.address, topic=topic, per_trigger=PER_TRIGGER)
    if answer["rows"] != rows:
        raise BenchFailedError(f"{reading.name} gave {answer['rows']} rows of {rows}")
    spent = reading.session.cpu_s() - before
    return {"rows/s": rows / answer["seconds"], "cpu us/row": spent / rows * 1e6}


def trickle(reading: Reading, topic: str, rows: int, scale: Scale) -> Figures:
    """Micro-batches of what arrives at 1,000 rows/s, one after the other."""
    assert reading.session is not None
    with trickling(reading.broker, topic):
        answer = reading.session.ask("trickle", broker=reading.broker.address, topic=topic, seconds=scale.seconds)
    taken = sorted(answer["milliseconds"])
    if len(taken) < 3:
        raise BenchFailedError(f"{reading.name} made {len(taken)} micro-batches in {scale.seconds:g} s")
    return {
        "micro-batch p50 ms": statistics.median(taken),
        "micro-batch p95 ms": taken[int(len(taken) * 0.95)],
    }


def archive(reading: Reading, topic: str, rows: int, scale: Scale) -> Figures:
    """A whole topic to a committed table, beside Spark's own Parquet write of the same rows from memory."""
    assert reading.session is not None
    figures: Figures = {}
    for what in ("archive", "parquet"):
        answer = reading.session.ask(what, broker=reading.broker.address, topic=topic, folder=default_data())
        if answer["rows"] != rows:
            raise BenchFailedError(f"{what} wrote {answer['rows']} rows of {rows}")
        figures[f"{what} rows/s"] = rows / answer["seconds"]
    figures["archive / parquet /s"] = figures["archive rows/s"] / figures["parquet rows/s"]
    return figures


def plain_loop(broker: Broker, topic: str, rows: int) -> Figures:
    consumer = bulk_consumer(broker, topic, PARTITIONS)
    began, cpu, seen, size = time.perf_counter(), time.process_time(), 0, 0
    while seen < rows:
        messages = consumer.consume(min(10_000, rows - seen), 10)
        if not messages:
            raise BenchFailedError(f"{seen} of {rows} messages were consumed, then none came for 10 s")
        seen += len(messages)
        size += sum(len(message.value()) for message in messages)
    spent_s, spent_cpu_s = time.perf_counter() - began, time.process_time() - cpu
    consumer.close()
    return {"sum rows/s": rows / spent_s, "sum cpu us/row": spent_cpu_s / rows * 1e6}


def measurements() -> list[Measurement]:
    sizes = (("200B", 200, 1.0), ("1kB", 1_000, 0.25))
    says_batch, says_stream = first_line(batch), first_line(stream)
    return [
        *(
            Measurement(f"batch-{name}", f"{says_batch}; {name} values", size, batch, "all", p)
            for name, size, p in sizes
        ),
        *(Measurement(f"stream-{name}", f"{says_stream}; {name}", size, stream, "spark", p) for name, size, p in sizes),
        Measurement("trickle", first_line(trickle), 0, trickle, "spark"),
        Measurement("archive", first_line(archive), 200, archive, "ottla", 0.5),
    ]


# ---- topics --------------------------------------------------------------------------------------------------------


def fill(broker: Broker, size: int, rows: int) -> str:
    """A topic of `rows` values, as librdkafka writes them when there is much to write."""
    topic = broker.create_topic(PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 400_000,
            "queue.buffering.max.kbytes": 800_000,
            "log_level": 3,
        }
    )
    values = [os.urandom(size // 2) + b"x" * (size - size // 2) for _ in range(64)]
    for i in range(rows):
        while True:
            try:
                producer.produce(topic, values[i % 64], partition=i // 1_000 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
        if i % 10_000 == 0:
            producer.poll(0)
    if left := producer.flush(300):
        raise BenchFailedError(f"{left} of {rows} messages were not delivered")
    return topic


@contextmanager
def trickling(broker: Broker, topic: str) -> Iterator[None]:
    """Somebody writes 1,000 rows of 200 B a second in the meantime."""
    over = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 3})
        begun, sent = time.monotonic(), 0
        while not over.wait(0.01):
            while sent < (time.monotonic() - begun) * TRICKLE_PER_S:
                producer.produce(topic, bytes(200), partition=sent % PARTITIONS)
                sent += 1
            producer.poll(0)
        producer.flush(10)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


# ---- rounds and their table ----------------------------------------------------------------------------------------


def measure(measurement: Measurement, readings: Sequence[Reading], scale: Scale) -> Rounds:
    """A B C, C B A, A B C ... on a topic of each broker's own."""
    taking = [each for each in readings if measurement.takes(each)]
    rows = int(scale.rows * measurement.part)
    topics = {
        each.broker.address: fill(each.broker, measurement.size or 200, rows if measurement.size else 0)
        for each in {one.broker.address: one for one in taking}.values()
    }
    rounds: Rounds = {each.name: [] for each in taking}
    try:
        for turn in range(scale.warmup + scale.rounds):
            for each in taking if turn % 2 else taking[::-1]:
                figures = measurement.run(each, topics[each.broker.address], rows, scale)
                if turn >= scale.warmup:
                    rounds[each.name].append(figures)
    finally:
        for each in taking:
            if topic := topics.pop(each.broker.address, None):
                each.broker.delete_topic(topic)
    return rounds


def ratios_of(rounds: Rounds, mine: str, other: str, figure: str) -> list[float]:
    pairs = zip(rounds.get(mine, []), rounds.get(other, []), strict=False)
    return [a[figure] / b[figure] for a, b in pairs if figure in a and b.get(figure)]


def table(rounds: Rounds) -> list[str]:
    """A line per figure and reader: median [lowest to highest], and the first reader's figure to it, round by round."""
    first, *_ = rounds
    lines: list[str] = []
    for figure in dict.fromkeys(name for several in rounds.values() for figures in several for name in figures):
        for reader, several in rounds.items():
            values = [figures[figure] for figures in several if figure in figures]
            if not values:
                continue
            line = f"  {figure:<22}{reader:<22}{spread(values)}"
            ratios = ratios_of(rounds, first, reader, figure) if reader != first else []
            if ratios:
                line += f"  {first} is {statistics.median(ratios):.2f} of it"
                line += f" [{min(ratios):.2f} to {max(ratios):.2f}]" if len(ratios) > 1 else ""
            lines.append(line.rstrip())
    return lines


def settings(jars: str | None) -> dict[str, str]:
    """Those of our pipelines, for everybody."""
    from ottla.spark.platform.session import settings as pipeline_settings

    conf = {each.key: each.value for each in pipeline_settings("local[2]")}
    conf |= {"spark.master": "local[2]", "spark.driver.memory": MEMORY}
    conf["spark.sql.streaming.numRecentProgressUpdates"] = "10000"
    if jars is not None:
        conf["spark.jars"] = ",".join(str(path) for path in sorted(Path(jars).glob("*.jar")))
    return conf


def readings(options: argparse.Namespace, node: Broker, stack: ExitStack) -> list[Reading]:
    def session(name: str, python: str, jars: str | None = None) -> Session:
        made = Session(name, python, settings(jars))
        stack.callback(made.close)
        return made

    ours = session("ottla", sys.executable)
    found = [Reading("ottla", node, ours)]
    theirs = None
    if options.connector_python:
        theirs = session("kafka", options.connector_python, options.connector_jars)
        found.append(Reading("connector", node, theirs))
    found.append(Reading("confluent", node, None))
    if options.peer:
        peer = Broker.parse("peer", options.peer)
        found.append(Reading("ottla from peer", peer, ours))
        if theirs is not None:
            found.append(Reading("connector from peer", peer, theirs))
    print(f"pyspark {ours.version}{f', the connector on {theirs.version}' if theirs else ''}, local[2], {MEMORY}")
    return found


def main() -> int:
    made = parser("bench.spark", __doc__, FULL, seconds="of a trickle")
    add = made.add_argument
    add("--peer", metavar="HOST:PORT[,PID]", help="a broker to read from as well")
    add("--connector-python", metavar="PYTHON", help="of an environment with the pyspark that the connector is for")
    add("--connector-jars", metavar="DIR", help="the connector's jars and those it needs")
    add("--rows", type=int, help=f"rows of 200 B in a topic; of 1 kB a quarter ({FULL.rows:,})")
    options = made.parse_args()
    scale = scaled(QUICK if options.quick else FULL, options)

    @contextmanager
    def measuring(nodes: Nodes) -> Iterator[Callable[[Measurement], Rounds]]:
        with nodes.running() as node, ExitStack() as stack:
            taking = readings(options, node, stack)
            yield lambda each: measure(each, taking, scale)

    heading = f"numba {version_of('numba')}, pyarrow {version_of('pyarrow')}; {in_words(scale)}"
    return program.main(options, measurements(), measuring, heading, floors=FLOORS, lines=table)


if __name__ == "__main__":
    sys.exit(main())
