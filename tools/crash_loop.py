"""Kill a node again and again under load and prove that nothing it acknowledged is lost, doubled or reordered.

    python -m tools.crash_loop [--rounds 50] [--seed 1] [--directory DIR] [--durability page-cache|fsync]

Real processes and real clients: idempotent confluent-kafka producers with acks=all write numbered records, members of a
consumer group read and commit them, and the node is killed with SIGKILL after a random while and started again on the
same port and directory. At the end every partition is read from its beginning. It fails when

- a record whose delivery was reported is missing, is there twice, or stands before one that was sent earlier;
- a record is there that was never sent;
- the group's committed offset of a partition is ever lower than it was, or beyond what the members had read;
- the members together did not come to the end, or the node needs longer than it may to answer again;
- the node logs an error of its own.

A kill -9 leaves the page cache alone, so both durabilities must pass.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.client import Client, ClientError
from ottla.client.errors import check
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tools.history import Fate, History
from tools.history import check as check_history
from tools.node_process import NodeProcess, crash_main
from tools.recorded_clients import read_log

TOPIC = "crash"
GROUP = "readers"
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "log.segment.bytes": "1048576",
}
RECOVERY_S_MAX = 30.0


class Writer(threading.Thread):
    """One idempotent producer with a partition of its own. `acknowledged` is by number, in the order of the reports."""

    def __init__(self, bootstrap: str, partition: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self.partition = partition
        self.pause_s = pause_s
        self.sent = 0
        self.acknowledged: dict[int, int] = {}
        self.failure: str | None = None
        self.done = threading.Event()
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self.done.is_set():
            number = self.sent
            try:
                self.producer.produce(
                    TOPIC,
                    b"%d" % number,
                    partition=self.partition,
                    on_delivery=lambda e, m, n=number: self._told(n, e, m),
                )
                self.sent += 1
            except BufferError:
                pass
            self.producer.poll(self.pause_s)

    def finish(self) -> None:
        self.done.set()
        self.join()
        left = self.producer.flush(120)
        if left:
            self.failure = self.failure or f"{left} records were neither acknowledged nor refused"

    def _told(self, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self.failure = self.failure or f"record {number} of partition {self.partition} failed: {error}"
        else:
            self.acknowledged[number] = message.offset()


class Reader(threading.Thread):
    """A member of the group: reads, and commits what it has read. `read` is the next offset per partition."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.read: dict[int, int] = {}
        self.failure: str | None = None
        self.done = threading.Event()

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        consumer.subscribe([TOPIC])
        try:
            while not self.done.is_set():
                self._round(consumer)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            consumer.close()

    def _round(self, consumer: Consumer) -> None:
        for message in consumer.consume(500, timeout=0.2):
            if message.error() is None:
                at = message.partition() or 0
                self.read[at] = max(self.read.get(at, 0), (message.offset() or 0) + 1)
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            return  # nothing read, the node is away, or the partitions are somebody else's now


