"""Receive buffers for frames that do not fit into one read.

A buffer that was used before is backed by pages that are already there; a fresh one of a megabyte costs 256 page
faults. So buffers come back here, in classes of powers of two, at most `KEPT_BYTES_MAX` of them together.
"""

KEPT_BYTES_MAX = 32 << 20
SMALLEST_KEPT = 1 << 15


class Buffers:
    """A pool of writable buffers."""

    def __init__(self) -> None:
        self._kept: dict[int, list[memoryview]] = {}
        self._kept_bytes = 0

    def take(self, size: int) -> memoryview:
        """A writable view of exactly `size` bytes."""
        if size < SMALLEST_KEPT:
            return memoryview(bytearray(size))
        capacity = 1 << (size - 1).bit_length()
        kept = self._kept.get(capacity)
        if kept:
            self._kept_bytes -= capacity
            return kept.pop()[:size]
        return memoryview(bytearray(capacity))[:size]

    def give_back(self, view: memoryview) -> None:
        """The view that `take` gave is not used any more."""
        whole = memoryview(view.obj)
        capacity = len(whole)
        if capacity >= SMALLEST_KEPT and self._kept_bytes + capacity <= KEPT_BYTES_MAX:
            self._kept.setdefault(capacity, []).append(whole)
            self._kept_bytes += capacity
