"""Loads `crc32c(data, crc=0)`, the CRC-32C of bytes, from the compiled half of the package of that name.

The package's own `__init__` imports importlib.metadata to learn its version, and with it email, zipfile and csv: a
sixth of the CPU that the start of a node took. A package without that half is imported like any other.
It takes memoryviews as they are (google-crc32c wants bytes, which would copy the batch first).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _load() -> Callable[..., int]:
    """The extension's function, its package not imported."""
    package = PathFinder.find_spec("crc32c")
    compiled = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations) if package else None
    if compiled is None or compiled.loader is None:
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(compiled)
    compiled.loader.exec_module(module)
    found: Callable[..., int] = module.crc32c
    return found


crc32c: Callable[..., int] = _load()
"""(data: bytes-like, crc: int = 0) -> int, unsigned."""
