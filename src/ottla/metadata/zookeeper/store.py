"""Keeps the metadata store of a cluster in ZooKeeper, shared by nodes of any machines.

    ROOT/rows/...              a znode for each key (rows.py)
    ROOT/generation            GENERATION OLDEST [BATCH PARTS]: the newest commit, the oldest whose keys are known
    ROOT/changes/GENERATION    the keys that a commit wrote, for the last CHANGES_MAX of them
    ROOT/batches/...           rows of a commit that were too many for one transaction (batches.py)
    ROOT/moving                a move of another store to this place is unfinished (moving.py)
    ROOT/ids/...               the live nodes (server/zookeeper_presence.py)

A commit reads the generation and the rows that it has expectations of. It is one transaction that names the version of
the znode `generation`. If another node has committed since, the transaction fails as a whole, and the commit starts
again. So commits are serialized, and what a commit read is still true when it is done, even if the server was behind.

The keys of a commit are in a znode of their own and not in `generation`. So a commit writes only its own keys and not
those of recent commits again, and a node may be 1,000 commits behind without reading everything again.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from ottla.metadata.store import (
    CHANGES_MAX,
    Changes,
    CommitUnknownError,
    ConflictError,
    Delete,
    Put,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreGoneError,
    Versioned,
    VersionGuard,
    Write,
    check_batch,
)
from ottla.metadata.zookeeper import batches
from ottla.metadata.zookeeper.batches import RowWrite, Staged, operation, size_of
from ottla.metadata.zookeeper.rows import BYTES_MAX, decoded, encoded, key_of, may_hold, path_of
from ottla.metadata.zookeeper.session import Check, ConcurrentWriteError, Create, Operation, Remove, Session, Set, Znode

WAY_ON: Final = "Restore ZooKeeper's data from a backup, or stop all nodes and remove everything below this place"
AGAIN: Final = "Start the node again: it finds out what is missing, and reports that to the cluster"
"""The remedy if ZooKeeper was restored while this node ran."""
MOVING: Final = "moving"
TRIES_S: Final = 5.0
"""Seconds for which a commit is retried while other commits are faster."""
KEYS_BYTES_MAX: Final = 100_000
UNKNOWN_KEYS: Final = b"null"
"""Replaces the list of keys of a commit that has more than one znode can hold."""


class Head(NamedTuple):
    """The znode `generation`. `staged`: the batch whose rows are not written yet; `version`: the znode's own."""

    generation: int
    oldest: int
    staged: Staged | None
    version: int

    def encoded(self) -> bytes:
        staged = "" if self.staged is None else f" {self.staged.name} {self.staged.parts}"
        return f"{self.generation} {self.oldest}{staged}\n".encode()


def head_of(znode: Znode) -> Head:
    """Parse the znode. Raises ValueError if it is not a generation."""
    words = znode.content.decode(errors="replace").split()
    if len(words) not in (2, 4):
        raise ValueError(f"{znode.content!r} is no generation")
    staged = Staged(words[2], int(words[3])) if len(words) > 2 else None
    return Head(int(words[0]), int(words[1]), staged, znode.version)


