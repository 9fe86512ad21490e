"""How long a message takes: to its acknowledgement, and to a consumer that waits for it.

`latency-alone`: one message at a time, each waits for its acknowledgement. `latency-500`: 500 messages a second,
evenly, whatever the broker does. librdkafka on both ends with nothing held back (linger.ms=0, no Nagle).
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.brokers import BenchFailedError, Broker
from bench.figures import Figures, Scale, percentiles

VALUE_BYTES = 200
STAMP_BYTES = 20
SETTLE_S = 0.5
READ_TIMEOUT_S = 10
POLL_S = 0.001
"""librdkafka waits in steps of a millisecond."""
SEEN_MIN = 0.9
"""The share of the messages that a consumer must have seen for its figures to count."""

_NAME = re.compile(r"latency-(alone|\d+)(-acks(0|1|all))?")

NAMES = ["latency-alone", "latency-alone-acksall", "latency-100", "latency-500", "latency-2000"]


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate` messages a second; None: one after the other."""

    rate: int | None
    acks: str

    @classmethod
    def named(cls, name: str) -> Pace | None:
        """What a measurement's name says, None where it is no name of this module's."""
        found = _NAME.fullmatch(name)
        return None if found is None else cls(None if found[1] == "alone" else int(found[1]), found[3] or "1")

    def describe(self) -> str:
        if self.rate is None:
            return f"produce one {VALUE_BYTES} B message at a time, acks={self.acks}"
        return f"{self.rate} messages a second of {VALUE_BYTES} B, acks={self.acks}: to the answer, and end to end"

    def measure(self, broker: Broker, scale: Scale) -> Figures:
        with broker.topic() as topic:
            if self.rate is None:
                return percentiles("produce", self.alone(broker, topic, scale.seconds))
            return self._paced(broker, topic, self.rate, max(20, int(self.rate * scale.seconds)))

    def _producer(self, broker: Broker) -> Producer:
        return Producer(
            {
                **broker.properties,
                "acks": self.acks,
                "linger.ms": 0,
                "socket.nagle.disable": True,
                "log_level": 3,
            }
        )

    def alone(self, broker: Broker, topic: str, seconds: float) -> list[float]:
        """Microseconds per message, without those of the first fifth."""
        producer, value, spent_us = self._producer(broker), b"x" * VALUE_BYTES, []
        deadline = time.perf_counter() + seconds + SETTLE_S
        while time.perf_counter() < deadline:
            began = time.perf_counter_ns()
            producer.produce(topic, value)
            if producer.flush(READ_TIMEOUT_S):
                raise BenchFailedError(f"a message was not acknowledged in {READ_TIMEOUT_S} s")
            spent_us.append((time.perf_counter_ns() - began) / 1e3)
        return spent_us[len(spent_us) // 5 :]

    def _paced(self, broker: Broker, topic: str, rate: int, total: int) -> Figures:
        producer, acknowledged_us = self._producer(broker), []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                acknowledged_us.append((message.latency() or 0.0) * 1e6)

        reader = StampReader(broker, topic, total)
        began = time.perf_counter()
        for i in range(total):
            while (left_s := began + i / rate - time.perf_counter()) > 0:
                producer.poll(left_s if left_s >= POLL_S else 0)  # the clock of a message stops where it is polled
            producer.produce(topic, stamped(), on_delivery=delivered)
        producer.flush(READ_TIMEOUT_S)
        ends_us = reader.finish()
        if min(len(ends_us), len(acknowledged_us)) < total * SEEN_MIN:
            raise BenchFailedError(
                f"of {total} messages {len(acknowledged_us)} were acknowledged and {len(ends_us)} seen"
            )
        warm = total // 10
        return percentiles("produce", acknowledged_us[warm:]) | percentiles("end to end", ends_us[warm:])


def stamped() -> bytes:
    """A value that begins with the time."""
    return b"%0*d" % (STAMP_BYTES, time.perf_counter_ns()) + b"x" * (VALUE_BYTES - STAMP_BYTES)


class StampReader:
    """A consumer in a thread that reads `stamped` values from the end of partition 0 on and notes their age."""

    def __init__(self, broker: Broker, topic: str, total: int) -> None:
        self._total = total
        self._ages_us: list[float] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                **broker.properties,
                "group.id": f"bench-{uuid.uuid4().hex[:12]}",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "socket.nagle.disable": True,
                "log_level": 3,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._consumer.poll(SETTLE_S)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while len(self._ages_us) < self._total and not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                stamp = int((message.value() or b"")[:STAMP_BYTES])
                self._ages_us.append((time.perf_counter_ns() - stamp) / 1e3)

    def finish(self) -> list[float]:
        """Wait for the last message, a while at most; ages in microseconds."""
        self._thread.join(READ_TIMEOUT_S)
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        return self._ages_us