class Watch:
    """The group's committed offsets, which may only grow."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.partitions = partitions
        self.committed: dict[int, int] = {}
        self.failures: list[str] = []

    def look(self) -> dict[int, int]:
        wanted = OffsetFetchRequestTopics(TOPIC, partition_indexes=list(range(self.partitions)))
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(GROUP, topics=[wanted])])
        with Client(self.bootstrap) as client:
            (group,) = client.send_to_coordinator(GROUP, request, 9).groups
        check(group.error_code, "the committed offsets")
        found = {part.partition_index: part.committed_offset for part in group.topics[0].partitions}
        for partition, offset in found.items():
            known = self.committed.get(partition, -1)
            if offset < known and not (offset < 0 and known < 0):
                self.failures.append(
                    f"the committed offset of partition {partition} went back from {known} to {offset}"
                )
            self.committed[partition] = max(known, offset)
        return found


def answering(bootstrap: str) -> float:
    """Seconds until a new client's record is acknowledged."""
    began = time.monotonic()
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 30_000, "log_level": 0})
    producer.produce("probe", b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(RECOVERY_S_MAX)
    if told != [None]:
        raise AssertionError(f"after a restart a record is not acknowledged: {told}")
    return time.monotonic() - began


def run(rounds: int, seed: int, directory: str, durability: str, partitions: int = 3, say: Any = print) -> list[str]:
    """The failures of one run; empty when all went well."""
    rng = random.Random(seed)
    node = NodeProcess(directory, {**SETTINGS, "ottla.durability": durability})
    node.start()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(30)
    writers = [Writer(node.bootstrap, partition, 0.001) for partition in range(partitions)]
    readers = [Reader(node.bootstrap) for _ in range(2)]
    watch = Watch(node.bootstrap, partitions)
    failures: list[str] = []
    for thread in [*writers, *readers]:
        thread.start()
    starts: list[float] = []
    back: list[float] = []
    try:
        for index in range(rounds):
            time.sleep(rng.choice((0.05, 0.3, 1.0)) * (0.5 + rng.random()))
            if rng.random() < 0.5:
                watch.look()
            node.kill()
            began = time.monotonic()
            time.sleep(rng.choice((0.0, 0.0, 0.2)))
            starts.append(node.start())
            answering(node.bootstrap)
            back.append(time.monotonic() - began)
            watch.look()
            if index % 10 == 9 or index == rounds - 1:
                acknowledged = sum(len(w.acknowledged) for w in writers)
                say(f"round {index + 1}: {acknowledged} records acknowledged, back in {back[-1] * 1000:.0f} ms")
        for writer in writers:
            writer.finish()
        failures += settle(readers, writers, watch)
        history = history_of(node.bootstrap, writers)
        failures += [*check_history(history), *holes(history)]
    except (AssertionError, RuntimeError, KafkaException, ClientError) as error:
        failures.append(f"{type(error).__name__}: {error}")
    finally:
        for reader in readers:
            reader.done.set()
        for writer in writers:
            writer.done.set()
        for reader in readers:
            reader.join(30)
        code = node.stop() if node.alive else None
    if code != 0:
        failures.append(f"the node ended with {code} instead of 0")
    failures += watch.failures
    failures += [thread.failure for thread in [*writers, *readers] if thread.failure]
    failures += sorted(set(node.tracebacks))
    if starts:
        say(f"{len(starts)} kills, {sum(w.sent for w in writers)} records sent, start {middle(starts) * 1000:.0f} ms")
        say(f"kill to the next acknowledged record: median {middle(back) * 1000:.0f}, worst {max(back) * 1000:.0f} ms")
    return failures


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def settle(readers: list[Reader], writers: list[Writer], watch: Watch) -> list[str]:
    """Wait until the group has read and committed everything."""
    ends = {writer.partition: len(writer.acknowledged) for writer in writers}
    found: dict[int, int] = {}
    for _ in range(240):
        found = watch.look()
        if found == ends:
            return []
        time.sleep(0.25)
    read = [reader.read for reader in readers]
    return [f"the group committed {found} where the logs end at {ends}; its members read {read}"]


def history_of(bootstrap: str, writers: list[Writer]) -> History:
    """What the writers know, and every partition from its beginning."""
    history = History()
    for writer in writers:
        place = TOPIC, writer.partition
        for number in range(writer.sent):
            history.sent[place]["", number] = Fate.KEPT if number in writer.acknowledged else Fate.UNKNOWN
        history.told[place] = {("", number): offset for number, offset in writer.acknowledged.items()}
        history.logs[place] = read_log(bootstrap, place)
    return history


def holes(history: History) -> list[str]:
    """Offsets that no record has."""
    offsets = {place: [record.offset for record in records] for place, records in history.logs.items()}
    return [f"{place}: offsets have holes" for place, found in offsets.items() if found != list(range(len(found)))]


if __name__ == "__main__":
    sys.exit(crash_main(run, __doc__, 50, "nothing acknowledged was lost, doubled or reordered"))
