"""Real clients (librdkafka) that write down what they were told, for the checker in `history`.

Each is a thread that works until `done` is set; `failure` is what ended it before. Values are a record's label: the
writer's name and a number, or the number alone. Times are those of `time.monotonic`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)

from ottla.client import Client, ClientError
from ottla.client.errors import check
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tools.history import Accepted, Commit, Fate, Handed, History, Label, Look, Place, Record, Run

QUICK: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}
"""Without re-bootstrapping, which drops the brokers that it knew where all of them are away at once: an idempotent
producer then waits for seconds, and where they are away again and again for ever. See `crash_transactions` too."""
UNANSWERED = KafkaException(KafkaError(KafkaError._TIMED_OUT))
READ_S = 60.0
SOON_S = 5.0
"""How long offsets may take: a node that was killed is back by then, or who asked begins anew."""
AT_ONCE = 50
"""Records that a member reads before it commits, or fewer where no more come."""
METADATA_MS = 10_000
"""How often a member of a share group looks at the metadata: one that hangs as it leaves goes on then (see `CLOSES` in
`crash_cluster`)."""
SHARED_S = 4.0
"""How long a member of a share group lives: who comes after it can't have been given what it was."""


def label_of(value: bytes | None) -> Label:
    writer, _, number = (value or b"").decode().rpartition(" ")
    return writer, int(number)


def place_of(message: Message) -> Place:
    return message.topic() or "", message.partition() or 0


def record_of(message: Message) -> Record:
    return Record(message.offset() or 0, label_of(message.value()))


def begin_by_number(consumer: Consumer, partitions: Sequence[TopicPartition], *, incremental: bool = False) -> None:
    """Read each partition from its committed offset on, or from 0 (see `crash_transactions`). `incremental`: beside
    what is read already.

    NoStartOffsetError: the coordinator did not answer. A KafkaException must not leave a callback of confluent-kafka:
    the call that runs the callback then raises a KafkaError, which is no exception, and `except` can't catch it."""
    try:
        places = consumer.committed(list(partitions), SOON_S)
        for place in places:
            if place.error is not None:
                raise KafkaException(place.error)
            place.offset = max(place.offset, 0)
        begin = consumer.incremental_assign if incremental else consumer.assign
        begin(places)
    except KafkaException as error:
        raise NoStartOffsetError from error


class NoStartOffsetError(Exception):
    """The coordinator did not report how far a group has read the partitions that a member was given."""


class Recorded(threading.Thread):
    """Runs `work` in a thread of its own, and keeps what it raised."""

    def __init__(self, name: str, bootstrap: str, history: History) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap = bootstrap
        self.history = history
        self.done = threading.Event()
        self.failure: str | None = None
        self.errors: dict[str, KafkaError] = {}
        """The errors that the client was told of and worked on after, by name."""

    def note(self, error: KafkaError) -> None:
        self.errors[error.name()] = error

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.failure = f"{self.name}: {type(error).__name__}: {error}"

    def work(self) -> None:
        raise NotImplementedError

    def consumer(self, group: str, **settings: Any) -> Consumer:
        given = {"auto.offset.reset": "earliest", "enable.auto.commit": False, **QUICK, **settings}
        return Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, **given})


