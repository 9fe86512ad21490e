"""What a queue by start and end markers costs: KMQ's client against a plain consumer, same topic, same run.

One partition, 200 B, one client and one tracker (a process of its own, as in life).

- `kmq-throughput`: no work per message. Plain is a consumer group's loop that commits after each batch.
- `kmq-work-1ms`: a millisecond of sleep per message.
- `kmq-latency-500`: 500 messages a second; from the call of produce to the worker that has the message in hand.

Each round measures both on the same topic; their ratio is a figure of its own.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import BenchFailedError, Broker, users_environment, wait_until
from bench.figures import Figures, Scale, percentiles
from ottla.client import ClientError
from ottla.kmq import KmqClient, KmqConfig, create_topics
from ottla.kmq.stats import standings

VALUE_BYTES = 200
BATCH = 1_000
MESSAGES_PER_S = 300_000
IDLE_S_MAX = 20.0
NAMES = ["kmq-throughput", "kmq-work-1ms", "kmq-latency-500"]
_NAME = re.compile(r"kmq-(throughput|work-(?P<work>\d+)ms|latency-(?P<rate>\d+))")

TAKES = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 100_000, "fetch.queue.backoff.ms": 10}
"""Given to both sides."""


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """`work_ms` per message; with a `rate` in messages per second latency is measured, else throughput."""

    work_ms: int
    rate: int | None

    @classmethod
    def named(cls, name: str) -> QueueLoad | None:
        """What a measurement's name says, None where it is no name of this module's."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found["work"] or 0), int(found["rate"]) if found["rate"] else None)

    def describe(self) -> str:
        if self.rate is not None:
            return f"KMQ and a plain consumer: {self.rate} messages a second, end to end"
        return f"KMQ and a plain consumer: {VALUE_BYTES} B, 1 partition, {self.work_ms} ms of work per message"

    def measure(self, broker: Broker, scale: Scale) -> Figures:
        """One round: both sides."""
        if self.rate is None:
            count = int(scale.seconds * min(MESSAGES_PER_S, 900 / self.work_ms if self.work_ms else MESSAGES_PER_S))
            return self._throughput(broker, max(200, count))
        return self._latency(broker, max(50, int(self.rate * scale.seconds)))

    def _throughput(self, broker: Broker, count: int) -> Figures:
        with queue(broker, timeout_ms=60_000, batch_size=BATCH) as config:
            fill(broker, config.queue, count)
            plain = count / plain_loop(broker, config.queue, count, self.work_ms)
            with tracker(broker, config):
                spent_s = kmq_loop(broker, config, count, self.work_ms)
                began = time.perf_counter()
                wait_until(lambda: settled(broker, config), 120, "the tracker has seen every end", 0.2)
                lag_s = time.perf_counter() - began
        kmq = count / spent_s
        return {"plain msg/s": plain, "kmq msg/s": kmq, "kmq / plain /s": kmq / plain, "tracker behind s": lag_s}

    def _latency(self, broker: Broker, count: int) -> Figures:
        assert self.rate is not None
        with queue(broker, timeout_ms=60_000, batch_size=BATCH) as config, tracker(broker, config):
            plain = paced(broker, config.queue, count, self.rate, PlainTaker(broker, config.queue))
            with KmqClient(broker.properties, config, consumer=TAKES) as client:
                kmq = paced(broker, config.queue, count, self.rate, KmqTaker(client))
        figures = percentiles("plain", plain, (50, 95, 99)) | percentiles("kmq", kmq, (50, 95, 99))
        return figures | {"kmq added p95 ms": (figures["kmq p95 us"] - figures["plain p95 us"]) / 1000}


@contextlib.contextmanager
def queue(broker: Broker, topic: NewTopic | None = None, **settings: Any) -> Iterator[KmqConfig]:
    """A queue for the length of a block, of one partition, or as `topic` says."""
    name = f"bench-{uuid.uuid4().hex[:12]}" if topic is None else topic.topic
    config, admin = KmqConfig(queue=name, **settings), AdminClient(broker.properties)
    if topic is not None:
        admin.create_topics([topic])[name].result(30)
    create_topics(admin, config)
    try:
        yield config
    finally:
        for each in (config.queue, config.markers, config.dead_letters):
            with contextlib.suppress(ClientError):
                broker.delete_topic(each)


@contextlib.contextmanager
def tracker(broker: Broker, config: KmqConfig) -> Iterator[None]:
    """A tracker's process, once it has its partition."""
    command = [sys.executable, "-m", "ottla", "kmq", "tracker", config.queue, "--bootstrap", broker.address]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=users_environment())
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if "follows markers" in line:
                break
        else:
            raise BenchFailedError(f"the tracker did not start: {''.join(said).strip()}")
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        yield
    finally:
        process.terminate()
        process.wait(30)


