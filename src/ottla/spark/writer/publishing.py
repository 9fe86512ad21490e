"""Sends whole batches: several partitions at once, several requests in flight, each batch once.

This module numbers batches (producer id, epoch, sequence) and handles each error code. After a lost answer, it finds
out what a log holds. A `Batch` loads its own bytes. Source: KIP-98, KIP-360, KIP-664; Sender.java and
TransactionManager.java have the same rules for Kafka's producer.

Invariants:

- A partition's batches are sent in order, at most `in_flight_max` of them unanswered, and the first of a numbering
  alone. A broker accepts any first sequence of a producer that it does not know, so a second batch must never overtake
  the first.
- After a lost answer or an error, the partition's leader is first asked for this producer's last sequence
  (DescribeProducers, otherwise the headers in the log). That decides what is still to be sent. Sending again with the
  same numbers is not enough. At its next start at the latest, a broker forgets producers whose last record has an old
  time, and then accepts any sequence.
- A batch that is sent again keeps its numbers. Only batches that are not in the log get new numbers, when the broker
  refuses the old ones permanently.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from ottla.client import BrokerError, Client, ClientError, Connection, Posted, TopicPartition, UnsupportedVersionError
from ottla.client.client import EARLIEST, LATEST
from ottla.client.errors import check
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import batch as b

T = TypeVar("T")
NUMBERS = Struct(">qhi")
NUMBERS_AT = 43
KIND_AT = 22
"""The attributes' lower byte."""
PRODUCE_NEWEST_IN_TRANSACTION = 11
"""Later versions add partitions to transactions by themselves, and count epochs otherwise (KIP-890)."""
SEQUENCE_MASK = 0x7FFFFFFF
SEQUENCE_HALF = 1 << 30
EPOCH_MAX = 0x7FFE
TRUSTED_AFTER, RENUMBERED_AFTER = 2, 4
"""Consecutive refusals of one sequence after which the broker's answer about the last batch is trusted, and after which
the remaining batches get new numbers."""
PAUSE_S, PAUSE_S_MAX = 0.02, 1.0
READ_BACK_BYTES = 4 << 20

_DOUBTS = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
}
_FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}


class PublishFailedError(Exception):
    """Batches that cannot be sent, or not in time: one sentence that names topic, partition and the last failure."""


@dataclass(slots=True, eq=False)
class Batch:
    """One whole batch. `load` gives its bytes, into which the numbers are written."""

    records: int
    size: int
    load: Callable[[], Any]
    sequence: int = b.NO_SEQUENCE
    index: int = 0
    """Its place in the queue's order."""

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.records - 1) & SEQUENCE_MASK


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """One partition's batches, in order: `done`, `in_flight`, then `waiting`; `failed` ones go back to the front.
    `read_from`: an offset at or before all of these batches, None if none is known. `keeps`: whether `done` is
    remembered, so that batches that a broker lost can be sent again."""

    topic: str
    partition: int
    producer_id: int = b.NO_PRODUCER_ID
    epoch: int = b.NO_PRODUCER_EPOCH
    next_sequence: int = 0
    read_from: int | None = None
    keeps: bool = False
    waiting: deque[Batch] = field(default_factory=deque)
    in_flight: list[Batch] = field(default_factory=list)
    failed: list[Batch] = field(default_factory=list)
    done: list[Batch] = field(default_factory=list)
    added: int = 0
    proven: bool = False
    doubted: bool = False
    refused: bool = False
    refusals: int = 0
    failing_since: float | None = None
    retry_at: float = 0.0
    pause_s: float = PAUSE_S
    failure: str = ""

    @property
    def idempotent(self) -> bool:
        return self.producer_id >= 0

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}"

    def add(self, batch: Batch) -> None:
        if self.idempotent:
            batch.sequence = self.next_sequence
            self.next_sequence = (self.next_sequence + batch.records) & SEQUENCE_MASK
        batch.index = self.added
        self.added += 1
        self.waiting.append(batch)

    def renumber(self, producer_id: int, epoch: int) -> None:
        """Begin a new epoch, or a new producer id, with what waits."""
        self.producer_id, self.epoch, self.next_sequence = producer_id, epoch, 0
        self.done.clear()
        self.proven, self.refusals = False, 0
        waiting, self.waiting = self.waiting, deque()
        for batch in waiting:
            self.add(batch)

    def fail(self, why: str, now: float) -> None:
        """Try again after a pause, longer each time."""
        self.failure = why
        if self.failing_since is None:
            self.failing_since = now
        self.retry_at = now + self.pause_s
        self.pause_s = min(self.pause_s * 2, PAUSE_S_MAX)

    def succeed(self) -> None:
        self.proven, self.refusals = True, 0
        self.failing_since, self.pause_s = None, PAUSE_S

    def settle(self) -> None:
        """Return failed batches to the front of the queue, once no request is in flight."""
        if self.failed and not self.in_flight:
            self.waiting.extendleft(reversed(self.failed))
            self.failed.clear()


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request without an answer yet."""

    connection: Connection
    posted: Posted
    parts: dict[TopicPartition, tuple[PartitionQueue, Batch]]
    topics: dict[bytes, str]
    """Names by id: new versions of Produce answer with ids."""


class LastSequence(NamedTuple):
    """The last sequence of a producer in a partition, None without any. `certain`: the leader itself has it. Otherwise
    it comes from the log's headers, some of which retention may have removed."""

    last: int | None
    certain: bool


