"""KMQ's tracker on Spark beside the standalone one: markers per second, lateness, and what many open messages cost.

    python -m bench.spark.tracker [--only markers lateness open-1 open-100k open-1M] [--rounds 3] [--quick]
                                  [--node HOST:PORT[,PID]]

One Spark session, local[2], warm; the standalone tracker is a process of its own (`ottla kmq tracker`). Both have a
queue of four partitions each, on the same node, in turns.

- `markers`: a backlog of markers, start and end of messages that are done in another order than they began, two of a
  hundred left open. How many a second until the last one is taken. Floor for Spark: 40,000.
- `lateness`: messages nobody finishes, due at times spread over some seconds; from due to the copy in the queue, by the
  node's clock.
- `open-N`: so many messages are open, and 500 markers a second come: how long a batch takes; how large the state is.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from bench import program
from bench.brokers import BenchFailedError, Broker, Nodes, family, users_environment, wait_until
from bench.figures import Figures, Rounds, Scale, measure_in_turns
from bench.program import Floor, first_line, in_words, parser, scaled
from bench.queues import kmq
from ottla.kmq import KmqConfig, headers
from ottla.kmq.markers import END, pack_key, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 4
FLOORS = [Floor("markers", "spark markers/s", least=40_000)]
FULL = Scale(seconds=15, rounds=3, warmup=0, partitions=PARTITIONS, gigabytes=0)
QUICK = replace(FULL, seconds=4)
BATCH = 500
"""Messages that a worker of the backlog takes at once."""
LEFT_OPEN = 0.02
HOUR_MS = 3_600_000
TRICKLE_PER_S = 500


def queue(broker: Broker) -> AbstractContextManager[KmqConfig]:
    """A queue for the length of a block; its records have the node's time."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    return kmq.queue(broker, NewTopic(name, PARTITIONS, 1, config={"message.timestamp.type": "LogAppendTime"}))


def cpu_s(broker: Broker) -> float:
    """Of this process, the JVM and its Python workers; without a node that is a child, too."""
    spent = Broker("session", "127.0.0.1:0", os.getpid()).cpu_s()
    others = broker.cpu_s() if broker.pid in family(os.getpid()) else None
    return (spent[0] if spent else 0.0) - (others[0] if others else 0.0)


class Writer:
    """Writes very many records."""

    def __init__(self, broker: Broker) -> None:
        sends = {"linger.ms": 20, "batch.size": 1_000_000, "queue.buffering.max.messages": 500_000, "acks": "all"}
        self._producer = Producer({**broker.properties, **sends})
        self._count = 0

    def write(self, topic: str, partition: int, key: bytes | None, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition)
                break
            except BufferError:
                self._producer.poll(0.01)
        self._count += 1
        if self._count % 10_000 == 0:
            self._producer.poll(0)

    def flush(self) -> None:
        if self._producer.flush(300):
            raise BenchFailedError("records were not delivered")


