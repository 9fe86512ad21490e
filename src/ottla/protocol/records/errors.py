"""Names the errors of records."""

from __future__ import annotations


class CorruptRecords(Exception):
    """Bytes that are not a record batch, or that contain unreadable records."""


class UnsupportedMagic(CorruptRecords):
    """A message set of format 0 or 1, or a format newer than 2. Kafka 4 does not store them either (KIP-724)."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"message format {magic} is not supported")
        self.magic = magic


class TooManyBytes(CorruptRecords):
    """Compressed records whose decompressed size would exceed the bound."""


class TooManyParts(TooManyBytes):
    """More records and headers in one batch than the broker examines."""
