"""Cuts the bytes of a file into records.

A record is one or more lines. Invariants: the records of a file are contiguous, and their bytes together are the file's
bytes. The exception is the end of a line that was emitted before its end arrived. No record is longer than
`record_max`. The pending bytes are bounded by `record_max` and one call's bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.ship.rules import Rule

BEFORE_SIZE = 64
"""This many bytes before a position are kept, to check later that the file is still the same one."""


class Record(NamedTuple):
    """Bytes [start, end) of a file. `value` excludes the last line's end (LF or CR LF), if there was one."""

    start: int
    end: int
    value: bytes
    whole: int | None
    """If this is a part of a longer record, where that record begins; otherwise None."""
    more: bool
    """Whether another part follows."""
    lines: int
    """The number of line ends in it, plus one for a last line without one."""
    before: bytes
    """Its last bytes, unmodified, at most BEFORE_SIZE."""


class Assembler:
    """Assembles records. `position`: the file offset of the first `feed`'s bytes."""

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
        """`whole`: where the record begins whose last part ends at `position`; `in_line`: whether `position` is inside
        a line."""
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
        """Whether a record of complete lines waits for lines that may continue it."""
        return bool(self._held)

    @property
    def partial(self) -> bool:
        """Whether a line without a line end is pending."""
        return bool(self._rest)

    @property
    def waiting(self) -> int:
        """The number of pending bytes."""
        return self._held_size + len(self._rest)

    def moved_to(self, position: int, whole: int | None, in_line: bool) -> Assembler:
        """An assembler with the same bounds at another position; this one must have no pending bytes."""
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
        """Emit the pending record without waiting for further lines; with `partial` also a last line without a line
        end."""
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
                self._start += size  # the end of a line that was emitted without it
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
        """Emit parts of a line that is too long, before its end arrives."""
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
    """The bytes without the last line's end."""
    if not raw.endswith(b"\n"):
        return raw
    return raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]


def boundary(raw: bytes, size: int) -> int:
    """Where to cut `raw`: at most `size` bytes come before the cut, and it splits no UTF-8 character (if the text is
    UTF-8)."""
    at = size
    while size - at < 3 and at > 1 and raw[at] & 0xC0 == 0x80:
        at -= 1
    return size if raw[at] & 0xC0 == 0x80 else at
