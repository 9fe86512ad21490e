"""Examines the records in a batch without making objects of them: whether they are valid, their times, and which have
keys.

It reads varints and the positions of a record's parts; record.py decodes the same bytes in full.

Invariant: it examines no batch with more than `PARTS_MAX` records and headers, so that a small batch of a million tiny
records does not block the node.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeAlias

from ottla.protocol.records.errors import CorruptRecordsError, TooManyPartsError
from ottla.protocol.records.record import PARTS_MAX, long_varint

Outlined: TypeAlias = tuple[list[int], list[int]]
"""Each record's timestamp delta from the base, and the indexes of records without a key."""
RECORDS_A_SLICE: Final = 2_000


def outline_in_slices(plain: bytes | bytearray, count: int) -> Generator[None, None, Outlined]:
    """The outline of an unpacked body; yields after every `RECORDS_A_SLICE` records.

    Raises CorruptRecordsError if a record's length is wrong or offsets are not consecutive, and TooManyPartsError.
    """
    timestamps: list[int] = []
    keyless: list[int] = []
    pos, headers_left = 0, _parts_left(count)
    for first in range(0, count, RECORDS_A_SLICE):
        if first:
            yield
        slice_ = range(first, min(first + RECORDS_A_SLICE, count))
        pos, headers_left = _walk(plain, slice_, pos, headers_left, timestamps, keyless)
    if pos != len(plain):
        raise CorruptRecordsError(f"{len(plain) - pos} bytes are not of the {count} records")
    return timestamps, keyless


def _walk(
    plain: bytes | bytearray, indexes: range, pos: int, headers_left: int, timestamps: list[int], keyless: list[int]
) -> tuple[int, int]:
    """Add the records of `indexes`, the first of which begins at `pos`. Returns the position after them, and how many
    headers may follow. HOT."""
    try:
        for index in indexes:
            length = plain[pos]
            length, pos = (length, pos + 1) if length < 0x80 else _two_or_three(plain, pos)
            end = pos + (length >> 1)
            timestamp = plain[pos + 1]  # after one byte of attributes, all unused
            timestamp, pos = (timestamp, pos + 2) if timestamp < 0x80 else long_varint(plain, pos + 1)
            offset = plain[pos]
            offset, pos = (offset, pos + 1) if offset < 0x80 else _two_or_three(plain, pos)
            key = plain[pos]
            key, pos = (key, pos + 1) if key < 0x80 else long_varint(plain, pos)
            if key & 1:
                keyless.append(index)
            else:
                pos += key >> 1
            value = plain[pos]
            value, pos = (value, pos + 1) if value < 0x80 else _two_or_three(plain, pos)
            if not value & 1:
                pos += value >> 1
            headers, pos = long_varint(plain, pos) if plain[pos] else (0, pos + 1)
            # `headers` is doubled by the zigzag encoding; a header has at least two bytes
            if length & 1 or headers & 1 or pos + headers > end or not (headers or pos == end):
                raise CorruptRecordsError(f"record {index} does not end where it says")
            if offset != 2 * index:
                raise CorruptRecordsError(f"record {index} has the offset {_signed(offset)} in its batch")
            headers_left -= headers >> 1
            if headers_left < 0:
                raise TooManyPartsError(f"there are more than {PARTS_MAX} records and headers")
            timestamps.append((timestamp >> 1) ^ -(timestamp & 1))
            pos = end
    except IndexError as error:
        raise CorruptRecordsError("the records are cut short") from error
    return pos, headers_left


def first_since(plain: bytes | bytearray, count: int, timestamp: int, offset: int) -> tuple[int, int] | None:
    """(timestamp delta, offset delta) of the first record whose deltas are at least these; None if there is none.

    Raises CorruptRecordsError, TooManyPartsError.
    """
    _parts_left(count)
    pos = 0
    try:
        for _ in range(count):
            end, its_timestamp, its_offset = _head(plain, pos)
            if its_timestamp >= timestamp and its_offset >= offset:
                return its_timestamp, its_offset
            pos = end
    except IndexError as error:
        raise CorruptRecordsError("the records are cut short") from error
    return None


def _parts_left(count: int) -> int:
    if count > PARTS_MAX:
        raise TooManyPartsError(f"there are more than {PARTS_MAX} records")
    return PARTS_MAX - count


def _head(plain: bytes | bytearray, pos: int) -> tuple[int, int, int]:
    """(where the record at `pos` ends, timestamp delta, offset delta)."""
    length = plain[pos]
    length, pos = (length, pos + 1) if length < 0x80 else _two_or_three(plain, pos)
    end = pos + (length >> 1)
    if length & 1:
        raise CorruptRecordsError("a record of less than no bytes")
    timestamp = plain[pos + 1]  # after one byte of attributes, all unused
    timestamp, pos = (timestamp, pos + 2) if timestamp < 0x80 else long_varint(plain, pos + 1)
    offset = plain[pos]
    if offset > 0x7F:
        offset, _ = _two_or_three(plain, pos)
    return end, _signed(timestamp), _signed(offset)


def _two_or_three(plain: bytes | bytearray, pos: int) -> tuple[int, int]:
    """A varint that probably has two or three bytes."""
    second = plain[pos + 1]
    if second < 0x80:
        return plain[pos] & 0x7F | second << 7, pos + 2
    third = plain[pos + 2]
    if third < 0x80:
        return plain[pos] & 0x7F | (second & 0x7F) << 7 | third << 14, pos + 3
    return long_varint(plain, pos)


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
