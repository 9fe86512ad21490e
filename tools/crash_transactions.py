"""Kill a node again and again while transactions run, and prove that each is seen whole, once, or not at all.

    python -m tools.crash_transactions [--rounds 30] [--seed 1] [--directory DIR] [--durability page-cache|fsync]

Real processes and real clients (librdkafka): writers put one record of each transaction into every partition, and
commit or abort; loops of consume, transform, produce move numbered records to another topic with their offsets; then
the node is killed with SIGKILL after a random while and started again on the same port and directory. It fails when, to
readers of committed records,

- a record of a transaction that was aborted is there, or one that was committed is missing or there twice;
- a transaction is there in one partition and not in the other, or transactions stand in another order than was written;
- the effect of an input record is not there exactly once;
- records stay hidden when all is quiet: the last stable offset is stuck below the log's end;

or when the node logs an error of its own. Whether a commit that was never answered took place nobody knows, but it did
so in all partitions or in none.

The clients are told `metadata.recovery.strategy=none`, as an application with transactions has to where all its brokers
may be away at once. By default librdkafka bootstraps anew then, drops the brokers it knew, and with them a request to a
coordinator that waits: `send_offsets_to_transaction` does not return, whatever its time-out. Seen in librdkafka 2.16.0
against Ottla and against Apache Kafka 4.3.1 alike, by a proxy that cuts every connection when it sees AddOffsetsToTxn
and takes none for 1.5 s: with a time-out of 5 s no return in 45 s, where with `none` the transaction is through 0.1 s
after the proxy is back. With three nodes that were all killed such a call was seen with `none` too, once in some fifty
kills: `crash_cluster` lets it hang.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tools.history import Fate, History, check
from tools.node_process import NodeProcess, crash_main
from tools.recorded_clients import QUICK, Sender, read_log

TOPIC, SOURCE, TARGET = "ledger", "source", "target"
PARTITIONS = 2
WRITERS = 2
LOOPS = 2
WAIT_S = 60.0
SOON_S = 5.0
"""How long offsets may take: a node that was killed is back by then, or the loop begins anew."""
HANGS_S = 30
"""A loop that did not come back from librdkafka in this time leaves its partitions to others."""
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "log.segment.bytes": "1048576",
}


def new_producer(bootstrap: str, name: str) -> Producer:
    """A transactional producer that has its id, however long the node is away."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 20_000, **QUICK}
    )
    producer.init_transactions(WAIT_S)
    return producer


