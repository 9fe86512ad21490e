"""Sends dead letters of a share group back to the topics they came from.

It parses the provenance in a dead letter (the headers of KIP-1191), restores the record, and keeps track of the dead
letters that were sent back. It uses Kafka's own requests: fetch, produce, committed offsets.

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
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ottla.client.client import EARLIEST, LATEST, Client
from ottla.client.connection import Connection
from ottla.client.errors import BrokerError, ClientError, check
from ottla.protocol.apis import ApiKey
from ottla.protocol.dead_letters import (
    FIRST_FAILURE,
    LAST_CLIENT,
    LAST_FAILURE,
    LAST_MEMBER,
    OWN,
    PREFIX,
    REASON_DELIVERY,
    REJECTED,
    TOO_OFTEN,
    WORKER_REASON,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.compression import READER_BYTES_MAX
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import Record, build_batch, decode_records

COUNT_HEADER: Final = "ottla-redrive-count"
REDRIVE_PREFIX: Final = "ottla-redrive."
"""Names of the consumer groups that keep the progress of redrives: this and the share group."""
DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
"""The group config that names the dead-letter topic."""
REASONS: Final = {"rejected": REJECTED, "exhausted": TOO_OFTEN}
"""Kafka's sentences in a dead letter, by their short names."""

BATCH: Final = 500
BATCH_BYTES: Final = 8 << 20
"""Dead letters that are sent back together, and the bytes of their values."""
METADATA_MAX: Final = 4000
"""Kafka limits the metadata of a committed offset to 4,096 bytes."""
OFFSETS_BY_NAME: Final = 9
"""The last version of OffsetFetch and OffsetCommit that names topics, not their ids."""
ROUND_BYTES: Final = 1 << 20

Headers: TypeAlias = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter. `key`, `value`, `headers` and `timestamp_ms` are the record's own.

    These are None if the dead letter does not say them. `first_failed_ms`, `last_failed_ms`: when its first and last
    delivery failed. `worker_reason`: the last reason that a member gave, for the delivery with the number
    `reason_delivery`. `member`, `client_id`: the member that had it last.
    """

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
    first_failed_ms: int | None = None
    last_failed_ms: int | None = None
    worker_reason: str | None = None
    reason_delivery: int | None = None
    member: str | None = None
    client_id: str | None = None

    @property
    def reason(self) -> str:
        return next((word for word, sentence in REASONS.items() if sentence == self.message), self.message)

    @property
    def redrives(self) -> int:
        """How often the record was sent back before."""
        found = [value for name, value in self.headers if name == COUNT_HEADER]
        return int(text_of(found[-1])) if found and text_of(found[-1]).isdigit() else 0

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

    def left(self, first: int, end: int) -> int:
        """How many offsets from `first` up to but excluding `end` were not sent back."""
        first = max(first, self.position)
        done = sum(max(0, min(high, end) - max(low, first)) for low, high in self.ranges)
        return max(0, end - first - done)

    def text(self) -> str:
        """The ranges, relative to the position, for a commit's metadata. Raises ClientError if there are too many."""
        text = json.dumps([[first - self.position, end - first] for first, end in self.ranges], separators=(",", ":"))
        if len(text) > METADATA_MAX:
            raise ClientError(
                "Too many dead letters were left out between those that were sent back: redrive with a wider "
                "filter first."
            )
        return text

    @staticmethod
    def of(position: int, text: str | None) -> Progress:
        ranges: list[tuple[int, int]] = []
        with suppress(ValueError, TypeError, OverflowError, RecursionError):  # ignore metadata of another program
            given = [(int(first), int(length)) for first, length in json.loads(text or "[]")]
            ranges = [(position + first, position + first + length) for first, length in given]
        return Progress(position, ranges)


def letter_of(partition: int, record: Record) -> Letter | None:
    """The dead letter in a record; None if it is not one."""
    headers = headers_of(record)
    said = {name.removeprefix(PREFIX): text_of(value) for name, value in headers if name.startswith(PREFIX)}
    try:
        return Letter(
            partition=partition,
            offset=record.offset,
            topic=said["topic"],
            source_partition=int(said["partition"]),
            source_offset=int(said["offset"]),
            group=said["group"],
            deliveries=int(said.get("delivery.count", "0")),
            message=said.get("message", ""),
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=[(name, value) for name, value in headers if not name.startswith(OWN)],
            first_failed_ms=_number_in(headers, FIRST_FAILURE),
            last_failed_ms=_number_in(headers, LAST_FAILURE),
            worker_reason=_text_in(headers, WORKER_REASON),
            reason_delivery=_number_in(headers, REASON_DELIVERY),
            member=_text_in(headers, LAST_MEMBER),
            client_id=_text_in(headers, LAST_CLIENT),
        )
    except (KeyError, ValueError):
        return None


