"""Encodes and decodes markers as softwaremill/kmq 0.3.2 does, and ours in the same form.

Knows: bytes. Does not know: when a marker is written, or what follows from one.

    key             12 bytes   int32 partition of the message, int64 offset of the message; big-endian, as all of it
    start marker     9 bytes   1, int64 time-out in ms, counted from the marker record's timestamp
    end marker       1 byte    0; whatever begins with another byte than 1 reads as one
    nothing          0 bytes   what the original writes for null; its reader cannot do anything with it either

A marker stands in the partition of its key's number, so the markers topic has as many partitions as the queue.

Ours in addition: a start marker with a tail. The original's reader takes nine bytes and looks no further, so for it
each is a plain start marker: the message is given again when *either* time-out, the old or the new one, is over.

    9 bytes, 1      EXTEND     the message is still worked on; the time-out counts anew
    9 bytes, 2, r   FAILED     the work failed; r says why (UTF-8); the time-out is the delay until it is given again
    9 bytes, 3, r   REJECTED   the message is of no use to anybody: dead letter at once; the time-out is 0

A tail changes only what is still open: when it comes after the message's end marker it means nothing (the original's
reader would take it for a new start, and give the message once more).

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
"""Longer time-outs read as this one, about 140,000 years: sums with a timestamp stay in 64 bits."""

_KEY: Final = Struct(">iq")
_START: Final = Struct(">bq")

pack_key = _KEY.pack
"""pack_key(partition, offset): a marker's key."""


class Kind(IntEnum):
    """What a start marker says; the numbers are the first byte of the tail."""

    BEGIN = 0
    EXTEND = 1
    FAILED = 2
    REJECTED = 3


class BadMarker(Exception):
    """Bytes that are no marker."""


@dataclass(frozen=True, slots=True)
class Start:
    """A start marker: the message comes again `duration_ms` after the marker's timestamp unless something is said."""

    duration_ms: int
    kind: Kind = Kind.BEGIN
    reason: str = ""


def decode_key(key: bytes | None) -> tuple[int, int]:
    """(partition, offset) of the message; raises BadMarker."""
    if key is None or len(key) != _KEY.size:
        raise BadMarker("a marker's key has 12 bytes")
    return _KEY.unpack(key)


def start(duration_ms: int, kind: Kind = Kind.BEGIN, reason: str = "") -> bytes:
    """A start marker's value; `reason` is cut to REASON_BYTES_MAX. Raises ValueError for a negative duration."""
    if not 0 <= duration_ms < 1 << 63:
        raise ValueError(f"a time-out is not negative: {duration_ms}")
    plain = _START.pack(START_BYTE, duration_ms)
    if kind is Kind.BEGIN:
        return plain
    text = reason.encode(errors="replace")[:REASON_BYTES_MAX]
    return plain + bytes((kind,)) + text


def decode(value: bytes | None) -> Start | None:
    """A start marker, or None for an end marker.

    Raises BadMarker where there is nothing or a start marker is cut short. A tail of an unknown kind is read as plain.
    """
    if not value:
        raise BadMarker("a marker without a value")
    if value[0] != START_BYTE:
        return None
    if len(value) < _START.size:
        raise BadMarker("a start marker has 9 bytes")
    duration_ms = min(max(_START.unpack_from(value)[1], 0), DURATION_MS_MAX)
    if len(value) == _START.size or not 0 < value[_START.size] <= Kind.REJECTED:
        return Start(duration_ms)
    return Start(duration_ms, Kind(value[_START.size]), value[_START.size + 1 :].decode(errors="replace"))
