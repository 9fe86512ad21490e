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

or when the node logs an error of its own, a call does not return, or a producer is refused as fatal for another reason
than these two:

- it aborted a transaction that its coordinator had never heard of (INVALID_TXN_STATE). librdkafka asks for the end of
  what it began to register, whether or not that came through (its issue 4849), and Ottla answers as Kafka does: "abort
  nothing" in `tests/differential/golden/transactions.json`;
- its transaction took longer than its time-out, and the coordinator aborted it.

Whether a commit that was never answered took place nobody knows, but it did so in all partitions or in none.

The clients are told three things, as an application with transactions has to where its brokers may be away:

- `metadata.recovery.strategy=none`. By default librdkafka bootstraps anew where all brokers are away, drops those it
  knew, and with them a request to a coordinator that waits: `send_offsets_to_transaction` does not return, whatever its
  time-out. Seen in librdkafka 2.16.0 against Ottla and against Apache Kafka 4.3.1 alike, by a proxy that cuts every
  connection when it sees AddOffsetsToTxn and takes none for 1.5 s: with a time-out of 5 s no return in 45 s, where with
  `none` the transaction is through 0.1 s after the proxy is back.
- `connections.max.idle.ms`. Where a group's coordinator has moved, librdkafka asks three times in 0.3 s who it is now.
  If nobody knew yet, it asks again only when one of its connections opens or closes, and does not look at the time-out
  of its caller (its issue 5456): where all nodes are up it may wait for ever. An idle connection that closes wakes it.
- By number, where to begin. Where a group has committed nothing, librdkafka asks the leader where the log begins. An
  answer that comes when the partition was taken away, or is led by another node, makes it ask again, and read from
  there once more, whatever it has read since: it moves records twice, and nobody made an error. Seen in librdkafka
  2.16.0 against Ottla and against Apache Kafka 4.3.1 alike: assigned at the beginning while the leader stands still,
  not assigned any more, assigned at offset 40 of 60; when the leader goes on, it reads 40 to 59 and then 0 to 59.

With CRASH_DEBUG in the environment, librdkafka's `debug` ("cgrp,topic,fetch,consumer,eos"), the loops' clients say on
stderr what they do.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tools.history import Fate, History, check
from tools.node_process import NodeProcess, crash_main
from tools.recorded_clients import QUICK, SOON_S, NoStartOffsetError, Sender, begin_by_number, read_log

TOPIC, SOURCE, TARGET = "ledger", "source", "target"
PARTITIONS = 2
WRITERS = 2
LOOPS = 2
WAIT_S = 60.0
TIMEOUT_S = 20.0
"""transaction.timeout.ms."""
IDLE_MS = 2_000
"""connections.max.idle.ms: see above."""
DEBUG = os.environ.get("CRASH_DEBUG", "")
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "log.segment.bytes": "1048576",
}


def debugged(name: str) -> dict[str, Any]:
    """Settings of a client that tells what it does, under this name; none where nobody asked for that."""
    return {"client.id": name, "debug": DEBUG, "log_level": 7} if DEBUG else {}


