"""Moves a metadata store into ZooKeeper: all rows with their versions, so that generations continue.

    ROOT/moving    CLUSTER GENERATION: the source of an unfinished move; nodes do not start on it
    ROOT/moved     CLUSTER GENERATION: the source of a finished move, at the time of the move

An interrupted move is started again and continues where it stopped. Everything is read again and compared before the
last transaction, which sets the store's generation. Before that transaction the store is not valid, and after it the
store is the cluster's.

A move leaves alone what it finds in ZooKeeper and did not write. If a move ended, but its source was not notified, it
is not repeated. The exception is a source that was used since: it is moved again, unless the result of the first move
was used too.

The only key that this module interprets is the cluster's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ottla.metadata.store import StoreError, Versioned
from ottla.metadata.zookeeper.batches import OPERATION_BYTES, RowWrite, operation
from ottla.metadata.zookeeper.rows import BYTES_MAX, encoded, key_of, path_of, pieces
from ottla.metadata.zookeeper.session import ConcurrentWriteError, Create, Remove, Session, Set
from ottla.metadata.zookeeper.store import MOVING, Head, head_of

CLUSTER_ID_KEY: Final = "cluster/id"

Rows = Mapping[str, Versioned]
"""Everything that a store has, by key."""


def move(rows: Rows, generation: int, session: Session, is_unchanged: Callable[[], bool]) -> bool:
    """Copy the rows of a store at this generation to ZooKeeper, if the source still `is_unchanged` afterwards. Returns
    whether a move was needed. Raises StoreError with a sentence, and CommitUnknownError, after which the caller starts
    again."""
    root, place = session.ensemble.root, session.ensemble
    directory, note_path, head_path = f"{root}/rows", f"{root}/{MOVING}", f"{root}/generation"
    moved_path = f"{root}/moved"
    writes = {path_of(directory, key): encoded(key, row.value, row.version) for key, row in rows.items()}
    cluster, cluster_path = rows[CLUSTER_ID_KEY].value, path_of(directory, CLUSTER_ID_KEY)
    session.make((directory, f"{root}/changes", f"{root}/batches"))
    note, known, cluster_there, moved = session.read([note_path, head_path, cluster_path, moved_path])
    text = b"%s %d" % (cluster, generation)
    if note is not None and note.content.split()[0] != cluster:
        raise StoreError(f"the metadata of another cluster is being moved to {place}: name another path")
    if note is None and known is not None and head_of(known).generation:
        if cluster_there is None or cluster_there.content != writes[cluster_path]:
            raise StoreError(f"the metadata of another cluster is at {place}: name another path")
        if moved is None or moved.content == text:
            return False
        if head_of(known).generation != int(moved.content.split()[1]):
            raise StoreError(
                f"nodes have used what was moved to {place}, and what it was moved from too: each lacks what the other "
                "has. Start the nodes on the one that is to stay; the other one can only be moved to another path"
            )
        with _undisturbed(session):
            session.carry_out([Set(head_path, Head(0, 1, None, 0).encoded(), known.version), Create(note_path, text)])
        return move(rows, generation, session, is_unchanged)
    after = Head(generation, generation + 1, None, 0).encoded()
    with _undisturbed(session):
        session.carry_out([Create(note_path, text) if note is None else Set(note_path, text)])
        _write(session, directory, writes)
        _compare(session, directory, writes)
        if not is_unchanged():
            raise StoreError("a node has written to the store that is moved meanwhile: stop it, and begin again")
        last = Create(head_path, after) if known is None else Set(head_path, after, known.version)
        done = Create(moved_path, text) if moved is None else Set(moved_path, text)
        session.carry_out([last, done, Remove(note_path)])
    return True


@contextmanager
def _undisturbed(session: Session) -> Iterator[None]:
    """Raises StoreError if another program writes."""
    try:
        yield
    except ConcurrentWriteError:
        raise StoreError(f"another program writes to {session.ensemble}: stop it, and start again") from None


def _write(session: Session, directory: str, writes: Mapping[str, bytes]) -> None:
    """Write these rows, and remove all others. Raises StoreError, CommitUnknownError, ConcurrentWriteError."""
    session.make(sorted({path.rpartition("/")[0] for path in writes}))
    wanted = [RowWrite(path, content) for path, content in writes.items()]
    wanted += [RowWrite(path, None) for path in _paths(session, directory) if path not in writes]
    for places in pieces([len(path.encode()) + OPERATION_BYTES + len(it or b"") for path, it in wanted], BYTES_MAX):
        piece = [wanted[place] for place in places]
        there = session.read([write.path for write in piece])
        operations = [
            made
            for write, row in zip(piece, there, strict=True)
            if (row and row.content) != write.content and (made := operation(write, row)) is not None
        ]
        if operations:
            session.carry_out(operations)


def _compare(session: Session, directory: str, writes: Mapping[str, bytes]) -> None:
    """Raises StoreError unless exactly these rows exist."""
    paths = _paths(session, directory)
    found = {path: None if row is None else row.content for path, row in zip(paths, session.read(paths), strict=True)}
    if found != dict(writes):
        different = sorted(path for path in found.keys() | writes.keys() if found.get(path) != writes.get(path))
        names = [key_of(*path.split("/")[-2:]) for path in different[:3]]
        raise StoreError(
            f"{len(different)} rows at {session.ensemble} are not those that were moved there, {', '.join(names)} "
            "among them: another program writes there"
        )


def _paths(session: Session, directory: str) -> list[str]:
    groups = [f"{directory}/{group}" for group in session.children(directory)]
    return [f"{group}/{name}" for group in groups for name in session.children(group)]