def _text_in(headers: Headers, name: str) -> str | None:
    """The text in a header, None without one; the last counts, as a record may have been a dead letter before."""
    found = [text_of(value) for each, value in headers if each == name]
    return found[-1] if found else None


def _number_in(headers: Headers, name: str) -> int | None:
    """The number in a header, None without one."""
    text = _text_in(headers, name) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def headers_of(record: Record) -> Headers:
    """A record's headers, with names as text."""
    return [
        (name if isinstance(name, str) else name.decode("utf-8", "replace"), value) for name, value in record.headers
    ]


def text_of(value: bytes | None) -> str:
    """A header's value as text."""
    return (value or b"").decode("utf-8", "replace")


class Redrive:
    """The dead letters of one group in one dead-letter topic. Its methods raise ClientError.

    `starts`, `ends`: the offsets of each partition when `open` was called.
    """

    def __init__(self, client: Client, group: str, dead_letter_topic: str) -> None:
        self._client = client
        self._group = group
        self._topic = dead_letter_topic
        self.progress: dict[int, Progress] = {}
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}

    def open(self) -> None:
        """Load the progress, and note the present ends of the dead-letter topic's partitions. Changes nothing. Raises
        ClientError."""
        try:
            indexes = range(len(self._client.topic(self._topic).leaders))
        except BrokerError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise ClientError(f"There is no dead-letter topic {self._topic}.") from None
        self.starts = self._client.list_offsets(self._topic, indexes, EARLIEST)
        self.ends = self._client.list_offsets(self._topic, indexes, LATEST)
        committed = self._committed()
        for index in indexes:
            offset, metadata = committed.get(index, (-1, None))
            known = offset >= self.starts[index]
            self.progress[index] = Progress.of(offset, metadata) if known else Progress(self.starts[index])

    def _committed(self) -> dict[int, tuple[int, str | None]]:
        """The committed offset and its metadata, by partition. A cluster without any group has none: asking for the
        coordinator would create the topic of committed offsets."""
        try:
            self._client.known_topic("__consumer_offsets")
        except BrokerError as error:
            if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                raise
            return {}
        coordinator, version = self._coordinator(ApiKey.OFFSET_FETCH)
        indexes = list(self.ends)
        asked = OffsetFetchRequestGroup(
            self._redriver, topics=[OffsetFetchRequestTopics(self._topic, partition_indexes=indexes)]
        )
        (group,) = coordinator.send(OffsetFetchRequest(groups=[asked]), version).groups
        check(group.error_code, f"the offsets of group {self._redriver}")
        return {
            part.partition_index: (part.committed_offset, part.metadata)
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code
        }

    @property
    def _redriver(self) -> str:
        return f"{REDRIVE_PREFIX}{self._group}"

    def _coordinator(self, api_key: ApiKey) -> tuple[Connection, int]:
        """The coordinator of the group that keeps the progress, and the version of a request that names topics."""
        coordinator = self._client.coordinator(self._redriver)
        return coordinator, min(coordinator.version_of(api_key), OFFSETS_BY_NAME)

    def letters(self) -> Iterator[Letter]:
        """Every dead letter of the group that was not sent back, up to the ends that `open` noted."""
        for index, progress in sorted(self.progress.items()):
            for record in records_of(self._client, self._topic, index, progress.position, self.ends[index]):
                if record.offset in progress:
                    continue
                letter = letter_of(index, record)
                if letter is None or letter.group != self._group:
                    progress.add(record.offset)  # another group's: does not block the position
                else:
                    yield letter

    def done(self, letters: Iterable[Letter]) -> None:
        """Record that these were sent back."""
        for letter in letters:
            self.progress[letter.partition].add(letter.offset)
        rows = [
            OffsetCommitRequestPartition(index, each.position, committed_metadata=each.text())
            for index, each in self.progress.items()
        ]
        coordinator, version = self._coordinator(ApiKey.OFFSET_COMMIT)
        request = OffsetCommitRequest(self._redriver, topics=[OffsetCommitRequestTopic(self._topic, partitions=rows)])
        for topic in coordinator.send(request, version).topics:
            for part in topic.partitions:
                check(part.error_code, f"the progress of {self._redriver} in {self._topic}-{part.partition_index}")


