"""Sends dead letters back to the topic they came from.

A dead letter that was sent back stays in the topic until retention removes it. So the progress of a redrive is kept as
the committed position of a consumer group. Every dead letter before the committed offset is done. Further offsets that
are done are listed in the commit's metadata: alternating lengths `gap+length` of records not done and done. Kafka
limits metadata to 4,096 bytes. If the chosen dead letters are too scattered to fit, the redrive stops there and reports
the partition.

At-least-once: if the process dies between sending and committing, the next call sends up to BATCH dead letters
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.kmq import headers
from ottla.kmq.client import placed, taken
from ottla.kmq.config import KmqConfig, KmqRefusedError
from ottla.kmq.copies import time_of
from ottla.kmq.events import Reason
from ottla.kmq.stats import CALL_TIMEOUT_S, READ_PATIENCE_S
from ottla.kmq.topics import partition_counts, properties_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

BATCH = 100
METADATA_BYTES_MAX = 4_000
SEND_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and the provenance in its headers. `timestamp_ms` is its record's, 0 if it has none."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    source: headers.Provenance
    own: headers.Headers
    """The headers that the message had, including its redelivery count."""

    @property
    def lost(self) -> bool:
        """Whether the message was lost, so that there is nothing to send back."""
        return self.source.reason == Reason.LOST

    @property
    def redrives(self) -> int:
        """How often it was sent back before."""
        return headers.count_in(self.own, headers.REDRIVE_COUNT)

    def place(self, config: KmqConfig, partitions: Mapping[str, int]) -> tuple[str, int]:
        """The topic and partition to which it goes back; -1 for any partition. `partitions`: their number by topic."""
        topic = self.source.topic or config.queue
        partition = self.source.partition
        return topic, -1 if partition is None or partition >= partitions.get(topic, 0) else partition

    def headers_back(self, config: KmqConfig) -> headers.Headers:
        """The headers with which it goes back: without the redelivery count, and counted once more."""
        kept = [each for each in self.own if each[0] != config.count_header]
        return headers.with_count(kept, headers.REDRIVE_COUNT, self.redrives + 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """Selects dead letters; a field that is None selects all. Times are when they became dead letters, epoch ms;
    `until_ms` is exclusive."""

    partition: int | None = None
    reason: Reason | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()

    def takes(self, letter: Letter) -> bool:
        source = letter.source
        at_ms = letter.timestamp_ms if source.at_ms is None else source.at_ms
        return (
            (self.partition is None or source.partition == self.partition)
            and (self.reason is None or source.reason == self.reason)
            and (self.since_ms is None or at_ms >= self.since_ms)
            and (self.until_ms is None or at_ms < self.until_ms)
            and (self.key is None or letter.key == self.key)
            and all(each in letter.own for each in self.headers)
        )


@dataclass(slots=True)
class Outcome:
    """The result of a redrive. `scattered`: partitions where it stopped early, because the metadata was full."""

    sent: int = 0
    lost: int = 0
    not_chosen: int = 0
    scattered: list[int] = field(default_factory=list[int])


class Done:
    """Which dead letters of a partition were sent back: all before `start`, and those in `beyond`."""

    def __init__(self, start: int, metadata: str = "") -> None:
        self.start = start
        self.beyond: set[int] = set()
        at = start
        for run in metadata.split(",") if metadata else ():
            gap, _, length = run.partition("+")
            at += int(gap)
            self.beyond.update(range(at, at + int(length)))
            at += int(length)

    def __contains__(self, offset: int) -> bool:
        return offset < self.start or offset in self.beyond

    def add(self, offset: int) -> None:
        self.beyond.add(offset)

    def position(self, more: Iterable[int] = ()) -> tuple[int, str]:
        """(start, metadata) after `more` are done too."""
        start, runs = self.start, list[tuple[int, int]]()
        for offset in sorted(self.beyond.union(more)):
            if offset <= start:
                start = max(start, offset + 1)
            elif runs and runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], offset + 1)
            else:
                runs.append((offset, offset + 1))
        ends = [start, *(end for _, end in runs)]
        return start, ",".join(f"{first - at}+{end - first}" for at, (first, end) in zip(ends, runs, strict=False))

    def commit(self, consumer: Consumer, topic: str, partition: int) -> None:
        """Commit it as the group's position."""
        from confluent_kafka import TopicPartition

        start, metadata = self.position()
        self.beyond = {each for each in self.beyond if each >= start}
        self.start = start
        consumer.commit(offsets=[TopicPartition(topic, partition, start, metadata)], asynchronous=False)


class Redrive:
    """One pass over the dead letters that exist now. A context manager.

    `on_letter` is called with every chosen dead letter. `rate` limits the dead letters sent per second. Raises
    KmqRefusedError if the topics are missing or the cluster rejects a request.
    """

    def __init__(
        self,
        properties: str | Mapping[str, Any],
        config: KmqConfig,
        choice: Choice,
        *,
        rate: float | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        on_letter: Callable[[Letter], None] | None = None,
    ) -> None:
        from confluent_kafka import Consumer, Producer

        self.config = config
        self.group_id = redrive_group(config)
        self._choice, self._rate, self._limit, self._dry_run = choice, rate, limit, dry_run
        self._on_letter = on_letter
        self._began = time.monotonic()
        self._chosen = self._paced = 0
        given = properties_of(properties)
        self._producer: Producer = Producer({**given, "enable.idempotence": True, "message.max.bytes": 1_000_000_000})
        ours = {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
        # the end is reported when a fetch there is answered
        self._consumer: Consumer = Consumer({"fetch.wait.max.ms": 20, **given, "group.id": self.group_id, **ours})
        self._counts = partition_counts(self._producer)
        if config.dead_letters not in self._counts:
            raise KmqRefusedError(f"There is no topic {config.dead_letters}.")
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Process all partitions and return the result. Raises KmqRefusedError."""
        from confluent_kafka import KafkaException

        try:
            for partition in range(self._counts[self.config.dead_letters]):
                self._walk(partition)
        except KafkaException as error:
            raise KmqRefusedError(f"The dead letters can't be sent back: {error.args[0].str()}.") from None
        return self.outcome

    def _walk(self, partition: int) -> None:
        from confluent_kafka import TopicPartition

        topic = self.config.dead_letters
        place = TopicPartition(topic, partition)
        low, high = self._consumer.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S) or (0, 0)
        (committed,) = self._consumer.committed([place], timeout=CALL_TIMEOUT_S)
        done = Done(committed.offset, committed.metadata or "") if committed.offset >= 0 else Done(low)
        if done.start < low:
            done.beyond.update(range(done.start, low))  # retention removed them
        batch: list[Letter] = []
        for letter in self._letters(partition, max(low, done.start), high):
            if self._limit is not None and self._chosen >= self._limit:
                break
            if letter.offset in done:
                continue
            if not self._choice.takes(letter):
                self.outcome.not_chosen += 1
                continue
            self._chosen += 1
            batch.append(letter)
            if len(batch) == BATCH and not self._settle(batch, done):
                return
        if batch:
            self._settle(batch, done)

    def _settle(self, batch: list[Letter], done: Done) -> bool:
        """Send a batch, await it and commit; returns False if the progress does not fit in the commit's metadata."""
        letters = batch.copy()
        batch.clear()
        if self._dry_run:
            for letter in letters:
                self._tell(letter)
            return True
        partition = letters[0].partition
        if len(done.position(each.offset for each in letters)[1]) > METADATA_BYTES_MAX:
            self.outcome.scattered.append(partition)
            return False
        failures: list[Any] = []
        for letter in letters:
            if not letter.lost:
                self._pace()
                self._send(letter, failures, letter.timestamp_ms)
        if self._producer.flush(SEND_TIMEOUT_S) or failures:
            why = failures[0].str() if failures else "no answer in time"
            raise KmqRefusedError(f"Letters of {self.config.dead_letters} could not be sent back: {why}.")
        for letter in letters:
            done.add(letter.offset)
            self._tell(letter)
        done.commit(self._consumer, self.config.dead_letters, partition)
        return True

    def _tell(self, letter: Letter) -> None:
        self.outcome.lost += letter.lost
        self.outcome.sent += not letter.lost
        if self._on_letter is not None:
            self._on_letter(letter)

    def _send(self, letter: Letter, failures: list[Any], timestamp_ms: int) -> None:
        from confluent_kafka import KafkaError

        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                return
            if error.code() == KafkaError.INVALID_TIMESTAMP and timestamp_ms:
                self._send(letter, failures, 0)
            else:
                failures.append(error)

        topic, partition = letter.place(self.config, self._counts)
        self._producer.produce(
            topic,
            letter.value,
            letter.key,
            partition,
            on_delivery=told,
            timestamp=timestamp_ms,
            headers=letter.headers_back(self.config),  # type: ignore[arg-type]
        )

    def _pace(self) -> None:
        """Wait until the rate allows one more record."""
        if self._rate:
            due = self._began + self._paced / self._rate
            self._paced += 1
            while (left_s := due - time.monotonic()) > 0:
                self._producer.poll(min(left_s, 0.1))

    def _letters(self, partition: int, position: int, end: int) -> Iterator[Letter]:
        """Yield the dead letters from `position` up to but excluding `end`."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        if position >= end:
            return
        self._consumer.assign([TopicPartition(self.config.dead_letters, partition, position)])
        last = time.monotonic()
        while position < end:
            for message in taken(self._consumer, 500, 1):
                error = message.error()
                if error is None:
                    last, (_, offset) = time.monotonic(), placed(message)
                    position = offset + 1
                    if offset < end:
                        yield letter_of(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, message.offset() or 0)
                elif error.fatal() or not error.retriable():
                    raise KafkaException(error)
            if time.monotonic() - last > READ_PATIENCE_S:
                raise KmqRefusedError(f"{self.config.dead_letters} could not be read to its end.")
        self._consumer.unassign()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def redrive_group(config: KmqConfig) -> str:
    """The consumer group that keeps the progress of redrives."""
    return f"{config.tracker_group_id}-redrive"


def letter_of(message: Message) -> Letter:
    """Parse a dead letter."""
    partition, offset = placed(message)
    found: headers.Headers = message.headers() or []  # type: ignore[assignment]
    key: Any = message.key()
    value: Any = message.value()
    return letter_from(partition, offset, key, value, time_of(message), found)


def letter_from(
    partition: int, offset: int, key: bytes | None, value: bytes | None, timestamp_ms: int, found: headers.Headers
) -> Letter:
    """The dead letter in a record with these headers."""
    source, own = headers.provenance(found), headers.of_message(found)
    return Letter(partition, offset, key, value, timestamp_ms, source, own)
