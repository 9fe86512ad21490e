"""Sends lines to the topic, and reads which of them it holds, through confluent-kafka.

The producer is librdkafka's idempotent producer. Invariants: a record is retried until the broker accepts it or rejects
it permanently. Records of one partition arrive in the order in which they were sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.ship.failures import ProducerLostError, ShipFailedError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

SERVICE, FILE, HOST, FILE_ID = "service", "file", "host", "file_id"
START, END, WHOLE, MORE = "offset", "end", "whole", "more"

PRODUCER_ONLY = (
    "acks",
    "error_cb",
    "compression",
    "delivery.",
    "enable.idempotence",
    "linger.",
    "message.",
    "queue.buffering.",
)

ANSWER_S = 10.0
NEW_TOPIC_S = 10.0
SETTLE_S = 0.5

Headers = list[tuple[str, str | bytes | None]]
Say = Callable[[str], None]
Stopped = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of this shipper in the topic: bytes [start, end) of a file; `more`: whether another part follows."""

    file_id: str
    start: int
    end: int
    more: bool


class Topic:
    """A producer for one topic. Raises ShipFailedError if the topic or the settings are invalid."""

    __slots__ = (
        "_consumer",
        "_exception",
        "_failure",
        "_producer",
        "_settings",
        "cluster",
        "name",
        "partitions",
        "tails",
    )

    def __init__(self, name: str, settings: Mapping[str, Any], *, say: Say, stopped: Stopped) -> None:
        """Waits for a broker, and reports that it waits; if `stopped`, returns early and the object is unusable."""
        from confluent_kafka import KafkaException, Producer

        self.name = name
        self._exception = KafkaException
        self._settings = dict(settings)
        self._failure: Any = None
        self._consumer: Consumer | None = None
        self.tails: dict[int, int] = {}
        """Per partition: the offset after the last acknowledged record of this shipper."""
        try:
            self._producer: Producer = Producer(
                {
                    "enable.idempotence": True,
                    "compression.type": "zstd",
                    "linger.ms": 20,
                    "queue.buffering.max.messages": 1_000_000,
                    "message.timeout.ms": 0,
                    "error_cb": self._on_error,
                    **settings,
                }
            )
        except KafkaException as error:
            raise ShipFailedError(f"{said(error.args[0])}.") from None
        self.cluster, self.partitions = self._described(say, stopped)

    def _described(self, say: Say, stopped: Stopped) -> tuple[str, int]:
        """(cluster id, number of partitions)."""
        from confluent_kafka import KafkaError, KafkaException

        told, since = False, time.monotonic()
        while not stopped():
            try:
                listed = self._producer.list_topics(self.name, timeout=2)
            except KafkaException as error:
                if not told:
                    say(f"Waiting for a broker at {self._settings['bootstrap.servers']} ({said(error.args[0])}).")
                told, since = True, time.monotonic()
                continue
            found = listed.topics[self.name]
            if found.error is None and found.partitions:
                return listed.cluster_id or "", len(found.partitions)
            lasting = time.monotonic() - since > NEW_TOPIC_S
            if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                lasting = time.monotonic() - since > 1
            if lasting:
                why = said(found.error) if found.error else "it has no partitions"
                raise ShipFailedError(
                    f"Topic {self.name} can't be written to ({why}): `ottla topics create {self.name}` makes it."
                )
            time.sleep(0.2)
        return "", 0

    def end(self, partition: int) -> int:
        """The partition's high watermark. Raises ProducerLostError if no broker answers."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            _, high = self._reader().get_watermark_offsets(TopicPartition(self.name, partition), timeout=ANSWER_S)
        except KafkaException as error:
            raise ProducerLostError(said(error.args[0])) from None
        return high

    def sent(self, tails: Mapping[int, int], ids: Iterable[str]) -> list[Sent]:
        """Records of these files in the topic, from `tails` (offset per partition) on. Raises ProducerLostError."""
        time.sleep(SETTLE_S)  # let the broker append what a killed shipper sent, before asking for the ends
        wanted = {each.encode() for each in ids}
        untils = {partition: self.end(partition) for partition in tails}
        self.tails.update(untils)
        found = self._read({each: tails[each] for each in tails if tails[each] < untils[each]}, untils)
        return [each for each in (sent_in(message, wanted) for message in found) if each is not None]

    def _read(self, firsts: Mapping[int, int], untils: Mapping[int, int]) -> Iterator[Message]:
        """All records from `firsts` to `untils`, per partition; does not wait for a gap at the end."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        reader, left = self._reader(), set(firsts)
        deadline = time.monotonic() + ANSWER_S
        try:
            reader.assign([TopicPartition(self.name, partition, first) for partition, first in firsts.items()])
            while left:
                for message in reader.consume(10_000, 0.1):
                    error, offset = message.error(), message.offset() or 0
                    if error is None:
                        yield message
                        deadline = time.monotonic() + ANSWER_S
                    elif error.code() != KafkaError._PARTITION_EOF:
                        if not error.retriable():
                            raise ProducerLostError(said(error))
                        continue
                    if offset + (error is None) >= untils[message.partition() or 0]:
                        left.discard(message.partition() or 0)
                if time.monotonic() > deadline:
                    raise ProducerLostError("the topic's end can't be read")
            reader.unassign()
        except KafkaException as error:
            raise ProducerLostError(said(error.args[0])) from None

    def _reader(self) -> Consumer:
        from confluent_kafka import Consumer

        if self._consumer is None:
            self._consumer = Consumer(
                {**self._consuming(), "auto.offset.reset": "earliest", "enable.partition.eof": True}
            )
        return self._consumer

    def _consuming(self) -> dict[str, Any]:
        kept = {key: value for key, value in self._settings.items() if not key.startswith(PRODUCER_ONLY)}
        return {
            "fetch.wait.max.ms": 20,  # the end is reported when a fetch there is answered
            **kept,
            "group.id": "ottla-ship",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }

    def send(self, partition: int, key: bytes, value: bytes, headers: Headers, done: Callable[[], None]) -> bool:
        """Queue a record; a later `poll` calls `done` once the broker has it. Returns False if the queue is full."""
        try:
            self._producer.produce(
                self.name, value, key, partition, on_delivery=partial(self._delivered, done), headers=headers
            )
        except BufferError:
            return False
        except self._exception as error:
            self._refused(error.args[0])
        return True

    def poll(self, timeout_s: float) -> None:
        """Process acknowledgements. Raises ProducerLostError, or ShipFailedError if a record was rejected
        permanently."""
        self._producer.poll(timeout_s)
        if self._failure is not None:
            self._refused(self._failure)

    def close(self) -> None:
        """Close without waiting for queued records."""
        self._failure = None
        if self._consumer is not None:
            self._consumer.close()
        self._producer.purge(in_queue=True, in_flight=True)
        self._producer.flush(1)

    def _delivered(self, done: Callable[[], None], error: Any, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and self._failure is None:
            self.tails[partition] = max(self.tails.get(partition, 0), offset + 1)
            done()

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._failure = self._failure or error

    def _refused(self, error: Any) -> None:
        from confluent_kafka import KafkaError

        if error.fatal() or error.code() in {KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}:
            raise ProducerLostError(said(error))
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise ShipFailedError(
                f"A record is larger than topic {self.name} takes: give a smaller --record-max (max.message.bytes)."
            )
        raise ShipFailedError(f"Topic {self.name} refused a record: {said(error)}.")


def said(error: Any) -> str:
    return str(error.str()).strip().rstrip(".").removeprefix("Broker: ").removeprefix("Local: ")


def sent_in(message: Message, wanted: set[bytes]) -> Sent | None:
    """Parse a record's headers; None if the record belongs to none of these files or has no such headers."""
    headers = dict(message.headers() or ())
    file_id = headers.get(FILE_ID)
    if not isinstance(file_id, bytes) or file_id not in wanted:
        return None
    try:
        start, end = int(headers[START] or b""), int(headers[END] or b"")
    except (KeyError, ValueError):
        return None
    return Sent(file_id.decode(), start, end, MORE in headers)
