"""Computes the state of a queue from its topics, without joining any of its groups.

It feeds the tracker's machine with the markers from the committed position to the end. It changes nothing on the
cluster. `standing_of` and `in_work` are pure: the console gets the markers with another client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.kmq.client import placed, taken
from ottla.kmq.config import KmqConfig, KmqRefusedError
from ottla.kmq.events import EndReached, Reason
from ottla.kmq.machine import MarkersPartition, reason_of
from ottla.kmq.topics import partition_counts, properties_of, require_topics
from ottla.kmq.tracker import markers_of, now_ms

if TYPE_CHECKING:
    from confluent_kafka import Consumer

CALL_TIMEOUT_S = 30.0
READ_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one partition of a queue.

    `waiting`: messages that no worker has read yet. `open`: messages in progress. `overdue`: messages in progress past
    their time-out; `overdue_ms` is how late the first of them is. `markers_lag`: markers that a tracker has to read
    when it starts.
    """

    partition: int
    waiting: int
    open: int
    overdue: int
    overdue_ms: int | None
    markers_lag: int


def standings(properties: str | Mapping[str, Any], config: KmqConfig) -> list[Standing]:
    """The current state of every partition. Raises KmqRefusedError if the topics are missing or do not fit."""
    from confluent_kafka import Consumer, KafkaException

    given = {"fetch.wait.max.ms": 20, **properties_of(properties)}  # the end is reported when a fetch there is answered
    ours = {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer({**given, "group.id": config.group_id, **ours})
    markers = Consumer({**given, "group.id": config.tracker_group_id, **ours})
    try:
        count = require_topics(consumer, config, dead_letters=False)
        return [standing(consumer, markers, config, each) for each in range(count)]
    except KafkaException as error:
        raise KmqRefusedError(f"The cluster does not say how {config.queue} stands: {error.args[0].str()}.") from None
    finally:
        consumer.close()
        markers.close()


def standing(consumer: Consumer, markers: Consumer, config: KmqConfig, partition: int) -> Standing:
    """The current state of one partition."""
    waiting = left(consumer, config.queue, partition)[1]
    position, lag = left(markers, config.markers, partition)
    machine = MarkersPartition(partition, config)
    if lag:
        feed(markers, config.markers, machine, position, position + lag)
    return standing_of(machine, waiting, lag, now_ms())


def standing_of(machine: MarkersPartition, waiting: int, markers_lag: int, now: int) -> Standing:
    """The state of a partition whose markers the machine has read."""
    overdue = [due for due in machine.due_times_ms() if due < now]
    late_ms = now - min(overdue) if overdue else None
    return Standing(machine.partition, waiting, machine.open_count, len(overdue), late_ms, markers_lag)


@dataclass(frozen=True, slots=True)
class InWork:
    """A message in progress. `since_ms`: when its work began, None if unknown; `until_ms`: when it is redelivered.

    `reason` and `text` are the worker's, None and "" while it has not failed or rejected the message.
    """

    partition: int
    offset: int
    since_ms: int | None
    until_ms: int
    reason: Reason | None
    text: str


def in_work(machine: MarkersPartition, stamps: Mapping[int, int]) -> Iterator[InWork]:
    """The messages in progress. `stamps`: the timestamps of markers, by their offset."""
    for offset, (marker_offset, due_ms, deadline_ms, verdict) in machine.in_work():
        _, reason, text = reason_of(deadline_ms, verdict)
        since_ms = stamps.get(marker_offset)
        yield InWork(machine.partition, offset, since_ms, due_ms, None if verdict is None else reason, text)


def left(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """(position of the consumer's group, number of records from there to the end)."""
    from confluent_kafka import TopicPartition

    place = TopicPartition(topic, partition)
    low, high = consumer.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S) or (0, 0)
    (committed,) = consumer.committed([place], timeout=CALL_TIMEOUT_S)
    position = max(low, committed.offset if committed.offset >= 0 else low)
    return position, max(0, high - position)


def feed(markers: Consumer, topic: str, machine: MarkersPartition, position: int, end: int) -> None:
    """Feed the machine the markers from `position` to `end`. Its effects are dropped, so nothing is redelivered. Raises
    KmqRefusedError."""
    from confluent_kafka import KafkaError, TopicPartition

    markers.assign([TopicPartition(topic, machine.partition, position)])
    last = time.monotonic()
    while position < end:
        found = taken(markers, 5_000, 1)
        ends = [message for message in found if message.error() is not None]
        messages = [message for message in found if message.error() is None]
        if messages:
            last = time.monotonic()
            position = placed(messages[-1])[1] + 1
            machine.step(0, markers_of(messages, now_ms()))
        elif time.monotonic() - last > READ_PATIENCE_S:
            raise KmqRefusedError(
                f"The markers in {topic} could not be read to their end within {READ_PATIENCE_S:g} s."
            )
        for message in ends:
            if message.error().code() == KafkaError._PARTITION_EOF:  # type: ignore[union-attr]
                position = max(position, message.offset() or 0)
    machine.step(0, EndReached(position))
    markers.unassign()


def dead_letters(properties: str | Mapping[str, Any], config: KmqConfig, group_id: str) -> tuple[int, int] | None:
    """(dead letters in the topic, dead letters that the group has yet to send back); None if there is no topic."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({**properties_of(properties), "group.id": group_id})
    try:
        partitions = partition_counts(consumer).get(config.dead_letters)
        if partitions is None:
            return None
        total = waiting = 0
        for partition in range(partitions):
            place = TopicPartition(config.dead_letters, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S) or (0, 0)
            total += high - low
            waiting += left(consumer, config.dead_letters, partition)[1]
        return total, waiting
    finally:
        consumer.close()
