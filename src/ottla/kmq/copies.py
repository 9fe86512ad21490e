"""Makes the records that the tracker writes: the copy for a redelivery, or the dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.kmq import headers
from ottla.kmq.client import placed
from ottla.kmq.config import KmqConfig
from ottla.kmq.events import DeadLetter, Reason

if TYPE_CHECKING:
    from confluent_kafka import Message


@dataclass(frozen=True, slots=True)
class Copy:
    """A message or dead letter to be written. `offset`: of the original message. With `partition` -1 the producer
    chooses the partition; with `timestamp_ms` 0 the broker sets the timestamp. `reason`: why it is a dead letter."""

    offset: int
    topic: str
    partition: int
    key: Any
    value: Any
    headers: headers.Headers
    timestamp_ms: int
    reason: Reason | None = None


def copy_of(config: KmqConfig, message: Message, redeliveries: int) -> Copy:
    """The same message with the redelivery count in its headers, to be appended to its partition."""
    partition, offset = placed(message)
    kept = headers.with_count(message.headers() or (), config.count_header, redeliveries)  # type: ignore[arg-type]
    return Copy(offset, config.queue, partition, message.key(), message.value(), kept, time_of(message))


def dead_letter(config: KmqConfig, partition: int, letter: DeadLetter, message: Message | None, now_ms: int) -> Copy:
    """The original message, with headers that say where it came from. A lost message has no content."""
    if letter.reason is Reason.LOST:
        message = None
    said = headers.Provenance(
        topic=config.queue,
        partition=partition,
        offset=letter.offset,
        group=config.group_id,
        delivery_count=None if message is None else letter.redeliveries + 1,
        reason=letter.reason,
        text=letter.text or headers.SENTENCES[letter.reason],
        at_ms=now_ms,
    )
    own = [] if message is None else headers.of_message(message.headers() or ())  # type: ignore[arg-type]
    key, value, at_ms = (None, None, 0) if message is None else (message.key(), message.value(), time_of(message))
    return Copy(letter.offset, config.dead_letters, -1, key, value, [*own, *said.headers()], at_ms, letter.reason)


def count_of(config: KmqConfig, message: Message) -> int:
    """How often the message was redelivered."""
    return headers.count_in(message.headers() or (), config.count_header)  # type: ignore[arg-type]


def time_of(message: Message) -> int:
    """The message's timestamp, 0 if it has none."""
    return max(0, message.timestamp()[1])
