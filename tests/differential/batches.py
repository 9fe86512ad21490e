"""Record batches built and read by hand, right or wrong on purpose.

Deliberately not `ottla.protocol.records`: the differential tests must be able to break any header field, and must not
share a mistake with the code they test. Source: Kafka's DefaultRecordBatch, DefaultRecord and LegacyRecord layouts.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import cramjam
import google_crc32c

T0 = 1_700_000_000_000
"""The timestamp of records that do not say another: fixed, so that it can stand in a transcript."""

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_LINKED_LZ4 = {"lz4-linked": 3}
_HEAD = struct.Struct(">qiibI")
_BODY = struct.Struct(">hiqqqhii")


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(value: bytes | str | None) -> bytes:
    if value is None:
        return varint(-1)
    value = value.encode() if isinstance(value, str) else value
    return varint(len(value)) + value


def record(
    delta: int,
    value: bytes | str | None,
    key: bytes | str | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    timestamp_delta: int = 0,
) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(delta) + _field(key) + _field(value) + varint(len(headers))
    for name, content in headers:
        body += _field(name) + _field(content)
    return varint(len(body)) + body


def compress(codec: str, raw: bytes) -> bytes:
    match codec:
        case "gzip":
            return gzip.compress(raw, mtime=0)
        case "snappy":
            return _xerial(raw)
        case "lz4":
            return compress_lz4(raw)
        case "lz4-linked":
            return bytes(cramjam.lz4.compress(raw))
        case "zstd":
            return bytes(cramjam.zstd.compress(raw))
        case _:
            return raw


def compress_lz4(raw: bytes) -> bytes:
    """One frame with one independent block: Kafka refuses the linked blocks that `cramjam.lz4.compress` makes."""
    block = bytes(cramjam.lz4.compress_block(raw, store_size=False))
    return b"\x04\x22\x4d\x18\x60\x40\x82" + struct.pack("<I", len(block)) + block + bytes(4)


def _xerial(raw: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(raw))
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(block)) + block


def decompress(codec: int, raw: bytes) -> bytes:
    match codec:
        case 1:
            return gzip.decompress(raw)
        case 2 if raw[:8] == b"\x82SNAPPY\x00":
            out, pos = b"", 16
            while pos < len(raw):
                (size,) = struct.unpack_from(">i", raw, pos)
                out += bytes(cramjam.snappy.decompress_raw(raw[pos + 4 : pos + 4 + size]))
                pos += 4 + size
            return out
        case 2:
            return bytes(cramjam.snappy.decompress_raw(raw))
        case 3:
            return bytes(cramjam.lz4.decompress(raw))
        case 4:
            return bytes(cramjam.zstd.decompress(raw))
        case _:
            return raw


def batch(
    *values: bytes | str | bytearray | None,
    codec: str = "none",
    records: Sequence[bytes] | None = None,
    base_offset: int = 0,
    timestamp: int = T0,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    magic: int = 2,
    attributes: int = 0,
    count: int | None = None,
    last_offset_delta: int | None = None,
    leader_epoch: int = -1,
    crc: int | None = None,
    length_off_by: int = 0,
    payload: bytes | None = None,
    key: bytes | str | None = b"k",
) -> bytes:
    """One v2 batch of `values` (or of `records`, ready made); every header field can be made wrong.

    `producer` is (producer id, epoch, base sequence). `payload` replaces the encoded records as they are.
    """
    made = [record(i, v, key) for i, v in enumerate(values)] if records is None else list(records)
    n = len(made)
    raw = compress(codec, b"".join(made)) if payload is None else payload
    body = _BODY.pack(
        attributes | (CODECS | _LINKED_LZ4)[codec],
        n - 1 if last_offset_delta is None else last_offset_delta,
        timestamp,
        timestamp if max_timestamp is None else max_timestamp,
        *producer,
        n if count is None else count,
    )
    body += raw
    checksum = google_crc32c.value(body) if crc is None else crc
    return _HEAD.pack(base_offset, len(body) + 9 + length_off_by, leader_epoch, magic, checksum) + body


def message_set(*values: str | bytes, magic: int = 1) -> bytes:
    """A message set of the formats before Kafka 0.11 (magic 0 and 1)."""
    out = b""
    for offset, value in enumerate(values):
        value = value.encode() if isinstance(value, str) else value
        body = struct.pack(">bb", magic, 0) + (struct.pack(">q", T0) if magic else b"")
        body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
        out += struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body
    return out


def read(data: bytes | memoryview | None) -> list[dict[str, Any]] | None:
    """Every whole batch in `data` as plain values, for the transcript; a torn last batch is left out."""
    if data is None:
        return None
    data, pos, found = bytes(data), 0, []
    while pos + 61 <= len(data):
        base, length, epoch, magic, crc = _HEAD.unpack_from(data, pos)
        end = pos + 12 + length
        if end > len(data):
            break
        attributes, last_delta, first, last, pid, pepoch, sequence, count = _BODY.unpack_from(data, pos + 21)
        entry: dict[str, Any] = {
            "base_offset": base,
            "last_offset": base + last_delta,
            "leader_epoch": epoch,
            "magic": magic,
            "crc_is_right": google_crc32c.value(data[pos + 21 : end]) == crc,
            "attributes": attributes,
            "base_timestamp": first,
            "max_timestamp": last,
        }
        if pid != -1:
            entry |= {"producer_id": pid, "producer_epoch": pepoch, "base_sequence": sequence}
        try:
            entry["records"] = _records(decompress(attributes & 7, data[pos + 61 : end]), base, count)
        except Exception:
            entry["records"] = "can't be read"
        found.append(entry)
        pos = end
    return found


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7


def _text(data: bytes, pos: int) -> tuple[str | None, int]:
    size, pos = _varint(data, pos)
    if size < 0:
        return None, pos
    content = data[pos : pos + size]
    shown = (
        content.decode("utf-8", "backslashreplace") if size <= 60 else f"<{size} bytes, crc {zlib.crc32(content):08x}>"
    )
    return shown, pos + size


def _records(data: bytes, base: int, count: int) -> list[Any]:
    out: list[Any] = []
    pos = 0
    for _ in range(count):
        _, pos = _varint(data, pos)
        timestamp_delta, pos = _varint(data, pos + 1)
        delta, pos = _varint(data, pos)
        key, pos = _text(data, pos)
        value, pos = _text(data, pos)
        n, pos = _varint(data, pos)
        headers: list[Any] = []
        for _ in range(n):
            name, pos = _text(data, pos)
            content, pos = _text(data, pos)
            headers.append([name, content])
        line: list[Any] = [base + delta, timestamp_delta, key, value]
        out.append([*line, headers] if headers else line)
    return out
