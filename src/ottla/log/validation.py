"""Checks in detail a batch that the append path's quick check found unusual.

It has the reasons for which a broker refuses a batch, in Kafka's order and with Kafka's codes. It also has the three
rewrites that configs require: LogAppendTime, another compression, offsets.

A batch is decompressed and its records are walked only if they matter: for keys on compacted topics, for
`message.timestamp.before.max.ms` when it is set, and for recompression. One with more than PARTS_MAX records and
headers is then refused. Otherwise a batch stays opaque, and the timestamps in its header are believed. The records of a
large batch are walked in slices, and compressed in slices with gzip (`look_ahead`). Decompression, and compression with
another codec, is one step whatever the size.

Source: Kafka's LogValidator.java, UnifiedLog.analyzeAndValidateRecords, ProduceRequest.validateRecords.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from ottla.log.answers import AppendRefusedError, Origin
from ottla.log.config import LONG_MAX, LogConfig
from ottla.log.cost import BEYOND_USUAL
from ottla.machine import WallMillis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import (
    ATTRIBUTES_AT,
    ATTRIBUTES_CONTROL,
    ATTRIBUTES_LOG_APPEND_TIME,
    ATTRIBUTES_TRANSACTIONAL,
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
from ottla.protocol.records.compression import (
    CODECS,
    GZIP,
    LZ4,
    NONE,
    UNPACKED_BYTES_MAX,
    ZSTD,
    compress,
    gzip_in_slices,
    unpack,
)
from ottla.protocol.records.errors import CorruptRecordsError, TooManyBytesError
from ottla.protocol.records.outline import PARTS_MAX, outline_in_slices
from ottla.protocol.records.record import RECORD_BYTES_MIN, can_hold

LEGACY_RECORD_BYTES_MIN: Final = 14
LENGTH_AT: Final = 8
RECORDS_AT_ONCE: Final = 4_000
"""A batch with more records is decoded in slices, by `look_ahead`."""
RECORDS_NAMED_MAX: Final = 10_000
"""Maximum number of records of a batch that are reported as the faulty ones. For a larger batch whose header has a
wrong timestamp none is reported, because that would require decompressing it."""
GZIPPED_AT_ONCE: Final = 64 * 1024
"""A batch of more bytes is compressed with gzip in slices, by `look_ahead`; of one that another codec has compressed to
a PACKED_TO-th, or less, the same."""
PACKED_TO: Final = 8
BYTES_A_STEP: Final = 8192
"""Bytes that are decompressed in a step of `cost.Cost`; compressing them takes several times that."""
COMPRESSING: Final = 3
COMPRESSING_GZIP: Final = 16
RECORDS_A_STEP: Final = 12
_length_of = Struct(">i").unpack_from
_pack_length = Struct(">i").pack_into
_pack_attributes = Struct(">h").pack_into
_pack_timestamp = Struct(">q").pack_into


class Inside(NamedTuple):
    """The decoded records of a batch."""

    plain: bytes | bytearray
    timestamps: list[int]
    keyless: list[int]
    """Indexes of records without a key."""
    gzipped: tuple[int | None, bytes] | None = None
    """A compression level of gzip, and the records compressed with it."""


Known: TypeAlias = Inside | AppendRefusedError
"""The result of an earlier decoding of a batch: its records, or why they are refused."""


def is_looked_into(batch: memoryview, config: LogConfig, wall_ms: WallMillis) -> bool:
    """Whether `prepare_batch` would decode this batch of a client, according to its header."""
    header = peek(batch)
    out_of_range = not _is_in_range(header.max_timestamp, config, wall_ms) and header.record_count <= RECORDS_NAMED_MAX
    return out_of_range or _looks_inside(config, Origin.CLIENT) or _target_codec(config, header) != header.compression


def takes_slices(batch: memoryview, config: LogConfig) -> bool:
    """Whether decoding and rewriting this batch, as its topic's configs require, is too long for one slice."""
    header = peek(batch)
    if header.record_count > RECORDS_AT_ONCE:
        return True
    codec = _target_codec(config, header)
    bytes_max = GZIPPED_AT_ONCE if header.compression == NONE else GZIPPED_AT_ONCE // PACKED_TO
    return codec == GZIP != header.compression and len(batch) > bytes_max


def look_ahead(batch: memoryview, config: LogConfig) -> Generator[None, None, Known | None]:
    """Decode a client's batch that `is_looked_into`, in slices; None if `prepare_batch` refuses it earlier.

    The bytes must not change. The content of a record does not depend on configs, so these may change meanwhile.
    """
    if len(batch) < HEADER_BYTES:
        return None
    header = peek(batch)
    size = header.size_in_bytes
    is_whole = batch[MAGIC_AT] == MAGIC and HEADER_BYTES <= size <= min(len(batch), config.max_message_bytes)
    if not (is_whole and header.compression <= ZSTD and has_valid_crc(batch, 0, header)):
        return None
    batch = batch[:size]
    try:
        _check_client_header(header)
        _check_count(header)
    except AppendRefusedError:
        return None
    try:
        inside = yield from _look_inside(batch, header)
    except AppendRefusedError as refused:
        # Without the traceback, which would keep what the batch was unpacked to.
        return AppendRefusedError(refused.error_code, refused.sentence, refused.record_errors)
    if _target_codec(config, header) == GZIP != header.compression:
        level = _level(config, GZIP)
        yield
        inside = inside._replace(gzipped=(level, (yield from gzip_in_slices(inside.plain, level))))
    return inside


