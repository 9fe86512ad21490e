"""Reads and writes the records inside a batch.

The broker uses it for compaction, internal topics and tools, and clients use it; the produce path never does. It
handles varints, headers and timestamp deltas. Source: DefaultRecord.java, MemoryRecordsBuilder.java.

Invariants: offsets in a batch increase; every length is checked against the remaining bytes before anything is
allocated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from ottla.protocol.records import batch as b
from ottla.protocol.records.compression import UNPACKED_BYTES_MAX, codec_number, compress, decompress
from ottla.protocol.records.errors import CorruptRecordsError, TooManyPartsError, UnsupportedMagicError
from ottla.protocol.wire import Buffer

Headers = Sequence[tuple[str | bytes, bytes | None]]

RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, two lengths and a count: the smallest record."""

PARTS_MAX = 50_000
"""The most records and headers that a broker examines in one batch: about 50 ms of CPU, or a full 1 MB of 20 bytes
each."""


class Record:
    """One record. `offset` -1 means, when a batch is built: the offset after the record before it."""

    __slots__ = ("headers", "key", "offset", "timestamp_ms", "value")

    def __init__(
        self,
        offset: int = -1,
        timestamp_ms: int = b.NO_TIMESTAMP,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers = (),
    ) -> None:
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self.offset == other.offset
            and self.timestamp_ms == other.timestamp_ms
            and self.key == other.key
            and self.value == other.value
            and list(self.headers) == list(other.headers)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Record({self.offset}, {self.timestamp_ms}, {self.key!r}, {self.value!r}, {list(self.headers)!r})"


def can_hold(header: b.BatchHeader) -> bool:
    """Whether the batch is large enough for the number of records in its header.

    For a compressed batch, the largest possible decompressed size counts.
    """
    bytes_max = UNPACKED_BYTES_MAX if header.compression else header.size_in_bytes - b.HEADER_BYTES
    return 0 <= header.record_count * RECORD_BYTES_MIN <= bytes_max


# ---- reading -------------------------------------------------------------------------------------------------------


def decode_records(
    view: Buffer, pos: int = 0, *, max_bytes: int = UNPACKED_BYTES_MAX, parts_max: int | None = None
) -> list[Record]:
    """The records of the whole batch at `pos`, in order. Does not check the CRC.

    Raises CorruptRecordsError if they cannot be read, exceed `max_bytes` bytes when decompressed, or exceed `parts_max`
    together with their headers.
    """
    if b.magic_of(view, pos) != b.MAGIC:
        raise UnsupportedMagicError(b.magic_of(view, pos))
    header = b.peek(view, pos)
    end = pos + header.size_in_bytes
    if header.batch_length < b.HEADER_BYTES - b.LOG_OVERHEAD_BYTES or end > len(view):
        raise CorruptRecordsError(f"a batch of {header.batch_length} bytes where {len(view) - pos} remain")
    body = view[pos + b.HEADER_BYTES : end]
    # compaction may leave a batch without records, which has no body, whatever its attributes are
    _parts_left(header.record_count, parts_max)
    return records_in(decompress(header.compression, body, max_bytes) if len(body) else b"", header, parts_max)


def records_in(plain: bytes, header: b.BatchHeader, parts_max: int | None = None) -> list[Record]:
    """The records in the decompressed body of a batch. Raises CorruptRecordsError."""
    count = header.record_count
    headers_left = _parts_left(count, parts_max)
    if not 0 <= count * RECORD_BYTES_MIN <= len(plain):
        raise CorruptRecordsError(f"{count} records in {len(plain)} bytes")
    append_time = header.max_timestamp if header.timestamp_type == b.LOG_APPEND_TIME else None
    try:
        records, pos = _read_records(plain, count, header.base_offset, header.base_timestamp, append_time, headers_left)
    except IndexError as error:
        raise CorruptRecordsError("the records are cut short") from error
    if pos != len(plain):
        raise CorruptRecordsError(f"{len(plain) - pos} bytes behind the last record")
    return records


def _read_records(
    plain: bytes, count: int, base_offset: int, base_timestamp: int, append_time: int | None, headers_left: int
) -> tuple[list[Record], int]:
    """Hot: one-byte values are read inline, longer varints by `long_varint`. `_block` reads only keys and values that
    are null or long."""
    records: list[Record] = []
    size = len(plain)
    pos = 0
    for _ in range(count):
        length = plain[pos]
        pos += 1
        if length > 127:
            length, pos = long_varint(plain, pos - 1)
        end = pos + (length >> 1)
        if length & 1 or end > size:
            raise CorruptRecordsError(f"a record of {_signed(length)} bytes where {size - pos} remain")
        timestamp = plain[pos + 1]  # after one byte of attributes, all unused
        pos += 2
        if timestamp > 127:
            timestamp, pos = long_varint(plain, pos - 1)
        offset = plain[pos]
        pos += 1
        if offset > 127:
            offset, pos = long_varint(plain, pos - 1)
        length = plain[pos]
        if length > 127 or length & 1:
            key, pos = _block(plain, pos, end)
        else:
            stop = pos + 1 + (length >> 1)
            key = plain[pos + 1 : stop]
            pos = stop
        value, pos = _block(plain, pos, end)
        if plain[pos]:
            headers, pos = _read_headers(plain, pos, end, headers_left)
            headers_left -= len(headers)
        else:
            headers = []
            pos += 1
        if pos != end:
            raise CorruptRecordsError(f"a record does not end where it says: at {pos}, not {end}")
        timestamp = base_timestamp + ((timestamp >> 1) ^ -(timestamp & 1)) if append_time is None else append_time
        records.append(Record(base_offset + ((offset >> 1) ^ -(offset & 1)), timestamp, key, value, headers))
    return records, pos