def records_of(client: Client, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
    """The records of a partition between two offsets. A batch that cannot be read is left out. Raises ClientError."""
    at = start
    while at < end:
        fetched = client.fetch_raw(topic, partition, at, max_bytes=ROUND_BYTES, max_wait_ms=0)
        after = at
        for header, position in iter_batches(fetched.records):
            after = max(after, header.next_offset)
            if header.is_control:
                continue
            try:
                records = decode_records(fetched.records, position, max_bytes=READER_BYTES_MAX)
            except CorruptRecordsError:
                continue
            yield from (each for each in records if at <= each.offset < end)
        if after == at:
            return  # only offsets without records are left
        at = after


def send_back(client: Client, letters: Iterable[Letter]) -> tuple[list[Letter], list[Letter]]:
    """Produce the records of these dead letters; returns (those sent back, those whose record no longer exists).

    Raises ClientError at the first partition that does not accept its records; those before it were sent back.
    """
    gone: list[Letter] = []
    by_place: dict[tuple[str, int], list[tuple[Letter, Record]]] = {}
    for letter in letters:
        key, value, headers = letter.key, letter.value, letter.headers
        if letter.is_bare:
            original = original_of(client, letter)
            if original is None:
                gone.append(letter)
                continue
            key, value, headers = original
        kept = [header for header in headers if header[0] != COUNT_HEADER]
        count = (COUNT_HEADER, str(letter.redrives + 1).encode())
        record = Record(timestamp_ms=max(letter.timestamp_ms, 0), key=key, value=value, headers=[*kept, count])
        by_place.setdefault((letter.topic, letter.source_partition), []).append((letter, record))
    back: list[Letter] = []
    for (topic, partition), pairs in by_place.items():
        try:
            append_records(client, topic, partition, [record for _, record in pairs])
        except ClientError as error:
            raise NotSentBackError(f"Records could not go back to {topic}-{partition}: {error}", back) from error
        back += [letter for letter, _ in pairs]
    return back, gone


def append_records(client: Client, topic: str, partition: int, records: list[Record]) -> None:
    """Append records in order, in as many batches as the topic's max.message.bytes requires. Raises ClientError."""
    try:
        client.produce_raw(topic, partition, bytes(build_batch(records)))
    except BrokerError as error:
        if error.code != ErrorCode.MESSAGE_TOO_LARGE or len(records) == 1:
            raise
        middle = len(records) // 2
        append_records(client, topic, partition, records[:middle])
        append_records(client, topic, partition, records[middle:])


class NotSentBackError(ClientError):
    """A partition did not accept its records. `back`: the dead letters that were sent back before that."""

    def __init__(self, sentence: str, back: list[Letter]) -> None:
        super().__init__(sentence)
        self.back = back


def original_of(client: Client, letter: Letter) -> tuple[bytes | None, bytes | None, Headers] | None:
    """Key, value and headers of a dead letter's original record; None if it does not exist or cannot be read."""
    try:
        fetched = client.fetch_raw(letter.topic, letter.source_partition, letter.source_offset, max_bytes=1)
        for header, position in iter_batches(fetched.records):
            if header.is_control or header.next_offset <= letter.source_offset:
                continue
            for record in decode_records(fetched.records, position, max_bytes=READER_BYTES_MAX):
                if record.offset == letter.source_offset:
                    return record.key, record.value, headers_of(record)
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


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of a redrive: dead letters sent back, left out by the filter, and without their record."""

    went: int
    left_out: int
    gone: int


def run(
    redrive: Redrive,
    client: Client,
    wanted: DeadLetterFilter,
    most: int | None,
    pace: Pace,
) -> Redriven:
    """Send back every selected dead letter, at most `most`. Raises ClientError; what was sent back before that is
    recorded."""
    went, left, gone, size = 0, 0, 0, 0
    batch: list[Letter] = []

    def flush() -> None:
        nonlocal went, gone, size
        if not batch:
            return
        pace.wait(len(batch))
        try:
            back, lost = send_back(client, batch)
        except NotSentBackError as failure:
            redrive.done(failure.back)
            raise
        redrive.done(back)
        went, gone = went + len(back), gone + len(lost)
        batch.clear()
        size = 0

    for letter in redrive.letters():
        if not wanted.takes(letter):
            left += 1
        elif most is not None and went + len(batch) >= most:
            break
        else:
            batch.append(letter)
            size += len(letter.value or b"")
            if len(batch) >= pace.step or size >= BATCH_BYTES:
                flush()
    flush()
    return Redriven(went, left, gone)
