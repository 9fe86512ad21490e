"""Follows one file: tracks what is read, pending and acknowledged.

A file is known by its identity, not by its name. Invariants: a mark moves only over bytes whose records the broker has
acknowledged, in order and without a gap. Bytes that the topic already holds (`islands`) are never sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from hashlib import blake2b

from ottla.ship.lines import BEFORE_SIZE, Assembler, Record
from ottla.ship.rules import Rule

HEAD_SIZE = 1024
"""This many bytes at a file's beginning distinguish it from later files with the same inode."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a file that is kept across a restart: its identity, and how much of it was acknowledged."""

    id: str
    """Assigned before the first record is sent; the header `file_id`."""
    path: str
    """Where the file was first seen; the header `file`."""
    place: str
    """Where the file was last seen."""
    device: int
    inode: int
    partition: int
    offset: int = 0
    """Bytes [0, offset) are acknowledged."""
    head_size: int = 0
    head: str = ""
    """Digest of the first `head_size` bytes."""
    before: str = ""
    """Hexadecimal: the bytes before `offset`."""
    whole: int | None = None
    in_line: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """State of an open file: its size, its first bytes, and the bytes before the read position."""

    size: int
    changed_ns: int
    head: bytes
    before: bytes


class Verdict(Enum):
    """Whether a file is still the one that was read."""

    SAME = auto()
    TRUNCATED = auto()


class Stage(Enum):
    """The stage of a file."""

    FOLLOWED = auto()
    LEFT = auto()
    """No name that matches the patterns is left: the file is read to its end, kept for a while, then given up."""
    ENDED = auto()
    """Nothing more will be read."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The size limits of records, and how long to wait for lines that may continue a record."""

    record_max: int = 512 * 1024
    lines_max: int = 1_000
    flush_ms: int = 1_000
    linger_ms: int = 60_000


def digest(head: bytes) -> str:
    return blake2b(head, digest_size=16).hexdigest()


def advance(mark: Mark, ranges: Iterable[tuple[int, int, bool]]) -> tuple[Mark, tuple[tuple[int, int], ...], int]:
    """Advance a mark over records (start, end, more) that the topic holds after the saved offset.

    Returns the mark after all contiguous records, the islands (ranges after a gap), and the number of contiguous
    records.
    """
    offset, whole, in_line, joined = mark.offset, mark.whole, mark.in_line, 0
    islands: list[tuple[int, int]] = []
    for start, end, more in sorted(set(ranges)):
        if end <= offset:
            continue
        if start <= offset:
            whole = (start if whole is None else whole) if more else None
            offset, in_line, joined = end, more, joined + 1
        elif islands and start <= islands[-1][1]:
            islands[-1] = islands[-1][0], max(end, islands[-1][1])
        else:
            islands.append((start, end))
    if joined:
        mark = replace(mark, offset=offset, whole=whole, in_line=in_line, before="")
    return mark, tuple(islands), joined


