"""Reads and writes headers of record batches, format 2, their CRC, and iterates over consecutive batches.

It handles the 61 bytes before the records and not the records themselves: the produce path needs no more.

Source: DefaultRecordBatch.java, KIP-98.

    0 base_offset int64, 8 batch_length int32 (of what follows), 12 partition_leader_epoch int32, 16 magic int8,
    17 crc uint32 (of everything from 21), 21 attributes int16, 23 last_offset_delta int32, 27 base_timestamp int64,
    35 max_timestamp int64, 43 producer_id int64, 51 producer_epoch int16, 53 base_sequence int32, 57 record_count int32

Invariant: the CRC does not cover the base offset and the leader epoch, so a leader sets them without recomputing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Format
from struct import error as struct_error

from ottla.protocol.records.checksum import crc32c
from ottla.protocol.records.errors import CorruptRecordsError, UnsupportedMagicError
from ottla.protocol.wire import Buffer

HEADER = Format(">qiibIhiqqqhii")
"""The header as one struct. The CRC is unsigned."""
HEADER_BYTES = HEADER.size  # 61
LOG_OVERHEAD_BYTES = 12
"""Base offset and length: the bytes that `batch_length` does not count."""
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
MAX_TIMESTAMP_AT = 35
RECORD_COUNT_AT = 57
MAGIC = 2

ATTRIBUTES_COMPRESSION = 0x07
ATTRIBUTES_LOG_APPEND_TIME = 0x08
ATTRIBUTES_TRANSACTIONAL = 0x10
ATTRIBUTES_CONTROL = 0x20
ATTRIBUTES_DELETE_HORIZON = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

_SEQUENCE_MAX = 0x7FFFFFFF

_new = object.__new__
_unpack_header = HEADER.unpack_from
_unpack_producer = Format(">i16xqhi").unpack_from
_unpack_length = Format(">i").unpack_from
_pack_base_offset = Format(">q").pack_into
_pack_leader_epoch = Format(">i").pack_into
_pack_crc = Format(">I").pack_into
_pack_attributes = Format(">h").pack_into
_unpack_attributes = Format(">h").unpack_from


class BatchHeader:
    """The decoded header of one batch."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "producer_epoch",
        "producer_id",
        "record_count",
    )
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_in_bytes(self) -> int:
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; sequences wrap from 2^31 - 1 to 0. -1 without a sequence."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        last = self.base_sequence + self.last_offset_delta
        return last if last <= _SEQUENCE_MAX else last - _SEQUENCE_MAX - 1

    @property
    def compression(self) -> int:
        """The codec's number; 5 to 7 do not exist."""
        return self.attributes & ATTRIBUTES_COMPRESSION

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & ATTRIBUTES_LOG_APPEND_TIME else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & ATTRIBUTES_TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & ATTRIBUTES_CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & ATTRIBUTES_DELETE_HORIZON != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When the tombstones and markers in this batch may be removed; stored in the base timestamp's field
        (KIP-534)."""
        return self.base_timestamp if self.has_delete_horizon else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def __repr__(self) -> str:
        return f"BatchHeader({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


def peek(view: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`. Checks only that 61 bytes are present; raises CorruptRecordsError."""
    header = _new(BatchHeader)
    try:
        (
            header.base_offset,
            header.batch_length,
            header.partition_leader_epoch,
            header.magic,
            header.crc,
            header.attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        ) = _unpack_header(view, pos)
    except struct_error as error:
        raise CorruptRecordsError(f"{max(len(view) - pos, 0)} bytes are no batch header") from error
    return header


def peek_producer(view: Buffer) -> tuple[int, int, int, int]:
    """Last offset delta, producer id, producer epoch and base sequence of the first batch in `view`. HOT.

    Checks nothing: the caller ensures that the header's 61 bytes are present.
    """
    return _unpack_producer(view, LAST_OFFSET_DELTA_AT)


def magic_of(view: Buffer, pos: int = 0) -> int:
    """The format of the batch or message at `pos`: 0 and 1 are the old message sets. Raises CorruptRecordsError."""
    if len(view) <= pos + MAGIC_AT:
        raise CorruptRecordsError(f"{max(len(view) - pos, 0)} bytes are no batch header")
    return view[pos + MAGIC_AT]


def iter_batches(view: Buffer, start: int = 0) -> Iterator[tuple[BatchHeader, int]]:
    """Each whole batch from `start` on, with its position; a partial batch at the end is left out.

    Does not check CRCs. Raises UnsupportedMagicError for other formats, CorruptRecordsError for an impossible length.
    """
    pos, size = start, len(view)
    while size - pos > MAGIC_AT:
        if view[pos + MAGIC_AT] != MAGIC:
            raise UnsupportedMagicError(view[pos + MAGIC_AT])
        (length,) = _unpack_length(view, pos + 8)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            raise CorruptRecordsError(f"a batch of {length} bytes at {pos}")
        end = pos + LOG_OVERHEAD_BYTES + length
        if end > size:
            return
        yield peek(view, pos), pos
        pos = end


def crc_of(view: Buffer, start: int, end: int) -> int:
    """CRC-32C of a part of the buffer, without copying it."""
    return crc32c(memoryview(view)[start:end])


def has_valid_crc(view: Buffer, pos: int, header: BatchHeader) -> bool:
    """Whether the whole batch at `pos` matches its checksum."""
    return crc_of(view, pos + ATTRIBUTES_AT, pos + header.size_in_bytes) == header.crc


def set_crc(buffer: bytearray | memoryview, pos: int = 0) -> None:
    """Write the checksum of the batch at `pos`, whose length is already right."""
    (length,) = _unpack_length(buffer, pos + 8)
    _pack_crc(buffer, pos + CRC_AT, crc_of(buffer, pos + ATTRIBUTES_AT, pos + LOG_OVERHEAD_BYTES + length))


def stamp(buffer: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and leader epoch of the batch at `pos`. The CRC stays valid."""
    _pack_base_offset(buffer, pos, base_offset)
    _pack_leader_epoch(buffer, pos + 12, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, pos: int, timestamp_ms: int) -> None:
    """Set `timestamp_ms` as the time of every record in the batch at `pos`, and recompute the CRC."""
    (attributes,) = _unpack_attributes(buffer, pos + ATTRIBUTES_AT)
    _pack_attributes(buffer, pos + ATTRIBUTES_AT, attributes | ATTRIBUTES_LOG_APPEND_TIME)
    _pack_base_offset(buffer, pos + MAX_TIMESTAMP_AT, timestamp_ms)
    set_crc(buffer, pos)
