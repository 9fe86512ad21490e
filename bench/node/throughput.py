"""Produce and consume as users do it: librdkafka through confluent-kafka, as fast as it goes.

One measurement's name says what it does: `throughput-1kB-16p-acksall-zstd`. Every combination can be asked for by name;
NAMES are those of a whole run, which vary one thing at a time.

The client is often the bottleneck here, and with acks=0 the clock of the producer stops when the last byte is handed to
the socket. What the broker spends is in the CPU figures.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

from confluent_kafka import Producer

from bench.brokers import BenchFailedError, Broker
from bench.bulk import SIZE, bulk_consumer, size_in
from bench.figures import Figures, Scale, cpu_figures

BYTES_PER_S = 250_000_000
MESSAGES_PER_S = 600_000
"""How much is sent per second of `Scale.seconds`: about what a fast broker takes."""

DIFFERENT_VALUES = 64
FLUSH_TIMEOUT_S = 300

SIZES = {"100B": 100, "200B": 200, "1kB": 1_000, "10kB": 10_000}
_NAME = re.compile(
    rf"throughput-{SIZE}(-(?P<partitions>\d+)p)?(-acks(?P<acks>0|1|all))?(-(?P<idempotent>idempotent))?"
    r"(-(?P<compression>gzip|snappy|lz4|zstd))?"
)

NAMES = [
    *(f"throughput-{size}" for size in SIZES),
    "throughput-200B-16p",
    "throughput-200B-256p",
    "throughput-1kB-acks0",
    "throughput-1kB-acksall",
    "throughput-1kB-acksall-idempotent",
    *(f"throughput-1kB-{codec}" for codec in ("gzip", "snappy", "lz4", "zstd")),
]


@dataclass(frozen=True, slots=True)
class Load:
    size: int
    partitions: int
    acks: str
    idempotent: bool
    compression: str

    @classmethod
    def named(cls, name: str) -> Load | None:
        """What a measurement's name says, None where it is no name of this module's."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        size = size_in(found)
        idempotent = found["idempotent"] is not None
        acks = found["acks"] or ("all" if idempotent else "1")
        return cls(size, int(found["partitions"] or 1), acks, idempotent, found["compression"] or "none")

    def describe(self) -> str:
        codec = "" if self.compression == "none" else f", {self.compression}"
        idempotent = ", idempotent" if self.idempotent else ""
        places = f"{self.partitions} partition{'s' * (self.partitions > 1)}"
        return f"librdkafka, {self.size} B to {places}, acks={self.acks}{idempotent}{codec}"

    def measure(self, broker: Broker, scale: Scale) -> Figures:
        count = max(10_000, int(scale.seconds * min(MESSAGES_PER_S, BYTES_PER_S / self.size)))
        gigabytes = count * self.size / 1e9
        with broker.topic(self.partitions) as topic:
            cpu = broker.cpu_s()
            produced_s = self._produce(broker, topic, count)
            figures = {"produce msg/s": count / produced_s, "produce MB/s": gigabytes * 1e3 / produced_s}
            figures |= cpu_figures("produce", broker, cpu, "s/GB", gigabytes)
            cpu = broker.cpu_s()
            consumed_s = self._consume(broker, topic, count)
            figures |= {"consume msg/s": count / consumed_s, "consume MB/s": gigabytes * 1e3 / consumed_s}
            figures |= cpu_figures("consume", broker, cpu, "s/GB", gigabytes)
        return figures

    def _produce(self, broker: Broker, topic: str, count: int) -> float:
        """Seconds until the last message is acknowledged."""
        producer = Producer(
            {
                **broker.properties,
                "acks": self.acks,
                "enable.idempotence": self.idempotent,
                "compression.type": self.compression,
                "linger.ms": 5,
                "sticky.partitioning.linger.ms": 5,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 200_000,
                "queue.buffering.max.kbytes": 400_000,
                "log_level": 3,
            }
        )
        half = self.size // 2  # half random, half not: what compresses to about a half, as events do
        values = [os.urandom(half) + b"x" * (self.size - half) for _ in range(DIFFERENT_VALUES)]
        producer.list_topics(topic, 10)
        began = time.perf_counter()
        for i in range(count):
            while True:
                try:
                    producer.produce(topic, values[i % DIFFERENT_VALUES])
                    break
                except BufferError:
                    producer.poll(0.01)
            if i % 10_000 == 0:
                producer.poll(0)
        if left := producer.flush(FLUSH_TIMEOUT_S):
            raise BenchFailedError(f"{left} of {count} messages were not delivered in {FLUSH_TIMEOUT_S} s")
        return time.perf_counter() - began

    def _consume(self, broker: Broker, topic: str, count: int) -> float:
        """Seconds from the assignment to the last message."""
        consumer = bulk_consumer(broker, topic, self.partitions)
        began, seen = time.perf_counter(), 0
        while seen < count:
            messages = consumer.consume(min(10_000, count - seen), 10)
            if not messages:
                raise BenchFailedError(f"{seen} of {count} messages were consumed, then none came for 10 s")
            seen += sum(message.error() is None for message in messages)
        spent_s = time.perf_counter() - began
        consumer.close()
        return spent_s