class Sender(Recorded):
    """An idempotent producer with acks=all that numbers what it sends to each partition of a topic. `waits`: for how
    long it heard of nothing, at its longest, and of how many records it heard."""

    def __init__(
        self, name: str, bootstrap: str, history: History, topic: str, partitions: int, pause_s: float
    ) -> None:
        super().__init__(name, bootstrap, history)
        self._places = [(topic, partition) for partition in range(partitions)]
        self._pause_s = pause_s
        self._heard = time.monotonic()
        self.longest_wait_s = 0.0
        self.acknowledged = 0

    def work(self) -> None:
        settings = {"enable.idempotence": True, "acks": "all", "linger.ms": 1, "message.timeout.ms": 300_000}
        producer = Producer({"bootstrap.servers": self.bootstrap, **settings, **QUICK})
        number = 0
        while not self.done.is_set():
            self._send(producer, self._places[number % len(self._places)], number)
            number += 1
            producer.poll(0)
            self.done.wait(self._pause_s)
        left = producer.flush(READ_S)
        assert not left, f"{left} records were neither acknowledged nor refused"

    def _send(self, producer: Producer, place: Place, number: int) -> None:
        label = self.name, number
        self.history.sent[place][label] = Fate.UNKNOWN
        value = f"{self.name} {number}".encode()
        while True:
            try:
                producer.produce(
                    place[0], value, partition=place[1], on_delivery=lambda e, m: self._told(place, label, e, m)
                )
            except BufferError:
                producer.poll(0.1)
            else:
                return

    def _told(self, place: Place, label: Label, error: Any, message: Message) -> None:
        if error is not None:
            self.failure = self.failure or f"{self.name}: record {label[1]} of {place} was refused: {error}"
            return
        self.acknowledged += 1
        now = time.monotonic()
        self.longest_wait_s, self._heard = max(self.longest_wait_s, now - self._heard), now
        offset = message.offset()
        self.history.told[place][label] = -1 if offset is None else offset
        self.history.sent[place][label] = Fate.KEPT


class Tail(Recorded):
    """Reads all partitions of a topic from their beginning, as it grows, and no group."""

    def __init__(
        self, name: str, bootstrap: str, history: History, topic: str, partitions: int, **settings: str
    ) -> None:
        super().__init__(name, bootstrap, history)
        self._runs = [Run(name, (topic, partition)) for partition in range(partitions)]
        self._settings = settings

    def work(self) -> None:
        self.history.runs += self._runs
        consumer = self.consumer("none", **self._settings)
        consumer.assign([TopicPartition(*run.place, 0) for run in self._runs])
        while not self.done.is_set():
            for message in consumer.consume(1000, 0.2):
                if (error := message.error()) is None:
                    self._runs[message.partition() or 0].records.append(record_of(message))
                else:
                    self.note(error)
        consumer.close()

    def has_read(self, ends: dict[Place, int]) -> bool:
        """Whether it has the last record before each of these offsets."""
        return all(run.records and run.records[-1].offset + 1 >= ends[run.place] for run in self._runs)


class Member(Recorded):
    """A member of a group of consumers: reads, and commits what it has read. Where nobody can say how far the group is
    a new member takes its place."""

    def __init__(self, name: str, bootstrap: str, history: History, group: str, protocol: str, topic: str) -> None:
        super().__init__(name, bootstrap, history)
        self._group, self._topic = group, topic
        self._runs: dict[Place, Run] = {}
        self._read: dict[Place, int] = {}
        self._settings: dict[str, Any] = {"group.protocol": protocol}
        if protocol == "classic":
            self._settings |= {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}

    def work(self) -> None:
        while not self.done.is_set():
            self._read.clear()
            with suppress(NoStartOffsetError), closing(self.consumer(self._group, **self._settings)) as consumer:
                self._read_on(consumer)

    def _read_on(self, consumer: Consumer) -> None:
        consumer.subscribe([self._topic], on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)
        while not self.done.is_set():
            for _ in range(AT_ONCE):
                message = consumer.poll(0.1)
                if message is None:
                    break
                if (error := message.error()) is None:
                    place, record = place_of(message), record_of(message)
                    self._runs[place].records.append(record)
                    self._read[place] = record.offset + 1
                elif error.fatal():
                    raise KafkaException(error)
                else:
                    self.note(error)
            if self._read:
                self._commit(consumer)

    def _given(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            place = each.topic, each.partition
            self._runs[place] = Run(self.name, place, self._group, time.monotonic())
            self.history.runs.append(self._runs[place])
        begin_by_number(consumer, partitions, incremental=self._settings["group.protocol"] == "consumer")

    def _taken(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._read.pop((each.topic, each.partition), None)

    def _commit(self, consumer: Consumer) -> None:
        read, self._read = self._read, {}
        began = time.monotonic()
        commits = {place: Commit(self._group, place, offset, began, None) for place, offset in read.items()}
        offsets = [TopicPartition(*place, offset) for place, offset in read.items()]
        try:
            for each in consumer.commit(offsets=offsets, asynchronous=False) or ():
                if each.error is None:
                    place = each.topic, each.partition
                    commits[place] = commits[place]._replace(ended=time.monotonic())
                else:
                    self.note(each.error)
        except KafkaException as refused:  # the coordinator is away, or the partitions are somebody else's now
            self.note(refused.args[0])
        self.history.commits += commits.values()


class Watch(Recorded):
    """Asks again and again what groups have committed of a topic."""

    def __init__(self, name: str, bootstrap: str, history: History, groups: list[str], topic: str, partitions: int):
        super().__init__(name, bootstrap, history)
        self._groups, self._topic, self._partitions = groups, topic, partitions

    def work(self) -> None:
        while not self.done.wait(0.3):
            for group in self._groups:
                self.look(group)

    def look(self, group: str) -> dict[Place, int]:
        """What is committed; nothing where nobody could say."""
        wanted = OffsetFetchRequestTopics(self._topic, partition_indexes=list(range(self._partitions)))
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=[wanted])])
        began = time.monotonic()
        try:
            with Client(self.bootstrap, timeout_s=3) as client:
                (answer,) = client.send_to_coordinator(group, request, 9).groups
            check(answer.error_code, "the committed offsets")
        except ClientError:
            return {}
        ended = time.monotonic()
        found = {(self._topic, each.partition_index): each.committed_offset for each in answer.topics[0].partitions}
        self.history.looks += (Look(group, place, offset, began, ended) for place, offset in found.items())
        return found


