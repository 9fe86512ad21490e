"""Defines a metadata store: a small ordered map whose atomic batches of writes are checked against versions.

A store has keys, bytes and versions. Single-key compare-and-set would be too weak, because the version of *another* key
must stop a zombie controller. So `commit` accepts any number of writes and guards, and does all or nothing.

Invariants:
- `generation` starts at 0 and rises with every commit, by one except after `rise`. It never repeats, even across a
  crash. A store that was restored from a backup counts from the backup's generation (see `metadata.history`).
- A key's version is the generation that last wrote it. So a key that was deleted and created again never has an old
  version, and no caller can mistake the new key for the one that it read.
- A commit that returned is durable.

The implementations are `memory.MemoryStore`, `sqlite.SqliteStore` and `zookeeper.store.ZooKeeperStore`; tests/metadata
compares them. ZooKeeper's multi and SQLite's BEGIN IMMEDIATE can both provide this interface.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

ABSENT: Final = 0
"""As an expected version: the key must not exist."""

CHANGES_MAX: Final = 1000
"""Generations whose changed keys a store remembers; a reader further behind reads everything again."""


class Versioned(NamedTuple):
    """A value and the generation that wrote it."""

    value: bytes
    version: int


class Put(NamedTuple):
    """Write `value`. `expected`: None for any state, ABSENT for no such key, otherwise the version it must have."""

    key: str
    value: bytes
    expected: int | None = None


class Delete(NamedTuple):
    """Remove the key. Removing an absent key is no error unless `expected` requires the key."""

    key: str
    expected: int | None = None


class VersionGuard(NamedTuple):
    """A key that is only checked: the batch needs it to have this version (ABSENT: not to exist)."""

    key: str
    expected: int


Write: TypeAlias = Put | Delete
_T = TypeVar("_T")


class ConflictError(Exception):
    """A key was not at the version a write or guard expected; nothing was written."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(f"{key} is at version {found}, not {expected}")
        self.key = key
        self.expected = expected
        self.found = found


class StoreError(Exception):
    """The store can't be read or written (disk full, file damaged, locked too long): one sentence why.

    What failed so was not done, and will not be.
    """


class CommitUnknownError(Exception):
    """The outcome of a commit is unknown, because its answer was lost. It may be committed, so this is not a
    StoreError."""


class StoreBusyError(StoreError):
    """Another process has the store locked: the same call may succeed soon."""


class StoreDamagedError(StoreError):
    """The stored data differs from what was written."""


class StoreGoneError(StoreError):
    """The store that was opened no longer exists: another one, or none, is in its place."""


class Changes(NamedTuple):
    """Keys written or removed after some generation, each once, by their last write, then by name.

    `generation` is the newest one covered.
    """

    generation: int
    keys: tuple[str, ...]


class MetadataStore(Protocol):
    """Any store raises StoreError if its medium fails.

    `place` is its address in sentences, and `way_on` the remedy if it is damaged. `lost` counts commits that the medium
    has lost, as far as that is known.
    """

    place: str
    way_on: str
    lost: int

    @property
    def generation(self) -> int:
        """The number of the newest commit; 0 for an empty store."""
        ...

    def get(self, key: str) -> Versioned | None: ...

    def get_many(self, keys: Sequence[str]) -> Sequence[Versioned | None]:
        """The current value and version of each of these keys, in their order."""
        ...

    def list(self, prefix: str) -> Sequence[tuple[str, Versioned]]:
        """Every key that starts with `prefix`, in the order of the keys' code points. The result may contain any part
        of a concurrent commit. A caller that needs a consistent snapshot compares the generation before and after."""
        ...

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        """Do all writes or none; returns the new generation. Raises ConflictError, and CommitUnknownError if the store
        is not on this machine. A batch may write a key once."""
        ...

    def changes_since(self, generation: int) -> Changes | None:
        """The keys changed after `generation`; None if that is too long ago (the caller must read everything again)."""
        ...

    def rise(self, generation: int) -> None:
        """Make this object's next commits have numbers above this generation, which the store once had. Commits of
        other processes are numbered above the first of these."""
        ...

    def close(self) -> None: ...


def decoded(store: MetadataStore, key: str, decode: Callable[[bytes], _T], value: bytes) -> _T:
    """The decoded value of a key. Raises StoreDamagedError if `decode` fails.

    Values have checksums. But a value that was damaged before a store of format 1 got its checksums has a valid
    checksum and invalid content.
    """
    try:
        return decode(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreDamagedError(
            f"the value of {key} in the metadata store {store.place} can't be read ({error}). {store.way_on}"
        ) from error


def check_batch(writes: Sequence[Write]) -> None:
    """Check for two writes of one key in a batch, which are a bug of the caller."""
    keys = [write.key for write in writes]
    assert len(set(keys)) == len(keys), f"a key is written twice in one batch: {sorted(keys)}"
