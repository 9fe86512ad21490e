"""Consumes messages from a Kafka topic and acknowledges each of them separately.

The order of steps makes delivery at-least-once: read, send start markers, await *their acknowledgement*, commit,
process, send the end marker. The tracker (tracker.py) redelivers messages that have no end marker.

Two things keep its throughput near a plain consumer's. The start markers of a batch are sent together and awaited
together. And the client reads ahead: while the application works on a batch, the next one is read and its start markers
are sent. Its offsets are committed when it is handed out. The client reads ahead only while batches take less than a
tenth of their time-out, because the time-out of a message begins with its marker.

There are two producers: starts must be acknowledged before a batch is handed out, and ends need not be awaited. The
order of a message's own markers is safe, because all of them except the first start go through one idempotent producer.

`processed`, `extend`, `failed` and `reject` may be called from any thread, in any order and at any later time. Call the
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
    "fetch.queue.backoff.ms": 10,  # librdkafka's default back-off of 1 s on a full queue exceeds the time to empty it
}
CONSUMER_ALWAYS = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": False}
PRODUCER = {
    "enable.idempotence": True,
    "queue.buffering.max.messages": 1_000_000,
}


class KmqClient:
    """Messages of a queue in batches, acknowledged one by one. A context manager.

    `properties`: librdkafka's properties, or HOST:PORT addresses alone; `consumer` and `producer` add properties for
    that client only. `timeout_ms_of` returns the time-out of a message, in ms; without it every message has
    `config.timeout_ms`. Raises KmqRefusedError if the topics are missing or do not fit.
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
        """Markers (ends, extensions, failures, rejections) that could not be written: the messages are redelivered."""
        self._ahead: list[Message] = []
        """Messages that were read, with their start markers sent, but not handed out yet."""
        self._ahead_last: dict[int, int] = {}
        self._ahead_since = 0.0
        self._handed: dict[int, int] = {}
        """Partition to the offset after the last message that was handed out."""
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
        """The next messages, at most `config.batch_size`; an empty list if none arrived within `timeout_s`.

        Their start markers are acknowledged. Raises confluent_kafka.KafkaException if the markers could not be written
        (the next call then returns the same messages), or if a client has a fatal error.
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
        """Read the available messages, waiting only for the first one, and send their start markers."""
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
            self._step_back(messages)  # without start markers, these messages must not be committed
            raise
        self._ahead, self._ahead_last, self._ahead_since = messages, last, time.monotonic()

    def _send_starts(self, messages: list[Message]) -> dict[int, int]:
        """Send start markers; returns each partition's last offset. Hot."""
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
        """Keep a lasting error for the next call to raise; librdkafka retries the other errors itself."""
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
        """Return when every start marker is acknowledged; if one is lost, seek back and raise."""
        from confluent_kafka import KafkaException

        if (time.monotonic() - self._ahead_since) * 4000 > self._shortest_ms:
            for message in self._ahead:  # they waited for a while: their time-out counts from now
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
        """Seek back, so that these messages are read again."""
        from confluent_kafka import KafkaException, TopicPartition

        first: dict[int, int] = {}
        for message in reversed(messages):
            partition, first[partition] = placed(message)
        for partition, offset in first.items():
            with contextlib.suppress(KafkaException):  # revoked meanwhile: another member reads it
                self._consumer.seek(TopicPartition(self.config.queue, partition, offset))

    def _hand_out(self) -> None:
        """Commit the batch that is handed out, without waiting: a lost commit only causes messages to be read twice."""
        from confluent_kafka import KafkaException

        self._handed.update((partition, offset + 1) for partition, offset in self._ahead_last.items())
        with contextlib.suppress(KafkaException):
            self._consumer.commit(offsets=self._positions(self._ahead_last), asynchronous=True)

    def _positions(self, partitions: Iterable[int]) -> list[TopicPartition]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(self.config.queue, each, self._handed[each]) for each in partitions]

    def _timeout_ms(self, message: Message) -> int:
        return self.config.timeout_ms if self._timeout_ms_of is None else self._timeout_ms_of(message)

    # ---- acknowledging messages ------------------------------------------------------------------------------------

    def processed(self, message: Message) -> None:
        """Acknowledge this message: write its end marker. Does not block.

        If the marker is lost, for example because this process dies, the message is redelivered.
        """
        partition: Any = message.partition()
        try:  # hot: what _mark does, with one call less
            self._send_end(self._markers, END, pack_key(partition, message.offset()), partition)
        except BufferError:
            self._mark(self._ends, message, END)

    def extend(self, message: Message, timeout_ms: int | None = None) -> None:
        """Extend the time-out of this message: it restarts now, with `timeout_ms` or, by default, its original
        length."""
        self._mark(self._ends, message, start(timeout_ms or self._timeout_ms(message), Kind.EXTEND))

    def failed(self, message: Message, *, delay_ms: int = 0, reason: str = "") -> None:
        """Report a failure: the message is redelivered after `delay_ms`, or after the back-off if that is longer.

        Counts as a redelivery; after the last one the message becomes a dead letter with this reason.
        """
        self._mark(self._ends, message, start(delay_ms, Kind.FAILED, reason))

    def reject(self, message: Message, *, reason: str = "") -> None:
        """Reject a message that no worker can process: it becomes a dead letter now, with this reason."""
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

    # ---- closing ---------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
        """Wait until every marker is acknowledged or has failed; returns the number of markers still in flight."""
        return self._ends.flush(timeout_s)

    def close(self) -> None:
        """Leave the group and flush the markers. The tracker redelivers unfinished messages after their time-out."""
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

    # ---- callbacks of the clients ----------------------------------------------------------------------------------

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what was handed out of the revoked partitions. Their new owner reads messages again that were only
        read ahead, with or without a start marker."""
        from confluent_kafka import KafkaException

        gone = {each.partition for each in partitions}
        mine = [each for each in gone if each in self._handed]
        if mine:
            with contextlib.suppress(KafkaException):  # the new owner reads the messages again
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
    """The available messages, at most `most`, as soon as there is one; `consume` alone would wait for `most`
    messages."""
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    return [first, *consumer.consume(most - 1, 0)] if most > 1 else [first]


def placed(message: Message) -> tuple[int, int]:
    """(partition, offset) of a consumed message."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset
