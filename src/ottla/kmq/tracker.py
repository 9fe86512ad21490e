"""Runs the tracker: reads markers and redelivers messages that workers did not finish.

machine.py decides which message is due when; the tracker runs one machine for each assigned partition of the markers
topic.

One loop in one thread polls markers, steps the machines, carries out their effects and commits. Every wait in it is
short. Several trackers of a queue share its partitions through a consumer group. If a tracker stops, the others take
over its partitions; if it dies, they do so after `session.timeout.ms` (10 s here).

A redelivery has four steps: read the record at its exact offset, write the copy (or the dead letter), await its
acknowledgement, write the end marker. If a tracker dies between them, the marker stays open and the next tracker
redelivers the message: at-least-once delivery. The producer is idempotent, so its own retries make no copies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from ottla.kmq.client import placed, taken
from ottla.kmq.clock import MarkersClock
from ottla.kmq.config import KmqConfig
from ottla.kmq.copies import Copy, copy_of, count_of, dead_letter
from ottla.kmq.events import (
    Copied,
    DeadLetter,
    Effect,
    EndReached,
    Event,
    Failed,
    HandOver,
    MarkersRead,
    ReadRecord,
    RecordBeyondEnd,
    RecordGone,
    RecordRead,
    Redeliver,
    Rewind,
    Tick,
    WriteEnd,
)
from ottla.kmq.figures import PartitionFigures, TrackerFigures
from ottla.kmq.machine import MarkersPartition
from ottla.kmq.markers import END, pack_key
from ottla.kmq.reader import RecordReader
from ottla.kmq.topics import properties_of, require_topics

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, TopicPartition

log = logging.getLogger("ottla.kmq")

MARKERS_PER_TURN = 10_000
IDLE_WAIT_S = 0.2
BUSY_WAIT_S = 0.005
COMMIT_EVERY_S = 1.0
CALL_TIMEOUT_S = 10.0
CREATE_TIME: Final = 1
LOG_APPEND_TIME: Final = 2

CONSUMER = {
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 2_000,
    "fetch.min.bytes": 65_536,  # a marker may be read late, but many small fetches cost CPU
    "fetch.wait.max.ms": 50,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 65_536,
    "fetch.queue.backoff.ms": 10,  # librdkafka's default back-off of 1 s on a full queue exceeds the time to empty it
}
CONSUMER_ALWAYS = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True}
PRODUCER = {
    "enable.idempotence": True,
    "linger.ms": 1,
    "message.timeout.ms": 60_000,
    "message.max.bytes": 1_000_000_000,
    "queue.buffering.max.messages": 200_000,
}

Told: TypeAlias = tuple[MarkersPartition, Event]


@dataclass(frozen=True, slots=True)
class Sent:
    """A copy in flight, and the machine it belongs to."""

    machine: MarkersPartition
    copy: Copy


class RedeliveryTracker:
    """Redelivers messages that workers did not finish. Call `run` until `stop`, or `start` and `close` for a thread.

    `properties`: librdkafka's properties, or HOST:PORT addresses alone; `consumer` and `producer` add properties for
    that client only. Raises KmqRefusedError if the topics are missing or do not fit. `figures` and `partitions` hold
    its counters and state.
    """

    def __init__(
        self,
        properties: str | Mapping[str, Any],
        config: KmqConfig,
        *,
        consumer: Mapping[str, Any] | None = None,
        producer: Mapping[str, Any] | None = None,
    ) -> None:
        from confluent_kafka import Consumer, Producer

        given = properties_of(properties)
        self.config = config
        self.figures = TrackerFigures()
        self.partitions: Sequence[PartitionFigures] = ()
        self._sends = {**PRODUCER, **given, **(producer or {})}
        self._producer = Producer(self._sends)
        require_topics(self._producer, config, dead_letters=True)
        self._machines: dict[int, MarkersPartition] = {}
        self._clock = MarkersClock()
        self._told: list[Told] = []
        """Delivery reports since the last turn."""
        self._seeks: dict[int, int] = {}
        """Partitions that must seek to a position before the tracker accepts any more of their markers."""
        self._committed: dict[int, int] = {}
        self._commit_at = 0.0
        self._malformed_before = 0
        self._logged = 0
        self._broken = False
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        """The exception that ended the thread."""
        self._reader = RecordReader(given, config)
        reads = {**CONSUMER, **given, "group.id": config.tracker_group_id, **(consumer or {}), **CONSUMER_ALWAYS}
        self._consumer = Consumer(reads)

    # ---- running ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop`. Raises KafkaException if a client has a fatal error, or lacks a permission it needs."""
        try:
            self.join()
            while not self._stopping.is_set():
                self.turn()
        finally:
            self._consumer.close()
            self._reader.close()
            self._producer.flush(CALL_TIMEOUT_S)

    def stop(self) -> None:
        """Ask `run` to end; callable from any thread or a signal handler."""
        self._stopping.set()

    def start(self) -> None:
        """Start a thread that calls `run`. Raises RuntimeError."""
        if self._thread is not None:
            raise RuntimeError("the tracker runs already")
        self._thread = threading.Thread(target=self._run_in_thread, name="kmq-tracker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop and wait for the thread; raises the exception that ended it."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as error:
            log.error("the tracker of %s stopped: %s", self.config.queue, error)
            self.failure = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def join(self) -> None:
        """Join the trackers' group."""
        self._consumer.subscribe(
            [self.config.markers], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._taken_away
        )

    def turn(self) -> None:
        """Handle the available markers and due work; waits a little if there is none."""
        messages = taken(self._consumer, MARKERS_PER_TURN, self._wait_s())
        self._clock.look(monotonic_ms(), now_ms())
        self._take(messages)
        self._producer.poll(0)
        told, self._told = self._told, []
        for machine, event in told:
            self._step(machine, event)
        self._take_records()
        now = monotonic_ms()
        for machine in list(self._machines.values()):
            due = machine.deadline()
            if due is not None and due <= now:
                self._step(machine, Tick())
        if time.monotonic() >= self._commit_at:
            self._commit_at = time.monotonic() + COMMIT_EVERY_S
            self._look()
            self._commit()
        if self._broken:
            self._replace_producer()
        for partition, position in list(self._seeks.items()):
            self._seek(partition, position)

    def _wait_s(self) -> float:
        """How long the loop may wait if no marker arrives."""
        if len(self._reader) or len(self._producer) or self._told or self._seeks:
            return BUSY_WAIT_S
        due = [each for machine in self._machines.values() if (each := machine.deadline()) is not None]
        return min(IDLE_WAIT_S, max(0.0, (min(due) - monotonic_ms()) / 1000)) if due else IDLE_WAIT_S

    # ---- markers in ------------------------------------------------------------------------------------------------

    def _take(self, messages: list[Message]) -> None:
        """Pass markers and ends of partitions to their machines, in order. Hot: two markers for every message."""
        from confluent_kafka import Message

        by_partition: dict[int, list[list[Message] | int]] = {}
        partitions = set(map(Message.partition, messages))
        if len(partitions) == 1 and not any(map(Message.error, messages)):
            by_partition[placed(messages[0])[0]] = [messages]
        else:
            self._sort(messages, by_partition)
        for partition, parts in by_partition.items():
            machine = self._machines.get(partition)
            for part in parts:
                if machine is None or partition in self._seeks:
                    break  # read before a rewind: it is read again
                if isinstance(part, int):
                    self._step(machine, EndReached(part))
                else:
                    self.figures.markers_read += len(part)
                    self._look_at_clock(machine, part[-1])
                    self._step(machine, markers_of(part, monotonic_ms() + self._clock.ahead_ms))

    def _look_at_clock(self, machine: MarkersPartition, newest: Message) -> None:
        kind, stamped_ms = newest.timestamp()
        if kind == LOG_APPEND_TIME and not machine.replaying:
            self._clock.read(monotonic_ms(), now_ms(), stamped_ms)

    def _sort(self, messages: list[Message], by_partition: dict[int, list[list[Message] | int]]) -> None:
        """Group the messages into runs of markers by partition, and positions of ends."""
        current = -1
        run: list[Message] = []
        for message in messages:
            error, partition = message.error(), message.partition()
            assert partition is not None
            if error is not None:
                position, current = self._end_or_raise(error, message), -1
                if position is not None:
                    by_partition.setdefault(partition, []).append(position)
                continue
            if partition != current:
                current, run = partition, []
                by_partition.setdefault(partition, []).append(run)
            run.append(message)

    def _end_or_raise(self, error: KafkaError, message: Message) -> int | None:
        """The position where a partition ends, None for a transient error; raises KafkaException for a lasting one."""
        from confluent_kafka import KafkaError, KafkaException

        if error.code() == KafkaError._PARTITION_EOF:
            return message.offset()
        if error.fatal() or error.code() in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError._AUTHENTICATION,
        ):
            raise KafkaException(error)
        log.info("markers of %s: %s", self.config.queue, error.str())
        return None

    # ---- effects of the machines -----------------------------------------------------------------------------------

    def _step(self, machine: MarkersPartition, event: Event, message: Message | None = None) -> None:
        """Step the machine and carry out its effects. `message`: the record of a RecordRead."""
        if self._machines.get(machine.partition) is not machine:
            return  # revoked meanwhile: another tracker handles it
        machine.ahead_ms = self._clock.ahead_ms
        for effect in machine.step(monotonic_ms(), event):
            self._carry_out(machine, effect, message)

    def _carry_out(self, machine: MarkersPartition, effect: Effect, message: Message | None) -> None:
        match effect:
            case ReadRecord(offset):
                self._reader.want(machine.partition, offset)
            case Redeliver(offset, redeliveries):
                assert message is not None
                self._redeliver(machine, message, redeliveries)
            case DeadLetter():
                self._write_dead_letter(machine, effect, message)
            case WriteEnd(offset):
                self._write_end(machine.partition, offset)
            case Rewind(position):
                self.figures.rewinds += 1
                self._seeks[machine.partition] = position
            case HandOver():
                raise AssertionError(f"only the tracker of a dataflow hands messages over, not {machine.partition}")

    def _take_records(self) -> None:
        for partition, found in self._reader.step():
            machine = self._machines.get(partition)
            if machine is None:
                continue
            if isinstance(found, RecordGone | RecordBeyondEnd | Failed):
                self.figures.read_failures += isinstance(found, Failed)
                self._step(machine, found)
            else:
                _, offset = placed(found)
                self._step(machine, RecordRead(offset, count_of(self.config, found)), found)

    def _redeliver(self, machine: MarkersPartition, message: Message, redeliveries: int) -> None:
        partition, offset = placed(message)
        self._send(Sent(machine, copy_of(self.config, message, redeliveries)))
        log.debug("%s-%d@%d: redelivery %d", self.config.queue, partition, offset, redeliveries)

    def _write_dead_letter(self, machine: MarkersPartition, letter: DeadLetter, message: Message | None) -> None:
        self._send(Sent(machine, dead_letter(self.config, machine.partition, letter, message, now_ms())))

    def _send(self, sent: Sent) -> None:
        copy = sent.copy
        try:
            self._producer.produce(
                copy.topic,
                copy.value,
                copy.key,
                copy.partition,
                on_delivery=partial(self._delivered, sent),
                timestamp=copy.timestamp_ms,
                headers=copy.headers,  # type: ignore[arg-type]
            )
        except BufferError:
            self._told.append((sent.machine, Failed(copy.offset)))

    def _delivered(self, sent: Sent, error: KafkaError | None, message: Message) -> None:
        from confluent_kafka import KafkaError

        machine, copy = sent.machine, sent.copy
        if error is None:
            if copy.reason is None:
                self.figures.redelivered += 1
            else:
                self.figures.dead_lettered[copy.reason] += 1
                log.warning(
                    "%s-%d@%d is a dead letter: %s", self.config.queue, machine.partition, copy.offset, copy.reason
                )
            self._told.append((machine, Copied(copy.offset)))
        elif error.code() == KafkaError.INVALID_TIMESTAMP and copy.timestamp_ms:
            self._send(Sent(machine, replace(copy, timestamp_ms=0)))  # the topic rejects the old timestamp
        else:
            self._note(error, f"{copy.topic} took no copy of {self.config.queue}@{copy.offset}")
            self._told.append((machine, Failed(copy.offset)))

    def _write_end(self, partition: int, offset: int) -> None:
        """Write an end marker, without a report: the machine waits until it reads the marker, and asks again if it does
        not."""

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._note(error, f"no end marker for {self.config.queue}-{partition}@{offset}")

        try:
            self._producer.produce(self.config.markers, END, pack_key(partition, offset), partition, on_delivery=told)
        except BufferError:
            log.warning("no room for an end marker")

    def _note(self, error: KafkaError, what: str) -> None:
        self.figures.write_failures += 1
        self._broken |= error.fatal()
        log.warning("%s: %s", what, error.str())

    def _replace_producer(self) -> None:
        """Replace the producer: after a fatal error it can write nothing more."""
        from confluent_kafka import Producer

        log.warning("the producer is broken; a new one takes over")
        self._producer.purge()
        self._producer.flush(CALL_TIMEOUT_S)
        self._producer = Producer(self._sends)
        self._broken = False

    # ---- the group -------------------------------------------------------------------------------------------------

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Read the assigned partitions from their committed positions; redeliver once their current end has been
        read."""
        from confluent_kafka import KafkaException

        for each in partitions:
            try:
                marks = consumer.get_watermark_offsets(each, timeout=CALL_TIMEOUT_S)
            except KafkaException:
                marks = None
            self._machines[each.partition] = MarkersPartition(each.partition, self.config, marks[1] if marks else None)
            self.figures.assignments += 1
        log.info("follows markers of %s: %s", self.config.queue, sorted(each.partition for each in partitions))

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._commit(asynchronous=False)
        self._taken_away(consumer, partitions)

    def _taken_away(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            machine = self._machines.pop(each.partition, None)
            if machine is not None:
                self._malformed_before += machine.malformed
            self._committed.pop(each.partition, None)
            self._seeks.pop(each.partition, None)
            self._reader.drop(each.partition)
        log.info("gave up markers of %s: %s", self.config.queue, sorted(each.partition for each in partitions))

    def _seek(self, partition: int, position: int) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        try:
            self._consumer.seek(TopicPartition(self.config.markers, partition, position))
        except KafkaException:
            return  # not being fetched yet; retry in the next turn
        self._seeks.pop(partition)

    def _commit(self, *, asynchronous: bool = True) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        found = {number: machine.commit_offset for number, machine in self._machines.items()}
        fresh = {number: at for number, at in found.items() if at is not None and self._committed.get(number) != at}
        if fresh:
            offsets = [TopicPartition(self.config.markers, number, at) for number, at in fresh.items()]
            try:
                self._consumer.commit(offsets=offsets, asynchronous=asynchronous)
                self._committed.update(fresh)
            except KafkaException as error:
                log.info("positions in %s were not committed: %s", self.config.markers, error)

    def _look(self) -> None:
        """Publish the state of every partition, for readers in other threads."""
        self.partitions = [
            PartitionFigures(
                number,
                machine.open_count,
                machine.in_flight,
                machine.replaying,
                min(machine.due_times_ms(), default=None),
                machine.commit_offset,
            )
            for number, machine in sorted(self._machines.items())
        ]
        if (redelivered := self.figures.redelivered) > self._logged:
            log.info("%s: gave %d messages again", self.config.queue, redelivered - self._logged)
            self._logged = redelivered
        self.figures.markers_malformed = self._malformed_before + sum(
            machine.malformed for machine in self._machines.values()
        )


def markers_of(messages: list[Message], now: int) -> MarkersRead:
    """Markers in the form that the machine accepts."""
    from confluent_kafka import Message

    stamps = list(map(Message.timestamp, messages))
    times = [timestamp_ms for _, timestamp_ms in stamps]
    if stamps[0][0] == CREATE_TIME and max(times) > now:
        times = [min(each, now) for each in times]  # a worker's clock that runs ahead must not advance all deadlines
    offsets: list[Any] = list(map(Message.offset, messages))
    keys: list[Any] = list(map(Message.key, messages))
    values: list[Any] = list(map(Message.value, messages))
    return MarkersRead(offsets, times, keys, values)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
