"""Reads and writes the headers of redelivered messages, of dead letters, and of dead letters that were sent back.

- `kmq-redelivery-count` on redelivered messages: one byte if the number fits a signed byte, otherwise four, as in
  softwaremill/kmq (Redeliverer.scala). Other headers are kept, in their order.
- Dead letters have, besides the message's headers, those of KIP-1191 for share groups, as text: `__dlq.errors.topic`,
  `.partition`, `.offset`, `.group`, `.delivery.count` and `.message`. Ottla adds `kmq-reason` and
  `kmq-dead-lettered-at` (epoch ms). The original writes none.
- `kmq-redrive-count`, encoded like the first: how often a dead letter was sent back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.kmq.events import Reason

Header: TypeAlias = tuple[str, bytes | None]
Headers: TypeAlias = list[Header]

DLQ: Final = "__dlq.errors."
REASON: Final = "kmq-reason"
DEAD_LETTERED_AT: Final = "kmq-dead-lettered-at"
REDRIVE_COUNT: Final = "kmq-redrive-count"

SENTENCES: Final = {
    Reason.TIMED_OUT: "No worker finished it in time.",
    Reason.FAILED: "A worker said that it failed.",
    Reason.REJECTED: "A worker rejected it.",
    Reason.LOST: "Its record is gone.",
}


def encode_count(count: int) -> bytes:
    """Encode a count as the original does: one byte if the number fits a signed byte, otherwise four."""
    return count.to_bytes(1 if -128 <= count <= 127 else 4, "big", signed=True)


def count_in(headers: Iterable[Header], name: str) -> int:
    """The number in the first header of this name; 0 if there is none, or if its bytes are not a count."""
    for each, value in headers:
        if each == name:
            return int.from_bytes(value, "big", signed=True) if value is not None and len(value) in (1, 4) else 0
    return 0


def with_count(headers: Iterable[Header], name: str, count: int) -> Headers:
    """The headers with this number, in the position of the old one, or at the end if there was none."""
    found, done = Headers(), False
    for header in headers:
        if header[0] != name:
            found.append(header)
        elif not done:
            found.append((name, encode_count(count)))
            done = True
    return found if done else [*found, (name, encode_count(count))]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a dead letter comes from, and why; None and "" for what its headers do not say."""

    topic: str | None
    partition: int | None
    offset: int | None
    group: str | None
    delivery_count: int | None
    reason: str
    text: str
    at_ms: int | None

    def headers(self) -> Headers:
        """The headers that state it."""
        said: dict[str, object] = {
            DLQ + "topic": self.topic,
            DLQ + "partition": self.partition,
            DLQ + "offset": self.offset,
            DLQ + "group": self.group,
            DLQ + "delivery.count": self.delivery_count,
            DLQ + "message": self.text,
            REASON: self.reason,
            DEAD_LETTERED_AT: self.at_ms,
        }
        return [(name, str(value).encode()) for name, value in said.items() if value is not None]


def provenance(headers: Iterable[Header]) -> Provenance:
    """Read the provenance from a dead letter's headers. The last header of a name counts, because the message may have
    had its own before."""
    said = {name: value.decode(errors="replace") for name, value in headers if value is not None}

    def number(name: str) -> int | None:
        text = said.get(name, "")
        return int(text) if text.isdecimal() else None

    return Provenance(
        said.get(DLQ + "topic"),
        number(DLQ + "partition"),
        number(DLQ + "offset"),
        said.get(DLQ + "group"),
        number(DLQ + "delivery.count"),
        said.get(REASON, ""),
        said.get(DLQ + "message", ""),
        number(DEAD_LETTERED_AT),
    )


def of_message(headers: Iterable[Header], *others: str) -> Headers:
    """The headers of the message itself: without those that a dead letter adds, and without `others`."""
    return [each for each in headers if not (each[0].startswith(DLQ) or each[0] in (REASON, DEAD_LETTERED_AT, *others))]
