"""Loads `crc32c(data, crc=0)`, the CRC-32C of bytes, from the compiled part of the package of that name.

The package's own `__init__` imports importlib.metadata for its version, and with it email, zipfile and csv. That took a
sixth of the CPU of a node's start. A package without the compiled part is imported normally.

The function accepts memoryviews (google-crc32c needs bytes, which would copy the batch first).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder


def _load() -> Callable[..., int]:
    """The extension's function, without importing its package."""
    package = PathFinder.find_spec("crc32c")
    compiled = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations) if package else None
    if compiled is None or compiled.loader is None or (module := compiled.loader.create_module(compiled)) is None:
        from crc32c import crc32c

        return crc32c
    compiled.loader.exec_module(module)
    found: Callable[..., int] = module.crc32c
    return found


crc32c: Callable[..., int] = _load()
"""(data: bytes-like, crc: int = 0) -> int, unsigned."""
