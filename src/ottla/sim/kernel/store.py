"""Simulates the metadata store: durable with every commit, and remote for the I/O host.

`SimStore` is the store itself; a node uses it directly at its start and its clean stop. The I/O host uses `FarStore`
for a node's commits while it serves clients. These take a while, other writers may precede them, and answers may be
lost.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import Changes, CommitUnknownError, Put, StoreError, Versioned, VersionGuard, Write
from ottla.sim.kernel.clock import Micros
from ottla.sim.kernel.disk import Disk

STORE_ROW_BYTES = 200
"""Approximate disk space of a commit."""


class StoreCopy(NamedTuple):
    """A backup of the store. `changed`: the keys of its newest commits."""

    generation: int
    rows: Mapping[str, Versioned]
    changed: Mapping[int, tuple[str, ...]]


class SimStore(MemoryStore):
    """A store whose power may fail before a commit or right after it, and whose commits fail if the disk fails."""

    __slots__ = ("disk",)

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        self.disk.burn()
        if self.disk.room(STORE_ROW_BYTES) < STORE_ROW_BYTES or self.disk.draws_sync_failure():
            raise StoreError("the metadata store can't be written: the simulated disk is not well")
        generation = super().commit(writes, guards)
        self.disk.burn()
        return generation

    def commit_above(self, generation: int, writes: Sequence[Write], guards: Sequence[VersionGuard]) -> int:
        """Commit with a number above this one: that of the process alone which calls `rise`."""
        self._floor = generation
        try:
            return self.commit(writes, guards)
        finally:
            self._floor = 0

    def back_up(self) -> StoreCopy:
        """Copy all rows."""
        return StoreCopy(self._generation, dict(self._rows), dict(self._changed))

    def restore(self, copy: StoreCopy) -> None:
        """Replace all rows by those of a backup, while no node uses the store."""
        self._generation, self._rows, self._changed = copy.generation, dict(copy.rows), dict(copy.changed)


class FarStore:
    """A `MetadataStore` that forwards to `store`, with faults on the path.

    `latency_max_us`: maximum latency of one direction. `lost_answers`: share of commits whose answer is lost, done or
    not. `rivals`: share of commits before which another writer writes one of their rows. `is_cut`: no call gets
    through.
    """

    def __init__(self, store: SimStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self.place = store.place
        self.way_on = store.way_on
        self.lost = 0
        self._floor = 0
        self.latency_max_us: Micros = 0
        self.lost_answers = 0.0
        self.rivals = 0.0
        self.is_cut = False
        self.made_by_rivals: Counter[str] = Counter()
        """Rows that did not exist before another writer wrote them, by key."""

    def latency(self, at_most_us: Micros) -> Micros:
        """Draw the latency of the next call; at most `at_most_us` without faults."""
        return self._rng.randrange(50, max(at_most_us, self.latency_max_us))

    def heal(self) -> None:
        """End all faults."""
        self.latency_max_us, self.lost_answers, self.rivals, self.is_cut = 0, 0.0, 0.0, False

    @property
    def generation(self) -> int:
        return self._store.generation

    def get(self, key: str) -> Versioned | None:
        self._reach()
        return self._store.get(key)

    def get_many(self, keys: Sequence[str]) -> Sequence[Versioned | None]:
        return self._store.get_many(keys)

    def list(self, prefix: str) -> Sequence[tuple[str, Versioned]]:
        return self._store.list(prefix)

    def changes_since(self, generation: int) -> Changes | None:
        self._reach()
        return self._store.changes_since(generation)

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        self._reach()
        if self.rivals and self._rng.random() < self.rivals:
            self._rival(writes)
        if not self.lost_answers or self._rng.random() >= self.lost_answers:
            return self._commit(writes, guards)
        if self._rng.random() < 0.5:
            self._commit(writes, guards)
        raise CommitUnknownError("the answer of the metadata store was lost")

    def _commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard]) -> int:
        if self._floor:
            return self._store.commit_above(self._floor, writes, guards)
        return self._store.commit(writes, guards)

    def rise(self, generation: int) -> None:
        self._floor = max(self._floor, generation)

    def reopen(self) -> None:
        """A new process uses this path."""
        self.lost = self._floor = 0

    def _reach(self) -> None:
        if self.is_cut:
            raise StoreError("the metadata store can't be reached")

    def _rival(self, writes: Sequence[Write]) -> None:
        """Let another node write one of these rows: with its current value, or with the new one if it does not
        exist."""
        bound = [write for write in writes if write.expected is not None]
        if bound:
            write = self._rng.choice(bound)
            row = self._store.get(write.key)
            if row is not None:
                MemoryStore.commit(self._store, [Put(write.key, row.value)])
            elif isinstance(write, Put):
                MemoryStore.commit(self._store, [Put(write.key, self.by_rival(write))])
                self.made_by_rivals[write.key] += 1

    def by_rival(self, write: Put) -> bytes:
        """The value that another writer gives to the missing row that this node is about to write."""
        return write.value

    def close(self) -> None:
        """Nothing to close."""
