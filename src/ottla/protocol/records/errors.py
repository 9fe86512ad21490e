"""Names what is wrong with records."""

from __future__ import annotations


class CorruptRecords(Exception):
    """Bytes that are no record batch, or records inside one that cannot be read."""


class UnsupportedMagic(CorruptRecords):
    """A message set of format 0 or 1, or a format newer than 2. Kafka 4 does not store them either (KIP-724)."""

    def __init__(self, magic: int) -> None:
        super().__init__(f"message format {magic} is not supported")
        self.magic = magic


class TooManyBytes(CorruptRecords):
    """Compressed records that would unpack to more than the bound."""


class TooManyParts(TooManyBytes):
    """More records and headers in one batch than are looked at."""