class Worker(threading.Thread):
    """Runs `step` until it is told to end. A producer that can't go on is followed by a new one of the same id."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.name = name
        self.failure: str | None = None
        self.done = threading.Event()
        self.producer: Producer | None = None

    def run(self) -> None:
        try:
            while not self.done.is_set():
                if self.producer is None:
                    self.producer = new_producer(self.bootstrap, self.name)
                try:
                    self.step(self.producer)
                except KafkaException as error:
                    self.recover(self.producer, error.args[0])
        except Exception as error:
            self.failure = f"{self.name}: {type(error).__name__}: {error}"
        finally:
            self.close()

    def step(self, producer: Producer) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """The last step is done."""

    def recover(self, producer: Producer, error: KafkaError) -> None:
        """Abort what is open; where that is not possible, begin a new life."""
        if not error.fatal():
            try:
                producer.abort_transaction(WAIT_S)
            except KafkaException:
                pass
            else:
                return
        self.producer = None


class Writer(Worker):
    """`outcome` by transaction: True committed, False aborted, None nobody knows."""

    def __init__(self, bootstrap: str, number: int, seed: int) -> None:
        super().__init__(bootstrap, f"writer-{number}")
        self.number = number
        self.rng = random.Random(seed)
        self.outcome: dict[int, bool | None] = {}

    def step(self, producer: Producer) -> None:
        transaction = len(self.outcome)
        self.outcome[transaction] = False
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"%d %d" % (self.number, transaction), partition=partition)
        if self.rng.random() < 0.3:
            producer.flush(WAIT_S)
            producer.abort_transaction(WAIT_S)
            return
        self.outcome[transaction] = None
        producer.commit_transaction(WAIT_S)
        self.outcome[transaction] = True


class Loop(Worker):
    """Moves records of the source to the target, with the offsets of what it has read."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(bootstrap, f"loop-{number}")
        self.consumer: Consumer | None = None

    def step(self, producer: Producer) -> None:
        if self.consumer is None:
            self.consumer = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": "movers",
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "session.timeout.ms": 10_000,
                    "heartbeat.interval.ms": 500,
                    "max.poll.interval.ms": HANGS_S * 1000,
                    **QUICK,
                }
            )
            self.consumer.subscribe([SOURCE])
        messages = [each for each in self.consumer.consume(20, 0.5) if each.error() is None]
        if not messages:
            return
        ends: dict[int, int] = {}
        for message in messages:
            ends[message.partition() or 0] = (message.offset() or 0) + 1
        producer.begin_transaction()
        for message in messages:
            producer.produce(TARGET, message.value(), partition=message.partition() or 0)
        places = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
        producer.send_offsets_to_transaction(places, self.consumer.consumer_group_metadata(), SOON_S)
        producer.commit_transaction(WAIT_S)

    def recover(self, producer: Producer, error: KafkaError) -> None:
        super().recover(producer, error)
        self.close()  # it has read on: the next one begins where the group has committed

    def close(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            consumer.close()


def run(rounds: int, seed: int, directory: str, durability: str, say: Any = print) -> list[str]:
    """The failures of one run; empty when all went well."""
    rng = random.Random(seed)
    node = NodeProcess(directory, {**SETTINGS, "ottla.durability": durability})
    node.start()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 1) for name in (TOPIC, SOURCE, TARGET)]
    for created in admin.create_topics(topics).values():
        created.result(30)
    history = History()
    source = Sender("source", node.bootstrap, history, SOURCE, PARTITIONS, 0.005)
    writers = [Writer(node.bootstrap, number, seed + number) for number in range(WRITERS)]
    workers: list[Worker] = [*writers, *(Loop(node.bootstrap, number) for number in range(LOOPS))]
    failures: list[str] = []
    for thread in [source, *workers]:
        thread.start()
    try:
        for index in range(rounds):
            time.sleep(rng.choice((0.3, 1.0, 3.0)) * (0.5 + rng.random()))
            node.kill()
            time.sleep(rng.choice((0.0, 0.0, 0.2)))
            node.start()
            if index % 10 == 9 or index == rounds - 1:
                known = sum(outcome is not None for writer in writers for outcome in writer.outcome.values())
                say(f"round {index + 1}: {known} transactions ended, {source.acknowledged} records to move")
        for each in (source, *writers):
            each.done.set()
        for each in (source, *writers):
            each.join(120)
        note_ledger(history, node.bootstrap, writers)
        note_moved(history, node.bootstrap)
        failures += check(history)
    except (AssertionError, RuntimeError, KafkaException) as error:
        failures.append(f"{type(error).__name__}: {error}")
    finally:
        for each in (source, *workers):
            each.done.set()
        for each in (source, *workers):
            each.join(60)
        code = node.stop() if node.alive else None
    if code != 0:
        failures.append(f"the node ended with {code} instead of 0")
    failures += [each.failure for each in (source, *workers) if each.failure]
    failures += sorted(set(node.tracebacks))
    return failures


def note_ledger(history: History, bootstrap: str, writers: list[Writer]) -> None:
    """Write down what the writers know of their transactions, and what is to be seen of them."""
    fates = {True: Fate.KEPT, False: Fate.DROPPED, None: Fate.UNKNOWN}
    for place in ((TOPIC, partition) for partition in range(PARTITIONS)):
        for writer in writers:
            for transaction, outcome in writer.outcome.items():
                history.sent[place][str(writer.number), transaction] = fates[outcome]
        history.logs[place] = read_log(bootstrap, place)


def note_moved(history: History, bootstrap: str) -> None:
    """Wait until all that is in the source was moved, and write down what is to be seen of that."""
    places = [(TARGET, partition) for partition in range(PARTITIONS)]
    for place in places:
        history.sent[place] = history.sent[SOURCE, place[1]]
    wanted = sum(fate is Fate.KEPT for place in places for fate in history.sent[place].values())
    until = time.monotonic() + 120
    while True:
        history.logs |= {place: read_log(bootstrap, place) for place in places}
        if sum(len(history.logs[place]) for place in places) >= wanted or time.monotonic() > until:
            return
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(crash_main(run, __doc__, 30, "every transaction was seen whole and once, or not at all"))