class Publisher:
    """Sends the batches of partitions. One for each producer; keeps its connections from call to call.

    `renumbered` is called before a queue's new numbers are used. While `transactional_id` is set, batches belong to its
    transaction; the caller has added the partitions. Methods raise PublishFailedError.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        *,
        acks: int = -1,
        request_bytes: int = 8 << 20,
        in_flight_max: int = 5,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        renumbered: Callable[[PartitionQueue], None] = lambda queue: None,
    ) -> None:
        self._connect = connect
        self._acks = acks
        self._request_bytes = request_bytes
        self._in_flight_max = in_flight_max
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._request_timeout_ms = request_timeout_ms
        self.renumbered = renumbered
        self.transactional_id: str | None = None
        self._client: Client | None = None
        self._pending: deque[PendingRequest] = deque()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None
        self._pending.clear()

    def ask(
        self,
        what: Callable[[Client], T],
        explained: Callable[[BrokerError], str] = lambda failure: f"The cluster refuses: {failure}",
    ) -> T:
        """Send a request, and retry while the cluster is unavailable or not ready, until the delivery timeout.
        `explained` makes a sentence of a permanent refusal. Raises PublishFailedError."""
        until = time.monotonic() + self._delivery_timeout_s
        pause_s = PAUSE_S
        while True:
            try:
                return what(self.client)
            except ClientError as failure:
                if isinstance(failure, BrokerError) and not failure.retriable:
                    raise PublishFailedError(explained(failure)) from failure
                if isinstance(failure, UnsupportedVersionError):
                    raise PublishFailedError(str(failure)) from failure
                if time.monotonic() > until:
                    raise PublishFailedError(f"The cluster did not answer in time: {failure}") from failure
                if not isinstance(failure, BrokerError):
                    self.close()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def new_producer(self) -> tuple[int, int]:
        """A producer id and its epoch, from the cluster."""

        def init(client: Client) -> tuple[int, int]:
            answer = client.send(InitProducerIdRequest(None, 0))
            check(answer.error_code, "a producer id")
            return answer.producer_id, answer.producer_epoch

        return self.ask(init)

    def send(self, queues: list[PartitionQueue], left_bytes: int = 0) -> None:
        """Send until at most `left_bytes` wait; with 0, until everything is sent and acknowledged."""
        while True:
            unfinished = [queue for queue in queues if queue.waiting or queue.in_flight or queue.failed]
            if not unfinished or (left_bytes and waiting_bytes(unfinished) <= left_bytes):
                return
            self._step(unfinished)

    # ---- sending ---------------------------------------------------------------------------------------------------

    def _step(self, queues: list[PartitionQueue]) -> None:
        """Send possible requests, then handle one answer, or wait until the next attempt is due."""
        now = time.monotonic()
        for queue in queues:
            if queue.failing_since is not None and now - queue.failing_since > self._delivery_timeout_s:
                self.close()
                raise PublishFailedError(
                    f"Records for {queue.place} could not be written within {self._delivery_timeout_s:g} s "
                    f"('kafka.delivery.timeout.ms'): {queue.failure}"
                )
        try:
            for queue in queues:
                if queue.doubted and not queue.in_flight and queue.retry_at <= now:
                    self._resolve(queue)
            self._post(queues, now)
            if self._pending:
                self._take(self._pending[0])
                self._pending.popleft()
                return
        except ClientError as failure:
            self._lose(queues, failure)
        ready_at = min((queue.retry_at for queue in queues), default=0.0)
        time.sleep(max(0.0, min(ready_at - time.monotonic(), PAUSE_S_MAX)))

    def _post(self, queues: list[PartitionQueue], now: float) -> None:
        """Fill requests, one for each leader, as long as anything may go out."""
        while True:
            requests: dict[Connection, dict[TopicPartition, tuple[PartitionQueue, Batch]]] = {}
            for queue in queues:
                if self._may_send(queue, now):
                    self._load(queue, requests, now)
            if not requests:
                return
            for connection, parts in requests.items():
                self._send(connection, parts)

    def _may_send(self, queue: PartitionQueue, now: float) -> bool:
        most = self._in_flight_max if queue.proven or not queue.idempotent else 1
        resting = queue.doubted or bool(queue.failed) or queue.retry_at > now
        return bool(queue.waiting) and not resting and len(queue.in_flight) < most

    def _load(self, queue: PartitionQueue, requests: dict[Connection, Any], now: float) -> None:
        """Put the queue's next batch into the request to its leader, if there is room."""
        try:
            connection = self.client.leader(queue.topic, queue.partition)
        except BrokerError as failure:
            self._refused(queue, failure, now, sent=False)
            return
        under_way = sum(request.connection is connection for request in self._pending)
        parts = requests.get(connection, {})
        filled = sum(batch.size for _, batch in parts.values())
        if under_way < self._in_flight_max and (not parts or filled + queue.waiting[0].size <= self._request_bytes):
            batch = queue.waiting.popleft()
            queue.in_flight.append(batch)
            requests.setdefault(connection, parts)[queue.topic, queue.partition] = (queue, batch)

    def _send(self, connection: Connection, parts: dict[TopicPartition, tuple[PartitionQueue, Batch]]) -> None:
        topics: dict[str, TopicProduceData] = {}
        for queue, batch in parts.values():
            whole = batch.load()
            if queue.idempotent:
                NUMBERS.pack_into(whole, NUMBERS_AT, queue.producer_id, queue.epoch, batch.sequence)
                if self.transactional_id is not None:
                    whole[KIND_AT] |= b.ATTRIBUTES_TRANSACTIONAL
                b.set_crc(whole)
            if queue.topic not in topics:
                known = self.client.known_topic(queue.topic)
                topics[queue.topic] = TopicProduceData(queue.topic, known.topic_id, [])
            topics[queue.topic].partition_data.append(PartitionProduceData(queue.partition, whole))
        name = self.transactional_id
        request = ProduceRequest(name, self._acks, self._request_timeout_ms, list(topics.values()))
        version = connection.version_of(ProduceRequest.API_KEY)
        if name is not None:
            version = min(version, PRODUCE_NEWEST_IN_TRANSACTION)
        posted = connection.post(request, version, answered=self._acks != 0)
        if self._acks == 0:
            for queue, batch in parts.values():
                queue.in_flight.remove(batch)
                queue.succeed()
            return
        names = {topic.topic_id: name for name, topic in topics.items()}
        self._pending.append(PendingRequest(connection, posted, parts, names))

    # ---- answers ---------------------------------------------------------------------------------------------------

    def _take(self, request: PendingRequest) -> None:
        answer = request.connection.take(request.posted)
        now = time.monotonic()
        for place in answer.responses:
            topic = place.name or request.topics[bytes(place.topic_id)]
            for part in place.partition_responses:
                queue, batch = request.parts[topic, part.index]
                self._answered(queue, batch, part, now)

    def _answered(self, queue: PartitionQueue, batch: Batch, part: Any, now: float) -> None:
        queue.in_flight.remove(batch)
        if part.error_code == 0:
            queue.succeed()
            if queue.keeps:
                queue.done.append(batch)
            elif part.base_offset >= 0 and not queue.failed:
                queue.read_from = part.base_offset + batch.records
        else:
            queue.failed.append(batch)
            self._refused(queue, BrokerError(part.error_code, queue.place, part.error_message), now)
        queue.settle()

    def _refused(self, queue: PartitionQueue, failure: BrokerError, now: float, *, sent: bool = True) -> None:
        code = failure.code
        if code in _FENCED:
            late = ", or did the transaction take too long" if self.transactional_id is not None else ""
            raise PublishFailedError(
                f"Another writer has taken over producer {queue.producer_id} for {queue.place}: is this query running "
                f"twice{late}? {failure}"
            )
        if code in _DOUBTS:
            queue.refused = True
        elif not failure.retriable and code != ErrorCode.UNKNOWN_TOPIC_ID:
            raise PublishFailedError(f"Records for topic {queue.topic} were refused: {failure}")
        queue.doubted = queue.doubted or (sent and queue.idempotent)
        queue.fail(str(failure), now)
        self.client.forget_topics()

    def _lose(self, queues: list[PartitionQueue], failure: ClientError) -> None:
        """Handle a broken connection: batches in flight may or may not be in the log."""
        now = time.monotonic()
        self.close()
        for queue in queues:
            if queue.in_flight:
                queue.doubted, queue.proven = queue.idempotent, False
            queue.failed += queue.in_flight
            queue.in_flight.clear()
            queue.settle()
            queue.fail(f"{type(failure).__name__}: {failure}", now)

    # ---- doubts ----------------------------------------------------------------------------------------------------

    def recover(self, queues: list[PartitionQueue]) -> None:
        """Skip batches that the logs already hold, in queues whose batches another process may have sent before."""
        for queue in queues:
            self._split(queue, self.ask(lambda _, queue=queue: self._last_sequence(queue)), confirm=True)

    def _resolve(self, queue: PartitionQueue) -> None:
        """After lost answers or a refused sequence, ask the leader what it has, and continue after that."""
        try:
            last_sequence = self._last_sequence(queue)
        except BrokerError as failure:
            return self._refused(queue, failure, time.monotonic())
        refused, queue.refused, queue.doubted = queue.refused, False, False
        queue.refusals += refused
        explained = self._split(queue, last_sequence, confirm=queue.refusals < TRUSTED_AFTER)
        if not refused or not queue.waiting or (explained and queue.refusals < RENUMBERED_AFTER):
            return None
        if self.transactional_id is not None:
            raise PublishFailedError(f"Records of the transaction are gone from {queue.place}; it starts again.")
        epoch = queue.epoch + 1
        producer_id, epoch = (queue.producer_id, epoch) if epoch <= EPOCH_MAX else self.new_producer()
        queue.renumber(producer_id, epoch)
        return self.renumbered(queue)

    def _split(self, queue: PartitionQueue, last_sequence: LastSequence, *, confirm: bool) -> bool:
        """Split the batches into those up to the last sequence, which are in the log, and the rest; return whether it
        fits them.

        A last sequence after all of them means that another process has sent them and more. With `confirm`, the last
        batch in the log is sent again: its answer proves that it is committed. A broker that has forgotten the producer
        would accept it as a new one. Then the batch was found in the log, which shows only what is committed.
        """
        last = last_sequence.last
        if last is None and not last_sequence.certain:
            return True
        known = sorted([*queue.done, *queue.waiting], key=lambda batch: batch.index)
        if last is None or not known:
            there, explained = 0, True
        else:
            first = known[0].sequence
            reach = (last - first) & SEQUENCE_MASK
            before = reach >= SEQUENCE_HALF
            there = 0 if before else sum((each.last_sequence - first) & SEQUENCE_MASK <= reach for each in known)
            explained = not before or reach == SEQUENCE_MASK
        confirmed = max(there - 1, 0) if confirm and last_sequence.certain else there
        queue.done = known[:confirmed] if queue.keeps else []
        queue.waiting = deque(known[confirmed:])
        return explained

    def _last_sequence(self, queue: PartitionQueue) -> LastSequence:
        """Return the last sequence of the queue's producer at the partition's leader. A leader never forgets a producer
        while its transaction is open."""
        request = DescribeProducersRequest([TopicRequest(queue.topic, [queue.partition])])
        try:
            leader = self.client.leader(queue.topic, queue.partition)
            ((part,),) = [topic.partitions for topic in leader.send(request).topics]
            check(part.error_code, queue.place, part.error_message)
        except (BrokerError, UnsupportedVersionError) as failure:
            if isinstance(failure, BrokerError) and failure.retriable:
                self.client.forget_topics()
                raise
            return self._read_back(queue)
        for producer in part.active_producers:
            if producer.producer_id == queue.producer_id:
                if producer.producer_epoch > queue.epoch:
                    self._refused(queue, BrokerError(ErrorCode.INVALID_PRODUCER_EPOCH, queue.place), time.monotonic())
                same = producer.producer_epoch == queue.epoch and producer.last_sequence >= 0
                return LastSequence(producer.last_sequence if same else None, True)
        return self._read_back(queue) if self.transactional_id is None else LastSequence(None, True)

    def _read_back(self, queue: PartitionQueue) -> LastSequence:
        """Find the last sequence in the headers of the log: a broker forgets producers that were idle for a day."""
        if queue.read_from is None or self.transactional_id is not None:
            return LastSequence(None, False)
        last = None
        try:
            for header in headers_from(self.client, queue.topic, queue.partition, queue.read_from):
                if header.producer_id == queue.producer_id and header.producer_epoch == queue.epoch:
                    last = header.last_sequence
        except BrokerError as failure:
            if failure.retriable:
                raise
            if queue.keeps:
                raise PublishFailedError(
                    f"{queue.place} can't be read, which exactly once requires: {failure}"
                ) from failure
        return LastSequence(last, False)


def waiting_bytes(queues: list[PartitionQueue]) -> int:
    return sum(batch.size for queue in queues for batch in queue.waiting)


def headers_from(client: Client, topic: str, partition: int, offset: int) -> Iterator[b.BatchHeader]:
    """Yield the header of every batch from `offset` to the log's current end. If the log starts later, or ends before
    `offset` (a recreated topic), begin at its start."""
    start = client.list_offsets(topic, [partition], EARLIEST)[partition]
    end = client.list_offsets(topic, [partition], LATEST)[partition]
    at = offset if start <= offset <= end else start
    while at < end:
        got = client.fetch_raw(topic, partition, at, max_bytes=READ_BACK_BYTES, max_wait_ms=100)
        found = [header for header, _ in b.iter_batches(got.records)]
        if not found:
            return
        yield from found
        at = found[-1].next_offset
