"""Lends receive buffers for frames that do not fit into one read.

A frame gets memory as its bytes arrive, not according to the length that it announces. While fewer than `FIRST_BYTES`
have arrived, the buffer has at most that size. Later it has at most `GROWTH` times the bytes received.

The pages of a used buffer are already resident, which saves 256 page faults a megabyte. Buffers are therefore returned
to a pool, in size classes of powers of two, with at most `KEPT_BYTES_MAX` in total. A fresh buffer is only reserved
memory: each page becomes resident when the first byte is written to it.
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
        """A writable view for a frame of `size` bytes, of which `have` have arrived. It is shorter than `size` until
        enough of the frame has arrived."""
        size = min(size, FIRST_BYTES if have < FIRST_BYTES else GROWTH * have)
        if size < SMALLEST_KEPT:
            return memoryview(bytearray(size))
        capacity = 1 << (size - 1).bit_length()
        if kept := self._kept.get(capacity):
            self._kept_bytes -= capacity
            return kept.pop()[:size]
        fresh = mmap(-1, capacity, MAP_PRIVATE | MAP_ANONYMOUS)
        fresh.madvise(MADV_NOHUGEPAGE)  # otherwise the first byte may make two megabytes resident
        return memoryview(fresh)[:size]

    def give_back(self, view: memoryview) -> None:
        """Return a view from `take` that is no longer used."""
        whole = memoryview(view.obj)
        capacity = len(whole)
        if capacity >= SMALLEST_KEPT and self._kept_bytes + capacity <= KEPT_BYTES_MAX:
            self._kept.setdefault(capacity, []).append(whole)
            self._kept_bytes += capacity
