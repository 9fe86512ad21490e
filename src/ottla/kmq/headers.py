"""Reads and writes the headers of messages that came again, of dead letters, and of letters that were sent back.

Knows names and bytes. Does not know when any of them is written.

- `kmq-redelivery-count` on messages that came again: one byte where the number fits a signed one, else four, as
  softwaremill/kmq writes it (Redeliverer.scala). Other headers are kept, in their order.
- On dead letters, beside what the message had: `__dlq.errors.topic`, `.partition`, `.offset`, `.group`,
  `.delivery.count` and `.message` as text, as KIP-1191 has them for share groups, and `kmq-reason` and
  `kmq-dead-lettered-at` (epoch ms). The original writes none.
- `kmq-redrive-count`, as the first: how often a dead letter was sent back.
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
    """As the original: one byte where the number fits, else four."""
    return count.to_bytes(1 if -128 <= count <= 127 else 4, "big", signed=True)


def count_in(headers: Iterable[Header], name: str) -> int:
    """The number in the first header of this name; 0 where there is none, or bytes that are no such number."""
    for each, value in headers:
        if each == name:
            return int.from_bytes(value, "big", signed=True) if value is not None and len(value) in (1, 4) else 0
    return 0


def with_count(headers: Iterable[Header], name: str, count: int) -> Headers:
    """The headers with this number, in the place where the old one stood, else at the end."""
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
    """Where a dead letter comes from and why it is one; None and "" where its headers don't say."""

    topic: str | None
    partition: int | None
    offset: int | None
    group: str | None
    delivery_count: int | None
    reason: str
    text: str
    at_ms: int | None

    def headers(self) -> Headers:
        """The headers that say so."""
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
    """Read it from a letter's headers; the last of a name counts, for a message may have had its own before."""
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
    """What the message itself had: without what was added to the letter, and without `others`."""
    return [each for each in headers if not (each[0].startswith(DLQ) or each[0] in (REASON, DEAD_LETTERED_AT, *others))]
