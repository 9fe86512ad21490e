"""Encodes open messages: the state of a partition of the markers topic between two micro-batches.

The messages of a partition are in chunks of CHUNK offsets. Each chunk is one value of a map in the state store, so a
batch reads and writes only the chunks that it needs. A `Ledger` has, for every chunk, the number of open messages, the
first deadline and the first marker. The other chunks need not be read.

A chunk (little-endian):

- `u8` format 1, `u8` flags, `u16` extras, `u32` count, `i64` first marker, `i64` first deadline;
- then in columns, ordered by offset: `u16` offset within the chunk, marker offset and deadline after the first ones
  (`u32` each, `i64` if flag 1 is set);
- then the extras: `u16` row, `i64` due, `i64` asked or -1, `u8` kind or 255, `i64` duration, `u16` length and the
  reason in UTF-8.

Most messages have no extra and need 10 bytes. A message that was handed over, failed or rejected has an extra.

A ledger:

- `u8` format 1, `u8` flags (1 at the end, 2 replaying), `u32` chunks;
- `i64` each: position, newest timestamp, time of the last read, number of the run, end of its replay, time of the next
  wake-up (-1: none);
- then in columns of `i64`: chunk, count, first due, first marker.

Any other format is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import numpy as np

from ottla.kmq.machine import Open
from ottla.kmq.markers import Kind, Start

CHUNK_BITS: Final = 12
CHUNK: Final = 1 << CHUNK_BITS
FORMAT: Final = 1
_WIDE: Final = 1
_NO_KIND: Final = 255
_NONE: Final = -1

_HEAD: Final = Struct("<BBHIqq")
_EXTRA: Final = Struct("<HqqBqH")
_LEDGER: Final = Struct("<BBI6q")

Extra = tuple[int, int | None, Start | None]
"""(due_ms, asked_ms, verdict)"""


class StateUnreadableError(Exception):
    """State of another format than this program's."""


def _empty() -> Any:
    return np.zeros(0, np.int64)


@dataclass(slots=True)
class Chunk:
    """Open messages by offset: columns of int64, and what only some of them have, by offset."""

    offsets: Any = field(default_factory=_empty)
    markers: Any = field(default_factory=_empty)
    deadlines: Any = field(default_factory=_empty)
    extras: dict[int, Extra] = field(default_factory=dict[int, Extra])

    def __len__(self) -> int:
        return len(self.offsets)

    def dues(self) -> Any:
        """When each is due."""
        if not self.extras:
            return self.deadlines
        found = self.deadlines.copy()
        at = np.searchsorted(self.offsets, np.fromiter(self.extras, np.int64, len(self.extras)))
        found[at] = [each[0] for each in self.extras.values()]
        return found

    def rows(self, chosen: Any) -> tuple[dict[int, Open], dict[int, int]]:
        """(messages as the machine has them, when those were handed over that were); `chosen`: a mask or indexes."""
        columns = (self.offsets[chosen].tolist(), self.markers[chosen].tolist(), self.deadlines[chosen].tolist())
        opened: dict[int, Open] = {
            offset: (marker, deadline, deadline, None) for offset, marker, deadline in zip(*columns, strict=True)
        }
        asked: dict[int, int] = {}
        for offset in opened.keys() & self.extras.keys():
            due_ms, asked_ms, verdict = self.extras[offset]
            marker, _, deadline, _ = opened[offset]
            opened[offset] = (marker, due_ms, deadline, verdict)
            if asked_ms is not None:
                asked[offset] = asked_ms
        return opened, asked

    def replaced(self, gone: Any, opened: dict[int, Open], asked: dict[int, int]) -> Chunk:
        """Without those `gone` (offsets, ordered), with these."""
        keep = ~member(self.offsets, gone)
        offsets = np.concatenate([self.offsets[keep], np.fromiter(opened, np.int64, len(opened))])
        markers = np.concatenate([self.markers[keep], np.array([each[0] for each in opened.values()], np.int64)])
        deadlines = np.concatenate([self.deadlines[keep], np.array([each[2] for each in opened.values()], np.int64)])
        order = np.argsort(offsets, kind="stable")
        extras = self.extras
        if extras:
            left = set(self.offsets[keep].tolist()) if len(keep) - keep.sum() else None
            extras = {key: extra for key, extra in extras.items() if left is None or key in left}
        fresh: dict[int, Extra] = {
            offset: (due, asked.get(offset), verdict)
            for offset, (_, due, deadline, verdict) in opened.items()
            if due != deadline or verdict is not None or offset in asked
        }
        return Chunk(offsets[order], markers[order], deadlines[order], {**extras, **fresh})


def member(offsets: Any, others: Any) -> Any:
    """Mask of the `offsets` that are in `others`; both ordered."""
    if not len(others) or not len(offsets):
        return np.zeros(len(offsets), bool)
    at = np.searchsorted(others, offsets)
    at[at == len(others)] = 0
    return others[at] == offsets


