"""Packs and unpacks the records of a batch with gzip, snappy, lz4 and zstd.

It supports the xerial framing of Java's snappy, raw snappy (which some clients send), and the lz4 frame format.
`compression.py` imports this module with the first compressed batch: the library takes 3 MB and milliseconds, and many
nodes never see one. Source: Compression.java, SnappyCompression.java.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct as Format
from typing import Literal, TypeAlias

import cramjam

from ottla.protocol.records.errors import CorruptRecordsError, TooManyBytesError
from ottla.protocol.wire import Buffer

Codec: TypeAlias = Literal["gzip", "snappy", "lz4", "zstd"]

_GZIP_SLICE = 64 * 1024
"""Bytes that are compressed in a slice: some 2 ms of work."""
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + Format(">ii").pack(1, 1)
_XERIAL_BLOCK = 32 * 1024
_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Magic; independent blocks without checksums; blocks of at most 64 KiB; the checksum of these two bytes."""
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_FIRST_GUESS_MIN = 64 * 1024
_FULL = "failed to write whole buffer"

_pack_int32 = Format(">i").pack
_unpack_int32 = Format(">i").unpack_from
_pack_lz4_length = Format("<I").pack
_unpack_size_at_end = Format("<I").unpack_from


def pack(codec: Codec, plain: Buffer, level: int | None) -> bytes:
    """`plain`, compressed."""
    match codec:
        case "gzip":
            return bytes(cramjam.gzip.compress(plain, level))
        case "snappy":
            return _compress_xerial(plain)
        case "lz4":
            return _compress_lz4(plain, level)
        case "zstd":
            return bytes(cramjam.zstd.compress(plain, level))


def gzip_in_slices(plain: Buffer, level: int | None = None) -> Generator[None, None, bytes]:
    """`pack` with gzip. Yields after each slice of work."""
    view, packer = memoryview(plain), cramjam.gzip.Compressor(level)
    for first in range(0, len(view), _GZIP_SLICE):
        if first:
            yield
        packer.compress(bytes(view[first : first + _GZIP_SLICE]))
    return bytes(packer.finish())


def unpack(codec: Codec, packed: Buffer, max_bytes: int) -> bytes | bytearray:
    """The decompressed bytes of `packed`. Raises TooManyBytesError and CorruptRecordsError."""
    try:
        match codec:
            case "gzip":
                return _grow(cramjam.gzip.decompress_into, packed, _gzip_size(packed), max_bytes)
            case "snappy":
                return _decompress_snappy(packed, max_bytes)
            case "lz4":
                return _grow(cramjam.lz4.decompress_into, packed, 4 * len(packed), max_bytes)
            case "zstd":
                return _grow(cramjam.zstd.decompress_into, packed, 4 * len(packed), max_bytes)
    except cramjam.DecompressionError as error:
        raise CorruptRecordsError(f"broken {codec} records: {error}") from error


def _gzip_size(packed: Buffer) -> int:
    """The size in gzip's trailer, modulo 4 GiB: a good first guess if the sender is honest."""
    return _unpack_size_at_end(packed, len(packed) - 4)[0] if len(packed) >= 18 else 0


def _grow(into: Callable[[Buffer, bytearray], int], packed: Buffer, guess: int, max_bytes: int) -> bytearray:
    """Decompress into a buffer that grows eightfold until it is large enough or reaches the bound."""
    size = min(max(guess, _FIRST_GUESS_MIN), max_bytes)
    while True:
        out = bytearray(size)
        try:
            length = into(packed, out)
        except cramjam.DecompressionError as error:
            if _FULL not in str(error):
                raise
            if size >= max_bytes:
                raise TooManyBytesError(f"the records unpack to more than {max_bytes} bytes") from error
            size = min(size * 8, max_bytes)
        else:
            del out[length:]
            return out


# ---- LZ4 -----------------------------------------------------------------------------------------------------------


def _compress_lz4(plain: Buffer, level: int | None) -> bytes:
    """An lz4 frame of independent blocks: Kafka's Java reader rejects linked blocks, which cramjam's frames have."""
    out = bytearray(_LZ4_HEADER)
    mode = None if level is None else "high_compression"
    with memoryview(plain) as view:
        for start in range(0, len(view), _LZ4_BLOCK):
            block = view[start : start + _LZ4_BLOCK]
            packed = cramjam.lz4.compress_block(block, mode=mode, compression=level, store_size=False)
            if len(packed) < len(block):
                out += _pack_lz4_length(len(packed))
                out += memoryview(packed)
            else:
                out += _pack_lz4_length(len(block) | _LZ4_STORED)
                out += block
    out += bytes(4)
    return bytes(out)


# ---- Snappy --------------------------------------------------------------------------------------------------------


def _compress_xerial(plain: Buffer) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    with memoryview(plain) as view:
        for start in range(0, len(view), _XERIAL_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
            out += _pack_int32(len(block))
            out += block
    return bytes(out)


def _decompress_snappy(packed: Buffer, max_bytes: int) -> bytes:
    view = memoryview(packed)
    if not view:
        raise CorruptRecordsError("broken snappy records: empty")
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _decompress_raw(view, max_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise CorruptRecordsError("broken snappy records: the framing is cut short")
    parts: list[bytes] = []
    left = max_bytes
    pos = len(_XERIAL_HEADER)
    while pos < len(view):
        if len(view) - pos < 4:
            raise CorruptRecordsError("broken snappy records: a block without its length")
        (length,) = _unpack_int32(view, pos)
        pos += 4
        if not 0 <= length <= len(view) - pos:
            raise CorruptRecordsError(
                f"broken snappy records: a block of {length} bytes where {len(view) - pos} remain"
            )
        parts.append(_decompress_raw(view[pos : pos + length], left))
        left -= len(parts[-1])
        pos += length
    return b"".join(parts)


def _decompress_raw(block: memoryview, max_bytes: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > max_bytes:
        raise TooManyBytesError(f"the records unpack to more than {max_bytes} bytes")
    out = bytearray(size)
    cramjam.snappy.decompress_raw_into(block, out)
    return bytes(out)
