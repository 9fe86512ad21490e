"""Sending whole batches: several partitions at once, several requests in flight, each batch once.

Knows numbering (producer id, epoch, sequence), what each error code means for a batch, and how to find out what a log
holds after an answer was lost. Does not know rows, Spark or files: a `Batch` loads its own bytes. KIP-98, KIP-360,
KIP-664; Sender.java and TransactionManager.java have the same rules for Kafka's producer.

Invariants:
- A partition's batches go out in order, at most `in_flight_max` unanswered, and the first of a numbering alone: a
  broker takes any first sequence of a producer it does not know, so a second batch must never overtake the first.
- After a lost answer, or an error, the partition's leader is asked first what it has from this producer
  (DescribeProducers, or else the headers in the log), and that decides what is still to be sent. Sending again under
  the same numbers is not enough: a broker forgets producers, at its next start at the latest, whose last record has an
  old time, and then takes any sequence.
- What is sent again has the same numbers. New ones are given only to what is not in the log, when the broker refuses
  the old ones for good.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from ottla.client import Client, ClientFailure, Connection, ErrorAnswer, Posted, TopicPartition, UnsupportedVersion
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
SEQUENCE_MASK = 0x7FFFFFFF
SEQUENCE_HALF = 1 << 30
EPOCH_MAX = 0x7FFE
TRUSTED_AFTER, RENUMBERED_AFTER = 2, 4
"""Refusals of one sequence in a row after which the broker's word for the last batch is enough, and after which what
is left gets new numbers."""
PAUSE_S, PAUSE_S_MAX = 0.02, 1.0
READ_BACK_BYTES = 4 << 20

_DOUBTS = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
}
_FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}


class PublishFailed(Exception):
    """Batches that cannot be sent, or not in time: one sentence that names topic, partition and the last failure."""


@dataclass(slots=True, eq=False)
class Batch:
    """One whole batch. `load` gives its bytes, into which the numbers are written."""

    records: int
    size: int
    load: Callable[[], Any]
    sequence: int = b.NO_SEQUENCE
    index: int = 0
    """Its place in the lane's order."""

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.records - 1) & SEQUENCE_MASK


@dataclass(slots=True, eq=False)
class Lane:
    """One partition's batches, in order: `done`, `flying`, then `waiting`; `failed` ones go back to the front.

    `read_from`: an offset that none of the batches in here stands before, None when no such is known.
    `keeps`: whether `done` is remembered, so that what a broker lost can be sent again.
    """

    topic: str
    partition: int
    producer_id: int = b.NO_PRODUCER_ID
    epoch: int = b.NO_PRODUCER_EPOCH
    next_sequence: int = 0
    read_from: int | None = None
    keeps: bool = False
    waiting: deque[Batch] = field(default_factory=deque)
    flying: list[Batch] = field(default_factory=list)
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
        """What failed goes back to the front, once nothing is in flight any more."""
        if self.failed and not self.flying:
            self.waiting.extendleft(reversed(self.failed))
            self.failed.clear()


@dataclass(frozen=True, slots=True)
class Flight:
    """A request without an answer yet."""

    connection: Connection
    posted: Posted
    parts: dict[TopicPartition, tuple[Lane, Batch]]
    topics: dict[bytes, str]
    """Names by id: new versions of Produce answer with ids."""


class Standing(NamedTuple):
    """The last sequence of a producer in a partition, None without any. `certain`: the leader itself keeps count;
    otherwise it is what the log's headers show, from which retention may have taken the rest."""

    last: int | None
    certain: bool


