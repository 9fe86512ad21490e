"""Redelivers messages, on the executors: reads the record at its exact offset, writes the copy or the dead letter,
waits for the acknowledgement, writes the end marker.

The input is the tracker's rows. A message whose redelivery fails stays open in the tracker's state and is handed over
again. A redelivery is therefore tried for at most `REDELIVER_S_MAX`, and no failure of the cluster fails the task.

The clients live as long as the worker process, because a connection costs more than a batch.
"""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ottla.kmq.config import KmqConfig
from ottla.kmq.copies import Copy, copy_of, count_of, dead_letter
from ottla.kmq.events import DeadLetter, Failed, HandOver, Reason, RecordBeyondEnd, RecordGone
from ottla.kmq.external_tracker import decided, last_ms
from ottla.kmq.figures import PartitionFigures
from ottla.kmq.machine import comes_again_ms
from ottla.kmq.markers import END, pack_key
from ottla.kmq.reader import RecordReader
from ottla.kmq.tracker import PRODUCER, now_ms

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

OUTCOME: Final = "outcome string, late_ms binary"
REDELIVER_S_MAX: Final = 20.0
"""Time limit; redeliveries that are not finished by then are handed over again later."""
WAIT_S: Final = 0.005
ENDED_MAX: Final = 100_000
_OUTCOME = pa.schema([("outcome", pa.string()), ("late_ms", pa.binary())])

Redelivery = tuple[int, int, int]
"""(partition, offset, deadline_ms)"""


@dataclass(slots=True)
class RedeliveryResult:
    """Result of a batch. `late_ms`: for each copy and dead letter, the time from due to acknowledged."""

    redelivered: int = 0
    dead_lettered: Counter[str] = field(default_factory=Counter[str])
    waiting: int = 0
    """Not done now: their back-off is not over, or they were redelivered before."""
    failed: int = 0
    read: int = 0
    malformed: int = 0
    partitions: dict[int, tuple[int, PartitionFigures]] = field(default_factory=dict[int, tuple[int, PartitionFigures]])
    """Position and figures of each partition that had markers or was checked."""
    first_due_ms: int | None = None
    problems: list[str] = field(default_factory=list[str])
    late_ms: list[int] = field(default_factory=list[int])

    def add(self, other: RedeliveryResult) -> None:
        self.redelivered += other.redelivered
        self.dead_lettered.update(other.dead_lettered)
        self.waiting += other.waiting
        self.failed += other.failed
        self.read += other.read
        self.malformed += other.malformed
        self.partitions.update(other.partitions)
        dues = [each for each in (self.first_due_ms, other.first_due_ms) if each is not None]
        self.first_due_ms = min(dues, default=None)
        self.problems += other.problems
        self.late_ms += other.late_ms

    def row(self) -> tuple[str, bytes]:
        """As a row of OUTCOME."""
        said = {each: getattr(self, each) for each in _SAID}
        said["partitions"] = [(position, astuple(each)) for position, each in self.partitions.values()]
        return json.dumps(said), b"".join(each.to_bytes(8, "little", signed=True) for each in self.late_ms)


_SAID = ("redelivered", "dead_lettered", "waiting", "failed", "read", "malformed", "first_due_ms", "problems")


def outcome_of(text: str, late_ms: bytes) -> RedeliveryResult:
    """Decode what `RedeliveryResult.row` wrote."""
    said = json.loads(text)
    partitions = {each[0]: (position, PartitionFigures(*each)) for position, each in said.pop("partitions")}
    said["dead_lettered"] = Counter(said["dead_lettered"])
    times = memoryview(bytes(late_ms)).cast("q") if late_ms else ()
    return RedeliveryResult(**said, partitions=partitions, late_ms=list(times))


def redeliver_all(
    properties: Mapping[str, Any], config: KmqConfig
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow over the rows of `tracked`: does what they say; a row of OUTCOME for each task."""

    def redeliver(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        outcome, due = RedeliveryResult(), list[tuple[int, HandOver]]()
        for batch in batches:
            for row in batch.to_pylist():
                take_row(row, outcome, due)
        redeliverer = redeliverer_of(properties, config)
        if due:
            redeliverer.redeliver(due, outcome)
        redeliverer.commit(outcome)
        text, late = outcome.row()
        yield pa.record_batch([pa.array([text], pa.string()), pa.array([late], pa.binary())], schema=_OUTCOME)

    return redeliver


def take_row(row: dict[str, Any], outcome: RedeliveryResult, due: list[tuple[int, HandOver]]) -> None:
    """A row of `tracked`."""
    partition = row["partition"]
    if row["offset"] is None:
        outcome.partitions[partition] = (
            row["position"],
            PartitionFigures(
                partition, row["open"], 0, bool(row["replaying"]), row["oldest_due_ms"], row["commit_offset"]
            ),
        )
        outcome.read += row["read"]
        outcome.malformed += row["malformed"]
        return
    names = ("offset", "deadline_ms", "since_ms", "text", "clock_ms", "asked_ms")
    message = HandOver(reason=Reason(row["reason"]), **{name: row[name] for name in names})
    due.append((partition, message))
    first = outcome.first_due_ms
    outcome.first_due_ms = message.deadline_ms if first is None else min(first, message.deadline_ms)


_carriers: dict[str, Redeliverer] = {}


def redeliverer_of(properties: Mapping[str, Any], config: KmqConfig) -> Redeliverer:
    """This process's own."""
    name = repr((sorted(properties.items()), config))
    redeliverer = _carriers.get(name)
    if redeliverer is None:
        redeliverer = _carriers[name] = Redeliverer(properties, config)
    return redeliverer


class Redeliverer:
    """Clients of one cluster for one queue."""

    def __init__(self, properties: Mapping[str, Any], config: KmqConfig) -> None:
        from confluent_kafka import Producer

        self._config = config
        self._given = dict(properties)
        self._sends = {**PRODUCER, "message.timeout.ms": int(REDELIVER_S_MAX * 1000), "log_level": 0, **properties}
        self._producer: Any = Producer(self._sends)
        self._reader: RecordReader | None = None
        self._group: Any = None
        self._committed: dict[int, int] = {}
        self._ended: OrderedDict[Redelivery, None] = OrderedDict()
        """Redeliveries copied by this process; when one is handed over again, only its end marker is written again."""
        self._outcome = RedeliveryResult()
        self._left: dict[Redelivery, int] = {}
        """Unfinished redeliveries and when each was due."""
        self._broken = False

    # ---- messages --------------------------------------------------------------------------------------------------

    def redeliver(self, due: list[tuple[int, HandOver]], outcome: RedeliveryResult) -> None:
        """Redeliver these messages, and count the results."""
        until = time.monotonic() + REDELIVER_S_MAX
        self._outcome = outcome
        self._left = {(partition, each.offset, each.deadline_ms): each.deadline_ms for partition, each in due}
        wanted = self._want(due)
        while self._left and time.monotonic() < until:
            found = self._read()
            for partition, each in found:
                self._take(partition, each, wanted)
            self._producer.poll(0 if found else WAIT_S)
        for partition in {partition for partition, _ in due} if self._left else ():
            assert self._reader is not None
            self._reader.drop(partition)
        if self._producer.flush(max(1.0, until - time.monotonic())) or self._broken:
            self._replace_producer()
        outcome.failed += len(self._left)
        self._left = {}

    def _want(self, due: list[tuple[int, HandOver]]) -> dict[tuple[int, int], HandOver]:
        """Ask for their records; write the end markers of those that were copied before."""
        wanted: dict[tuple[int, int], HandOver] = {}
        for partition, each in sorted(due, key=lambda one: (one[0], one[1].offset)):
            place = (partition, each.offset, each.deadline_ms)
            if place in self._ended and each.asked_ms is not None and each.asked_ms >= last_ms(self._config, each):
                self._end(place)
                self._left.pop(place)
                self._outcome.waiting += 1
                continue
            if self._reader is None:
                self._reader = RecordReader({"log_level": 0, **self._given}, self._config)
            wanted[partition, each.offset] = each
            self._reader.want(partition, each.offset)
        return wanted

    def _read(self) -> list[tuple[int, Any]]:
        return [] if self._reader is None else self._reader.step()

    def _take(self, partition: int, found: Any, wanted: dict[tuple[int, int], HandOver]) -> None:
        """Handle a record that was read, or its absence."""
        message = None if isinstance(found, RecordGone | RecordBeyondEnd | Failed) else found
        offset: int = found.offset if message is None else message.offset()
        due = wanted.pop((partition, offset), None)
        if due is None:
            return
        place = (partition, offset, due.deadline_ms)
        if isinstance(found, Failed):
            self._settle(place, failed=True)
            return
        does = decided(self._config, due, found if message is None else count_of(self._config, message))
        if does is None:
            self._settle(place)
        elif isinstance(does, DeadLetter):
            self._send(place, dead_letter(self._config, partition, does, message, now_ms()))
        else:
            assert message is not None
            self._left[place] = comes_again_ms(self._config, due.deadline_ms, due.since_ms, does.redeliveries - 1)
            self._send(place, copy_of(self._config, message, does.redeliveries))

    def _settle(self, place: Redelivery, *, failed: bool = False) -> None:
        if self._left.pop(place, None) is not None:
            self._outcome.failed += failed
            self._outcome.waiting += not failed

    def _send(self, place: Redelivery, copy: Copy) -> None:
        told = partial(self._delivered, place, copy)
        while True:
            try:
                self._producer.produce(
                    copy.topic,
                    copy.value,
                    copy.key,
                    copy.partition,
                    on_delivery=told,
                    timestamp=copy.timestamp_ms,
                    headers=copy.headers,
                )
                return
            except BufferError:
                self._producer.poll(WAIT_S)

    def _delivered(self, place: Redelivery, copy: Copy, error: KafkaError | None, message: Message) -> None:
        from confluent_kafka import KafkaError

        if error is None:
            self._ended[place] = None
            if len(self._ended) > ENDED_MAX:
                self._ended.popitem(last=False)
            self._end(place)
            due_ms = self._left.pop(place, None)
            if due_ms is None:
                return  # too late for this batch's outcome
            if copy.reason is None:
                self._outcome.redelivered += 1
            else:
                self._outcome.dead_lettered[copy.reason.value] += 1
            self._outcome.late_ms.append(now_ms() - due_ms)
        elif error.code() == KafkaError.INVALID_TIMESTAMP and copy.timestamp_ms:
            self._send(place, replace(copy, timestamp_ms=0))  # older than the topic accepts: the time is lost
        else:
            self._broken |= error.fatal()
            self._problem(f"{copy.topic} took no copy of {self._config.queue}-{place[0]}@{copy.offset}: {error.str()}")
            self._settle(place, failed=True)

    def _end(self, place: Redelivery) -> None:
        """Write the end marker. Its delivery report is not needed: the message is handed over again until the marker is
        read."""
        partition, offset, _ = place
        try:
            self._producer.produce(self._config.markers, END, pack_key(partition, offset), partition)
        except BufferError:
            self._problem("no room for an end marker")

    def _replace_producer(self) -> None:
        """Replace the producer. After a fatal error it writes nothing any more, and unsent messages would be written
        late."""
        from confluent_kafka import Producer

        self._producer.purge()
        self._producer.flush(1.0)
        self._producer, self._broken = Producer(self._sends), False

    def _problem(self, text: str) -> None:
        if text not in self._outcome.problems and len(self._outcome.problems) < 5:
            self._outcome.problems.append(text)

    # ---- positions -------------------------------------------------------------------------------------------------

    def commit(self, outcome: RedeliveryResult) -> None:
        """Commit the smallest open markers as the positions of the trackers' group: for `ottla kmq stats`, and for a
        standalone tracker that takes over."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        found = {number: each.commit_offset for number, (_, each) in outcome.partitions.items()}
        fresh = {number: at for number, at in found.items() if at is not None and self._committed.get(number) != at}
        if not fresh:
            return
        if self._group is None:
            ours = {"group.id": self._config.tracker_group_id, "enable.auto.commit": False}
            self._group = Consumer({"log_level": 0, **self._given, **ours})
        offsets = [TopicPartition(self._config.markers, number, at) for number, at in fresh.items()]
        try:
            for each in self._group.commit(offsets=offsets, asynchronous=False):
                if each.error is not None:
                    raise KafkaException(each.error)
            self._committed.update(fresh)
        except KafkaException as error:
            self._outcome = outcome
            self._problem(f"the positions of {self._config.tracker_group_id} are not kept: {error.args[0].str()}")
