"""Lists the events of a partition of the markers topic, and the effects that the machine asks for.

`offset` means an offset of the queue topic; `position` and `marker_offset` mean offsets of the markers topic. Times are
epoch milliseconds.
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
    """Markers in the order of their offsets, at least one. Stored in columns, because there are very many."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class EndReached:
    """Everything before `position` has been read, and no later marker exists yet."""

    position: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The record was read; its header says that it was redelivered `redeliveries` times so far."""

    offset: int
    redeliveries: int


@dataclass(frozen=True, slots=True)
class RecordGone:
    """The queue topic no longer has a record at this offset: retention, compaction or deletion removed it."""

    offset: int


@dataclass(frozen=True, slots=True)
class RecordBeyondEnd:
    """The queue topic ends before this offset: its leader lags behind for a while, or the topic was created again."""

    offset: int


@dataclass(frozen=True, slots=True)
class Copied:
    """The copy of the message, or its dead letter, is durable."""

    offset: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The message could not be read, or its copy could not be written."""

    offset: int


Event: TypeAlias = MarkersRead | EndReached | Tick | RecordRead | RecordGone | RecordBeyondEnd | Copied | Failed


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read exactly this record, then report RecordRead, RecordGone, RecordBeyondEnd or Failed."""

    offset: int


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Append the message that was just read to its partition again, with this count; then report Copied or Failed."""

    offset: int
    redeliveries: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Write the message to the dead-letter topic, without content if it is lost; then report Copied or Failed."""

    offset: int
    redeliveries: int
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """Write the end marker of this message. No report is needed: the tracker reads the marker."""

    offset: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """Read the markers again, starting at this position."""

    position: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """The message may be due: the receiver reads it, decides with `decided`, writes the copy and its end marker.

    It is handed over again until an end marker is read. `deadline_ms`: when its time-out is over. `since_ms`: when its
    back-off starts. `clock_ms`: the time of this handover. `asked_ms`: the time of the previous one, None for the
    first.
    """

    offset: int
    deadline_ms: int
    since_ms: int
    reason: Reason
    text: str
    clock_ms: int
    asked_ms: int | None


Effect: TypeAlias = ReadRecord | Redeliver | DeadLetter | WriteEnd | Rewind | HandOver