def encode_chunk(chunk: Chunk) -> bytes:
    """Its bytes; there must be a message in it."""
    first, deadline = int(chunk.markers.min()), int(chunk.deadlines.min())
    markers, deadlines = chunk.markers - first, chunk.deadlines - deadline
    wide = int(max(markers.max(), deadlines.max())) > 0xFFFFFFFF
    width = "<i8" if wide else "<u4"
    parts = [
        _HEAD.pack(FORMAT, _WIDE if wide else 0, len(chunk.extras), len(chunk), first, deadline),
        (chunk.offsets & (CHUNK - 1)).astype("<u2").tobytes(),
        markers.astype(width).tobytes(),
        deadlines.astype(width).tobytes(),
    ]
    for offset, (due, asked, verdict) in chunk.extras.items():
        row = int(np.searchsorted(chunk.offsets, offset))
        kind, duration = (_NO_KIND, 0) if verdict is None else (int(verdict.kind), verdict.duration_ms)
        text = b"" if verdict is None else verdict.reason.encode(errors="replace")
        parts += [_EXTRA.pack(row, due, _NONE if asked is None else asked, kind, duration, len(text)), text]
    return b"".join(parts)


def decode_chunk(number: int, octets: bytes) -> Chunk:
    """The chunk of that number. Raises StateUnreadableError."""
    version, flags, extras, count, first, deadline = _HEAD.unpack_from(octets)
    if version != FORMAT:
        raise StateUnreadableError(f"The state has chunks of format {version}; this program knows {FORMAT}.")
    width, size = ("<i8", 8) if flags & _WIDE else ("<u4", 4)
    at = _HEAD.size
    offsets = np.frombuffer(octets, "<u2", count, at).astype(np.int64) + (number << CHUNK_BITS)
    at += 2 * count
    markers = np.frombuffer(octets, width, count, at).astype(np.int64) + first
    at += size * count
    deadlines = np.frombuffer(octets, width, count, at).astype(np.int64) + deadline
    at += size * count
    chunk = Chunk(offsets, markers, deadlines)
    for _ in range(extras):
        row, due, asked, kind, duration, length = _EXTRA.unpack_from(octets, at)
        at += _EXTRA.size
        text = octets[at : at + length].decode(errors="replace")
        at += length
        verdict = None if kind == _NO_KIND else Start(duration, Kind(kind), text)
        chunk.extras[int(offsets[row])] = (due, None if asked == _NONE else asked, verdict)
    return chunk


@dataclass(slots=True)
class Ledger:
    """The part of a partition's state that is known without reading a chunk. Times are epoch ms."""

    position: int = _NONE
    latest_ms: int = 0
    read_at_ms: int = 0
    run_ms: int = _NONE
    replay_end: int = _NONE
    wake_ms: int = _NONE
    at_end: bool = False
    replaying: bool = True
    chunks: Any = field(default_factory=_empty)
    counts: Any = field(default_factory=_empty)
    dues: Any = field(default_factory=_empty)
    markers: Any = field(default_factory=_empty)

    @property
    def open_count(self) -> int:
        return int(self.counts.sum())

    @property
    def first_due_ms(self) -> int | None:
        return int(self.dues.min()) if len(self.dues) else None

    @property
    def commit_offset(self) -> int:
        """The smallest open marker: where another tracker would have to begin."""
        return int(self.markers.min()) if len(self.markers) else max(self.position, 0)

    def note(self, changed: dict[int, Chunk]) -> None:
        """These chunks are as they are now; an empty one is gone."""
        numbers = np.array(sorted(changed), np.int64)
        keep = ~member(self.chunks, numbers)
        full = [(number, chunk) for number, chunk in sorted(changed.items()) if len(chunk)]
        fresh = np.array(
            [(number, len(chunk), chunk.dues().min(), chunk.markers.min()) for number, chunk in full], np.int64
        ).reshape(-1, 4)
        columns = (self.chunks, self.counts, self.dues, self.markers)
        joined = [np.concatenate([column[keep], fresh[:, at]]) for at, column in enumerate(columns)]
        order = np.argsort(joined[0], kind="stable")
        self.chunks, self.counts, self.dues, self.markers = (column[order] for column in joined)


def encode_ledger(ledger: Ledger) -> bytes:
    """Its bytes."""
    head = _LEDGER.pack(
        FORMAT,
        ledger.at_end | ledger.replaying << 1,
        len(ledger.chunks),
        ledger.position,
        ledger.latest_ms,
        ledger.read_at_ms,
        ledger.run_ms,
        ledger.replay_end,
        ledger.wake_ms,
    )
    columns = (ledger.chunks, ledger.counts, ledger.dues, ledger.markers)
    return head + b"".join(column.astype("<i8").tobytes() for column in columns)


def decode_ledger(octets: bytes) -> Ledger:
    """Raises StateUnreadableError."""
    version, flags, count, position, latest, read_at, run, replay_end, wake = _LEDGER.unpack_from(octets)
    if version != FORMAT:
        raise StateUnreadableError(f"The state has a ledger of format {version}; this program knows {FORMAT}.")
    chunks, counts, dues, markers = np.frombuffer(octets, "<i8", 4 * count, _LEDGER.size).reshape(4, count)
    flagged = bool(flags & 1), bool(flags & 2)
    return Ledger(position, latest, read_at, run, replay_end, wake, *flagged, chunks, counts, dues, markers)
