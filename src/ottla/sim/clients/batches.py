"""Encodes and decodes record batches for the workload: format v2, implemented a second time from its description.

It deliberately shares no code with the broker: a mistake in `ottla.protocol.records` must not hide itself from the
checkers. It supports uncompressed and gzip batches. Reading raises InvariantError where a client would have to give up.

Source: Kafka's documentation, "Record Batch"; KIP-98.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ottla.protocol.records.checksum import crc32c
from ottla.sim.kernel.trace import InvariantError

_HEAD = struct.Struct(">qiibI")
_BODY = struct.Struct(">hiqqqhii")
_GZIP = 1
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_COMMIT = b"\0\1"
"""The type of a marker, in the second half of its key."""


@dataclass(frozen=True, slots=True)
class Note:
    """One record as a client reads it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One batch as a client reads it. A control batch has no notes; `commits` says how a transaction ends with it."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    notes: tuple[Note, ...]
    transactional: bool = False
    commits: bool | None = None


def _write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _write_bytes(out: bytearray, octets: bytes | None) -> None:
    if octets is None:
        _write_varint(out, -1)
    else:
        _write_varint(out, len(octets))
        out += octets


def encode_batch(
    notes: Sequence[tuple[bytes | None, bytes | None]],
    now_ms: int,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    gzip: bool = False,
    transactional: bool = False,
) -> bytes:
    """A batch of (key, value) pairs, all stamped `now_ms`."""
    records = bytearray()
    for delta, (key, value) in enumerate(notes):
        record = bytearray(b"\x00")
        _write_varint(record, 0)
        _write_varint(record, delta)
        _write_bytes(record, key)
        _write_bytes(record, value)
        record.append(0)
        _write_varint(records, len(record))
        records += record
    payload = _gzip(bytes(records)) if gzip else bytes(records)
    body = (
        _BODY.pack(
            (_GZIP if gzip else 0) | (_TRANSACTIONAL if transactional else 0),
            len(notes) - 1,
            now_ms,
            now_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            len(notes),
        )
        + payload
    )
    return _HEAD.pack(0, 9 + len(body), -1, 2, crc32c(body)) + body


def _gzip(octets: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(octets) + packer.flush()


class CorruptError(InvariantError):
    """A batch does not match its checksum, or no batch begins at its place: bytes were changed."""


def decode_batches(octets: bytes) -> list[ReadBatch]:
    """Every whole batch in a fetch answer; a last one that is cut off is left out, as clients do."""
    batches: list[ReadBatch] = []
    at = 0
    while at + 61 <= len(octets):
        end = at + 12 + int.from_bytes(octets[at + 8 : at + 12], "big", signed=True)
        if end > len(octets):
            break
        if end < at + 61:
            raise CorruptError(f"a batch of {end - at} bytes is shorter than its header")
        batches.append(_decode_batch(octets[at:end]))
        at = end
    return batches


@lru_cache(maxsize=4096)
def _decode_batch(octets: bytes) -> ReadBatch:
    base_offset, length, leader_epoch, magic, crc = _HEAD.unpack_from(octets)
    if magic != 2:
        raise CorruptError(f"a batch with magic {magic} and length {length} at offset {base_offset}")
    if crc32c(octets[21:]) != crc:
        raise CorruptError(f"the batch at offset {base_offset} does not match its CRC")
    attributes, last_delta, base_ms, _, producer_id, epoch, sequence, count = _BODY.unpack_from(octets, 21)
    payload = octets[61:]
    if attributes & 7 == _GZIP:
        payload = zlib.decompress(payload, 31)
    elif attributes & 7:
        raise InvariantError(f"a codec that nobody wrote with: {attributes & 7}")
    notes = _decode_notes(payload, count, base_offset, base_ms)
    if notes and notes[-1].offset > base_offset + last_delta:
        raise InvariantError(f"the batch at offset {base_offset} holds a record beyond its end")
    commits: bool | None = None
    if attributes & _CONTROL:
        commits = (notes[0].key or b"")[2:4] == _COMMIT if notes else None
        notes = ()
    transactional = bool(attributes & _TRANSACTIONAL)
    end = base_offset + last_delta
    return ReadBatch(base_offset, end, leader_epoch, producer_id, epoch, sequence, notes, transactional, commits)


def _decode_notes(payload: bytes, count: int, base_offset: int, base_ms: int) -> tuple[Note, ...]:
    notes: list[Note] = []
    at = 0
    for _ in range(count):
        length, at = _read_varint(payload, at)
        end = at + length
        delta_ms, at = _read_varint(payload, at + 1)
        delta, at = _read_varint(payload, at)
        key, at = _read_bytes(payload, at)
        value, at = _read_bytes(payload, at)
        notes.append(Note(base_offset + delta, base_ms + delta_ms, key, value))
        at = end
    if at != len(payload):
        raise InvariantError(f"{len(payload) - at} bytes too many in the batch at offset {base_offset}")
    return tuple(notes)


def _read_varint(octets: bytes, at: int) -> tuple[int, int]:
    byte = octets[at]
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = octets[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), at


def _read_bytes(octets: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(octets, at)
    if length < 0:
        return None, at
    return octets[at : at + length], at + length