def new_producer(bootstrap: str, name: str, **more: Any) -> Producer:
    """A transactional producer that has its id; a node may be away for two minutes."""
    settings = {"transaction.timeout.ms": int(TIMEOUT_S * 1000), "connections.max.idle.ms": IDLE_MS, **QUICK, **more}
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **settings})
    until = time.monotonic() + 2 * WAIT_S
    while True:
        try:
            producer.init_transactions(WAIT_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until:
                raise
        else:
            return producer


class Worker(threading.Thread):
    """Runs `step` until it is told to end. A producer that can't go on is followed by a new one of the same id.

    `registered`: whether something was written in the newest transaction, so that its coordinator knows of it for
    certain. `unheard`: how many were aborted of which it did not. `recovered`: whether this producer has aborted one
    that failed: librdkafka may give other records the numbers that it had given then (docs/transactions.md)."""

    def __init__(self, bootstrap: str, name: str, **settings: Any) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.name = name
        self.settings = settings
        self.failure: str | None = None
        self.done = threading.Event()
        self.producer: Producer | None = None
        self.began = 0.0
        self.registered = False
        self.unheard = 0
        self.recovered = False
        self.errors: dict[str, KafkaError] = {}
        """The errors after which it aborted or began a new life, by name."""

    def run(self) -> None:
        try:
            while not self.done.is_set():
                if self.producer is None:
                    self.producer = new_producer(self.bootstrap, self.name, **self.settings)
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

    def begin(self, producer: Producer) -> None:
        self.began, self.registered = time.monotonic(), False
        producer.begin_transaction()

    def write(self, producer: Producer, topic: str, value: bytes, partition: int) -> None:
        producer.produce(topic, value, partition=partition, on_delivery=self._written)

    def _written(self, error: KafkaError | None, _: Message) -> None:
        self.registered |= error is None

    def recover(self, producer: Producer, error: KafkaError) -> None:
        """Abort what is open; where that is not possible, begin a new life."""
        self.errors[error.name()] = error
        if not error.fatal():
            try:
                producer.abort_transaction(WAIT_S)
            except KafkaException as refused:
                error = refused.args[0]
            else:
                self.recovered = True
                return
        if error.fatal():
            self.unheard += self.may_end_so(error)
        self.producer, self.recovered = None, False

    def may_end_so(self, error: KafkaError) -> bool:
        """Whether the coordinator never heard of the transaction; else it took too long, or has numbers that were used.
        AssertionError: nothing of that."""
        if error.code() == KafkaError.INVALID_TXN_STATE and not self.registered:
            return True
        if error.code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER and self.recovered:
            return False
        took_s = time.monotonic() - self.began
        timed_out = error.code() == KafkaError._FENCED and took_s > TIMEOUT_S
        assert timed_out, f"fatal after {took_s:.1f} s, {'' if self.registered else 'not '}registered: {error}"
        return False


class Writer(Worker):
    """`outcome` by transaction: True committed, False aborted, None nobody knows. `pause_s`: before each."""

    def __init__(self, bootstrap: str, number: int, seed: int, pause_s: float = 0.0) -> None:
        super().__init__(bootstrap, f"writer-{number}")
        self.pause_s = pause_s
        self.number = number
        self.rng = random.Random(seed)
        self.outcome: dict[int, bool | None] = {}

    def step(self, producer: Producer) -> None:
        self.done.wait(self.pause_s)
        transaction = len(self.outcome)
        self.outcome[transaction] = False
        self.begin(producer)
        for partition in range(PARTITIONS):
            self.write(producer, TOPIC, b"%d %d" % (self.number, transaction), partition)
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
        super().__init__(bootstrap, f"loop-{number}", **debugged(f"loop-{number}"))
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
                    **QUICK,
                    **self.settings,
                }
            )
            self.consumer.subscribe([SOURCE], on_assign=begin_by_number)
        try:
            messages = [each for each in self.consumer.consume(20, 0.5) if each.error() is None]
        except NoStartOffsetError:
            self.close()  # the next consumer asks again
            return
        if not messages:
            return
        ends: dict[int, int] = {}
        for message in messages:
            ends[message.partition() or 0] = (message.offset() or 0) + 1
        self.begin(producer)
        for message in messages:
            self.write(producer, TARGET, message.value() or b"", message.partition() or 0)
        places = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
        producer.send_offsets_to_transaction(places, self.consumer.consumer_group_metadata(), SOON_S)
        self.registered = True
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
        moved = sum(len(history.logs[place]) for place in places)
        if moved >= wanted:
            return
        assert time.monotonic() < until, f"of {wanted} records in the source {moved} were moved"
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(crash_main(run, __doc__, 30, "every transaction was seen whole and once, or not at all"))
