"""Cuts the bytes of a file into records.

Knows: line feeds, records of several lines, bounds. Does not know: where bytes come from or records go. Invariants: the
records of a file follow one another without a gap, and their bytes put together are the file's (but for the end of a
line that was given out before it had one); no record is longer than `record_max`; what waits in here is bounded by
`record_max` and one call's bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.ship.rules import Rule

BEFORE_SIZE = 64
"""So many bytes before a position are remembered, to see later that the file is still the same one."""


class Record(NamedTuple):
    """Bytes [start, end) of a file. `value` lacks the last line's end (LF or CR LF), where there was one."""

    start: int
    end: int
    value: bytes
    whole: int | None
    """Where the record begins that this is a part of; None when it is not cut."""
    more: bool
    """A part follows."""
    lines: int
    """Line ends in it, and one for a last line without one."""
    before: bytes
    """Its last bytes as they stand in the file, at most BEFORE_SIZE."""


class Assembler:
    """Puts records together. `position`: where the bytes of the first `feed` lie in the file."""

    __slots__ = ("_held", "_held_size", "_in_line", "_lines_max", "_record_max", "_rest", "_rule", "_start", "_whole")

    def __init__(
        self,
        rule: Rule | None,
        *,
        record_max: int,
        lines_max: int,
        position: int = 0,
        whole: int | None = None,
        in_line: bool = False,
    ) -> None:
        """`whole`: where the record began whose part ends at `position`; `in_line`: the middle of a line is there."""
        self._rule = rule
        self._record_max = record_max
        self._lines_max = lines_max
        self._start = position
        self._whole = whole
        self._in_line = in_line
        self._held: list[bytes] = []
        self._held_size = 0
        self._rest = b""

    @property
    def complete(self) -> bool:
        """A record of complete lines waits for what may go on with it."""
        return bool(self._held)

    @property
    def partial(self) -> bool:
        """A line waits for its end."""
        return bool(self._rest)

    @property
    def waiting(self) -> int:
        """Bytes that wait in here."""
        return self._held_size + len(self._rest)

    def moved_to(self, position: int, whole: int | None, in_line: bool) -> Assembler:
        """One with the same bounds that begins elsewhere; nothing must wait in this one."""
        assert not self.waiting, self.waiting
        return Assembler(
            self._rule,
            record_max=self._record_max,
            lines_max=self._lines_max,
            position=position,
            whole=whole,
            in_line=in_line,
        )

    def feed(self, read: bytes) -> list[Record]:
        """The records that these bytes, the next of the file, complete."""
        records: list[Record] = []
        lines = (self._rest + read if self._rest else read).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._add(line, b"\n", records)
        if self._rule is None:
            self._emit(records)
        if len(self._rest) > self._record_max:
            self._cut(records)
        return records

    def flush(self, *, partial: bool) -> list[Record]:
        """What waits, because nothing may come for long; with `partial` also a last line without its end."""
        records: list[Record] = []
        if partial and self._rest:
            rest, self._rest = self._rest, b""
            self._add(rest, b"", records)
            self._emit(records)
            self._in_line = True
        else:
            self._emit(records)
        return records

    def _add(self, line: bytes, ending: bytes, records: list[Record]) -> None:
        goes_on = self._in_line
        size = len(line) + len(ending)
        if goes_on:
            self._in_line = False
            if self._whole is None and ending and line in {b"", b"\r"}:
                self._start += size  # the end of a line that was given out without it
                return
        elif self._rule is not None:
            goes_on = self._rule(line[: self._record_max]) and bool(self._held)
        if self._held and not (
            goes_on and self._held_size + size <= self._record_max and len(self._held) < self._lines_max
        ):
            self._emit(records, more=goes_on)
        raw = line + ending
        while size > self._record_max:
            at = boundary(raw, self._record_max)
            self._hold(raw[:at])
            self._emit(records, more=True)
            raw = raw[at:]
            size -= at
        self._hold(raw)

    def _cut(self, records: list[Record]) -> None:
        """Let go of a line that is too long before its end has come."""
        if not self._in_line:
            goes_on = self._rule is not None and self._rule(self._rest[: self._record_max]) and bool(self._held)
            self._emit(records, more=goes_on)
            self._in_line = True
        while len(self._rest) > self._record_max:
            at = boundary(self._rest, self._record_max)
            self._hold(self._rest[:at])
            self._rest = self._rest[at:]
            self._emit(records, more=True)

    def _hold(self, raw: bytes) -> None:
        self._held.append(raw)
        self._held_size += len(raw)

    def _emit(self, records: list[Record], more: bool = False) -> None:
        if not self._held:
            return
        raw = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        start, end = self._start, self._start + self._held_size
        whole = start if more and self._whole is None else self._whole
        lines = raw.count(b"\n") + (not raw.endswith(b"\n") and not more)
        records.append(Record(start, end, without_end(raw), whole, more, lines, raw[-BEFORE_SIZE:]))
        self._start, self._whole = end, whole if more else None
        self._held, self._held_size = [], 0


def without_end(raw: bytes) -> bytes:
    """The bytes without their last line's end."""
    if not raw.endswith(b"\n"):
        return raw
    return raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]


def boundary(raw: bytes, size: int) -> int:
    """Where to cut so that at most `size` bytes come before and no UTF-8 character is cut, as far as it is UTF-8."""
    at = size
    while size - at < 3 and at > 1 and raw[at] & 0xC0 == 0x80:
        at -= 1
    return size if raw[at] & 0xC0 == 0x80 else at
