"""Keeps deadlines by name, for machines that have many of them and move them often.

Moving a deadline later (as each heartbeat does with a session) costs one dict write: the heap keeps the earlier entry,
and corrects it when that entry is due. A deadline that is cancelled, or moved to an earlier time, leaves a stale entry.
When most entries are stale, the heap is rebuilt without them.

Invariants: every key in `_due` has an entry `(queued, key)` in the heap with `queued <= due`. After `set`, a heap of
more than `_SWEPT_FROM` entries has at most two per key.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final, Generic, TypeVar

from ottla.machine import Millis

KeyT = TypeVar("KeyT", bound=Hashable)

_SWEPT_FROM: Final = 64
"""The number of entries from which on stale ones are swept."""


class Timers(Generic[KeyT]):
    """Deadlines by key. Keys must be comparable: deadlines at the same time are returned in the order of their keys."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[KeyT, tuple[Millis, Millis]] = {}
        self._heap: list[tuple[Millis, Any]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._due

    def at(self, key: KeyT) -> Millis | None:
        """When this key is due; None if it has no deadline."""
        known = self._due.get(key)
        return None if known is None else known[0]

    def set(self, key: KeyT, due: Millis) -> None:
        """Set or move a deadline."""
        known = self._due.get(key)
        if known is not None and known[1] <= due:
            self._due[key] = (due, known[1])
        else:
            self._due[key] = (due, due)
            heappush(self._heap, (due, key))
            if len(self._heap) > _SWEPT_FROM:
                self._sweep()

    def _sweep(self) -> None:
        """Rebuild the heap if most of its entries are stale."""
        if len(self._heap) > 2 * len(self._due):
            self._heap = [(queued, key) for key, (_, queued) in self._due.items()]
            heapify(self._heap)

    def cancel(self, key: KeyT) -> None:
        self._due.pop(key, None)

    def deadline(self) -> Millis | None:
        """The earliest deadline; None if there is none."""
        heap, due = self._heap, self._due
        while heap:
            queued, key = heap[0]
            known = due.get(key)
            if known is None or known[1] != queued:
                heappop(heap)
            elif known[0] > queued:
                due[key] = (known[0], known[0])
                heapreplace(heap, (known[0], key))
            else:
                return queued
        return None

    def pop(self, now: Millis) -> KeyT | None:
        """Remove and return the earliest key that is due at `now`; None if nothing is due."""
        heap = self._heap
        if not heap or heap[0][0] > now:
            return None
        deadline = self.deadline()
        if deadline is None or deadline > now:
            return None
        key: KeyT = heappop(heap)[1]
        del self._due[key]
        return key

    def check(self) -> None:
        entries = set(self._heap)
        for key, (due, queued) in self._due.items():
            assert queued <= due, f"{key}: queued at {queued}, due at {due}"
            assert (queued, key) in entries, f"{key} is due at {due} but not queued"
