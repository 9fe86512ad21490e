"""Compresses and decompresses record batches with Kafka's four codecs, with a bound on the decompressed size.

The names and numbers of codecs are Kafka's. `codecs.py`, which does the work, is imported with the first compressed
batch. Source: Compression.java, KIP-110.

Invariant: decompression never allocates more memory than `max_bytes`, whatever size the input claims.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.wire import Buffer

NONE = 0
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

_COMPRESSED: Final = ("gzip", "snappy", "lz4", "zstd")
NAMES: tuple[str, ...] = ("none", *_COMPRESSED)
"""Kafka's names, by codec number."""
CODECS: dict[str, int] = {name: number for number, name in enumerate(NAMES)}

UNPACKED_BYTES_MAX = 32 * 1024 * 1024
"""The default bound, for a broker. By default it accepts batches of 1 MB, the size that clients fill before
compressing."""
READER_BYTES_MAX = 128 * 1024 * 1024
"""The bound for a client, which delays no other clients and may read batches that a broker with larger limits
accepted."""


def codec_number(compression: str | int) -> int:
    """The codec number of a name or number. Raises ValueError."""
    if isinstance(compression, int):
        if not 0 <= compression < len(NAMES):
            raise ValueError(f"there is no compression codec {compression}")
        return compression
    if compression not in CODECS:
        raise ValueError(f"there is no compression codec {compression!r}; there are {', '.join(NAMES)}")
    return CODECS[compression]


def compress(codec: int, plain: Buffer, level: int | None = None) -> bytes:
    """`plain`, compressed as a Java producer would. `level` is the codec's own level (gzip, lz4, zstd). Raises
    ValueError."""
    if codec == NONE:
        return bytes(plain)
    if not 0 < codec < len(NAMES):
        raise ValueError(f"there is no compression codec {codec}")
    from ottla.protocol.records import codecs

    return codecs.pack(_COMPRESSED[codec - 1], plain, level)


def gzip_in_slices(plain: Buffer, level: int | None = None) -> Generator[None, None, bytes]:
    """`compress` with gzip, which takes several times as long as the other codecs. Yields after each slice of work."""
    from ottla.protocol.records import codecs

    return codecs.gzip_in_slices(plain, level)


def decompress(codec: int, packed: Buffer, max_bytes: int = UNPACKED_BYTES_MAX) -> bytes:
    """The decompressed bytes of `packed`. Raises the same errors as `unpack`."""
    return bytes(unpack(codec, packed, max_bytes))


def unpack(codec: int, packed: Buffer, max_bytes: int = UNPACKED_BYTES_MAX) -> bytes | bytearray:
    """The decompressed bytes of `packed`, without a copy.

    Raises TooManyBytesError if they exceed `max_bytes`, CorruptRecordsError if `packed` cannot be decompressed.
    """
    if codec == NONE:
        return bytes(packed)
    if not 0 < codec < len(NAMES):
        raise CorruptRecordsError(f"there is no compression codec {codec}")
    from ottla.protocol.records import codecs

    return codecs.unpack(_COMPRESSED[codec - 1], packed, max_bytes)
