"""The careful look at a batch that the append path's quick one found unusual.

Knows: what a broker refuses, in Kafka's order, with Kafka's codes; and the three rewrites that configs ask for:
LogAppendTime, another compression, offsets. Does not know: the log.
Records are decoded only where something in them decides: keys on compacted topics, `message.timestamp.before.max.ms`
when it is set, and recompression. Otherwise a batch stays opaque, and what its header says of timestamps is believed.
Source: Kafka's LogValidator.java, UnifiedLog.analyzeAndValidateRecords, ProduceRequest.validateRecords.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from ottla.log.answers import AppendRefused, Origin
from ottla.log.config import LONG_MAX, LogConfig
from ottla.machine import WallMillis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import (
    ATTRIBUTES_AT,
    ATTRIBUTES_CONTROL,
    ATTRIBUTES_LOG_APPEND_TIME,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    BatchHeader,
    has_valid_crc,
    peek,
    set_crc,
    stamp_log_append_time,
)
from ottla.protocol.records.compression import CODECS, GZIP, LZ4, NONE, ZSTD, decompress
from ottla.protocol.records.errors import CorruptRecords, TooManyBytes
from ottla.protocol.records.record import RECORD_BYTES_MIN, Record, build_batch, can_hold, decode_records

LEGACY_RECORD_BYTES_MIN: Final = 14
RECORDS_NAMED_MAX: Final = 10_000
"""Of a larger batch that is refused for its timestamps nobody is told which ones are wrong: that takes unpacking it."""
_length_of = Struct(">i").unpack_from
_pack_attributes = Struct(">h").pack_into
_pack_timestamp = Struct(">q").pack_into


def prepare_batch(batch: memoryview, config: LogConfig, wall_ms: WallMillis, origin: Origin) -> memoryview:
    """The one batch in `batch`, checked and rewritten as `config` asks; bytes behind it are left out.

    Returns a writable view, of `batch` itself where that could be kept. Raises AppendRefused.
    """
    batch = _single_batch(batch)
    header = peek(batch)
    size = header.size_in_bytes
    if origin is Origin.CLIENT and header.base_offset != 0:
        raise _invalid(f"The base offset of a produced batch must be 0, not {header.base_offset}.")
    if size > config.max_message_bytes:
        raise AppendRefused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"A batch of {size} bytes exceeds max.message.bytes, {config.max_message_bytes}.",
        )
    if not has_valid_crc(batch, 0, header):
        raise _corrupt("The checksum of the batch does not match.")
    if header.compression > ZSTD:
        raise AppendRefused(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"There is no compression codec with the number {header.compression}."
        )
    if origin is Origin.CLIENT:
        _check_client_header(header)
        _check_count(batch, header)
    codec = _target_codec(config, header)
    records: list[Record] | None = None
    if codec != header.compression or _looks_inside(config, origin):
        records = _decode(batch, header)
    _check_timestamps(batch, header, records, config, wall_ms)
    if config.compacted and origin is Origin.CLIENT:
        _check_keys(records or [])
    if codec != header.compression:
        batch = _rebuild(header, records or [], codec, config)
        if len(batch) > config.max_message_bytes:
            raise AppendRefused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"Recompressed to {len(batch)} bytes the batch exceeds max.message.bytes, {config.max_message_bytes}.",
            )
    if config.message_timestamp_type == "LogAppendTime":
        stamp_log_append_time(batch, 0, wall_ms)
    elif header.attributes & ATTRIBUTES_LOG_APPEND_TIME:
        _pack_attributes(batch, ATTRIBUTES_AT, peek(batch).attributes & ~ATTRIBUTES_LOG_APPEND_TIME)
        set_crc(batch)
    return batch


def _single_batch(view: memoryview) -> memoryview:
    """The first batch of `view`; what follows must not be another one."""
    if len(view) <= MAGIC_AT:
        raise _invalid("Records without a batch; exactly one is needed.")
    end = _batch_end(view, 0)
    if end is None:
        raise _invalid("The batch is cut off; exactly one whole batch is needed.")
    if end < HEADER_BYTES:
        raise _corrupt(f"A batch of {end} bytes is smaller than its header.")
    rest = view[end:]
    if len(rest) > MAGIC_AT and _batch_end(rest, 0) is not None:
        raise _invalid("More than one batch; exactly one is needed.")
    return view[:end]


def _batch_end(view: memoryview, pos: int) -> int | None:
    """Where the batch at `pos` ends, None if behind the view. Raises AppendRefused for what is none of format 2."""
    (length,) = _length_of(view, pos + 8)
    if length < LEGACY_RECORD_BYTES_MIN:
        raise _corrupt(f"A batch of {length} bytes is smaller than any record.")
    magic = view[pos + MAGIC_AT]
    if magic in (0, 1):
        raise AppendRefused(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"Message format {magic} is not stored any more; 2 is."
        )
    if magic != MAGIC:
        raise _corrupt(f"There is no message format {magic}.")
    end = pos + LOG_OVERHEAD_BYTES + length
    return end if end <= len(view) else None


def _check_client_header(header: BatchHeader) -> None:
    count = header.record_count
    span = header.last_offset_delta + 1
    if span <= 0:
        raise _invalid(f"The batch has an invalid offset range: its last offset delta is {header.last_offset_delta}.")
    if count <= 0:
        raise _invalid(f"The batch reports {count} records.")
    if count != span:
        raise _invalid(f"The batch spans {span} offsets and reports {count} records.")
    if header.attributes & ATTRIBUTES_CONTROL:
        raise _invalid("Clients are not allowed to write control records.")
    if header.has_producer_id and header.base_sequence < 0:
        raise _invalid(f"Sequence {header.base_sequence} with producer id {header.producer_id}.")


def _check_count(batch: memoryview, header: BatchHeader) -> None:
    """So many records must have room. More than a compressed body has bytes are hardly ever there: it is unpacked."""
    bytes_of_records = header.size_in_bytes - HEADER_BYTES
    if not can_hold(header):
        raise _invalid(f"The batch reports {header.record_count} records in {bytes_of_records} bytes.")
    if header.compression == NONE or header.record_count <= bytes_of_records:
        return
    try:
        unpacked = len(decompress(header.compression, batch[HEADER_BYTES:]))
    except CorruptRecords as error:
        raise _not_unpacked(error) from error
    if header.record_count * RECORD_BYTES_MIN > unpacked:
        raise _invalid(f"The batch reports {header.record_count} records in {unpacked} bytes.")


def _looks_inside(config: LogConfig, origin: Origin) -> bool:
    if origin is not Origin.CLIENT:
        return False
    return config.compacted or (
        config.message_timestamp_type == "CreateTime" and config.message_timestamp_before_max_ms != LONG_MAX
    )


def _decode(batch: memoryview, header: BatchHeader) -> list[Record]:
    try:
        return decode_records(batch)
    except CorruptRecords as error:
        if header.compression != NONE:
            raise _not_unpacked(error) from error
        raise _invalid(f"The records can't be read: {error}.") from error


def _check_timestamps(
    batch: memoryview, header: BatchHeader, records: list[Record] | None, config: LogConfig, wall_ms: WallMillis
) -> None:
    if config.message_timestamp_type == "LogAppendTime":
        if header.attributes & ATTRIBUTES_LOG_APPEND_TIME:
            raise AppendRefused(
                ErrorCode.INVALID_TIMESTAMP, "Producers must not set the timestamp type to LogAppendTime."
            )
        return
    lowest = wall_ms - config.message_timestamp_before_max_ms
    highest = wall_ms + config.message_timestamp_after_max_ms
    if records is None:
        if header.max_timestamp == -1 or lowest <= header.max_timestamp <= highest:
            return
        if header.record_count > RECORDS_NAMED_MAX:
            raise AppendRefused(
                ErrorCode.INVALID_TIMESTAMP,
                f"The batch's timestamp {header.max_timestamp} is not within [{lowest}, {highest}].",
            )
        records = _decode(batch, header)
    wrong = tuple(
        (index, f"Timestamp {record.timestamp_ms} is not within [{lowest}, {highest}].")
        for index, record in enumerate(records)
        if record.timestamp_ms != -1 and not lowest <= record.timestamp_ms <= highest
    )
    if wrong:
        raise AppendRefused(ErrorCode.INVALID_TIMESTAMP, f"{len(wrong)} records have an invalid timestamp.", wrong)
    if not lowest <= header.max_timestamp <= highest:
        # Only the header is wrong: retention and lookups by time go by it, so it is put right, as Kafka does.
        _pack_timestamp(batch, MAX_TIMESTAMP_AT, max((record.timestamp_ms for record in records), default=-1))
        set_crc(batch)


def _check_keys(records: list[Record]) -> None:
    sentence = "A compacted topic can't take a message without a key."
    wrong = tuple((index, sentence) for index, record in enumerate(records) if record.key is None)
    if wrong:
        raise AppendRefused(ErrorCode.INVALID_RECORD, sentence, wrong)


def _target_codec(config: LogConfig, header: BatchHeader) -> int:
    """The codec to store in. Control batches are never recompressed."""
    wanted = config.compression_type
    if wanted == "producer" or header.attributes & ATTRIBUTES_CONTROL:
        return header.compression
    return NONE if wanted == "uncompressed" else CODECS[wanted]


def _rebuild(header: BatchHeader, records: list[Record], codec: int, config: LogConfig) -> memoryview:
    level: int | None = None
    if codec == GZIP and config.compression_gzip_level >= 0:
        level = config.compression_gzip_level
    elif codec == LZ4:
        level = config.compression_lz4_level
    elif codec == ZSTD:
        level = config.compression_zstd_level
    for record in records:
        record.offset = -1  # offsets within the batch are dense again
    return memoryview(
        build_batch(
            records,
            compression=codec,
            compression_level=level,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
        )
    )


def _not_unpacked(error: CorruptRecords) -> AppendRefused:
    """A producer splits what is too large, if it can, and sends it again."""
    code = ErrorCode.MESSAGE_TOO_LARGE if isinstance(error, TooManyBytes) else ErrorCode.UNKNOWN_SERVER_ERROR
    return AppendRefused(code, f"The records can't be unpacked: {error}.")


def _invalid(sentence: str) -> AppendRefused:
    return AppendRefused(ErrorCode.INVALID_RECORD, sentence)


def _corrupt(sentence: str) -> AppendRefused:
    return AppendRefused(ErrorCode.CORRUPT_MESSAGE, sentence)