def long_varint(plain: bytes | bytearray, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most ten bytes and 64 bits. Raises CorruptRecordsError."""
    value = shift = 0
    while True:
        byte = plain[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, pos
        shift += 7
        if shift > 63:
            break
    raise CorruptRecordsError(f"a varint before byte {pos} is too long")


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _block(plain: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    """A key or a value; a negative length is null."""
    length = plain[pos]
    pos += 1
    if length > 127:
        low = length & 0x7F
        length = plain[pos]
        pos += 1
        if length < 128:  # two bytes: up to 8 kB
            length = length << 7 | low
        else:
            length, pos = long_varint(plain, pos - 2)
    if length & 1:
        return None, pos
    stop = pos + (length >> 1)
    if stop > end:
        raise CorruptRecordsError(f"a key or value of {length >> 1} bytes where {end - pos} remain")
    return plain[pos:stop], stop


def _parts_left(count: int, parts_max: int | None) -> int:
    """How many headers these records may have. Raises TooManyPartsError."""
    if parts_max is None:
        return sys.maxsize
    if count > parts_max:
        raise TooManyPartsError(f"there are {count} records, more than {parts_max}")
    return parts_max - count


def _read_headers(
    plain: bytes, pos: int, end: int, headers_left: int
) -> tuple[list[tuple[str | bytes, bytes | None]], int]:
    count, pos = long_varint(plain, pos)
    if count & 1 or count > end - pos:  # `count` is doubled by the zigzag encoding, and a header has at least two bytes
        raise CorruptRecordsError(f"{_signed(count)} headers where {end - pos} bytes remain")
    if count >> 1 > headers_left:
        raise TooManyPartsError(f"there are {count >> 1} headers where {headers_left} are left")
    headers: list[tuple[str | bytes, bytes | None]] = []
    for _ in range(count >> 1):
        name, pos = _block(plain, pos, end)
        if name is None:
            raise CorruptRecordsError("a header without a key")
        value, pos = _block(plain, pos, end)
        headers.append((_text(name), value))
    return headers, pos


def _text(name: bytes) -> str | bytes:
    """A header's key; one that is not UTF-8 stays bytes, so that the batch can be rewritten unchanged."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


# ---- writing -------------------------------------------------------------------------------------------------------


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    compression: str | int = "none",
    compression_level: int | None = None,
    producer_id: int = b.NO_PRODUCER_ID,
    producer_epoch: int = b.NO_PRODUCER_EPOCH,
    base_sequence: int = b.NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = b.CREATE_TIME,
    partition_leader_epoch: int = b.NO_LEADER_EPOCH,
    max_timestamp: int | None = None,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """A whole batch with its CRC.

    `max_timestamp` is the time of all records with LOG_APPEND_TIME, and otherwise the largest of theirs.
    `last_offset_delta` preserves the end of a batch whose last records were compacted away. Both also apply to a batch
    without records. Raises ValueError if offsets do not increase from `base_offset`.
    """
    codec = codec_number(compression)
    records = list(records)
    base_timestamp = records[0].timestamp_ms if records else b.NO_TIMESTAMP
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    plain, delta = _write_records(records, base_offset, base_timestamp)
    if max_timestamp is None:
        max_timestamp = max((record.timestamp_ms for record in records), default=b.NO_TIMESTAMP)
    body = compress(codec, plain, compression_level) if codec and records else plain
    attributes = (
        codec
        | b.ATTRIBUTES_LOG_APPEND_TIME * (timestamp_type == b.LOG_APPEND_TIME)
        | b.ATTRIBUTES_TRANSACTIONAL * transactional
        | b.ATTRIBUTES_CONTROL * control
        | b.ATTRIBUTES_DELETE_HORIZON * (delete_horizon_ms is not None)
    )
    out = bytearray(
        b.HEADER.pack(
            base_offset,
            b.HEADER_BYTES - b.LOG_OVERHEAD_BYTES + len(body),
            partition_leader_epoch,
            b.MAGIC,
            0,
            attributes,
            max(delta, 0) if last_offset_delta is None else last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    out += body
    b.set_crc(out)
    return out


def _write_records(records: list[Record], base_offset: int, base_timestamp: int) -> tuple[bytearray, int]:
    """The encoded records without the batch header, and the last record's offset minus the base; -1 without records."""
    plain = bytearray()
    delta = -1
    for record in records:
        following = delta + 1 if record.offset < 0 else record.offset - base_offset
        if following <= delta:
            raise ValueError(f"offset {record.offset} does not follow {base_offset + delta}")
        delta = following
        write_record(plain, record, record.timestamp_ms - base_timestamp, delta)
    return plain, delta


def write_record(out: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    """Append one record with its length."""
    headers = record.headers
    body = b"".join(
        (
            b"\0",  # attributes: none are in use
            _varint(timestamp_delta),
            _varint(offset_delta),
            *_sized(record.key),
            *_sized(record.value),
            _varint(len(headers)),
        )
    )
    if headers:
        parts = [body]
        for name, value in headers:
            parts += _sized(name.encode() if isinstance(name, str) else name)
            parts += _sized(value)
        body = b"".join(parts)
    out += _varint(len(body))
    out += body


def _varint(value: int) -> bytes:
    """Zigzag: small numbers of either sign are short."""
    if -64 <= value < 64:
        return _SHORT[value]
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT: Final = [bytes((value << 1,)) for value in range(64)] + [bytes((-value * 2 - 1,)) for value in range(-64, 0)]
"""The varints of one byte: by an index from -64 to 63, as a negative one counts from the end."""


def _sized(block: bytes | None) -> tuple[bytes, bytes]:
    """A key or a value behind its length, which is -1 for null."""
    return (b"\1", b"") if block is None else (_varint(len(block)), block)
