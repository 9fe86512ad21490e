"""Fetches a task's ranges, in a worker, and yields Arrow batches.

One request fetches all partitions of one leader, and the next request is sent before the last answer is decoded. Each
worker process keeps one client per set of properties between tasks; a forked process makes its own. This module handles
leaders, failures and lost data, `decode` the bytes. No work here is done per record.

Invariant: each record of a range is returned once, in order, whatever fails. A cursor moves when an answer arrives, and
that answer is decoded before its partition's next answer.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ottla.client import BrokerError, Client, ClientError, Connection, TopicPartition
from ottla.client.client import EARLIEST, LATEST
from ottla.client.fetching import FetchedPart, Fetching, PartitionFetch, post_fetch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, MAGIC_AT
from ottla.protocol.wire import Buffer
from ottla.spark.codec.decode import decode
from ottla.spark.platform.client_properties import ClientProperties
from ottla.spark.reader.losses import lose
from ottla.spark.reader.options import SourceOptions
from ottla.spark.reader.plan import Range

PARTITIONS_MAX = 200
"""Partitions of one request."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 1.0
MISSING_MAX = 8
"""Number of consecutive "unknown topic" answers before a topic counts as deleted; with the pauses, about four
seconds."""
SPARE_BYTES = 64 << 10

_GONE = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
_unpack_place = struct.Struct(">qi").unpack_from
_unpack_delta = struct.Struct(">i").unpack_from

_clients: dict[ClientProperties, Client] = {}
_densities: dict[tuple[str, str, int], float] = {}
"""Bytes per offset by bootstrap address, topic and partition, so that a small range gets a small request."""
_owner = 0


class ReadFailedError(Exception):
    """Raised if no more records came within `kafkaConsumer.pollTimeoutMs`, or if the broker refuses permanently."""


def client_of(properties: ClientProperties) -> Client:
    """Return this process's client. Clients inherited by fork belong to the parent, with their sockets, and are
    dropped."""
    global _owner
    if _owner != os.getpid():
        _clients.clear()
        _owner = os.getpid()
    if properties not in _clients:
        _clients[properties] = properties.connect()
    return _clients[properties]


