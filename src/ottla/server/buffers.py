"""Lends receive buffers for frames that do not fit into one read.

A frame gets its memory as its bytes come, not on its word: while less than `FIRST_BYTES` of it are there, a buffer of
that size at most, later one of `GROWTH` times what has come. A buffer that was used before is backed by pages that are
already there, which saves 256 page faults a megabyte. So buffers come back here, in classes of powers of two, at most
`KEPT_BYTES_MAX` of them together. A fresh one is memory that the system has promised and not given: a page of it
becomes resident when bytes are written there.
"""

from __future__ import annotations

from mmap import MADV_NOHUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap

FIRST_BYTES = 1 << 15
GROWTH = 16
KEPT_BYTES_MAX = 32 << 20
SMALLEST_KEPT = 1 << 15


class Buffers:
    """A pool of writable buffers."""

    def __init__(self) -> None:
        self._kept: dict[int, list[memoryview]] = {}
        self._kept_bytes = 0

    def take(self, size: int, have: int) -> memoryview:
        """A writable view for a frame of `size` bytes of which `have` are there; shorter if it does not get all yet."""
        size = min(size, FIRST_BYTES if have < FIRST_BYTES else GROWTH * have)
        if size < SMALLEST_KEPT:
            return memoryview(bytearray(size))
        capacity = 1 << (size - 1).bit_length()
        if kept := self._kept.get(capacity):
            self._kept_bytes -= capacity
            return kept.pop()[:size]
        fresh = mmap(-1, capacity, MAP_PRIVATE | MAP_ANONYMOUS)
        fresh.madvise(MADV_NOHUGEPAGE)  # else the first byte may make two megabytes resident
        return memoryview(fresh)[:size]

    def give_back(self, view: memoryview) -> None:
        """The view that `take` gave is not used any more."""
        whole = memoryview(view.obj)
        capacity = len(whole)
        if capacity >= SMALLEST_KEPT and self._kept_bytes + capacity <= KEPT_BYTES_MAX:
            self._kept.setdefault(capacity, []).append(whole)
            self._kept_bytes += capacity
