"""Filters one batch for a compaction: which of its records are kept.

It works on the bytes of batches: a kept record is copied as it is, never decoded into an object. Source: Kafka's
MemoryRecords.filterTo, Cleaner.shouldRetainRecord, DefaultRecordBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ottla.log.config import LONG_MAX, LogConfig
from ottla.log.producers import ProducerEntry
from ottla.log.segment import RawHeader
from ottla.machine import WallMillis
from ottla.protocol.records.batch import (
    ATTRIBUTES_AT,
    ATTRIBUTES_COMPRESSION,
    ATTRIBUTES_CONTROL,
    ATTRIBUTES_DELETE_HORIZON,
    ATTRIBUTES_LOG_APPEND_TIME,
    ATTRIBUTES_TRANSACTIONAL,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    crc_of,
    set_crc,
)
from ottla.protocol.records.compression import GZIP, LZ4, ZSTD, compress, decompress
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import PARTS_MAX, build_batch, decode_records

NO_TIMESTAMP: Final = -1

# (start, end, timestamp_delta, offset_delta, key, has_value) of one record in the plain bytes of a batch
Piece = tuple[int, int, int, int, bytes | None, bool]
Kept = tuple[bytes | bytearray | memoryview, int]


def is_sound(header: RawHeader, batch: memoryview) -> bool:
    """Whether the batch matches its checksum: a new one must not hide what happened to the old."""
    return crc_of(batch, ATTRIBUTES_AT, len(batch)) == header[4]


def key_offsets(header: RawHeader, batch: memoryview) -> list[tuple[bytes, int]]:
    """(key, offset) of every record with a key; nothing of a batch that can't be read."""
    base = header[0]
    try:
        plain = decompress(header[5] & ATTRIBUTES_COMPRESSION, batch[HEADER_BYTES:])
        found = pieces(plain, header[12])
        if not all(piece[5] for piece in found):
            decode_records(batch, parts_max=PARTS_MAX)  # as the second pass must, to rewrite it
    except CorruptRecordsError:
        return []
    return [(piece[4], base + piece[3]) for piece in found if piece[4] is not None]


