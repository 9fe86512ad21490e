"""Takes messages from a Kafka topic and says of each by itself what became of it.

Knows the order that makes it at least once: read, start markers, *their acknowledgement*, commit, process, end marker.
Does not know what happens to messages that nobody ends: that is the tracker's (tracker.py).

Two things keep it near a plain consumer's pace. The start markers of a batch are sent together and awaited together.
And while a batch is being worked on, the next one is read already and its start markers are on their way; its offsets
are committed when it is handed out. That is done only while batches take less than a tenth of their time-out, because
the time-out of a message begins with its marker.

Two producers: starts must be acknowledged before a batch is handed out, ends need nobody to wait for them. The order of
a message's own markers is safe, for everything but its first start goes through one idempotent producer.

`processed`, `extend`, `failed` and `reject` may be called from any thread, in any order, as late as one likes; the
other methods from one thread at a time.

Source: softwaremill/kmq 0.3.2, KmqClient.java.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.kmq.config import KmqConfig
from ottla.kmq.markers import END, Kind, pack_key, start
from ottla.kmq.topics import properties_of, require_topics

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

CLOSE_TIMEOUT_S = 30.0
WORK_SHARE = 10
"""Batches are read ahead while they take less than this fraction of their time-out."""

CONSUMER = {
    "auto.offset.reset": "earliest",
    "fetch.queue.backoff.ms": 10,  # librdkafka's second of rest with a full queue is longer than it takes to empty it
}
CONSUMER_ALWAYS = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": False}
PRODUCER = {
    "enable.idempotence": True,
    "queue.buffering.max.messages": 1_000_000,
}


class KmqClient:
    """Messages of a queue in batches, acknowledged one by one. A context manager.

    `properties`: librdkafka's, or HOST:PORT addresses alone; `consumer` and `producer` add some for these only.
    `timeout_ms_of` gives a message a time-out of its own, in ms; without it all have `config.timeout_ms`.

    Raises KmqRefused where the topics are not there or don't fit.
    """

    def __init__(
        self,
        properties: str | Mapping[str, Any],
        config: KmqConfig,
        *,
        timeout_ms_of: Callable[[Message], int] | None = None,
        consumer: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> None:
        from confluent_kafka import Consumer, Producer

        given = properties_of(properties)
        self.config = config
        self._timeout_ms_of = timeout_ms_of
        self._start = start(config.timeout_ms)
        self._starts_lost: list[KafkaError] = []
        self._failure: KafkaError | None = None
        self.markers_lost = 0
        """End markers and the like that could not be written: their messages come again."""
        self._ahead: list[Message] = []
        """Read, and their start markers sent, but not handed out."""
        self._ahead_last: dict[int, int] = {}
        self._ahead_since = 0.0
        self._handed: dict[int, int] = {}
        """Partition to the offset behind the last message that was handed out."""
        self._handed_at = 0.0
        self._shortest_ms = config.timeout_ms
        sends = {**PRODUCER, **given, **(producer or {}), "delivery.report.only.error": True}
        self._starts = Producer({"linger.ms": 1, **sends, "on_delivery": self._start_lost})
        self._ends = Producer({"linger.ms": 5, **sends, "on_delivery": self._end_lost})
        self._send_end = self._ends.produce
        self._markers = config.markers
        require_topics(self._ends, config, dead_letters=False)
        reads = {**CONSUMER, **given, "group.id": config.group_id, **(consumer or {}), **CONSUMER_ALWAYS}
        self._consumer: Consumer = Consumer(reads)
        self._consumer.subscribe([config.queue], on_revoke=self._revoked, on_lost=self._lost)

    # ---- taking messages -------------------------------------------------------------------------------------------

    def next_batch(self, timeout_s: float = 1.0) -> list[Message]:
        """The next messages, at most `config.batch_size`; none when none came within `timeout_s`.

        Their start markers are acknowledged. Raises confluent_kafka.KafkaException when they could not be written (then
        the same messages come with the next call), or when a client is broken for good.
        """
        self._raise_if_failed()
        spent_ms = (time.monotonic() - self._handed_at) * 1000
        read_ahead = spent_ms * WORK_SHARE < self._shortest_ms
        self._ends.poll(0)
        if not self._ahead:
            self._take(timeout_s)
        if not self._ahead:
            self._raise_if_failed()
            return []
        self._await_starts()
        batch, self._ahead = self._ahead, []
        self._hand_out()
        if read_ahead:
            self._take(0)
        self._handed_at = time.monotonic()
        return batch

    def _take(self, timeout_s: float) -> None:
        """Read what is there, wait for one message at most, and send start markers."""
        from confluent_kafka import Message

        found = taken(self._consumer, self.config.batch_size, timeout_s)
        if not found:
            return
        messages = found
        if any(map(Message.error, found)):
            self._note_errors(found)
            messages = [message for message in found if message.error() is None]
        try:
            last = self._send_starts(messages)
        except BaseException:
            self._step_back(messages)  # without their markers they must not be committed
            raise
        self._ahead, self._ahead_last, self._ahead_since = messages, last, time.monotonic()

    def _send_starts(self, messages: list[Message]) -> dict[int, int]:
        """Partition to the offset of its last message. Hot."""
        from confluent_kafka import Message

        send, topic, value, timeout_ms_of = self._starts.produce, self.config.markers, self._start, self._timeout_ms_of
        partitions: list[Any] = list(map(Message.partition, messages))
        offsets: list[Any] = list(map(Message.offset, messages))
        self._shortest_ms = self.config.timeout_ms
        for message, partition, key in zip(messages, partitions, map(pack_key, partitions, offsets), strict=True):
            if timeout_ms_of is not None:
                timeout_ms = timeout_ms_of(message)
                self._shortest_ms = min(self._shortest_ms, timeout_ms)
                value = start(timeout_ms)
            try:
                send(topic, value, key, partition)
            except BufferError:
                self._mark(self._starts, message, value)
        return dict(zip(partitions, offsets, strict=True))

    def _note_errors(self, found: list[Message]) -> None:
        """Keep what stays wrong for the next call; librdkafka mends the rest itself."""
        from confluent_kafka import KafkaError

        lasting = {
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError._AUTHENTICATION,
        }
        for message in found:
            error = message.error()
            if error is not None and (error.fatal() or error.code() in lasting):
                self._failure = error

    def _await_starts(self) -> None:
        """Return when every start marker is acknowledged; where one is not, go back and raise."""
        from confluent_kafka import KafkaException

        if (time.monotonic() - self._ahead_since) * 4000 > self._shortest_ms:
            for message in self._ahead:  # they lay there for a while: their time counts from now
                self._mark(self._starts, message, start(self._timeout_ms(message), Kind.EXTEND))
        while self._starts.flush(1.0):
            pass
        if self._starts_lost:
            error = self._starts_lost[0]
            self._starts_lost.clear()
            messages, self._ahead = self._ahead, []
            self._step_back(messages)
            raise KafkaException(error)

    def _step_back(self, messages: list[Message]) -> None:
        """Read these once more."""
        from confluent_kafka import KafkaException, TopicPartition

        first: dict[int, int] = {}
        for message in reversed(messages):
            partition, first[partition] = placed(message)
        for partition, offset in first.items():
            with contextlib.suppress(KafkaException):  # somebody else's by now
                self._consumer.seek(TopicPartition(self.config.queue, partition, offset))

    def _hand_out(self) -> None:
        """Commit what is handed out. Not awaited: what was not committed in the end is only read twice."""
        from confluent_kafka import KafkaException

        self._handed.update((partition, offset + 1) for partition, offset in self._ahead_last.items())
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=self._positions(self._ahead_last), asynchronous=True)

    def _positions(self, partitions: Iterable[int]) -> list[TopicPartition]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self.config.queue, each, self._handed[each]) for each in partitions]

    def _timeout_ms(self, message: Message) -> int:
        return self.config.timeout_ms if self._timeout_ms_of is None else self._timeout_ms_of(message)

    # ---- saying what became of a message ---------------------------------------------------------------------------

    def processed(self, message: Message) -> None:
        """The work on this message is done: write its end marker. Does not wait.

        When the marker is lost, with this process for example, the message comes again.
        """
        partition: Any = message.partition()
        try:  # hot: what _mark does, with one call less
            self._send_end(self._markers, END, pack_key(partition, message.offset()), partition)
        except BufferError:
            self._mark(self._ends, message, END)

    def extend(self, message: Message, timeout_ms: int | None = None) -> None:
        """More time for this message: its time-out counts anew from now, with `timeout_ms` or what it had."""
        self._mark(self._ends, message, start(timeout_ms or self._timeout_ms(message), Kind.EXTEND))

    def failed(self, message: Message, *, delay_ms: int = 0, reason: str = "") -> None:
        """The work failed: the message comes again after `delay_ms`, or after the back-off where that is longer.

        Counts as a redelivery; past the last one the message becomes a dead letter with this reason.
        """
        self._mark(self._ends, message, start(delay_ms, Kind.FAILED, reason))

    def reject(self, message: Message, *, reason: str = "") -> None:
        """Nobody can do anything with this message: it becomes a dead letter now, with this reason."""
        self._mark(self._ends, message, start(0, Kind.REJECTED, reason))

    def _mark(self, producer: Any, message: Message, value: bytes) -> None:
        partition = message.partition()
        key = pack_key(partition, message.offset())
        while True:
            try:
                producer.produce(self.config.markers, value, key, partition)
                return
            except BufferError:
                producer.poll(0.05)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Wait until every marker is acknowledged or given up; the number that is still on its way."""
        return self._ends.flush(timeout_s)

    def close(self) -> None:
        """Leave the group and write what is to be written. Messages that were not ended come to others in time."""
        self._ahead = []
        self._consumer.close()
        self._starts.flush(CLOSE_TIMEOUT_S)
        self._ends.flush(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what the clients tell -------------------------------------------------------------------------------------

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Others take over: commit what was handed out. What was only read ahead is theirs, start marker or not."""
        from confluent_kafka import KafkaException

        gone = {each.partition for each in partitions}
        mine = [each for each in gone if each in self._handed]
        if mine:
            with contextlib.suppress(KafkaException):  # they read it once more
                consumer.commit(offsets=self._positions(mine), asynchronous=False)
        self._lost(consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {each.partition for each in partitions}
        for each in gone:
            self._handed.pop(each, None)
            self._ahead_last.pop(each, None)
        self._ahead = [message for message in self._ahead if message.partition() not in gone]

    def _start_lost(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._starts_lost.append(error)
            if error.fatal():
                self._failure = error

    def _end_lost(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.markers_lost += 1
            if error.fatal():
                self._failure = error

    def _raise_if_failed(self) -> None:
        from confluent_kafka import KafkaException

        error = self._failure
        if error is not None:
            if not error.fatal():
                self._failure = None
            raise KafkaException(error)


def taken(consumer: Consumer, most: int, timeout_s: float) -> list[Message]:
    """What is there, `most` at most, once there is anything: `consume` alone waits until it has them all."""
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    return [first, *consumer.consume(most - 1, 0)] if most > 1 else [first]


def placed(message: Message) -> tuple[int, int]:
    """(partition, offset) of a message that was consumed."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset
