"""Sends dead letters of a share group back to the topics they came from.

It parses the provenance in a dead letter (the headers of KIP-1191), restores the record, and keeps track of the dead
letters that were sent back. It uses Kafka's own requests: a consumer, a producer, committed offsets.

The progress is kept in the consumer group `ottla-redrive.GROUP`. Its committed offset in each partition of the
dead-letter topic is the first dead letter that was not sent back. The commit's metadata has the later ranges that were.
So dead letters that a filter omits remain for another redrive, and none is sent back twice; after a crash the last few
may be.

A record goes back to its topic and partition with its key, value, headers and timestamp. The header
`ottla-redrive-count` says how often it was sent back. If a dead letter has no copy of its record, the original record
is read and sent, as long as it exists.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.cli.connection import REQUEST_TIMEOUT_S, plain_errors
from ottla.cli.output import CommandError, counted

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

    from ottla.client import Client

PREFIX = "__dlq.errors."
COUNT_HEADER = "ottla-redrive-count"
REASONS = {"rejected": "Offset rejected by client.", "exhausted": "Offset delivery count exceeded the threshold."}
"""Kafka's sentences in a dead letter, by the values of --reason."""

BATCH = 500
IDLE_S = 10.0
METADATA_MAX = 4000
"""Kafka limits the metadata of a committed offset to 4,096 bytes."""

Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. `key`, `value`, `headers` are the record's own."""

    partition: int
    offset: int
    topic: str
    source_partition: int
    source_offset: int
    group: str
    deliveries: int
    message: str
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def reason(self) -> str:
        return next((word for word, sentence in REASONS.items() if sentence == self.message), self.message)

    @property
    def redrives(self) -> int:
        """How often the record was sent back before."""
        found = [value for name, value in self.headers if name == COUNT_HEADER]
        return int(_text(found[-1])) if found and _text(found[-1]).isdigit() else 0

    @property
    def is_bare(self) -> bool:
        """Whether the dead letter has no copy of its record."""
        return self.key is None and self.value is None


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters; a field that is None selects all. A dead letter must have all `headers` with these
    values."""

    topic: str | None = None
    reason: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def takes(self, letter: Letter) -> bool:
        return (
            self.topic in (None, letter.topic)
            and self.reason in (None, letter.reason)
            and (self.since_ms is None or letter.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or letter.timestamp_ms < self.until_ms)
            and all((name, value.encode()) in letter.headers for name, value in self.headers)
        )


@dataclass(slots=True)
class Progress:
    """The offsets of one partition that were sent back: all below `position`, and later `ranges` [first, end)."""

    position: int
    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def __contains__(self, offset: int) -> bool:
        return offset < self.position or any(first <= offset < end for first, end in self.ranges)

    def add(self, offset: int) -> None:
        """Add the offset of a dead letter that is done."""
        if offset in self:
            return
        merged: list[tuple[int, int]] = []
        for first, end in sorted([*self.ranges, (offset, offset + 1)]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((first, end))
        while merged and merged[0][0] <= self.position:
            self.position = max(self.position, merged.pop(0)[1])
        self.ranges = merged

    def text(self) -> str:
        """The ranges, relative to the position, for a commit's metadata. Raises CommandError if there are too many."""
        text = json.dumps([[first - self.position, end - first] for first, end in self.ranges], separators=(",", ":"))
        if len(text) > METADATA_MAX:
            raise CommandError(
                "Too many dead letters were left out between those that were sent back: redrive with a wider "
                "filter first."
            )
        return text

    @staticmethod
    def of(position: int, text: str | None) -> Progress:
        ranges: list[tuple[int, int]] = []
        with suppress(ValueError, TypeError):  # ignore the metadata of another program
            ranges = [(position + first, position + first + length) for first, length in json.loads(text or "[]")]
        return Progress(position, ranges)


def letter_of(message: Message) -> Letter | None:
    """The dead letter in a record; None if it is not one."""
    headers: Headers = [(name, value) for name, value in message.headers() or []]
    said = {name.removeprefix(PREFIX): _text(value) for name, value in headers if name.startswith(PREFIX)}
    try:
        return Letter(
            partition=message.partition() or 0,
            offset=message.offset() or 0,
            topic=said["topic"],
            source_partition=int(said["partition"]),
            source_offset=int(said["offset"]),
            group=said["group"],
            deliveries=int(said.get("delivery.count", "0")),
            message=said.get("message", ""),
            timestamp_ms=message.timestamp()[1],
            key=_bytes(message.key()),
            value=_bytes(message.value()),
            headers=[(name, value) for name, value in headers if not name.startswith(PREFIX)],
        )
    except (KeyError, ValueError):
        return None


def _text(value: bytes | str | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class Redrive:
    """The dead letters of one group in one dead-letter topic."""

    def __init__(self, consumer: Consumer, group: str, dead_letter_topic: str) -> None:
        self._consumer = consumer
        self._group = group
        self._topic = dead_letter_topic
        self.progress: dict[int, Progress] = {}
        self._ends: dict[int, int] = {}

    def open(self) -> None:
        """Load the progress, and note the present ends of the dead-letter topic's partitions."""
        from confluent_kafka import TopicPartition

        known = self._consumer.list_topics(self._topic, timeout=REQUEST_TIMEOUT_S).topics.get(self._topic)
        if known is None or known.error is not None:
            raise CommandError(f"There is no dead-letter topic {self._topic}.")
        places = [TopicPartition(self._topic, index) for index in sorted(known.partitions)]
        for each in self._consumer.committed(places, timeout=REQUEST_TIMEOUT_S):
            low, high = self._consumer.get_watermark_offsets(each, timeout=REQUEST_TIMEOUT_S)
            self._ends[each.partition] = high
            self.progress[each.partition] = (
                Progress.of(each.offset, each.metadata) if each.offset >= low else Progress(low)
            )

    def letters(self) -> Iterator[Letter]:
        """Every dead letter of the group that was not sent back, up to the ends that `open` noted."""
        from confluent_kafka import TopicPartition

        for index, progress in sorted(self.progress.items()):
            if progress.position >= self._ends[index]:
                continue
            self._consumer.assign([TopicPartition(self._topic, index, progress.position)])
            position, last = progress.position, time.monotonic()
            while position < self._ends[index]:
                for message in self._consumer.consume(BATCH, 0.2):
                    last = time.monotonic()
                    if message.error() is not None:
                        continue
                    position = (message.offset() or 0) + 1
                    letter = letter_of(message)
                    if position > self._ends[index] or position - 1 in progress:
                        continue
                    if letter is None or letter.group != self._group:
                        progress.add(position - 1)  # another group's: does not block the position
                    else:
                        yield letter
                if time.monotonic() - last > IDLE_S:
                    break  # only gaps of compaction or transactions are left before the end

    def done(self, letters: list[Letter]) -> None:
        """Record that these were sent back."""
        from confluent_kafka import TopicPartition

        for letter in letters:
            self.progress[letter.partition].add(letter.offset)
        offsets = [
            TopicPartition(self._topic, index, each.position, each.text()) for index, each in self.progress.items()
        ]
        self._consumer.commit(offsets=offsets, asynchronous=False)


def send_back(producer: Producer, client: Client, letters: list[Letter]) -> tuple[list[Letter], list[Letter]]:
    """Produce the records of these dead letters; returns (those sent back, those whose record no longer exists)."""
    gone: list[Letter] = []
    failed: list[tuple[Letter, str]] = []
    for letter in letters:
        key, value, headers = letter.key, letter.value, letter.headers
        if letter.is_bare:
            original = original_of(client, letter)
            if original is None:
                gone.append(letter)
                continue
            key, value, headers = original
        count: Headers = [(COUNT_HEADER, str(letter.redrives + 1).encode())]

        def delivered(error: Any, _: Any, letter: Letter = letter) -> None:
            if error is not None:
                failed.append((letter, error.str()))

        producer.produce(
            letter.topic,
            value,
            key,
            partition=letter.source_partition,
            timestamp=max(letter.timestamp_ms, 0),
            headers=[header for header in headers if header[0] != COUNT_HEADER] + count,
            on_delivery=delivered,
        )
        producer.poll(0)
    producer.flush(REQUEST_TIMEOUT_S)
    lost = {id(letter) for letter, _ in failed} | {id(letter) for letter in gone}
    if failed:
        letter, why = failed[0]
        raise CommandError(f"{counted(len(failed), 'record')} could not go back; the first, to {letter.topic}: {why}.")
    return [letter for letter in letters if id(letter) not in lost], gone


def original_of(client: Client, letter: Letter) -> tuple[bytes | None, bytes | None, Headers] | None:
    """Key, value and headers of a dead letter's original record; None if it does not exist or cannot be read."""
    from ottla.client import BrokerError
    from ottla.protocol.records.batch import iter_batches
    from ottla.protocol.records.compression import READER_BYTES_MAX
    from ottla.protocol.records.errors import CorruptRecordsError
    from ottla.protocol.records.record import decode_records

    try:
        fetched = client.fetch_raw(letter.topic, letter.source_partition, letter.source_offset, max_bytes=1)
        for header, position in iter_batches(fetched.records):
            if header.is_control or header.next_offset <= letter.source_offset:
                continue
            for record in decode_records(fetched.records, position, max_bytes=READER_BYTES_MAX):
                if record.offset == letter.source_offset:
                    headers: Headers = [
                        (name if isinstance(name, str) else name.decode("utf-8", "replace"), value)
                        for name, value in record.headers
                    ]
                    return record.key, record.value, headers
    except (BrokerError, CorruptRecordsError):
        return None
    return None


class Pace:
    """A limit of records a second, over any period; None means no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._began = time.monotonic()
        self._count = 0

    @property
    def step(self) -> int:
        """How many records to send at once, to keep the rate within a fifth of a second."""
        return BATCH if self._rate is None else max(1, min(BATCH, int(self._rate / 5)))

    def wait(self, count: int) -> None:
        """Wait until `count` more records may be sent."""
        if self._rate is not None:
            due = self._began + self._count / self._rate
            time.sleep(max(0.0, due - time.monotonic()))
            self._count += count


def run(
    redrive: Redrive, producer: Producer, client: Client, wanted: DeadLetterFilter, most: int | None, pace: Pace
) -> Any:
    """Send back every selected dead letter, at most `most`; returns (sent back, left out, records that no longer
    exist)."""
    went, left, gone = 0, 0, 0
    batch: list[Letter] = []

    def flush() -> None:
        nonlocal went, gone
        if batch:
            pace.wait(len(batch))
            back, lost = send_back(producer, client, batch)
            redrive.done(back)
            went, gone = went + len(back), gone + len(lost)
            batch.clear()

    with plain_errors():
        for letter in redrive.letters():
            if not wanted.takes(letter):
                left += 1
            elif most is not None and went + len(batch) >= most:
                break
            else:
                batch.append(letter)
                if len(batch) >= pace.step:
                    flush()
        flush()
    return went, left, gone
