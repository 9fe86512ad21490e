"""The CRC-32C: what it gives, and that loading it stays cheap."""

from __future__ import annotations

import subprocess
import sys

from ottla.protocol.records.checksum import crc32c


def test_the_check_value_of_the_polynomial() -> None:
    """RFC 3720, appendix B.4, and the catalogues' check value; of a view, and of two parts."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytearray(32))) == 0x8A9136AA
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_a_node_starts_without_what_it_does_not_use() -> None:
    """Every module here took milliseconds of each start (importlib.metadata and what comes with it: 20 to 30)."""
    code = "import sys, ottla.cli.serve, ottla.server.main; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        check=True,
        text=True,
    )
    assert not {"importlib.metadata", "email", "zipfile", "tempfile", "pathlib", "hashlib"} & set(loaded.stdout.split())