class Sharer(Recorded):
    """A member of a share group that accepts every record it is given; it leaves and comes again now and then."""

    def __init__(self, name: str, bootstrap: str, history: History, group: str, topic: str) -> None:
        super().__init__(name, bootstrap, history)
        self._topic = topic
        self._settings = {
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 20,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
        }

    def work(self) -> None:
        while not self.done.is_set():
            life = time.monotonic()
            member = ShareConsumer({"bootstrap.servers": self.bootstrap, "log_level": 0, **self._settings})
            try:
                member.subscribe([self._topic])
                while not self.done.is_set() and time.monotonic() < life + SHARED_S:
                    self._take(member, life)
            finally:
                member.close()

    def _take(self, member: ShareConsumer, life: float) -> None:
        given: dict[Place, list[int]] = {}
        for message in member.poll(0.2):
            if (error := message.error()) is not None:
                self.note(error)
                continue
            place, offset = place_of(message), message.offset() or 0
            self.history.handed.append(Handed(place, offset, life))
            try:
                member.acknowledge(message, AcknowledgeType.ACCEPT)
            except KafkaException:  # the node that gave it is gone, and nobody holds it any more
                continue
            given.setdefault(place, []).append(offset)
        if not given:
            return
        try:
            answers = {(each.topic, each.partition): error for each, error in member.commit_sync(30).items()}
        except KafkaException as refused:
            self.note(refused.args[0])
            answers = {}
        for refused in answers.values():
            if refused is not None:
                self.note(refused.args[0])
        ended = time.monotonic()
        for place, offsets in given.items():  # an error may be that of one record, and says nothing of the others
            times = ended if answers.get(place, UNANSWERED) is None else None
            self.history.accepted += (Accepted(place, offset, times) for offset in offsets)


def read_log(bootstrap: str, place: Place) -> list[Record]:
    """What whoever reads committed records finds, to the log's end: AssertionError where it is kept from there."""
    settings = {"isolation.level": "read_committed", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", **settings, **QUICK})
    records: list[Record] = []
    until = time.monotonic() + READ_S
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(*place), READ_S)
        consumer.assign([TopicPartition(*place, 0)])
        while time.monotonic() < until:
            for message in consumer.consume(10_000, timeout=0.5):
                error = message.error()
                if error is None:
                    records.append(record_of(message))
                elif error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) >= end:
                    return records
    finally:
        consumer.close()
    raise AssertionError(f"{place} can't be read to its end {end}: a transaction stays open, or nobody leads it")
