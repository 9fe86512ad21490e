"""Checks the batches of one segment, slice by slice: their checksums, and what no checksum covers, which is their
offsets, their leader epochs, and that the segment and its indexes agree with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.log.answers import Damage, IndexFault
from ottla.log.epochs import UNDEFINED_EPOCH, EpochCache
from ottla.log.files import FileSlice
from ottla.log.gaps import Gaps
from ottla.log.index.comparing import IndexComparison
from ottla.log.segment import RawHeader, Segment, walk_batches
from ottla.protocol.records.batch import ATTRIBUTES_AT, LOG_OVERHEAD_BYTES
from ottla.protocol.records.checksum import crc32c

SLICE_BYTES: Final = 128 << 10
SLICE_BATCHES: Final = 500
"""A slice ends behind so many batches, which take a millisecond or two."""


def damage_in_first(batches: FileSlice, offset: int) -> Damage | None:
    """The damage of the first batch of a slice that a reader gets who asked for `offset`, according to its checksum;
    None if it is sound. Raises OSError."""
    end = batches.position + batches.length
    first = next(walk_batches(batches.file, batches.position, end, SLICE_BYTES), None)
    if first is None:
        return Damage(batches.file.path, batches.position, offset, -1, "no batch begins there")
    position, header, batch = first
    if crc32c(batch[ATTRIBUTES_AT:]) == header[4]:
        return None
    last = header[0] + header[6]
    return Damage(batches.file.path, position, header[0], last + 1, "the batch does not match its checksum")


def checking(
    segment: Segment,
    below: int,
    epochs: EpochCache,
    gaps: Gaps | None,
    *,
    joins: bool,
    indexed: bool = True,
    interval: int | None = None,
) -> Iterator[int | Damage | IndexFault]:
    """Check one segment. Its offsets must be below `below`, and reach it if the segment `joins` the next one. Without
    `gaps`, any gap may be compaction's. `indexed`: its indexes are complete. `interval`: that of its indexes, if this
    process writes them.

    Yields the bytes of each slice; ends at the first damage. A fault of an index comes last. Raises OSError.
    """
    indexes = IndexComparison(segment, is_closed=joins, interval=interval) if indexed else None
    walk = _Walk(segment, below, epochs, gaps, indexes)
    size, batches, whole = indexes.size if indexes is not None else 0, 0, segment.size
    for position, header, batch in walk_batches(segment.file, 0, whole, SLICE_BYTES):
        damage = walk.check(position, header, batch)
        if damage is not None:
            yield damage
            return
        size, batches = size + len(batch), batches + 1
        if size >= SLICE_BYTES or batches == SLICE_BATCHES:
            yield size
            size = batches = 0
    damage = walk.check_end(whole, joins)
    yield size
    if damage is not None:
        yield damage
    elif indexes is not None and (fault := indexes.end()) is not None:
        yield fault


class _Walk:
    """The progress of a walk through a segment."""

    def __init__(
        self, segment: Segment, below: int, epochs: EpochCache, gaps: Gaps | None, indexes: IndexComparison | None
    ) -> None:
        self._segment = segment
        self._gaps = gaps
        self._indexes = indexes
        self._below = below
        self._epochs = epochs
        self._expected = segment.base_offset
        self._end = 0
        self._leap: tuple[int, int] | None = None
        """A batch behind a gap: compaction makes gaps, and a batch that claims too high an offset makes one too."""

    def _damage(self, position: int, first: int, why: str, end: int = -1) -> Damage:
        return Damage(f"{self._segment.path}.log", position, first, self._below if end < 0 else end, why)

    def check(self, position: int, header: RawHeader, batch: memoryview) -> Damage | None:
        """Check the next batch. Returns the damage in it, or in the one before."""
        base, last, expected = header[0], header[0] + header[6], self._expected
        if base < expected or header[6] < 0 or last >= self._below:
            if self._leap is not None and base < expected:
                return self._damage(*self._leap, f"the batch claims the offsets up to {expected - 1}")
            return self._damage(position, expected, f"the batch claims the offsets {base} to {last}")
        if base > expected and self._gaps is not None and self._gaps.is_damage(base):
            return self._damage(position, expected, f"the batches before offset {base} are missing", base)
        if crc32c(batch[ATTRIBUTES_AT:]) != header[4]:
            return self._damage(position, base, "the batch does not match its checksum", last + 1)
        epoch = self._epochs.epoch_at(base)
        if header[2] not in (epoch, UNDEFINED_EPOCH) and epoch != UNDEFINED_EPOCH:
            # Its base offset may be wrong instead.
            return self._damage(position, expected, f"the batch claims leader epoch {header[2]}, not {epoch}", last + 1)
        doubtful = None if self._indexes is None else self._indexes.batch(position, header, expected)
        if doubtful is not None:
            return self._damage(*doubtful, "the batch claims another offset than the offset index has for it")
        self._leap = (position, expected) if base > expected else None
        self._expected, self._end = last + 1, position + header[1] + LOG_OVERHEAD_BYTES
        return None

    def check_end(self, size: int, joins: bool) -> Damage | None:
        """Check the end of the segment, which had `size` bytes, where no batch follows. Returns the damage."""
        if self._end < size:
            return self._damage(self._end, self._expected, "no batch begins there")
        if joins and self._expected < self._below:
            why = f"the segment ends, and the next one begins at {self._below}"
            return self._damage(self._end, self._expected, why)
        return None
