"""The CRC-32C."""

from __future__ import annotations

from ottla.protocol.records.checksum import crc32c


def test_the_check_value_of_the_polynomial() -> None:
    """RFC 3720, appendix B.4, and the catalogues' check value; of a view, and of two parts."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytearray(32))) == 0x8A9136AA
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