def fill(broker: Broker, topic: str, count: int) -> None:
    """So many messages at once."""
    producer = Producer({**broker.properties, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    value = b"x" * VALUE_BYTES
    for index in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        if index % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise BenchFailedError("the queue could not be filled")


def plain_loop(broker: Broker, topic: str, count: int, work_ms: int) -> float:
    """Seconds from the first message on, for a group of one that commits after each batch."""
    consumer = group_of_one(broker, topic)
    seen, began, work_s = 0, None, work_ms / 1000
    idle = time.monotonic()
    while seen < count:
        messages = consumer.consume(BATCH, 0.05)
        if not messages:
            starved(idle, "plain consumer", seen, count)
            continue
        idle = time.monotonic()
        began = began or time.perf_counter()
        for message in messages:
            if message.error() is None:
                seen += 1
                if work_s:
                    time.sleep(work_s)
        consumer.commit(message=messages[-1], asynchronous=True)
    assert began is not None
    spent_s = time.perf_counter() - began
    consumer.close()
    return spent_s


def group_of_one(broker: Broker, topic: str) -> Consumer:
    group = {"group.id": f"{topic}-plain", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({**broker.properties, **TAKES, **group})
    consumer.subscribe([topic])
    return consumer


def kmq_loop(broker: Broker, config: KmqConfig, count: int, work_ms: int) -> float:
    """The same with KMQ, until every end marker is acknowledged."""
    seen, began, work_s = 0, None, work_ms / 1000
    with KmqClient(broker.properties, config, consumer=TAKES) as client:
        idle = time.monotonic()
        while seen < count:
            messages = client.next_batch(0.05)
            if not messages:
                starved(idle, "KMQ client", seen, count)
                continue
            idle = time.monotonic()
            began = began or time.perf_counter()
            for message in messages:
                if work_s:
                    time.sleep(work_s)
                client.processed(message)
            seen += len(messages)
        client.flush()
        assert began is not None
        return time.perf_counter() - began


def starved(since: float, who: str, seen: int, count: int) -> None:
    if time.monotonic() - since > IDLE_S_MAX:
        raise BenchFailedError(f"the {who} saw {seen} of {count} messages, then none for {IDLE_S_MAX:g} s")


def settled(broker: Broker, config: KmqConfig) -> bool:
    return not any(each.open or each.markers_lag for each in standings(broker.properties, config))


class PlainTaker:
    """A consumer group's loop, one message at a time."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.consumer = group_of_one(broker, topic)

    def take(self) -> list[Any]:
        message = self.consumer.poll(0.05)
        if message is None or message.error() is not None:
            return []
        self.consumer.commit(message=message, asynchronous=True)
        return [message]

    def done(self, message: Any) -> None:
        """Nothing more is to be said of it."""

    def close(self) -> None:
        self.consumer.close()


class KmqTaker:
    """KMQ's loop."""

    def __init__(self, client: KmqClient) -> None:
        self.client = client

    def take(self) -> list[Any]:
        return self.client.next_batch(0.05)

    def done(self, message: Any) -> None:
        self.client.processed(message)

    def close(self) -> None:
        self.client.flush()


def paced(broker: Broker, topic: str, count: int, rate: int, taker: PlainTaker | KmqTaker) -> list[float]:
    """Microseconds from produce to hand, of messages sent evenly at this rate; the first half second doesn't count."""
    stopping, spent_us = threading.Event(), list[float]()
    run = uuid.uuid4().hex[:8].encode()  # the queue holds what an earlier taker was measured with
    skip = rate // 2

    def send() -> None:
        producer = Producer({**broker.properties, "linger.ms": 0})
        began = time.perf_counter()
        for index in range(count + skip):
            while (left_s := began + index / rate - time.perf_counter()) > 0:
                time.sleep(left_s)
            stamp = b"%s %d %d " % (run, index, time.perf_counter_ns())
            producer.produce(topic, stamp.ljust(VALUE_BYTES, b"x"))
            producer.poll(0)
            if stopping.is_set():
                break
        producer.flush(30)

    idle = time.monotonic()
    while time.monotonic() - idle < 2:  # joins, and reads what is there
        for message in taker.take():
            taker.done(message)
    sender = threading.Thread(target=send)
    sender.start()
    idle = time.monotonic()
    try:
        while len(spent_us) < count:
            for message in taker.take():
                now, (tag, index, sent, _) = time.perf_counter_ns(), message.value().split(b" ")
                if tag == run and int(index) >= skip:
                    spent_us.append((now - int(sent)) / 1000)
                taker.done(message)
                idle = time.monotonic()
            starved(idle, type(taker).__name__, len(spent_us), count)
    finally:
        stopping.set()
        sender.join()
        taker.close()
    return spent_us
