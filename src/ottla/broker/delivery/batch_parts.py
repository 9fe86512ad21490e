"""Cuts a part out of a large record batch, as a batch of its own, for a member that acquires little of it.

Records keep their offsets, timestamps and bytes. The header keeps all but its length, the number of records, the last
offset and the CRC. Compressed batches are sent uncompressed. To a client the part looks like a batch that compaction
has thinned out.

Otherwise one released record of a 1 MB batch would travel with the whole batch at each attempt, and several members
could not share one batch. A few batches are kept unpacked with the positions of their records, so that the next part
needs no second walk. Source: DefaultRecordBatch.java.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from ottla.log.files import File
from ottla.log.segment import RawHeader
from ottla.protocol.records import batch as b
from ottla.protocol.records.compression import decompress
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import RECORD_BYTES_MIN

KEPT_MAX: Final = 8
"""Batches that stay unpacked; each one usually needs less than a few megabytes of memory."""


class _Unpacked:
    """A batch's records, and where each begins; the last entry is their end."""

    __slots__ = ("body", "deltas", "header", "starts")

    def __init__(self, raw: bytes) -> None:
        """Raises CorruptRecordsError."""
        self.header = b.peek(raw)
        body = raw[b.HEADER_BYTES :]
        self.body = decompress(self.header.compression, body) if self.header.compression else body
        count = self.header.record_count
        if not 0 <= count * RECORD_BYTES_MIN <= len(self.body):
            raise CorruptRecordsError(f"{count} records in {len(self.body)} bytes")
        try:
            starts = _starts(self.body, count)
            if count == self.header.last_offset_delta + 1:
                self.deltas: Sequence[int] = range(count)  # no offset is missing
            else:
                self.deltas = array("q", [_delta(self.body, start) for start in starts[:-1]])
        except (IndexError, OverflowError) as error:
            raise CorruptRecordsError("the records are cut short") from error
        if starts[-1] != len(self.body):
            raise CorruptRecordsError(f"{len(self.body) - starts[-1]} bytes behind the last record")
        self.starts = starts


class Slices:
    """Cuts parts out of batches. `notes` logs the unreadable ones."""

    def __init__(self, notes: Callable[[str], None]) -> None:
        self._notes = notes
        self._kept: dict[tuple[int, int, int], tuple[File, _Unpacked | str]] = {}

    def cut(self, file: File, position: int, size: int, low: int, high: int) -> bytes:
        """The records with offsets in [low, high) of the batch there, as a batch. Raises CorruptRecordsError,
        OSError."""
        unpacked = self._unpacked(file, position, size)
        header, deltas, starts = unpacked.header, unpacked.deltas, unpacked.starts
        first = bisect_left(deltas, low - header.base_offset)
        end = bisect_left(deltas, high - header.base_offset)
        body = unpacked.body[starts[first] : starts[end]]
        out = bytearray(
            b.HEADER.pack(
                header.base_offset,
                b.HEADER_BYTES - b.LOG_OVERHEAD_BYTES + len(body),
                header.partition_leader_epoch,
                header.magic,
                0,
                header.attributes & ~b.ATTRIBUTES_COMPRESSION,
                high - 1 - header.base_offset,
                header.base_timestamp,
                header.max_timestamp,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                end - first,
            )
        )
        out += body
        b.set_crc(out)
        return bytes(out)

    def holds(self, file: File, position: int, header: RawHeader) -> bool:
        """Whether the batch has room for the records that its header claims. Raises OSError.

        A claim that only its records could contradict is accepted: its bytes bound it then.
        """
        size = header[1] + b.LOG_OVERHEAD_BYTES
        bytes_of_records, count = size - b.HEADER_BYTES, header[12]
        compressed = header[5] & b.ATTRIBUTES_COMPRESSION
        if 0 <= count * RECORD_BYTES_MIN <= bytes_of_records or (compressed and 0 <= count <= bytes_of_records):
            return True
        try:
            self._unpacked(file, position, size)
        except CorruptRecordsError:
            return False
        return True

    def _unpacked(self, file: File, position: int, size: int) -> _Unpacked:
        """The batch there, kept for the next time, also that it can't be read. Raises CorruptRecordsError, OSError."""
        key = (id(file), position, size)
        known = self._kept.pop(key, None)
        if known is None:
            try:
                known = (file, _Unpacked(file.read(position, size)))
            except CorruptRecordsError as error:
                self._notes(f"{file.path}, position {position}: the batch can't be read: {error}")
                known = (file, str(error))
            if len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = known
        if isinstance(known[1], str):
            raise CorruptRecordsError(known[1])
        return known[1]


def _starts(body: bytes, count: int) -> array[int]:
    """Where each record begins, and where the last one ends. Raises IndexError."""
    starts = array("q", [0])
    position = 0
    for _ in range(count):
        byte = body[position]
        if byte < 0x80:
            position += 1 + (byte >> 1)
        elif (high := body[position + 1]) < 0x80:
            position += 2 + ((byte & 0x7F | high << 7) >> 1)
        else:
            length, after = _varint(body, position)
            if length < 0:
                raise CorruptRecordsError(f"a record of {length} bytes")
            position = after + length
        starts.append(position)
    return starts


def _delta(body: bytes, start: int) -> int:
    """How far a record's offset is from the batch's."""
    _, after = _varint(body, start)
    _, at = _varint(body, after + 1)  # one byte of attributes, then the timestamp
    return _varint(body, at)[0]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise CorruptRecordsError(f"a varint before byte {at} is too long")
