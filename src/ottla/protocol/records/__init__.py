"""Record batches, format 2: headers, records, control records, compression."""

from ottla.protocol.records.batch import (
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    crc_of,
    has_valid_crc,
    iter_batches,
    magic_of,
    peek,
    set_crc,
    stamp,
    stamp_log_append_time,
)
from ottla.protocol.records.errors import CorruptRecordsError, TooManyBytesError, UnsupportedMagicError
from ottla.protocol.records.record import Record, build_batch, decode_records

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "BatchHeader",
    "CorruptRecordsError",
    "Record",
    "TooManyBytesError",
    "UnsupportedMagicError",
    "build_batch",
    "crc_of",
    "decode_records",
    "has_valid_crc",
    "iter_batches",
    "magic_of",
    "peek",
    "set_crc",
    "stamp",
    "stamp_log_append_time",
]