def read(ranges: Sequence[Range], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The records of all ranges, those of one partition in order.

    Raises RecordsLostError (with `failOnDataLoss`), ReadFailedError, CorruptRecordsError; Spark then repeats the
    task."""
    return Reading(ranges, options).batches()


@dataclass(slots=True, eq=False)
class Cursor:
    """The progress in one range. `at` is the next offset to fetch."""

    range: Range
    at: int
    topic_id: bytes | None = None
    """Id of the topic that the records came from; a different id means that the topic was created again."""
    empties: int = 0
    """How often an answer was empty although the cursor was first in its request and more records should exist."""
    missing: int = 0
    """How often the broker answered that it does not exist."""

    @property
    def place(self) -> TopicPartition:
        return self.range.topic, self.range.partition

    @property
    def is_done(self) -> bool:
        return self.at >= self.range.until

    def __str__(self) -> str:
        return f"{self.range.topic}-{self.range.partition}"


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """Fetched and not decoded yet."""

    cursor: Cursor
    first: int
    part: FetchedPart


@dataclass(slots=True)
class Reading:
    """Reads the ranges of one task."""

    ranges: Sequence[Range]
    options: SourceOptions
    cursors: list[Cursor] = field(init=False)
    under_way: dict[Connection, tuple[Fetching, list[Cursor]]] = field(init=False)
    progress_s: float = field(init=False)
    pause_s: float = PAUSE_S_MIN
    trouble: str = ""
    """Why a leader could not be reached."""

    def __post_init__(self) -> None:
        self.cursors = [Cursor(each, each.first) for each in self.ranges if each.size > 0]
        self.under_way = {}
        self.progress_s = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Send requests, receive answers, send the next requests, decode."""
        client = client_of(self.options.client)
        try:
            self.ask(client)
            while self.cursors:
                pieces = self.take(client)
                self.ask(client)
                for piece in pieces:
                    yield from self.decoded(piece)
                if pieces:  # the consumer of the rows may have been slow
                    self.progress_s = time.monotonic()
        finally:
            for connection in self.under_way:  # their answers are not needed any more
                client.drop(connection)

    def decoded(self, piece: FetchedRange) -> Iterator[pa.RecordBatch]:
        found = piece.cursor.range
        yield from decode(
            memoryview(piece.part.records),
            topic=found.topic,
            partition=found.partition,
            first=piece.first,
            until=found.until,
            include_headers=self.options.include_headers,
            aborted=piece.part.aborted,
            check_crcs=self.options.client.check_crcs,
        ).batches

    # ---- asking ----------------------------------------------------------------------------------------------------

    def ask(self, client: Client) -> None:
        """Send a request to every leader that has no unanswered one and has partitions to fetch."""
        by_leader: dict[Connection, dict[TopicPartition, Cursor]] = {}
        self.trouble = ""
        for cursor in list(self.cursors):
            leader = self.leader(client, cursor)
            if leader is None or leader in self.under_way:
                continue
            chosen = by_leader.setdefault(leader, {})
            other = chosen.get(cursor.place, cursor)  # a task may have two ranges of one partition: the earlier first
            chosen[cursor.place] = min(cursor, other, key=lambda each: each.at)
        for leader, cursors in by_leader.items():
            self.post(client, leader, list(cursors.values())[:PARTITIONS_MAX])
        if self.trouble and not self.under_way:
            self.wait(self.trouble)

    def leader(self, client: Client, cursor: Cursor) -> Connection | None:
        """Return the leader's connection for a cursor; None if the leader is unknown now, then the caller asks
        again. Raises ReadFailedError."""
        try:
            leader = client.leader(*cursor.place)
            topic_id = client.known_topic(cursor.range.topic).topic_id
        except ClientError as error:
            client.forget_topics()
            self.trouble = str(error)
            if isinstance(error, BrokerError) and error.code in _GONE:
                self.gone(cursor)
            elif isinstance(error, BrokerError) and not error.retriable:
                raise ReadFailedError(f"{cursor} can't be read at offset {cursor.at}: {error}") from error
            return None
        if cursor.topic_id not in (None, topic_id):
            self.lost(cursor, f"The topic {cursor.range.topic} was deleted and created again while {cursor} was read")
            return None
        return leader

    def post(self, client: Client, leader: Connection, cursors: list[Cursor]) -> None:
        properties = self.options.client
        wanted = [PartitionFetch(*cursor.place, cursor.at, self.room(cursor)) for cursor in cursors]
        try:
            fetching = post_fetch(
                client,
                leader,
                wanted,
                max_bytes=properties.fetch_max_bytes,
                min_bytes=properties.fetch_min_bytes,
                max_wait_ms=properties.fetch_max_wait_ms,
                isolation_level=properties.isolation_level,
            )
        except ClientError as error:
            client.drop(leader)
            client.forget_topics()
            self.trouble = str(error)
        else:
            self.under_way[leader] = fetching, cursors

    def room(self, cursor: Cursor) -> int:
        """Bytes to request: not much more than the rest of the range, if that can be estimated."""
        most = self.options.client.partition_fetch_max_bytes
        density = _densities.get((self.options.client.bootstrap, *cursor.place))
        if density is None:
            return most
        return min(most, int(density * (cursor.range.until - cursor.at) * 1.05) + SPARE_BYTES)

    # ---- answers ---------------------------------------------------------------------------------------------------

    def take(self, client: Client) -> list[FetchedRange]:
        """Return the pieces of the next answer and move its cursors. Empty if the request failed or none is in
        flight."""
        if not self.under_way:
            return []
        connection, (fetching, cursors) = next(iter(self.under_way.items()))
        try:
            answer = fetching.take()
        except ClientError as error:
            client.drop(connection)
            del self.under_way[connection]
            self.failed(client, error)
            return []
        del self.under_way[connection]
        pieces: list[FetchedRange] = []
        for cursor in cursors:
            part = answer.get(cursor.place)
            if part is not None and (piece := self.moved(client, cursor, part)) is not None:
                pieces.append(piece)
        if pieces:
            self.pause_s = PAUSE_S_MIN
            served = {id(piece.cursor) for piece in pieces}  # cursors without records are first in the next request
            self.cursors.sort(key=lambda cursor: id(cursor) in served)
        else:
            self.starved(cursors[0], answer.get(cursors[0].place))
        self.cursors = [cursor for cursor in self.cursors if not cursor.is_done]
        return pieces

    def moved(self, client: Client, cursor: Cursor, part: FetchedPart) -> FetchedRange | None:
        """Return the records fetched for a cursor, and move the cursor behind them."""
        if part.error_code:
            self.refused(client, cursor, part)
            return None
        first = cursor.at
        following, size = after(part.records, first)
        if following == first:
            return None
        _densities[self.options.client.bootstrap, *cursor.place] = size / (following - first)
        cursor.topic_id = client.known_topic(cursor.range.topic).topic_id
        cursor.at, cursor.empties, cursor.missing = following, 0, 0
        return FetchedRange(cursor, first, part)

    def starved(self, cursor: Cursor, part: FetchedPart | None) -> None:
        """Handle an answer without records. The first partition of a request gets a batch if it has one (KIP-74)."""
        if part is None or part.error_code:
            return
        end = part.last_stable_offset if self.options.client.read_committed else part.high_watermark
        if end < cursor.range.until:
            self.wait(f"{cursor} ends at {end}", cursor)
            return
        cursor.empties += 1
        if cursor.empties > 1:
            cursor.at = cursor.range.until  # compaction has removed the records

    def refused(self, client: Client, cursor: Cursor, part: FetchedPart) -> None:
        error = BrokerError(part.error_code, str(cursor))
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.out_of_range(client, cursor)
            return
        client.forget_topics()
        if not error.retriable and error.code not in _GONE:
            raise ReadFailedError(f"{cursor} can't be read at offset {cursor.at}: {error}")
        self.wait(str(error))

    def out_of_range(self, client: Client, cursor: Cursor) -> None:
        """Handle offsets that retention or a truncation has removed."""
        try:
            earliest = client.list_offsets_of({cursor.place: EARLIEST})[cursor.place]
            latest = client.list_offsets_of({cursor.place: LATEST})[cursor.place]
        except ClientError as error:
            self.failed(client, error)
            return
        until = cursor.range.until
        if earliest > cursor.at:
            left = min(earliest, until)
            sentence = f"Offsets {cursor.at} to {left} of {cursor} are gone: it begins at {earliest} now"
            lose(self.options.fail_on_data_loss, sentence)
            cursor.at = left
        elif latest < cursor.at:
            sentence = f"Offsets {cursor.at} to {until} of {cursor} are gone: it ends at {latest} now"
            lose(self.options.fail_on_data_loss, sentence)
            cursor.at = until
        else:
            self.wait(f"{cursor} was out of range at {cursor.at} and is not any more")

    # ---- failures --------------------------------------------------------------------------------------------------

    def failed(self, client: Client, error: ClientError) -> None:
        """After a failed request, forget the known leaders and pause."""
        client.forget_topics()
        self.wait(str(error))

    def wait(self, why: str, cursor: Cursor | None = None) -> None:
        """Pause, longer each time. Give up after `kafkaConsumer.pollTimeoutMs` without progress. Raises
        ReadFailedError."""
        waited_s = time.monotonic() - self.progress_s
        if waited_s * 1000 > self.options.poll_timeout_ms:
            sentence = f"Nothing more could be read within {self.options.poll_timeout_ms} ms: {why.rstrip('.')}"
            if cursor is None:
                raise ReadFailedError(f"{sentence}.")
            self.lost(cursor, f"{sentence}, and offsets {cursor.at} to {cursor.range.until} were to be read")
            return
        time.sleep(self.pause_s)
        self.pause_s = min(self.pause_s * 2, PAUSE_S_MAX)

    def gone(self, cursor: Cursor) -> None:
        """Count an "unknown topic" answer. A broker that has just started may not know the topic yet, so it gets some
        seconds."""
        cursor.missing += 1
        if cursor.missing > MISSING_MAX:
            self.lost(cursor, f"{cursor} is gone, and offsets {cursor.at} to {cursor.range.until} were to be read")

    def lost(self, cursor: Cursor, sentence: str) -> None:
        """The rest of a range can't be read."""
        lose(self.options.fail_on_data_loss, sentence)
        cursor.at = cursor.range.until
        self.cursors = [each for each in self.cursors if each is not cursor]


def after(records: Buffer, first: int) -> tuple[int, int]:
    """Return (the offset after the last whole batch, the bytes up to there), by the headers alone; `first` without one.
    Bytes that are not a batch count as a batch of one offset: decoding will report the fault."""
    pos, last, size = 0, -1, len(records)
    while size - pos >= HEADER_BYTES:
        length = _unpack_place(records, pos)[1]
        end = pos + LOG_OVERHEAD_BYTES + length
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES or records[pos + MAGIC_AT] != MAGIC:
            return first + 1, pos + 1
        if end > size:
            break
        last, pos = pos, end
    if last < 0:
        return first, 0
    return max(first, _unpack_place(records, last)[0] + _unpack_delta(records, last + 23)[0] + 1), pos
