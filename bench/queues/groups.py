"""A share group beside a consumer group, on the same records: throughput, and end to end.

`share-MEMBERS[-explicit]`: everything there is, as fast as it goes; the clocks start at the first record. Explicit:
each record is acknowledged by itself, and one in a thousand is released at its first delivery. `share-latency-RATE`: so
many records a second, each read by a group of one that waits.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from dataclasses import dataclass

from confluent_kafka import AcknowledgeType, Consumer, Producer

from bench.brokers import BenchFailedError, Broker
from bench.figures import Figures, Scale, cpu_figures, percentiles
from bench.node.latency import STAMP_BYTES, stamped
from bench.queues.members import TIMEOUT_S, Member, at_work, fill, new_group

RECORDS_PER_S = 300_000
RELEASED_ONE_IN = 1_000
KNOCK_S = 0.05
SEEN_MIN = 0.9

_LOAD = re.compile(r"share-(?P<members>\d+)(?P<explicit>-explicit)?")
_PACE = re.compile(r"share-latency-(?P<rate>\d+)")

NAMES = ["share-1", "share-4", "share-1-explicit", "share-4-explicit", "share-latency-500"]


@dataclass(frozen=True, slots=True)
class GroupLoad:
    members: int
    explicit: bool

    @classmethod
    def named(cls, name: str) -> GroupLoad | None:
        """What a measurement's name says, None where it is no name of this module's."""
        found = _LOAD.fullmatch(name)
        if found is None or not int(found["members"]):
            return None
        return cls(int(found["members"]), found["explicit"] is not None)

    def describe(self) -> str:
        how = "each record acknowledged by itself" if self.explicit else "implicit acknowledgement"
        return f"a share group of {self.members}, {how}, and a consumer group of 1: 200 B, 1 partition"

    def measure(self, broker: Broker, scale: Scale) -> Figures:
        count = max(10_000, int(RECORDS_PER_S * scale.seconds))
        with broker.topic() as topic:
            fill(broker, topic, count)
            cpu = broker.cpu_s()
            joined_s, shared_s = self._shared(broker, topic, count)
            figures = {"share join s": joined_s, "share msg/s": count / shared_s}
            figures |= cpu_figures("share", broker, cpu, "s/M msg", count / 1e6)
            cpu = broker.cpu_s()
            group_joined_s, grouped_s = grouped(broker, topic, count)
            figures |= {"group join s": group_joined_s, "group msg/s": count / grouped_s}
            figures |= cpu_figures("group", broker, cpu, "s/M msg", count / 1e6)
        return figures | {"share / group /s": grouped_s / shared_s}

    def _shared(self, broker: Broker, topic: str, count: int) -> tuple[float, float]:
        """Seconds to the first record, and from there until every record was had."""
        group, lock, over = new_group(broker), threading.Lock(), threading.Event()
        members = [Member(broker, group, explicit=self.explicit) for _ in range(self.members)]
        seen, first = 0, 0.0
        released: set[int] = set()

        def work(member: Member) -> None:
            nonlocal seen, first
            member.consumer.subscribe([topic])
            while not over.is_set():
                batch = member.take(0.5)
                got = acknowledge(member, batch, released) if self.explicit else len(batch)
                with lock:
                    first = first or (time.perf_counter() if batch else 0.0)
                    seen += got
                    if seen >= count:
                        over.set()
            member.consumer.close()

        began = time.perf_counter()
        with at_work([threading.Thread(target=work, args=(member,)) for member in members], over):
            if not over.wait(TIMEOUT_S):
                raise BenchFailedError(f"the share group had {seen} of {count} records in {TIMEOUT_S} s")
            ended = time.perf_counter()
        return first - began, ended - first


def acknowledge(member: Member, batch: list, released: set[int]) -> int:
    """Each record by itself; how many were accepted."""
    accepted = 0
    for message in batch:
        offset = message.offset()
        again = offset % RELEASED_ONE_IN == RELEASED_ONE_IN // 2 and offset not in released
        if again:
            released.add(offset)
        accepted += not again
        member.consumer.acknowledge(message, AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT)
    return accepted


def grouped(broker: Broker, topic: str, count: int) -> tuple[float, float]:
    """The same for a consumer group of one that commits in the background."""
    group = {"group.id": f"group-{uuid.uuid4().hex[:12]}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**broker.properties, **group})
    consumer.subscribe([topic])
    began = time.perf_counter()
    seen = len(consumer.consume(1, TIMEOUT_S))
    first = time.perf_counter()
    while seen < count:
        batch = consumer.consume(min(500, count - seen), 10)
        if not batch:
            raise BenchFailedError(f"the consumer group had {seen} of {count} records, then none came for 10 s")
        seen += len(batch)
    ended = time.perf_counter()
    consumer.close()
    return first - began, ended - first


@dataclass(frozen=True, slots=True)
class GroupPace:
    rate: int

    @classmethod
    def named(cls, name: str) -> GroupPace | None:
        """What a measurement's name says, None where it is no name of this module's."""
        found = _PACE.fullmatch(name)
        return None if found is None or not int(found["rate"]) else cls(int(found["rate"]))

    def describe(self) -> str:
        return f"{self.rate} records a second of 200 B, end to end, by a share group and by a consumer group"

    def measure(self, broker: Broker, scale: Scale) -> Figures:
        figures: Figures = {}
        for name in ("share", "group"):
            with broker.topic() as topic:
                ages_us = self._ages(broker, topic, name == "share", max(50, int(self.rate * scale.seconds)))
            figures |= percentiles(f"{name} end to end", ages_us, (50, 99))
        return figures

    def _ages(self, broker: Broker, topic: str, shared: bool, total: int) -> list[float]:
        """Microseconds from produce to hand."""
        ages_us: list[float] = []
        joined, over = threading.Event(), threading.Event()

        def note(value: bytes) -> None:
            if value == b"knock":
                joined.set()
            else:
                ages_us.append((time.perf_counter_ns() - int(value[:STAMP_BYTES])) / 1e3)

        def work() -> None:
            if shared:
                consumer = Member(broker, new_group(broker), explicit=False).consumer
            else:
                own = {"group.id": f"group-{uuid.uuid4().hex[:12]}", "auto.offset.reset": "earliest"}
                consumer = Consumer({**broker.properties, **own})
            consumer.subscribe([topic])
            while not over.is_set() and len(ages_us) < total:
                got = consumer.poll(0.2)
                for message in got if shared else [got]:
                    if message is not None and message.error() is None:
                        note(message.value())
            consumer.close()

        reader = threading.Thread(target=work)
        with at_work([reader], over):
            self._send(broker, topic, total, joined)
            reader.join(10)
        if len(ages_us) < total * SEEN_MIN:
            raise BenchFailedError(f"{len(ages_us)} of {total} records were seen")
        return ages_us[total // 10 :]

    def _send(self, broker: Broker, topic: str, total: int, joined: threading.Event) -> None:
        """Knock until somebody hears, then the records in even steps."""
        producer = Producer({**broker.properties, "linger.ms": 0, "acks": "1", "socket.nagle.disable": True})
        deadline = time.monotonic() + TIMEOUT_S
        while not joined.wait(KNOCK_S):
            if time.monotonic() > deadline:
                raise BenchFailedError("the group read nothing")
            producer.produce(topic, b"knock")
            producer.flush(10)
        time.sleep(0.3)
        began = time.perf_counter()
        for index in range(total):
            while (left_s := began + index / self.rate - time.perf_counter()) > 0:
                time.sleep(left_s)
            producer.produce(topic, stamped())
            producer.poll(0)
        producer.flush(10)