def prepare_batch(
    batch: memoryview, config: LogConfig, wall_ms: WallMillis, origin: Origin, known: Known | None = None
) -> memoryview:
    """The one batch in `batch`, checked and rewritten according to `config`; bytes behind it are dropped.

    Returns a writable view, of `batch` itself if possible. `known`: the result of `look_ahead`. Raises
    AppendRefusedError.
    """
    batch = _single_batch(batch)
    header = peek(batch)
    size = header.size_in_bytes
    if origin is Origin.CLIENT and header.base_offset != 0:
        raise _invalid(f"The base offset of a produced batch must be 0, not {header.base_offset}.")
    if size > config.max_message_bytes:
        raise AppendRefusedError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"A batch of {size} bytes exceeds max.message.bytes, {config.max_message_bytes}.",
        )
    if not has_valid_crc(batch, 0, header):
        raise _corrupt("The checksum of the batch does not match.")
    if header.compression > ZSTD:
        raise AppendRefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"There is no compression codec with the number {header.compression}."
        )
    if origin is Origin.CLIENT:
        _check_client_header(header)
        _check_count(header)
    codec = _target_codec(config, header)
    inside = None
    if codec != header.compression or _looks_inside(config, origin):
        inside = _inside(batch, header, known)
    elif origin is Origin.CLIENT and header.compression != NONE and header.record_count > size - HEADER_BYTES:
        _unpacked(batch, header)  # more records than bytes: hardly ever are they there
    _check_timestamps(batch, header, inside, config, wall_ms, known)
    if inside is not None and config.compacted and origin is Origin.CLIENT:
        _check_keys(inside)
    if inside is not None and codec != header.compression:
        batch = _recompressed(batch, header, inside, codec, config)
        if len(batch) > config.max_message_bytes:
            raise AppendRefusedError(
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
    """The end of the batch at `pos`, None if behind the view. Raises AppendRefusedError for a batch that is not of
    format 2."""
    (length,) = _length_of(view, pos + LENGTH_AT)
    if length < LEGACY_RECORD_BYTES_MIN:
        raise _corrupt(f"A batch of {length} bytes is smaller than any record.")
    magic = view[pos + MAGIC_AT]
    if magic in (0, 1):
        raise AppendRefusedError(
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


def _check_count(header: BatchHeader) -> None:
    """Check that the batch has room for this number of records."""
    if not can_hold(header):
        bytes_of_records = header.size_in_bytes - HEADER_BYTES
        raise _invalid(f"The batch reports {header.record_count} records in {bytes_of_records} bytes.")


def _unpacked(batch: memoryview, header: BatchHeader) -> bytes | bytearray:
    """The decompressed records, enough bytes for the number of records in the header."""
    try:
        plain = unpack(header.compression, batch[HEADER_BYTES:])
    except CorruptRecordsError as error:
        BEYOND_USUAL.steps += UNPACKED_BYTES_MAX // BYTES_A_STEP  # at most: the unpacked size is unknown
        raise _not_unpacked(error) from error
    BEYOND_USUAL.steps += len(plain) // BYTES_A_STEP
    if header.record_count * RECORD_BYTES_MIN > len(plain):
        raise _invalid(f"The batch reports {header.record_count} records in {len(plain)} bytes.")
    return plain


def _looks_inside(config: LogConfig, origin: Origin) -> bool:
    if origin is not Origin.CLIENT:
        return False
    return config.compacted or (
        config.message_timestamp_type == "CreateTime" and config.message_timestamp_before_max_ms != LONG_MAX
    )


def _inside(batch: memoryview, header: BatchHeader, known: Known | None) -> Inside:
    """The decoded records: the known result, or else the result of decoding all of them. Raises AppendRefusedError."""
    if isinstance(known, AppendRefusedError):
        raise known
    if known is not None:
        return known
    look = _look_inside(batch, header)
    while True:
        try:
            next(look)
        except StopIteration as done:
            return done.value


def _look_inside(batch: memoryview, header: BatchHeader) -> Generator[None, None, Inside]:
    if header.record_count > PARTS_MAX:
        raise AppendRefusedError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"A batch of {header.record_count} records; this topic's configs can be applied to {PARTS_MAX}.",
        )
    plain = _unpacked(batch, header)
    BEYOND_USUAL.steps += header.record_count // RECORDS_A_STEP
    try:
        deltas, keyless = yield from outline_in_slices(plain, header.record_count)
    except TooManyBytesError as error:
        raise _not_unpacked(error) from error
    except CorruptRecordsError as error:
        raise _invalid(f"The records can't be read: {error}.") from error
    if header.attributes & ATTRIBUTES_LOG_APPEND_TIME:
        return Inside(plain, [header.max_timestamp] * len(deltas), keyless)
    base = header.base_timestamp
    return Inside(plain, [base + delta for delta in deltas], keyless)


def _is_in_range(timestamp: int, config: LogConfig, wall_ms: WallMillis) -> bool:
    """Whether the topic's configs accept it; -1 is none."""
    lowest = wall_ms - config.message_timestamp_before_max_ms
    return (
        config.message_timestamp_type == "LogAppendTime"
        or timestamp == -1
        or lowest <= timestamp <= wall_ms + config.message_timestamp_after_max_ms
    )


def _check_timestamps(
    batch: memoryview,
    header: BatchHeader,
    inside: Inside | None,
    config: LogConfig,
    wall_ms: WallMillis,
    known: Known | None,
) -> None:
    if config.message_timestamp_type == "LogAppendTime":
        if header.attributes & ATTRIBUTES_LOG_APPEND_TIME:
            raise AppendRefusedError(
                ErrorCode.INVALID_TIMESTAMP, "Producers must not set the timestamp type to LogAppendTime."
            )
        return
    lowest = wall_ms - config.message_timestamp_before_max_ms
    highest = wall_ms + config.message_timestamp_after_max_ms
    if inside is None:
        if _is_in_range(header.max_timestamp, config, wall_ms):
            return
        if header.record_count > RECORDS_NAMED_MAX:
            raise AppendRefusedError(
                ErrorCode.INVALID_TIMESTAMP,
                f"The batch's timestamp {header.max_timestamp} is not within [{lowest}, {highest}].",
            )
        inside = _inside(batch, header, known)
    timestamps = inside.timestamps
    wrong = [at for at, each in enumerate(timestamps) if each != -1 and not lowest <= each <= highest]
    if wrong:
        named = tuple(
            (at, f"Timestamp {timestamps[at]} is not within [{lowest}, {highest}].") for at in wrong[:RECORDS_NAMED_MAX]
        )
        raise AppendRefusedError(ErrorCode.INVALID_TIMESTAMP, f"{len(wrong)} records have an invalid timestamp.", named)
    if not lowest <= header.max_timestamp <= highest:
        # Only the header is wrong: retention and lookups by time go by it, so it is put right, as Kafka does.
        _pack_timestamp(batch, MAX_TIMESTAMP_AT, max(inside.timestamps, default=-1))
        set_crc(batch)


def _check_keys(inside: Inside) -> None:
    sentence = "A compacted topic can't take a message without a key."
    wrong = tuple((index, sentence) for index in inside.keyless[:RECORDS_NAMED_MAX])
    if wrong:
        raise AppendRefusedError(ErrorCode.INVALID_RECORD, sentence, wrong)


def _target_codec(config: LogConfig, header: BatchHeader) -> int:
    """The codec to store in. Control batches are never recompressed."""
    wanted = config.compression_type
    if wanted == "producer" or header.attributes & ATTRIBUTES_CONTROL:
        return header.compression
    return NONE if wanted == "uncompressed" else CODECS[wanted]


def _recompressed(batch: memoryview, header: BatchHeader, inside: Inside, codec: int, config: LogConfig) -> memoryview:
    """The same records under another codec."""
    level = _level(config, codec)
    out = bytearray(batch[:HEADER_BYTES])
    if codec == GZIP and inside.gzipped is not None and inside.gzipped[0] == level:
        out += inside.gzipped[1]
    else:
        BEYOND_USUAL.steps += (COMPRESSING_GZIP if codec == GZIP else COMPRESSING) * len(inside.plain) // BYTES_A_STEP
        out += compress(codec, inside.plain, level)
    _pack_length(out, LENGTH_AT, len(out) - LOG_OVERHEAD_BYTES)
    _pack_attributes(out, ATTRIBUTES_AT, header.attributes & ATTRIBUTES_TRANSACTIONAL | codec)
    _pack_timestamp(out, MAX_TIMESTAMP_AT, max(inside.timestamps, default=-1))
    set_crc(out)
    return memoryview(out)


def _level(config: LogConfig, codec: int) -> int | None:
    """The level at which a topic's batches are compressed with this codec."""
    if codec == GZIP and config.compression_gzip_level >= 0:
        return config.compression_gzip_level
    if codec == LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == ZSTD else None


def _not_unpacked(error: CorruptRecordsError) -> AppendRefusedError:
    """The error for records that can't be unpacked. If they are too large, a producer splits the batch, if it can, and
    sends it again."""
    code = ErrorCode.MESSAGE_TOO_LARGE if isinstance(error, TooManyBytesError) else ErrorCode.UNKNOWN_SERVER_ERROR
    return AppendRefusedError(code, f"The records can't be unpacked: {error}.")


def _invalid(sentence: str) -> AppendRefusedError:
    return AppendRefusedError(ErrorCode.INVALID_RECORD, sentence)


def _corrupt(sentence: str) -> AppendRefusedError:
    return AppendRefusedError(ErrorCode.CORRUPT_MESSAGE, sentence)
