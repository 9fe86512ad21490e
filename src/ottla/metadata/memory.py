"""Keeps a metadata store in memory: the simulator's store, and the reference model of the one on disk.

It belongs to the simulated world and not to the node. A simulated crash discards the node and keeps this object, as a
disk would keep every commit that returned.
"""

from collections.abc import Sequence

from ottla.metadata.store import (
    CHANGES_MAX,
    Changes,
    ConflictError,
    Delete,
    Put,
    Versioned,
    VersionGuard,
    Write,
    check_batch,
)


class MemoryStore:
    """See `store.MetadataStore`."""

    __slots__ = ("_changed", "_floor", "_generation", "_rows", "lost", "place", "way_on")

    def __init__(self) -> None:
        self.place = "in memory"
        self.way_on = "Start over"
        self.lost = 0
        self._generation = self._floor = 0
        self._rows: dict[str, Versioned] = {}
        self._changed: dict[int, tuple[str, ...]] = {}

    @property
    def generation(self) -> int:
        return self._generation

    def get(self, key: str) -> Versioned | None:
        return self._rows.get(key)

    def get_many(self, keys: Sequence[str]) -> Sequence[Versioned | None]:
        return [self._rows.get(key) for key in keys]

    def list(self, prefix: str) -> Sequence[tuple[str, Versioned]]:
        return sorted((key, row) for key, row in self._rows.items() if key.startswith(prefix))

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        check_batch(writes)
        for item in (*guards, *writes):
            if item.expected is not None:
                row = self._rows.get(item.key)
                found = row.version if row else 0
                if found != item.expected:
                    raise ConflictError(item.key, item.expected, found)
        self._generation = max(self._generation, self._floor) + 1
        for write in writes:
            match write:
                case Put(key, value):
                    self._rows[key] = Versioned(bytes(value), self._generation)
                case Delete(key):
                    self._rows.pop(key, None)
        self._changed[self._generation] = tuple(sorted(write.key for write in writes))
        while (oldest := next(iter(self._changed))) <= self._generation - CHANGES_MAX:
            del self._changed[oldest]
        return self._generation

    def changes_since(self, generation: int) -> Changes | None:
        if not 0 <= generation <= self._generation:
            return None
        if generation < self._generation - CHANGES_MAX:
            return None
        keys: dict[str, None] = {}
        for at in range(generation + 1, self._generation + 1):
            for key in self._changed.get(at, ()):
                keys.pop(key, None)
                keys[key] = None
        return Changes(self._generation, tuple(keys))

    def rise(self, generation: int) -> None:
        self._floor = max(self._floor, generation)

    def close(self) -> None:
        """Nothing to close: the rows outlive the node."""
