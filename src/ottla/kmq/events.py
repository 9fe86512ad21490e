"""Lists the events of a partition of the markers topic and their effects: what happens, what is to be done then.

Offsets called `offset` are those of messages in the queue topic, `position` and `marker_offset` those of the markers
topic. Times are epoch milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Reason(StrEnum):
    """Why a message became a dead letter."""

    TIMED_OUT = "timed-out"
    FAILED = "failed"
    REJECTED = "rejected"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class MarkersRead:
    """Markers, in the order of their offsets, at least one. In columns: there are very many."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class EndReached:
    """Everything before `position` has been read, and there is nothing there yet."""

    position: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The message is in hand; its header says that it came again `redeliveries` times already."""

    offset: int
    redeliveries: int


@dataclass(frozen=True, slots=True)
class RecordGone:
    """The queue topic has no record at this offset any more: retention, compaction or deletion took it."""

    offset: int


@dataclass(frozen=True, slots=True)
class RecordBeyondEnd:
    """The queue topic ends before this offset: its leader lags behind for a while, or the topic was made anew."""

    offset: int


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy of the message, or its dead letter, is durable."""

    offset: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The message could not be read or its copy not written."""

    offset: int


Event: TypeAlias = MarkersRead | EndReached | Tick | RecordRead | RecordGone | RecordBeyondEnd | Copied | Failed


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read exactly this message, then tell: RecordRead, RecordGone, RecordBeyondEnd or Failed."""

    offset: int


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Append the message that was just read to its partition again, with this count; then Copied or Failed."""

    offset: int
    redeliveries: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Write the message to the dead-letter topic, without its content where it is lost; then Copied or Failed."""

    offset: int
    redeliveries: int
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """Write the end marker of this message. Nothing is to be told: it will be read."""

    offset: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """Read the markers again from this position."""

    position: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """The message may be due: somebody else reads it, decides with `decided`, writes the copy and its end marker.

    It is handed over again as long as no end marker was read. `deadline_ms`: when its time-out is over; `since_ms`:
    from when its back-off counts; `clock_ms`: the time of this, and `asked_ms` of the last one, None for the first.
    """

    offset: int
    deadline_ms: int
    since_ms: int
    reason: Reason
    text: str
    clock_ms: int
    asked_ms: int | None


Effect: TypeAlias = ReadRecord | Redeliver | DeadLetter | WriteEnd | Rewind | HandOver
