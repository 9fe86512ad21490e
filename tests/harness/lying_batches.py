"""Batches whose header says what is not so."""

from struct import Struct

from ottla.protocol.records.batch import HEADER_BYTES, set_crc
from ottla.protocol.records.compression import compress
from ottla.protocol.records.record import Record, build_batch

_int32 = Struct(">i").pack_into


def claiming(count: int, body: bytes, *, codec: int = 0, timestamp_ms: int = 1) -> bytearray:
    """A batch with this body whose header claims so many records, under a good checksum."""
    batch = build_batch([Record(timestamp_ms=timestamp_ms, key=b"k", value=b"v")])
    packed = compress(codec, body) if codec else body
    batch[HEADER_BYTES:] = packed
    _int32(batch, 8, HEADER_BYTES - 12 + len(packed))
    batch[22] |= codec
    _int32(batch, 23, count - 1)
    _int32(batch, 57, count)
    set_crc(batch)
    return batch
