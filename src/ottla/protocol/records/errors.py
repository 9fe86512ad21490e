"""Names the errors of records."""

from __future__ import annotations


class CorruptRecordsError(Exception):
    """Bytes that are not a record batch, or that contain unreadable records."""


class UnsupportedMagicError(CorruptRecordsError):
    """A message set of format 0 or 1, or a format newer than 2. Kafka 4 does not store them either (KIP-724)."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"message format {magic} is not supported")
        self.magic = magic


class TooManyBytesError(CorruptRecordsError):
    """Compressed records whose decompressed size would exceed the bound."""


class TooManyPartsError(TooManyBytesError):
    """More records and headers in one batch than the broker examines."""
