"""Writes batches that are too large for one transaction of ZooKeeper, all or nothing like smaller ones.

    ROOT/batches/NAME-0, NAME-1, ...     the writes, as bytes

The parts are written first, and have no effect. One small transaction then advances the generation and names the batch:
that commits it. The next client that reads the generation writes the batch's rows before anything else, even if the
original writer is dead. Each of these transactions checks that the generation still names the batch, so a late writer
can't overwrite later commits.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ottla.metadata.store import StoreDamagedError
from ottla.metadata.zookeeper.rows import BYTES_MAX, pieces
from ottla.metadata.zookeeper.session import Check, ConcurrentWriteError, Create, Operation, Remove, Session, Set, Znode

OPERATION_BYTES: Final = 100
"""Bytes of an operation besides its path and its content; a generous estimate."""
LEFT_OVER_MS: Final = 600_000
"""Milliseconds after which parts of a batch that nothing names are removed: their writer died before the commit."""

_SIZES: Final = struct.Struct(">Iq")


class RowWrite(NamedTuple):
    """A znode to be written, or to be removed where `content` is None."""

    path: str
    content: bytes | None


class Staged(NamedTuple):
    """The name of a batch and the number of its parts."""

    name: str
    parts: int


def size_of(operations: Iterable[Operation]) -> int:
    """An upper estimate of the bytes of a transaction."""
    return sum(
        len(each.path.encode()) + OPERATION_BYTES + (len(each.content) if isinstance(each, Create | Set) else 0)
        for each in operations
    )


def operation(write: RowWrite, row: Znode | None) -> Operation | None:
    """The operation that applies the write to the znode, whose present state is `row`; None if it needs none."""
    if write.content is None:
        return None if row is None else Remove(write.path, row.version)
    return Create(write.path, write.content) if row is None else Set(write.path, write.content, row.version)


def stage(session: Session, directory: str, writes: Sequence[RowWrite]) -> Staged:
    """Write the parts of a batch. Raises StoreError, CommitUnknownError; in both cases no batch exists, whatever was
    written."""
    whole = b"".join(_packed(writes))
    staged = Staged(secrets.token_hex(8), -(-len(whole) // BYTES_MAX))
    for path, part in zip(_paths(directory, staged), range(0, len(whole), BYTES_MAX), strict=True):
        session.carry_out([Create(path, whole[part : part + BYTES_MAX])])
    return staged


def finish(session: Session, directory: str, staged: Staged, named: Check, unnamed: Set) -> None:
    """Write the rows of a batch that the generation names, and then remove the name from the generation. `named` checks
    that the generation still names the batch, and `unnamed` removes the name. Another client may finish the batch
    first. Raises StoreError, CommitUnknownError."""
    parts = [part.content for part in session.read(_paths(directory, staged)) if part is not None]
    if len(parts) < staged.parts:
        (at,) = session.read([named.path])
        if at is not None and at.version == named.version:
            raise StoreDamagedError(f"parts of the batch {staged.name} in {session.ensemble} are gone")
        return
    if not _all_written(session, list(_unpacked(b"".join(parts))), named):
        return
    try:
        session.carry_out([unnamed, *map(Remove, _paths(directory, staged))])
    except ConcurrentWriteError:
        return


def _all_written(session: Session, writes: Sequence[RowWrite], named: Check) -> bool:
    """Whether the batch was still named when its last row was written."""
    sizes = [len(path.encode()) + OPERATION_BYTES + len(content or b"") for path, content in writes]
    for places in pieces(sizes, BYTES_MAX):
        piece = [writes[place] for place in places]
        while True:
            at, *rows = session.read([named.path, *(write.path for write in piece)])
            if at is None or at.version != named.version:
                return False
            missing = [
                made
                for write, row in zip(piece, rows, strict=True)
                if (row and row.content) != write.content and (made := operation(write, row)) is not None
            ]
            if not missing:
                break
            try:
                session.carry_out([named, *missing])
            except ConcurrentWriteError:
                continue  # another client writes the batch too
            break
    return True


def remove_left_over(session: Session, directory: str, named: Staged | None) -> None:
    """Remove parts that no batch needs. Raises StoreError, CommitUnknownError."""
    now_ms = session.clock_ms()
    names = [name for name in session.children(directory) if named is None or not name.startswith(named.name)]
    paths = [f"{directory}/{name}" for name in names]
    for path, part in zip(paths, session.read(paths), strict=True):
        if part is not None and now_ms - part.written_ms > LEFT_OVER_MS:
            try:
                session.carry_out([Remove(path)])
            except ConcurrentWriteError:
                continue


def _paths(directory: str, staged: Staged) -> list[str]:
    return [f"{directory}/{staged.name}-{number}" for number in range(staged.parts)]


def _packed(writes: Iterable[RowWrite]) -> Iterator[bytes]:
    for write in writes:
        path = write.path.encode()
        yield _SIZES.pack(len(path), -1 if write.content is None else len(write.content))
        yield path
        yield write.content or b""


def _unpacked(whole: bytes) -> Iterator[RowWrite]:
    at = 0
    while at < len(whole):
        path_bytes, content_bytes = _SIZES.unpack_from(whole, at)
        begin = at + _SIZES.size + path_bytes
        at = begin + max(content_bytes, 0)
        yield RowWrite(whole[begin - path_bytes : begin].decode(), None if content_bytes < 0 else whole[begin:at])