class BatchFilter:
    """The rules of one compaction: called with a batch, returns what to write for it.

    `offsets`: the last offset of each (shortened) key up to `latest`. `wall_ms` and `delete.retention.ms` say when
    tombstones may go, unless some replica is not `in_sync`. `ends`: a batch that ends before one of these offsets is
    never left out.
    """

    def __init__(
        self,
        offsets: Mapping[bytes, int],
        latest: int,
        wall_ms: WallMillis,
        config: LogConfig,
        ends: frozenset[int],
        producers: Mapping[int, ProducerEntry],
        short: Callable[[bytes], bytes],
        *,
        in_sync: bool,
    ) -> None:
        self._offsets = offsets
        self._latest = latest
        self._wall_ms = wall_ms
        self._config = config
        self._ends = ends
        self._short = short
        self._in_sync = in_sync
        # A producer's state is kept alive by its last data or, if none is remembered, by the marker of its epoch.
        self._last_data = {entry.producer_id: entry.last_data_offset for entry in producers.values()}
        self._epochs = {entry.producer_id: entry.epoch for entry in producers.values()}

    def __call__(self, header: RawHeader, batch: memoryview, settled: bool) -> Kept | None:
        """(bytes, max_timestamp) of what is kept of the batch, None for nothing.

        `settled`: its transaction was aborted, or it is a marker without data. Raises CorruptRecordsError if the batch
        must be rewritten and can't be decoded.
        """
        attributes, base_timestamp = header[5], header[7]
        horizon = base_timestamp if attributes & ATTRIBUTES_DELETE_HORIZON else None
        if attributes & ATTRIBUTES_CONTROL:
            if not (settled and self._has_passed(horizon)) and header[12]:
                if settled and horizon is None:
                    return self._with_horizon(header, batch, None)
                return batch, header[8]
        elif not settled:
            kept = self._filtered(header, batch, horizon)
            if kept is not None:
                return kept
        return self._emptied(header) if self._must_stay(header) else None

    def _has_passed(self, horizon: int | None) -> bool:
        """Whether tombstones or a marker of a batch with this delete horizon may be removed."""
        return self._in_sync and horizon is not None and horizon <= self._wall_ms

    def _must_stay(self, header: RawHeader) -> bool:
        """Whether the batch carries information even without records."""
        last = header[0] + header[6]
        if last + 1 in self._ends:
            return True
        known = self._last_data.get(header[9])
        if known is None:
            return False
        if known >= 0:
            return last == known
        return bool(header[5] & ATTRIBUTES_CONTROL) and header[10] == self._epochs[header[9]]

    def _filtered(self, header: RawHeader, batch: memoryview, horizon: int | None) -> Kept | None:
        codec = header[5] & ATTRIBUTES_COMPRESSION
        try:
            plain = decompress(codec, batch[HEADER_BYTES:])
            found = pieces(plain, header[12])
        except CorruptRecordsError:
            return batch, header[8]
        base, latest, offsets, short = header[0], self._latest, self._offsets, self._short
        tombstones_stay = not self._has_passed(horizon)
        kept: list[Piece] = []
        tombstones = False
        for piece in found:
            offset = base + piece[3]
            if offset <= latest:
                key = piece[4]
                if key is None or offsets.get(short(key), -1) > offset:
                    continue
                if not (piece[5] or tombstones_stay):
                    continue
            kept.append(piece)
            if not piece[5]:
                tombstones = True
        if not kept:
            return None
        if tombstones and horizon is None:
            return self._with_horizon(header, batch, {base + piece[3] for piece in kept})
        if len(kept) == len(found):
            return batch, header[8]
        return self._rebuilt(header, b"".join([plain[piece[0] : piece[1]] for piece in kept]), kept)

    def _rebuilt(self, header: RawHeader, plain: bytes, kept: list[Piece]) -> Kept:
        base, _, epoch, _, _, attributes, last_delta, base_timestamp, max_timestamp, pid, pepoch, sequence, _ = header
        if not attributes & ATTRIBUTES_LOG_APPEND_TIME:
            max_timestamp = base_timestamp + max(piece[2] for piece in kept)
        codec = attributes & ATTRIBUTES_COMPRESSION
        body = compress(codec, plain, self._level(codec)) if codec else plain
        octets = bytearray(
            HEADER.pack(
                base,
                HEADER_BYTES - LOG_OVERHEAD_BYTES + len(body),
                epoch,
                MAGIC,
                0,
                attributes,
                last_delta,
                base_timestamp,
                max_timestamp,
                pid,
                pepoch,
                sequence,
                len(kept),
            )
        )
        octets += body
        set_crc(octets)
        return octets, max_timestamp

    def _with_horizon(self, header: RawHeader, batch: memoryview, kept: set[int] | None) -> Kept:
        """The batch with the time at which its tombstones (or its marker) may be removed in place of the base
        timestamp."""
        records = [
            record for record in decode_records(batch, parts_max=PARTS_MAX) if kept is None or record.offset in kept
        ]
        if not records:
            raise CorruptRecordsError("its records are not where they say")
        attributes = header[5]
        codec = attributes & ATTRIBUTES_COMPRESSION
        append_time = bool(attributes & ATTRIBUTES_LOG_APPEND_TIME)
        octets = build_batch(
            records,
            base_offset=header[0],
            compression=codec,
            compression_level=self._level(codec),
            producer_id=header[9],
            producer_epoch=header[10],
            base_sequence=header[11],
            transactional=bool(attributes & ATTRIBUTES_TRANSACTIONAL),
            control=bool(attributes & ATTRIBUTES_CONTROL),
            timestamp_type=int(append_time),
            partition_leader_epoch=header[2],
            max_timestamp=header[8] if append_time else None,
            last_offset_delta=header[6],
            delete_horizon_ms=min(self._wall_ms + self._config.delete_retention_ms, LONG_MAX),
        )
        max_timestamp = header[8] if append_time else max(record.timestamp_ms for record in records)
        return octets, max_timestamp

    def _emptied(self, header: RawHeader) -> Kept:
        """Only the header, as Kafka's DefaultRecordBatch.writeEmptyHeader makes it."""
        base, _, epoch, _, _, attributes, last_delta, _, max_timestamp, pid, pepoch, sequence, _ = header
        marks = ATTRIBUTES_LOG_APPEND_TIME | ATTRIBUTES_TRANSACTIONAL | ATTRIBUTES_CONTROL
        octets = bytearray(
            HEADER.pack(
                base,
                HEADER_BYTES - LOG_OVERHEAD_BYTES,
                epoch,
                MAGIC,
                0,
                attributes & marks,
                last_delta,
                NO_TIMESTAMP,
                max_timestamp,
                pid,
                pepoch,
                sequence,
                0,
            )
        )
        set_crc(octets)
        return octets, max_timestamp

    def _level(self, codec: int) -> int | None:
        config = self._config
        if codec == GZIP:
            return config.compression_gzip_level if config.compression_gzip_level >= 0 else None
        return {LZ4: config.compression_lz4_level, ZSTD: config.compression_zstd_level}.get(codec)


def pieces(plain: bytes, count: int) -> list[Piece]:
    """The place of each record in a batch's decompressed body, and the fields that compaction needs. Raises
    CorruptRecordsError."""
    if count > PARTS_MAX:
        raise CorruptRecordsError(f"there are {count} records, more than {PARTS_MAX}")
    found: list[Piece] = []
    pos = 0
    try:
        for _ in range(count):
            start = pos
            length = plain[pos]
            pos += 1
            if length > 127:
                length, pos = _long(plain, pos - 1)
            end = pos + (length >> 1)
            pos += 1
            timestamp = plain[pos]
            pos += 1
            if timestamp > 127:
                timestamp, pos = _long(plain, pos - 1)
            offset = plain[pos]
            pos += 1
            if offset > 127:
                offset, pos = _long(plain, pos - 1)
            key_length = plain[pos]
            pos += 1
            if key_length > 127:
                key_length, pos = _long(plain, pos - 1)
            key: bytes | None = None
            if not key_length & 1:
                stop = pos + (key_length >> 1)
                key = plain[pos:stop]
                pos = stop
            found.append((start, end, (timestamp >> 1) ^ -(timestamp & 1), offset >> 1, key, not plain[pos] & 1))
            if pos >= end or end > len(plain):
                raise CorruptRecordsError(f"a record at {start} does not end where it says")
            pos = end
    except IndexError as error:
        raise CorruptRecordsError("the records are cut short") from error
    return found


def _long(plain: bytes, pos: int) -> tuple[int, int]:
    """An unsigned varint of more than one byte."""
    value = shift = 0
    while True:
        byte = plain[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 63:
            raise CorruptRecordsError(f"a varint before byte {pos} is too long")