def backlog(broker: Broker, config: KmqConfig, markers: int) -> int:
    """Markers of messages that workers took in batches and finished in any order; how many it is."""
    writer, chance, written = Writer(broker), random.Random(1), 0
    value = start(HOUR_MS)
    offsets = [0] * PARTITIONS
    while written < markers:
        partition = (written // BATCH) % PARTITIONS
        keys = [pack_key(partition, offsets[partition] + index) for index in range(BATCH)]
        offsets[partition] += BATCH
        for key in keys:
            writer.write(config.markers, partition, key, value)
        ended = [key for key in keys if chance.random() > LEFT_OPEN]
        chance.shuffle(ended)
        for key in ended:
            writer.write(config.markers, partition, key, END)
        written += len(keys) + len(ended)
    writer.flush()
    return written


# ---- the two trackers ----------------------------------------------------------------------------------------------


class OnSpark:
    """The query as `ottla pipeline kmq-tracker` runs it."""

    def __init__(self, session: SparkSession, broker: Broker, config: KmqConfig, trigger_s: float) -> None:
        from ottla.spark.running.run import RunOptions, read_stream
        from ottla.spark.tracker.processor import tracked
        from ottla.spark.tracker.redelivering import OUTCOME, RedeliveryResult, outcome_of, redeliver_all

        self.outcome = RedeliveryResult()
        self._taken: list[tuple[float, int]] = []
        directory = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        options = RunOptions(broker.address, directory.name, trigger_s=trigger_s)
        self._directory = directory
        frame = read_stream(session, options, [config.markers], maxOffsetsPerTrigger=500_000)

        def carry(batch: Any, number: int) -> None:
            for text, late in batch.mapInArrow(redeliver_all(broker.properties, config), OUTCOME).collect():
                self.outcome.add(outcome_of(text, late))
            self._taken.append((time.perf_counter(), self.outcome.read))

        writer = tracked(frame, config).writeStream.queryName(f"q{uuid.uuid4().hex}").outputMode("update")
        writer = writer.option("checkpointLocation", directory.name).foreachBatch(carry)
        self.query: StreamingQuery = writer.trigger(processingTime=f"{trigger_s} seconds").start()

    def wait_read(self, markers: int) -> float:
        """When it had read so many, on the perf_counter."""
        while self.outcome.read < markers:
            failure = self.query.exception()
            if failure is not None:
                raise BenchFailedError(str(failure)[:500])
            time.sleep(0.02)
        return next(at for at, read in self._taken if read >= markers)

    def batches(self, since: int) -> list[dict[str, Any]]:
        return [json.loads(each.json) for each in self.query.recentProgress if each.batchId > since]

    def close(self) -> None:
        while self.query.isActive and self.query.status["isTriggerActive"]:
            time.sleep(0.01)
        self.query.stop()
        self._directory.cleanup()


@contextmanager
def standalone(broker: Broker, config: KmqConfig) -> Iterator[None]:
    """The standalone tracker's process."""
    command = [sys.executable, "-m", "ottla", "kmq", "tracker", config.queue, "--bootstrap", broker.address]
    process = subprocess.Popen([*command], stderr=subprocess.PIPE, text=True, env=users_environment())
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "follows markers" in line:
                break
        else:
            raise BenchFailedError("the tracker did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield
    finally:
        process.terminate()
        process.wait(30)


# ---- what is measured ----------------------------------------------------------------------------------------------


def measure_markers(broker: Broker, session: SparkSession, markers: int = 1_000_000) -> Figures:
    """A backlog taken by both, each its own: markers/s, CPU time, and their ratio as "spark / standalone"."""
    figures: Figures = {}
    with queue(broker) as config:
        written = backlog(broker, config, markers)
        before_s = cpu_s(broker)
        tracker = OnSpark(session, broker, config, 0)
        try:
            tracker.wait_read(written)
            figures["spark cpu us/marker"] = (cpu_s(broker) - before_s) / written * 1e6
            told = lambda: sum(each["numInputRows"] for each in tracker.batches(-1)) >= written  # noqa: E731
            wait_until(told, 60, "Spark has told of every batch", 0.05)
            batches = [each for each in tracker.batches(-1) if each["numInputRows"]]
            spent_s = sum(each["durationMs"]["triggerExecution"] for each in batches) / 1000
        finally:
            tracker.close()
        figures["spark markers/s"] = written / spent_s
    with queue(broker) as config:
        written = backlog(broker, config, markers)
        before_s = time.process_time()
        figures["standalone markers/s"] = written / standalone_s(broker, config, written)
        figures["standalone cpu us/marker"] = (time.process_time() - before_s) / written * 1e6
    figures["spark / standalone"] = figures["spark markers/s"] / figures["standalone markers/s"]
    return figures


def standalone_s(broker: Broker, config: KmqConfig, markers: int) -> float:
    """Seconds that the standalone tracker takes for the backlog, its start not counted."""
    from ottla.kmq import RedeliveryTracker

    tracker = RedeliveryTracker(broker.properties, config)
    with tracker:
        wait_until(lambda: tracker.figures.markers_read, 60, "the tracker has begun", 0.001)
        began = time.perf_counter()
        wait_until(lambda: tracker.figures.markers_read >= markers, 300, "the tracker has read everything", 0.005)
        return time.perf_counter() - began


def measure_lateness(broker: Broker, session: SparkSession, count: int = 2_000) -> Figures:
    """From due to the copy in the queue, both trackers."""
    figures: Figures = {}
    with queue(broker) as config:
        tracker = OnSpark(session, broker, config, 1.0)
        try:
            wait_until(lambda: tracker.query.lastProgress, 120, "the query runs", 0.1)
            late = lateness(broker, config, count)
        finally:
            tracker.close()
        figures |= {"spark p50 ms": statistics.median(late), "spark p99 ms": late[len(late) * 99 // 100]}
    with queue(broker) as config, standalone(broker, config):
        late = lateness(broker, config, count)
        figures |= {"standalone p50 ms": statistics.median(late), "standalone p99 ms": late[len(late) * 99 // 100]}
    return figures


def lateness(broker: Broker, config: KmqConfig, count: int) -> list[int]:
    """Messages that are due at times spread over five seconds; how late each was, in order."""
    writer, chance = Writer(broker), random.Random(2)
    for number in range(count):
        writer.write(config.queue, number % PARTITIONS, None, b"%d" % number)
    writer.flush()
    for number in range(count):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        writer.write(config.markers, partition, pack_key(partition, offset), start(chance.randrange(2_000, 7_000)))
    writer.flush()
    due = {
        message.key(): message.timestamp()[1] + int.from_bytes(message.value()[1:9], "big")
        for message in records(broker, config.markers, count)
        if len(message.value()) > 1
    }
    late: list[int] = []
    for message in records(broker, config.queue, 2 * count):
        if headers.count_in(message.headers() or [], config.count_header):
            number = int(message.value())
            late.append(message.timestamp()[1] - due[pack_key(number % PARTITIONS, number // PARTITIONS)])
    return sorted(late)


def records(broker: Broker, topic: str, count: int) -> list[Any]:
    """So many records of a topic, as soon as they are there."""
    consumer = Consumer({**broker.properties, "group.id": f"b-{uuid.uuid4().hex}"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[Any] = []
    until = time.monotonic() + 180
    while len(found) < count:
        if time.monotonic() > until:
            raise BenchFailedError(f"{len(found)} of {count} records came to {topic}")
        found += [message for message in consumer.consume(1_000, 0.2) if message.error() is None]
    consumer.close()
    return found


def measure_open(broker: Broker, session: SparkSession, opened: int, seconds: float = 15) -> Figures:
    """How long a micro-batch takes while so many are open."""
    with queue(broker) as config:
        writer, value = Writer(broker), start(HOUR_MS)
        for number in range(opened):
            partition = number % PARTITIONS
            writer.write(config.markers, partition, pack_key(partition, number // PARTITIONS), value)
        writer.flush()
        tracker = OnSpark(session, broker, config, 1.0)
        try:
            tracker.wait_read(opened)
            first = tracker.query.lastProgress["batchId"] + 1 if tracker.query.lastProgress else 1
            trickle(writer, config, opened, seconds)
            batches = [each for each in tracker.batches(first) if each["numInputRows"]]
            state = sum(each["memoryUsedBytes"] for each in batches[-1]["stateOperators"])
            rows = [each.commit_offset for _, each in tracker.outcome.partitions.values()]
            if any(rows) and opened > PARTITIONS:
                raise BenchFailedError(f"messages that are open were forgotten: {rows}")
        finally:
            tracker.close()
    taken = sorted(each["durationMs"]["triggerExecution"] for each in batches)
    return {
        "micro-batch p50 ms": statistics.median(taken),
        "p95 ms": taken[int(len(taken) * 0.95)],
        "state MB": state / 1e6,
    }


def trickle(writer: Writer, config: KmqConfig, opened: int, seconds: float) -> None:
    """Messages that begin and end, among those that stay open: half of them next to the newest, half anywhere."""
    chance, value, began, sent = random.Random(3), start(HOUR_MS), time.monotonic(), 0
    while time.monotonic() - began < seconds:
        while sent < (time.monotonic() - began) * TRICKLE_PER_S:
            partition = sent % PARTITIONS
            anywhere = sent // PARTITIONS % 2 and opened > PARTITIONS
            offset = chance.randrange(1, opened // PARTITIONS) if anywhere else opened + sent
            writer.write(config.markers, partition, pack_key(partition, offset), value)
            if not anywhere:
                writer.write(config.markers, partition, pack_key(partition, offset), END)
            sent += 1 if anywhere else 2
        time.sleep(0.01)
    writer.flush()


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing that can be asked for by name, once a session is there."""

    name: str
    says: str
    run: Callable[[Broker, SparkSession, Scale], Figures]


def measurements(times: int) -> list[Measurement]:
    """Those of a whole run; of a quick one a part of it, one in so many `times`."""
    open_says = first_line(measure_open)
    return [
        Measurement("markers", first_line(measure_markers), lambda b, s, _: measure_markers(b, s, 1_000_000 // times)),
        Measurement("lateness", first_line(measure_lateness), lambda b, s, _: measure_lateness(b, s, 2_000 // times)),
        Measurement("open-1", f"{open_says}: 1", lambda b, s, scale: measure_open(b, s, 1, scale.seconds)),
        *(
            Measurement(
                f"open-{name}",
                f"{open_says}: {count // times:,}",
                lambda b, s, scale, count=count: measure_open(b, s, count // times, scale.seconds),
            )
            for name, count in (("100k", 100_000), ("1M", 1_000_000))
        ),
    ]


def main() -> int:
    made = parser("bench.spark.tracker", __doc__, FULL, seconds="of a trickle")
    made.add_argument("--node", metavar="HOST:PORT[,PID]", help="a node that runs already")
    options = made.parse_args()
    scale = scaled(QUICK if options.quick else FULL, options)

    @contextmanager
    def measuring(nodes: Nodes) -> Iterator[Callable[[Measurement], Rounds]]:
        from ottla.spark.platform.session import pipeline_session

        conf = {"spark.driver.memory": "2g", "spark.sql.streaming.numRecentProgressUpdates": "10000"}
        given = Broker.parse("ottla", options.node) if options.node else None
        session = pipeline_session("bench", master="local[2]", conf=conf)
        try:
            with nullcontext(given) if given else nodes.running() as broker:
                measure_markers(broker, session, 50_000)  # warm: workers, numba, the JVM's compiler
                yield lambda each: measure_in_turns({broker.name: partial(each.run, broker, session, scale)}, scale)
        finally:
            session.stop()

    every = measurements(20 if options.quick else 1)
    return program.main(options, every, measuring, in_words(scale), floors=FLOORS)


if __name__ == "__main__":
    sys.exit(main())
