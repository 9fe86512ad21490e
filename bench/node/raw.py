"""Raw frames: what one request costs the broker, and how fast bytes leave it.

`raw-produce-50x200B-8conn`: batches of 50 records of 200 bytes over 8 connections. `raw-fetch-1000x1kB`: answers of a
MiB out of such batches. Every such name can be asked for; NAMES are those of a whole run.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from bench.brokers import BenchFailedError, Broker
from bench.bulk import SIZE, size_in
from bench.figures import Figures, Scale, cpu_figures
from bench.frames import IN_FLIGHT, Reader, connect, pipeline, produce_frame, record_batch
from ottla.protocol.records.batch import peek

REQUESTS_PER_S = 15_000
BYTES_PER_S = 600_000_000
LARGE_BATCH_BYTES = 30_000
WARM_UP_REQUESTS = 20
FETCHED_BYTES = 200_000_000
"""How much is in the log that a raw fetch reads over and over."""

_NAME = re.compile(rf"raw-(?P<what>produce|fetch)-(?P<count>\d+)x{SIZE}(-(?P<connections>\d+)conn)?")

NAMES = [
    "raw-produce-1x200B",
    "raw-produce-1x200B-8conn",
    "raw-produce-50x200B",
    "raw-produce-1000x1kB",
    "raw-fetch-50x200B",
    "raw-fetch-1000x1kB",
]


@dataclass(frozen=True, slots=True)
class RawLoad:
    what: str
    count: int
    size: int
    connections: int

    @classmethod
    def named(cls, name: str) -> RawLoad | None:
        """What a measurement's name says, None where it is no name of this module's."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(found["what"], int(found["count"]), size_in(found), int(found["connections"] or 1))

    def describe(self) -> str:
        batches = f"batches of {self.count} x {self.size} B"
        if self.what == "fetch":
            return f"raw Fetch, answers of 1 MiB from {batches}, one at a time"
        return f"raw Produce, {batches}, {self.connections} x {IN_FLIGHT} in flight"

    def measure(self, broker: Broker, scale: Scale) -> Figures:
        return self._produce(broker, scale) if self.what == "produce" else self._fetch(broker, scale)

    def _produce(self, broker: Broker, scale: Scale) -> Figures:
        batch = record_batch(self.count, self.size)
        per_s = BYTES_PER_S / len(batch) if len(batch) > LARGE_BATCH_BYTES else REQUESTS_PER_S
        each = max(20, int(scale.seconds * per_s) // self.connections)
        total = each * self.connections
        with broker.topic() as topic:
            frames = [produce_frame(topic, 0, batch)]
            connections = connect(broker, self.connections)
            pipeline(connections, frames, WARM_UP_REQUESTS)
            cpu = broker.cpu_s()
            spent_s = pipeline(connections, frames, each)
            figures = {
                "requests/s": total / spent_s,
                "msg/s": total * self.count / spent_s,
                "MB/s": total * len(batch) / spent_s / 1e6,
            }
            figures |= cpu_figures("broker", broker, cpu, "us/request", total / 1e6)
            if len(batch) > LARGE_BATCH_BYTES:
                figures |= cpu_figures("broker", broker, cpu, "s/GB", total * len(batch) / 1e9)
            for connection in connections:
                connection.close()
        return figures

    def _fetch(self, broker: Broker, scale: Scale) -> Figures:
        batch = record_batch(self.count, self.size)
        batches = max(2, int(min(FETCHED_BYTES, scale.seconds * FETCHED_BYTES) / len(batch)))
        with broker.topic() as topic:
            (connection,) = connect(broker)
            pipeline([connection], [produce_frame(topic, 0, batch)], batches)
            connection.close()
            reader = Reader(broker)
            reader.fetch(topic, 0)
            cpu, began = broker.cpu_s(), time.perf_counter()
            read = requests = offset = 0
            while (spent_s := time.perf_counter() - began) < scale.seconds:
                records = reader.fetch(topic, offset)
                whole = len(records) // len(batch)  # Kafka cuts the last batch of an answer where the size ends
                if not whole or peek(records).base_offset != offset:
                    raise BenchFailedError(f"a fetch at offset {offset} gave no whole batch from there on")
                read += whole * len(batch)
                requests += 1
                offset = (offset + whole * self.count) % (batches * self.count)
            figures = {"MB/s": read / spent_s / 1e6, "requests/s": requests / spent_s}
            figures |= cpu_figures("broker", broker, cpu, "us/request", requests / 1e6)
            figures |= cpu_figures("broker", broker, cpu, "s/GB", read / 1e9)
            reader.close()
        return figures
