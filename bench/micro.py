"""What the hot functions cost, in this process: microseconds of CPU per call, no sockets, no other process, no clock.

    python -m bench.micro [--only PATTERN ...] [--seconds 0.5] [--profile NAME]

It steers optimisation: the least of several runs says what the code costs, the median how noisy the machine is.
`--profile` runs one of them under cProfile. The bytes are on /dev/shm where there is one.
"""

from __future__ import annotations

import argparse
import cProfile
import fnmatch
import pstats
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from bench.brokers import default_data
from bench.frames import fetch_frame, produce_frame, record_batch
from bench.machine import machine_line
from ottla.broker.api import produce_frames
from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity
from ottla.broker.config.values import BrokerSettings
from ottla.broker.node import Node
from ottla.broker.topics.new_topic import NewTopic
from ottla.log.config import LogConfig
from ottla.log.files import DiskFiles
from ottla.log.log import Log
from ottla.metadata.memory import MemoryStore
from ottla.protocol.apis import ApiKey
from ottla.protocol.framing import RequestHeader, decode_request, encode_response
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from ottla.protocol.records.batch import peek

RUNS = 7
BATCHES = {"1x200B": (1, 200), "50x200B": (50, 200), "1000x1kB": (1000, 1000)}
APPENDED_BYTES_MAX = 1 << 30
"""A run stops here: what it appends stays on the disk until the end."""

TOPIC = "micro"


