"""Identifies files: new, known, renamed, removed, or the copy that a rotation made.

A file is identified by (device, inode) and its first bytes; `Peek` reads them. There are two kinds of rotation.
Renamed: the inode stays, only the name changes. Copied and truncated: the file shrinks, and a file beside it, with a
name made from its own (`app.log.1`, `app-20260131.log`), begins with the same bytes. The shipper then reads the rest of
the old lines from that copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from ottla.ship.follow import Follower, Mark, Stage, digest


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A regular file that a scan found under a name."""

    path: str
    device: int
    inode: int
    size: int

    @property
    def key(self) -> tuple[int, int]:
        return self.device, self.inode


class Peek(Protocol):
    """Bytes [start, start + size) of a file by name; fewer at its end, none if it cannot be read."""

    def __call__(self, path: str, start: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of a scan: new files, known files with their marks, followers whose names are gone."""

    new: tuple[SeenFile, ...]
    known: tuple[tuple[Mark, SeenFile], ...]
    left: tuple[Follower, ...]


class Catalog:
    """Followers by inode, marks of files that are not followed now, and files that may be copies.

    `copy_wait_ms`: how long a file that looks like the copy of a followed file is left alone. If the followed file is
    truncated meanwhile, the copy holds the rest of its lines. Otherwise it then counts as a file of its own.
    """

    __slots__ = ("_copy_wait_ms", "_held", "followers", "marks")

    def __init__(self, marks: Iterable[Mark], *, copy_wait_ms: int) -> None:
        self.marks: dict[tuple[int, int], Mark] = {(mark.device, mark.inode): mark for mark in marks}
        self.followers: dict[tuple[int, int], Follower] = {}
        self._copy_wait_ms = copy_wait_ms
        self._held: dict[tuple[int, int], int] = {}

    def scanned(self, now: int, seen_files: Sequence[SeenFile], peek: Peek) -> ScanResult:
        """Compare a scan with the known files. A file with two names counts once, under the first."""
        seen: dict[tuple[int, int], SeenFile] = {}
        for seen_file in seen_files:
            seen.setdefault(seen_file.key, seen_file)
        new: list[SeenFile] = []
        known: list[tuple[Mark, SeenFile]] = []
        for key, seen_file in seen.items():
            follower = self.followers.get(key)
            if follower is not None:
                follower.come_back()
                if follower.place != seen_file.path:
                    follower.moved(seen_file.path, key)
            elif key in self.marks:
                known.append((self.marks[key], seen_file))
            elif not self._waits(now, seen_file, peek):
                new.append(seen_file)
        for key in [key for key in self._held if key not in seen]:
            del self._held[key]
        left = [each for key, each in self.followers.items() if key not in seen and each.stage is Stage.FOLLOWED]
        return ScanResult(tuple(new), tuple(known), tuple(left))

    def _waits(self, now: int, seen_file: SeenFile, peek: Peek) -> bool:
        if not any(is_copy(each, seen_file, peek, growing=True) for each in self.followers.values()):
            self._held.pop(seen_file.key, None)
            return False
        since = self._held.setdefault(seen_file.key, now)
        return now - since < self._copy_wait_ms

    def follow(self, follower: Follower) -> None:
        """Add a follower, which replaces the mark of its file."""
        self.followers[follower.key] = follower
        self.marks.pop(follower.key, None)
        self._held.pop(follower.key, None)

    def give_up(self, follower: Follower, *, remember: bool) -> None:
        """Remove a follower; `remember` its mark if the file may still exist under some name."""
        if self.followers.get(follower.key) is follower:
            del self.followers[follower.key]
        if remember:
            self.marks[follower.key] = follower.mark()

    def copied_rest(self, follower: Follower, beside: Sequence[SeenFile], peek: Peek) -> SeenFile | None:
        """The copy that a rotation made of a truncated file, which holds the rest of its lines; None if there is
        none."""
        taken: Mapping[tuple[int, int], object] = self.followers
        for seen_file in beside:
            if seen_file.key not in taken and is_copy(follower, seen_file, peek, growing=False):
                self._held.pop(seen_file.key, None)
                return seen_file
        return None


def named_after(copy: str, original: str) -> bool:
    """Whether a rotation may have made this name from the other: app.log.1, app.log-20260131, app-20260131.log."""
    first, second = PurePath(copy), PurePath(original)
    return first.parent == second.parent and copy != original and first.name.startswith(second.name.split(".")[0])


def is_copy(follower: Follower, seen_file: SeenFile, peek: Peek, *, growing: bool) -> bool:
    """Whether a file begins with everything that was read of another; with `growing`, also whether it may do so once
    the copy is complete."""
    if not follower.head or not named_after(seen_file.path, follower.place):
        return False
    head = peek(seen_file.path, 0, len(follower.head))
    if seen_file.size < follower.position:
        return growing and follower.head.startswith(head)
    if head != follower.head:
        return False
    return peek(seen_file.path, follower.position - follower.before_size, follower.before_size) == follower.before


def fits(mark: Mark, place: str, size: int, peek: Peek) -> bytes | None:
    """The first bytes of the file at `place` if it is still the marked one; None if it is another file."""
    head = peek(place, 0, mark.head_size)
    before = bytes.fromhex(mark.before)
    if size < mark.offset or len(head) < mark.head_size or digest(head) != mark.head:
        return None
    if peek(place, mark.offset - len(before), len(before)) != before:
        return None
    return head
