"""Reads the headers that delay a message for share groups that opted in.

`ottla-deliver-at`: epoch milliseconds as decimal text. `ottla-delay-ms`: milliseconds after the record's timestamp, as
decimal text. The later of both applies; a value that is not a number is ignored.

Producers need only a header; other consumers see the record at once.
"""

from __future__ import annotations

from typing import Final

from ottla.machine import WallMillis
from ottla.protocol.records.batch import ATTRIBUTES_COMPRESSION
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import PARTS_MAX, Record, decode_records

DELIVER_AT: Final = "ottla-deliver-at"
DELAY: Final = "ottla-delay-ms"

_COMMON_BYTES: Final = b"ottla-del"
_DIGITS_MAX: Final = 18


def delays_in(batch: bytes, low: int, high: int, wall_ms: WallMillis) -> list[tuple[int, int, int]]:
    """(first, end, until) of the records in [low, high) that must wait beyond `wall_ms`, ascending; neighbours joined.

    `until` is a time of the wall clock.
    """
    if not batch[22] & ATTRIBUTES_COMPRESSION and _COMMON_BYTES not in batch:
        return []
    try:
        records = decode_records(batch, parts_max=PARTS_MAX)
    except CorruptRecordsError:
        return []  # the consumer that reads the batch reports it
    held: list[tuple[int, int, int]] = []
    for record in records:
        if record.headers and low <= record.offset < high:
            until = due(record)
            if until > wall_ms:
                if held and held[-1][1] == record.offset and held[-1][2] == until:
                    held[-1] = (held[-1][0], record.offset + 1, until)
                else:
                    held.append((record.offset, record.offset + 1, until))
    return held


def due(record: Record) -> int:
    """From when on, by the wall clock, this record may be delivered; 0: at any time."""
    time = 0
    for name, value in record.headers:
        if name == DELIVER_AT:
            time = max(time, _number(value))
        elif name == DELAY:
            delay = _number(value)
            if delay and record.timestamp_ms >= 0:
                time = max(time, record.timestamp_ms + delay)
    return time


def _number(text: bytes | None) -> int:
    return int(text) if text and len(text) <= _DIGITS_MAX and text.isdigit() else 0