class ZooKeeperStore:
    """See `store.MetadataStore`, and the module's docstring. Any thread may call. The session is the store's own."""

    def __init__(self, session: Session) -> None:
        """Raises StoreError."""
        root = session.ensemble.root
        self.place = str(session.ensemble)
        self.way_on = WAY_ON
        self.lost = 0
        self.session = session
        self._rows, self._changes, self._batches = f"{root}/rows", f"{root}/changes", f"{root}/batches"
        self._head = f"{root}/generation"
        self._groups: set[str] = set()
        self._moves = self._watched = self._floor = 0
        self._marked = -1
        self._newest = 0
        """The newest generation that was read."""
        self._older: str | None = None
        self._heard: Callable[[], None] | None = None
        session.make((self._rows, self._changes, self._batches))
        with _known():
            head, moving = session.read([self._head, f"{root}/{MOVING}"])
            if moving is not None:
                raise StoreError(
                    f"metadata is being moved to {self.place}, and is not all there: end that first, with the same "
                    "`ottla cluster move-metadata`"
                )
            if head is None:
                with suppress(ConcurrentWriteError):  # another node was faster
                    session.carry_out([Create(self._head, Head(0, 1, None, 0).encoded())])
            batches.remove_left_over(session, self._batches, self._picture([])[0].staged)

    @property
    def generation(self) -> int:
        return self._picture([])[0].generation

    def marked(self) -> int:
        """The generation that was last read, without asking a server; -1 if there may be a newer one."""
        return self._marked if self._watched == self._moves else -1

    def listen(self, heard: Callable[[], None]) -> None:
        """Call this, on a thread of the session's, when there may be a newer generation than the one last read."""
        self._heard = heard

    def get(self, key: str) -> Versioned | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        return [row for row, _ in self._picture(keys)[1]]

    def list(self, prefix: str) -> Sequence[tuple[str, Versioned]]:
        self._picture([])  # an unfinished batch is finished first
        keys = [
            key
            for group in self.session.children(self._rows)
            if may_hold(group, prefix)
            for name in self.session.children(f"{self._rows}/{group}")
            if (key := key_of(group, name)).startswith(prefix)
        ]
        keys.sort()
        return [(key, row) for key, row in zip(keys, self.get_many(keys), strict=True) if row is not None]

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        check_batch(writes)
        self._make_groups(writes)
        keys = list(dict.fromkeys(each.key for each in (*guards, *writes)))
        until = time.monotonic() + TRIES_S
        while True:
            head, rows = self._picture(keys)
            found = dict(zip(keys, rows, strict=True))
            for item in (*guards, *writes):
                row = found[item.key][0]
                version = row.version if row else 0
                if item.expected not in (None, version):
                    raise ConflictError(item.key, item.expected, version)
            try:
                return self._commit(head, writes, {key: znode for key, (_, znode) in found.items()})
            except ConcurrentWriteError:
                if time.monotonic() > until:
                    raise StoreBusyError(
                        f"other nodes write to the metadata store {self.place} all the time; try again"
                    ) from None
                time.sleep(random.random() / 100)

    def changes_since(self, generation: int) -> Changes | None:
        head, _ = self._picture([])
        if not head.oldest - 1 <= generation <= head.generation or generation < 0:
            return None
        since = range(generation + 1, head.generation + 1)
        keys: dict[str, None] = {}
        for znode in self.session.read([f"{self._changes}/{each}" for each in since]):
            if znode is None or znode.content == UNKNOWN_KEYS:
                return None  # too old to be kept any longer, or too many
            for key in json.loads(znode.content):
                keys.pop(key, None)
                keys[key] = None
        return Changes(head.generation, tuple(keys))

    def rise(self, generation: int) -> None:
        self._floor = max(self._floor, generation)

    def hurry(self) -> None:
        """Note that clients are served from now on; calls of this store need no shorter waits."""

    def gone(self) -> str | None:
        """The reason why this is no longer the store that was opened; None while it is."""
        why = self._older or self.session.older
        return None if why is None else f"{why}. {AGAIN}"

    def close(self) -> None:
        self.session.close()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _picture(self, keys: Sequence[str]) -> tuple[Head, list[tuple[Versioned | None, Znode | None]]]:
        """The head, and then the rows of these keys with their znodes."""
        paths = [path_of(self._rows, key) for key in keys]
        while True:
            moves, newest = self._moves, self._newest
            first, *znodes = self.session.read([self._head, *paths], self._moved)
            head = self._decoded_head(first)
            if head.generation < newest:
                self._older = (
                    f"the metadata store {self.place} is at commit {head.generation}, and this node has seen {newest}: "
                    "its data was restored"
                )
                raise StoreGoneError(self._older)
            self._newest = max(self._newest, head.generation)
            if head.staged is None:
                self._marked, self._watched = head.generation, moves
                return head, [(self._decoded(key, znode), znode) for key, znode in zip(keys, znodes, strict=True)]
            unnamed = Set(self._head, head._replace(staged=None).encoded(), head.version)
            with _known():
                batches.finish(self.session, self._batches, head.staged, Check(self._head, head.version), unnamed)

    def _moved(self, event: Any) -> None:
        """Note that the head was written, or that the connection that would report it was lost."""
        self._moves += 1
        if self._heard is not None:
            self._heard()

    def _decoded_head(self, znode: Znode | None) -> Head:
        try:
            if znode is not None:
                return head_of(znode)
        except ValueError:
            pass
        raise StoreDamagedError(f"{self._head} in the metadata store {self.place} is gone or damaged. {WAY_ON}")

    def _decoded(self, key: str, znode: Znode | None) -> Versioned | None:
        try:
            return None if znode is None else decoded(key, znode.content)
        except ValueError as error:
            raise StoreDamagedError(
                f"the value of {key} in the metadata store {self.place} is damaged: {error}. {WAY_ON}"
            ) from error

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _make_groups(self, writes: Sequence[Write]) -> None:
        """Create the parents of new znodes."""
        groups = {path_of(self._rows, write.key).rpartition("/")[0] for write in writes if isinstance(write, Put)}
        self.session.make(sorted(groups - self._groups))
        self._groups |= groups

    def _commit(self, head: Head, writes: Sequence[Write], znodes: dict[str, Znode | None]) -> int:
        """Commit after this head. Raises ConcurrentWriteError if it is no longer the newest one."""
        generation = max(head.generation, self._floor) + 1
        rows = [self._row(write, generation) for write in writes]
        wanted = [operation(row, znodes[write.key]) for row, write in zip(rows, writes, strict=True)]
        made = [each for each in wanted if each is not None]
        # Where numbers are left out, readers of the older ones read everything again.
        is_next = generation == head.generation + 1
        oldest = max(head.oldest, generation - CHANGES_MAX + 1) if is_next else generation
        staged = None
        if size_of(made) > BYTES_MAX:
            staged, made = self._staged(rows), []
        after = Head(generation, oldest, staged, head.version + 1)
        operations: list[Operation] = [
            Set(self._head, after.encoded(), head.version),
            Create(f"{self._changes}/{generation}", _keys(writes)),
            *(Remove(f"{self._changes}/{each}") for each in range(head.oldest, min(oldest, head.generation + 1))),
        ]
        self.session.carry_out([*operations, *made])
        self._newest = max(self._newest, generation)
        if staged is not None:
            with suppress(StoreError):  # otherwise the next reader does it
                self._picture([])
        return generation

    def _staged(self, rows: Sequence[RowWrite]) -> Staged:
        with _known():
            return batches.stage(self.session, self._batches, rows)

    def _row(self, write: Write, generation: int) -> RowWrite:
        path = path_of(self._rows, write.key)
        if isinstance(write, Delete):
            return RowWrite(path, None)
        content = encoded(write.key, bytes(write.value), generation)
        if len(content) > BYTES_MAX:
            raise StoreError(
                f"the value of {write.key} has {len(content)} bytes, and a znode of ZooKeeper holds {BYTES_MAX}: "
                "spread its partitions over several topics"
            )
        return RowWrite(path, content)


def _keys(writes: Sequence[Write]) -> bytes:
    """The keys of a commit in the format of its znode: sorted by name, as the other stores report them."""
    keys = json.dumps(sorted(write.key for write in writes), separators=(",", ":")).encode()
    return keys if len(keys) <= KEYS_BYTES_MAX else UNKNOWN_KEYS


@contextmanager
def _known() -> Iterator[None]:
    """Raises StoreError for a transaction with an unknown outcome, where that does not matter to any caller. The
    transaction is repeated, or it leaves parts that nothing names."""
    try:
        yield
    except CommitUnknownError as unknown:
        raise StoreError(str(unknown)) from unknown