class Publisher:
    """Sends lanes. One for each producer; keeps its connections from call to call.

    `renumbered` is told before a lane's new numbers are used. Methods raise PublishFailed.
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
        renumbered: Callable[[Lane], None] = lambda lane: None,
    ) -> None:
        self._connect = connect
        self._acks = acks
        self._request_bytes = request_bytes
        self._in_flight_max = in_flight_max
        self._delivery_timeout_s = delivery_timeout_ms / 1000
        self._request_timeout_ms = request_timeout_ms
        self.renumbered = renumbered
        self._client: Client | None = None
        self._flights: deque[Flight] = deque()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None
        self._flights.clear()

    def ask(self, what: Callable[[Client], T]) -> T:
        """Ask the cluster, again and again while it is away or not ready, until the delivery timeout."""
        until = time.monotonic() + self._delivery_timeout_s
        pause_s = PAUSE_S
        while True:
            try:
                return what(self.client)
            except ClientFailure as failure:
                if isinstance(failure, ErrorAnswer) and not failure.retriable:
                    raise PublishFailed(f"The cluster refuses: {failure}") from failure
                if time.monotonic() > until:
                    raise PublishFailed(f"The cluster did not answer in time: {failure}") from failure
                if not isinstance(failure, ErrorAnswer):
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

    def send(self, lanes: list[Lane], left_bytes: int = 0) -> None:
        """Send until no more than `left_bytes` wait, and all of it with 0."""
        while True:
            open_lanes = [lane for lane in lanes if lane.waiting or lane.flying or lane.failed]
            if not open_lanes or (left_bytes and waiting_bytes(open_lanes) <= left_bytes):
                return
            self._step(open_lanes)

    # Sending

    def _step(self, lanes: list[Lane]) -> None:
        """Post what may go out, then take one answer, or wait for the next attempt's time."""
        now = time.monotonic()
        for lane in lanes:
            if lane.failing_since is not None and now - lane.failing_since > self._delivery_timeout_s:
                self.close()
                raise PublishFailed(
                    f"Records for {lane.place} could not be written within {self._delivery_timeout_s:g} s "
                    f"('kafka.delivery.timeout.ms'): {lane.failure}"
                )
        try:
            for lane in lanes:
                if lane.doubted and not lane.flying and lane.retry_at <= now:
                    self._resolve(lane)
            self._post(lanes, now)
            if self._flights:
                self._take(self._flights[0])
                self._flights.popleft()
                return
        except ClientFailure as failure:
            self._lose(lanes, failure)
        ready_at = min((lane.retry_at for lane in lanes), default=0.0)
        time.sleep(max(0.0, min(ready_at - time.monotonic(), PAUSE_S_MAX)))

    def _post(self, lanes: list[Lane], now: float) -> None:
        """Fill requests, one for each leader, as long as anything may go out."""
        while True:
            requests: dict[Connection, dict[TopicPartition, tuple[Lane, Batch]]] = {}
            for lane in lanes:
                if self._may_send(lane, now):
                    self._load(lane, requests, now)
            if not requests:
                return
            for connection, parts in requests.items():
                self._send(connection, parts)

    def _may_send(self, lane: Lane, now: float) -> bool:
        most = self._in_flight_max if lane.proven or not lane.idempotent else 1
        resting = lane.doubted or bool(lane.failed) or lane.retry_at > now
        return bool(lane.waiting) and not resting and len(lane.flying) < most

    def _load(self, lane: Lane, requests: dict[Connection, Any], now: float) -> None:
        """Put the lane's next batch into the request to its leader, if there is room."""
        try:
            connection = self.client.leader(lane.topic, lane.partition)
        except ErrorAnswer as failure:
            self._refused(lane, failure, now, sent=False)
            return
        under_way = sum(flight.connection is connection for flight in self._flights)
        parts = requests.get(connection, {})
        filled = sum(batch.size for _, batch in parts.values())
        if under_way < self._in_flight_max and (not parts or filled + lane.waiting[0].size <= self._request_bytes):
            batch = lane.waiting.popleft()
            lane.flying.append(batch)
            requests.setdefault(connection, parts)[lane.topic, lane.partition] = (lane, batch)

    def _send(self, connection: Connection, parts: dict[TopicPartition, tuple[Lane, Batch]]) -> None:
        topics: dict[str, TopicProduceData] = {}
        for lane, batch in parts.values():
            whole = batch.load()
            if lane.idempotent:
                NUMBERS.pack_into(whole, NUMBERS_AT, lane.producer_id, lane.epoch, batch.sequence)
                b.set_crc(whole)
            if lane.topic not in topics:
                known = self.client.known_topic(lane.topic)
                topics[lane.topic] = TopicProduceData(lane.topic, known.topic_id, [])
            topics[lane.topic].partition_data.append(PartitionProduceData(lane.partition, whole))
        request = ProduceRequest(None, self._acks, self._request_timeout_ms, list(topics.values()))
        posted = connection.post(request, answered=self._acks != 0)
        if self._acks == 0:
            for lane, batch in parts.values():
                lane.flying.remove(batch)
                lane.succeed()
            return
        names = {topic.topic_id: name for name, topic in topics.items()}
        self._flights.append(Flight(connection, posted, parts, names))

    # Answers

    def _take(self, flight: Flight) -> None:
        answer = flight.connection.take(flight.posted)
        now = time.monotonic()
        for place in answer.responses:
            topic = place.name or flight.topics[bytes(place.topic_id)]
            for part in place.partition_responses:
                lane, batch = flight.parts[topic, part.index]
                self._answered(lane, batch, part, now)

    def _answered(self, lane: Lane, batch: Batch, part: Any, now: float) -> None:
        lane.flying.remove(batch)
        if part.error_code == 0:
            lane.succeed()
            if lane.keeps:
                lane.done.append(batch)
            elif part.base_offset >= 0 and not lane.failed:
                lane.read_from = part.base_offset + batch.records
        else:
            lane.failed.append(batch)
            self._refused(lane, ErrorAnswer(part.error_code, lane.place, part.error_message), now)
        lane.settle()

    def _refused(self, lane: Lane, failure: ErrorAnswer, now: float, *, sent: bool = True) -> None:
        code = failure.code
        if code in _FENCED:
            raise PublishFailed(
                f"Another writer has taken over producer {lane.producer_id} for {lane.place}: is this query running "
                f"twice? {failure}"
            )
        if code in _DOUBTS:
            lane.refused = True
        elif not failure.retriable and code != ErrorCode.UNKNOWN_TOPIC_ID:
            raise PublishFailed(f"Records for topic {lane.topic} were refused: {failure}")
        lane.doubted = lane.doubted or (sent and lane.idempotent)
        lane.fail(str(failure), now)
        self.client.forget_topics()

    def _lose(self, lanes: list[Lane], failure: ClientFailure) -> None:
        """The connection broke: whatever was in flight may or may not be in the log."""
        now = time.monotonic()
        self.close()
        for lane in lanes:
            if lane.flying:
                lane.doubted, lane.proven = lane.idempotent, False
            lane.failed += lane.flying
            lane.flying.clear()
            lane.settle()
            lane.fail(f"{type(failure).__name__}: {failure}", now)

    # Doubts

    def recover(self, lanes: list[Lane]) -> None:
        """Skip what the logs hold already: for lanes whose batches somebody may have sent before."""
        for lane in lanes:
            self._split(lane, self.ask(lambda _, lane=lane: self._standing(lane)), confirm=True)

    def _resolve(self, lane: Lane) -> None:
        """Answers were lost, or a sequence was refused: let the leader say what it has, and go on behind that."""
        try:
            standing = self._standing(lane)
        except ErrorAnswer as failure:
            return self._refused(lane, failure, time.monotonic())
        refused, lane.refused, lane.doubted = lane.refused, False, False
        lane.refusals += refused
        explained = self._split(lane, standing, confirm=lane.refusals < TRUSTED_AFTER)
        if not refused or not lane.waiting or (explained and lane.refusals < RENUMBERED_AFTER):
            return None
        epoch = lane.epoch + 1
        producer_id, epoch = (lane.producer_id, epoch) if epoch <= EPOCH_MAX else self.new_producer()
        lane.renumber(producer_id, epoch)
        return self.renumbered(lane)

    def _split(self, lane: Lane, standing: Standing, *, confirm: bool) -> bool:
        """Sort batches into those up to the last sequence, which are in the log, and the rest; whether it fits them.

        A last one behind all of them means that another process has sent them and went on. With `confirm` the last one
        that is there is sent again all the same: its answer says that it is committed. A broker that has forgotten the
        producer would take it for a new one; then it was seen in the log, which shows only what is committed.
        """
        last = standing.last
        if last is None and not standing.certain:
            return True
        known = sorted([*lane.done, *lane.waiting], key=lambda batch: batch.index)
        if last is None or not known:
            there, explained = 0, True
        else:
            first = known[0].sequence
            reach = (last - first) & SEQUENCE_MASK
            before = reach >= SEQUENCE_HALF
            there = 0 if before else sum((each.last_sequence - first) & SEQUENCE_MASK <= reach for each in known)
            explained = not before or reach == SEQUENCE_MASK
        confirmed = max(there - 1, 0) if confirm and standing.certain else there
        lane.done = known[:confirmed] if lane.keeps else []
        lane.waiting = deque(known[confirmed:])
        return explained

    def _standing(self, lane: Lane) -> Standing:
        """What the partition's leader has from the lane's producer."""
        request = DescribeProducersRequest([TopicRequest(lane.topic, [lane.partition])])
        try:
            leader = self.client.leader(lane.topic, lane.partition)
            ((part,),) = [topic.partitions for topic in leader.send(request).topics]
            check(part.error_code, lane.place, part.error_message)
        except (ErrorAnswer, UnsupportedVersion) as failure:
            if isinstance(failure, ErrorAnswer) and failure.retriable:
                self.client.forget_topics()
                raise
            return self._read_back(lane)
        for producer in part.active_producers:
            if producer.producer_id == lane.producer_id:
                if producer.producer_epoch > lane.epoch:
                    self._refused(lane, ErrorAnswer(ErrorCode.INVALID_PRODUCER_EPOCH, lane.place), time.monotonic())
                same = producer.producer_epoch == lane.epoch and producer.last_sequence >= 0
                return Standing(producer.last_sequence if same else None, True)
        return self._read_back(lane)

    def _read_back(self, lane: Lane) -> Standing:
        """The same, out of the headers of the log: a broker forgets producers that were idle for a day."""
        if lane.read_from is None:
            return Standing(None, False)
        last = None
        try:
            for header in headers_from(self.client, lane.topic, lane.partition, lane.read_from):
                if header.producer_id == lane.producer_id and header.producer_epoch == lane.epoch:
                    last = header.last_sequence
        except ErrorAnswer as failure:
            if failure.retriable:
                raise
            if lane.keeps:
                raise PublishFailed(
                    f"What is in {lane.place} can't be read, as exactly once needs: {failure}"
                ) from failure
        return Standing(last, False)


def waiting_bytes(lanes: list[Lane]) -> int:
    return sum(batch.size for lane in lanes for batch in lane.waiting)


def headers_from(client: Client, topic: str, partition: int, offset: int) -> Iterator[b.BatchHeader]:
    """The header of every batch from `offset` to the log's end as it is now; from the log's start when that is later,
    or the end is before `offset` (a topic that was made anew)."""
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
