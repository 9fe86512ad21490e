"""Encodes and decodes markers in the format of softwaremill/kmq 0.3.2, and Ottla's additions to it.

    key             12 bytes   int32 partition of the message, int64 offset of the message; all big-endian
    start marker     9 bytes   1, int64 time-out in ms, counted from the marker record's timestamp
    end marker       1 byte    0; a value whose first byte is not 1 reads as an end marker
    empty            0 bytes   what the original writes for null; its reader cannot use it either

A marker is written to the partition with the number in its key, so the markers topic has as many partitions as the
queue.

Ottla adds start markers with a tail. The original's reader ignores bytes after the ninth, so it reads each as a plain
start marker. It redelivers the message when *either* the old or the new time-out is over.

    9 bytes, 1      EXTEND     the worker needs more time; the time-out restarts
    9 bytes, 2, r   FAILED     the work failed; r is the reason (UTF-8); the time-out is the delay of the redelivery
    9 bytes, 3, r   REJECTED   no worker can process the message: dead letter at once; the time-out is 0

A tail changes only open messages: after the message's end marker it has no effect. (The original's reader would read a
new start, and redeliver the message.)

Source: softwaremill/kmq 0.3.2, MarkerKey.java, StartMarker.java, EndMarker.java, MarkerValue.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

END: Final = b"\x00"
START_BYTE: Final = 1
REASON_BYTES_MAX: Final = 500
DURATION_MS_MAX: Final = 1 << 52
"""A longer time-out is reduced to this, about 140,000 years, so that its sum with a timestamp fits in 64 bits."""

_KEY: Final = Struct(">iq")
_START: Final = Struct(">bq")

pack_key = _KEY.pack
"""`pack_key(partition, offset)` makes a marker's key."""


class Kind(IntEnum):
    """The kind of a start marker; the number is the first byte of its tail."""

    BEGIN = 0
    EXTEND = 1
    FAILED = 2
    REJECTED = 3


class InvalidMarkerError(Exception):
    """Raised for bytes that are no marker."""


@dataclass(frozen=True, slots=True)
class Start:
    """A start marker: the message is redelivered `duration_ms` after the marker's timestamp unless another marker
    follows."""

    duration_ms: int
    kind: Kind = Kind.BEGIN
    reason: str = ""


def decode_key(key: bytes | None) -> tuple[int, int]:
    """(partition, offset) of the message; raises InvalidMarkerError."""
    if key is None or len(key) != _KEY.size:
        raise InvalidMarkerError("a marker's key has 12 bytes")
    return _KEY.unpack(key)


def start(duration_ms: int, kind: Kind = Kind.BEGIN, reason: str = "") -> bytes:
    """A start marker's value; `reason` is truncated to REASON_BYTES_MAX. Raises ValueError for a negative duration."""
    if not 0 <= duration_ms < 1 << 63:
        raise ValueError(f"a time-out is not negative: {duration_ms}")
    plain = _START.pack(START_BYTE, duration_ms)
    if kind is Kind.BEGIN:
        return plain
    text = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return plain + bytes((kind,)) + text


def decode(value: bytes | None) -> Start | None:
    """A start marker, or None for an end marker.

    Raises InvalidMarkerError for an empty value or a truncated start marker. A start marker with an unknown tail reads
    as a plain one.
    """
    if not value:
        raise InvalidMarkerError("a marker without a value")
    if value[0] != START_BYTE:
        return None
    if len(value) < _START.size:
        raise InvalidMarkerError("a start marker has 9 bytes")
    duration_ms = min(max(_START.unpack_from(value)[1], 0), DURATION_MS_MAX)
    if len(value) == _START.size or not 0 < value[_START.size] <= Kind.REJECTED:
        return Start(duration_ms)
    return Start(duration_ms, Kind(value[_START.size]), value[_START.size + 1 :].decode(errors="replace"))