class Follower:
    """A followed file. Created from its mark; `mark()` returns the mark to save."""

    __slots__ = (
        "_assembler",
        "_before",
        "_bounds",
        "_grown_ms",
        "_islands",
        "_mark",
        "_outstanding",
        "_reached",
        "_seen",
        "head",
        "lines",
        "position",
        "records",
        "stage",
        "unacknowledged",
    )

    def __init__(
        self,
        mark: Mark,
        rule: Rule | None,
        bounds: Bounds,
        *,
        head: bytes = b"",
        islands: Iterable[tuple[int, int]] = (),
        now: int = 0,
    ) -> None:
        """`head`: the file's first bytes, which the caller has read and compared. `islands`: from `advance`."""
        self._mark = mark
        self._bounds = bounds
        self._assembler = Assembler(
            rule,
            record_max=bounds.record_max,
            lines_max=bounds.lines_max,
            position=mark.offset,
            whole=mark.whole,
            in_line=mark.in_line,
        )
        self.head = head
        self.position = mark.offset
        self.stage = Stage.FOLLOWED
        self._before = bytes.fromhex(mark.before)
        self._reached: Record | None = None
        """The last record of the contiguous acknowledged ones."""
        self._outstanding: deque[tuple[Record, list[bool]]] = deque()
        self._islands = deque(islands)
        self._grown_ms = now
        self._seen: tuple[int, int] | None = None
        self.records = self.lines = self.unacknowledged = 0

    @property
    def id(self) -> str:
        return self._mark.id

    @property
    def path(self) -> str:
        return self._mark.path

    @property
    def place(self) -> str:
        return self._mark.place

    @property
    def key(self) -> tuple[int, int]:
        """(device, inode)."""
        return self._mark.device, self._mark.inode

    @property
    def partition(self) -> int:
        return self._mark.partition

    @property
    def before(self) -> bytes:
        """The bytes before `position`."""
        return self._before

    @property
    def before_size(self) -> int:
        return len(self._before)

    @property
    def waiting(self) -> int:
        """Bytes that are not part of a record yet."""
        return self._assembler.waiting

    @property
    def scattered(self) -> bool:
        """Whether the topic holds records after a gap."""
        return bool(self._islands) or any(done[0] for _, done in self._outstanding)

    @property
    def settled(self) -> bool:
        """Whether every emitted record is acknowledged."""
        return not self._outstanding

    def mark(self) -> Mark:
        """The mark that may be saved now."""
        mark, last = self._mark, self._reached
        if last is not None:
            mark = replace(
                mark,
                offset=last.end,
                before=last.before.hex(),
                whole=last.whole if last.more else None,
                in_line=bool(last.before) and not last.before.endswith(b"\n"),
            )
        known = self.head[: mark.offset]
        return replace(mark, head_size=len(known), head=digest(known))

    def moved(self, place: str, key: tuple[int, int]) -> None:
        """Record a new name, or the copy of the file that was made before the file was truncated."""
        self._mark = replace(self._mark, place=place, device=key[0], inode=key[1])
        self._seen = None

    def _restart_at(self, position: int, whole: int | None = None, in_line: bool = False) -> None:
        self._assembler = self._assembler.moved_to(position, whole, in_line)
        self.position = position

    def quiet(self, size: int, changed_ns: int) -> bool:
        """Whether a file with this size and change time is unchanged, so that it need not be read."""
        return self._seen == (size, changed_ns) and size == self.position

    def judge(self, look: Look) -> Verdict:
        """Decide whether it is still the same file. Call it after reading: it then validates the bytes read before."""
        if look.size < self.position:
            return Verdict.TRUNCATED
        if look.head[: len(self.head)] != self.head or look.before != self._before:
            return Verdict.TRUNCATED
        self._seen = (look.size, look.changed_ns)
        return Verdict.SAME

    def span(self, size: int) -> int:
        """How many of `size` bytes may be read next: reading stops at the next island."""
        if self._islands:
            return min(size, self._islands[0][0] - self.position)
        return size

    def take(self, now: int, read: bytes) -> list[Record]:
        """The records that these bytes, which begin at `position`, complete."""
        if not read:
            return []
        self._grown_ms = now
        if len(self.head) < HEAD_SIZE and self.position == len(self.head):
            self.head += read[: HEAD_SIZE - len(self.head)]
        self.position += len(read)
        self._before = (self._before + read)[-BEFORE_SIZE:] if len(read) < BEFORE_SIZE else read[-BEFORE_SIZE:]
        records = self._assembler.feed(read)
        at_island = bool(self._islands) and self.position == self._islands[0][0]
        if at_island:
            records += self._assembler.flush(partial=True)
        self._given(records)
        if at_island:
            self._skip_known()
        return records

    def _skip_known(self) -> None:
        """Skip an island: the topic already holds its records."""
        start, end = self._islands.popleft()
        island = Record(start, end, b"", None, False, 0, b"")
        self._outstanding.append((island, [True]))
        self._restart_at(end)
        self._before = b""
        self._advance()

    def expire(self, now: int) -> list[Record]:
        """The pending record, if it has waited long enough for lines that continue it."""
        if self._assembler.complete and now - self._grown_ms >= self._bounds.flush_ms:
            return self._given(self._assembler.flush(partial=False))
        return []

    def leave(self, now: int) -> None:
        """Its name no longer matches the patterns."""
        if self.stage is Stage.FOLLOWED:
            self.stage = Stage.LEFT
            self._grown_ms = now

    def come_back(self) -> None:
        if self.stage is Stage.LEFT:
            self.stage = Stage.FOLLOWED

    def over(self, now: int) -> bool:
        """Whether it is read to its end and was left so long ago that a writer is unlikely to append."""
        return self.stage is Stage.LEFT and now - self._grown_ms >= self._bounds.linger_ms

    def finish(self, *, partial: bool) -> list[Record]:
        """The pending records, when nothing more will be read; with `partial` also a last line without a line end."""
        if partial:
            self.stage = Stage.ENDED
        return self._given(self._assembler.flush(partial=partial))

    def deadline(self) -> int | None:
        """When `expire` will return a record."""
        return self._grown_ms + self._bounds.flush_ms if self._assembler.complete else None

    def _given(self, records: list[Record]) -> list[Record]:
        for record in records:
            self._outstanding.append((record, [False]))
            self.unacknowledged += record.end - record.start
        return records

    def acknowledged(self, record: Record) -> None:
        """The broker has this record. Acknowledgements nearly always arrive in order."""
        self.records += 1
        self.lines += record.lines
        self.unacknowledged -= record.end - record.start
        for waiting, done in self._outstanding:
            if waiting is record:
                done[0] = True
                break
        self._advance()

    def _advance(self) -> None:
        while self._outstanding and self._outstanding[0][1][0]:
            self._reached, _ = self._outstanding.popleft()