class Bench:
    """A directory, a log with something in it, a node with a topic; made once, shared by all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = time.time_ns() // 1_000_000
        self.files = DiskFiles()
        settings = BrokerSettings.load({}, {})
        self.node = Node(
            settings,
            self.files,
            str(directory / "node"),
            MemoryStore(),
            entropy=random.Random(0),
            same_boot=True,
            notes=lambda _: None,
        )
        self.files.makedirs(str(directory / "node"))
        self.node.start(self.now)
        self.channel = Channel(Identity(Address(1, "127.0.0.1")))
        self._logs = count()

    def log(self) -> Log:
        """A new empty log."""
        return Log.open(
            self.files,
            str(self.directory / f"log-{next(self._logs)}"),
            LogConfig(),
            topic_id=bytes(16),
            now=self.now,
            clean_shutdown=True,
            same_boot=True,
            recovery_point=0,
        )

    def topic(self) -> str:
        """A new topic of one partition on the node."""
        name = f"{TOPIC}-{next(self._logs)}"
        topics = self.node.topics
        self.node.metadata.at_once(self.now, topics.creating(self.now, [NewTopic(name, 1)]))
        return name

    def append(self, size: str) -> tuple[Callable[[], object], int]:
        log, batch, now = self.log(), memoryview(record_batch(*BATCHES[size])), self.now

        def call() -> None:
            batch[:8] = bytes(8)  # the offset that the last append stamped
            log.append_as_leader(batch, now=now, leader_epoch=0)

        return call, len(batch)

    def read(self, kind: str) -> tuple[Callable[[], object], int]:
        """`next`: where the last read ended. `random`: anywhere."""
        log, batch = self.log(), record_batch(*BATCHES["50x200B"])
        for _ in range(5_000):
            log.append_as_leader(memoryview(bytearray(batch)), now=self.now, leader_epoch=0)
        log.advance_high_watermark(log.log_end_offset)
        end, offset, choose = log.log_end_offset, 0, random.Random(0)

        def read_next() -> None:
            nonlocal offset
            following = log.read(offset, 1 << 20).next_offset
            offset = following if following < end else 0

        return (read_next if kind == "next" else lambda: log.read(choose.randrange(end), 1 << 20)), 0

    def receive_produce(self, size: str) -> tuple[Callable[[], object], int]:
        node, channel, now, batch = self.node, self.channel, self.now, record_batch(*BATCHES[size])
        frame = memoryview(produce_frame(self.topic(), 0, batch))[4:]
        at = len(frame) - 3 - len(batch)
        assert peek(frame, at).record_count == BATCHES[size][0]

        def call() -> None:
            frame[at : at + 8] = bytes(8)
            node.receive(now, channel, frame)

        assert node.receive(now, channel, frame), "not answered"
        return call, len(batch)

    def receive_fetch(self, kind: str) -> tuple[Callable[[], object], int]:
        """`full`: 1 MiB of records. `empty`: parked at the log end, then forgotten."""
        topic, node, channel, now = self.topic(), self.node, self.channel, self.now
        produce = memoryview(produce_frame(topic, 0, record_batch(*BATCHES["50x200B"])))[4:]
        for _ in range(200):
            node.receive(now, channel, memoryview(bytearray(produce)))
        end = node.replicas.by_name[topic].partitions[0].log.log_end_offset
        frame = memoryview(fetch_frame(topic, 0, 0 if kind == "full" else end))[4:]

        def park() -> None:
            node.receive(now, channel, frame)
            node.disconnected(now, channel.identity.address.connection_id)

        return (park if kind == "empty" else lambda: node.receive(now, channel, frame)), 0

    def parse_produce(self, how: str) -> tuple[Callable[[], object], int]:
        frame = memoryview(produce_frame(TOPIC, 0, record_batch(*BATCHES["50x200B"])))[4:]
        if how == "by-hand":
            return lambda: produce_frames.parse_common(frame, 9), 0
        return lambda: decode_request(frame), 0

    def answer_produce(self) -> tuple[Callable[[], object], int]:
        header = RequestHeader(ApiKey.PRODUCE, 9, 1, "bench")
        place = PartitionProduceResponse(0, 0, 1_000_000, -1, 0)
        answer = ProduceResponse([TopicProduceResponse(TOPIC, partition_responses=[place])])
        return lambda: encode_response(header, answer), 0

    def named(self) -> dict[str, Callable[[], tuple[Callable[[], object], int]]]:
        """Name to what makes (the call, the bytes that each call leaves on the disk)."""
        found: dict[str, Callable[[], tuple[Callable[[], object], int]]] = {}
        for size in BATCHES:
            found[f"log.append-{size}"] = lambda size=size: self.append(size)
        for kind in ("next", "random"):
            found[f"log.read-{kind}"] = lambda kind=kind: self.read(kind)
        for how in ("by-hand", "codec"):
            found[f"produce.parse-{how}"] = lambda how=how: self.parse_produce(how)
        found["produce.answer-codec"] = self.answer_produce
        for size in BATCHES:
            found[f"node.produce-{size}"] = lambda size=size: self.receive_produce(size)
        for kind in ("full", "empty"):
            found[f"node.fetch-{kind}"] = lambda kind=kind: self.receive_fetch(kind)
        return found


def timed(call: Callable[[], object], bytes_each: int, seconds: float) -> Iterator[float]:
    """Microseconds of CPU per call, run by run."""
    spent_s = seconds
    for _ in range(3):  # the first ones import and fill caches
        began = time.perf_counter()
        call()
        spent_s = time.perf_counter() - began
    calls = max(1, int(seconds / RUNS / max(spent_s, 1e-7)))
    if bytes_each:
        calls = min(calls, max(1, APPENDED_BYTES_MAX // RUNS // bytes_each))
    for _ in range(RUNS):
        before = time.thread_time_ns()
        for _ in range(calls):
            call()
        yield (time.thread_time_ns() - before) / calls / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="PATTERN", nargs="+", default=["*"])
    parser.add_argument("--seconds", type=float, default=0.5, help="per function (0.5)")
    parser.add_argument("--profile", metavar="NAME", help="run this one under cProfile")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ottla-micro-", dir=default_data()))
    try:
        bench = Bench(directory)
        named = bench.named()
        if options.list:
            print("\n".join(named))
            return 0
        if options.profile:
            profile(*named[options.profile](), options.seconds)
            return 0
        print(machine_line())
        print(f"{'microseconds of CPU per call':<30} {'least':>9} {'median':>9}")
        for name, make in named.items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.only):
                runs = list(timed(*make(), options.seconds))
                print(f"{name:<30} {min(runs):>9.2f} {statistics.median(runs):>9.2f}", flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def profile(call: Callable[[], object], bytes_each: int, seconds: float) -> None:
    with cProfile.Profile() as profiler:
        for _ in timed(call, bytes_each, seconds):
            pass
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    sys.exit(main())
