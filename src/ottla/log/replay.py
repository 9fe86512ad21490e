"""Reads a log whole, from its start to its end, for coordinators, which must not miss a record.

It detects every kind of damage that misleads a reader that walks from batch to batch: a checksum that does not match, a
wrong length, offsets that belong to another batch (no checksum covers them). `Log.read` checks less, because a consumer
checks what it gets.

Invariant: together, the batches that `read` returned and that `skip` skipped are everything below `next_offset`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ottla.log.answers import Damage
from ottla.log.segment import RawHeader, Segment, walk_batches
from ottla.protocol.records.batch import ATTRIBUTES_AT, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from ottla.protocol.records.checksum import crc32c

if TYPE_CHECKING:
    from ottla.log.log import Log

WINDOW_BYTES: Final = 128 << 10


class UnreadableError(Exception):
    """Raised for a damaged batch. `str` names file, position and offset, as `damage` does."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


class ReplacedError(Exception):
    """The reader's segment was removed (compaction, deletion of records): start again."""


class Replay:
    """One reading of one log. `next_offset`: everything below has been returned."""

    __slots__ = ("_expected", "_leap", "_log", "_position", "_segment", "_skipped", "next_offset")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.next_offset = log.log_start_offset
        self._segment: Segment | None = None
        self._position = 0
        self._expected = 0
        self._leap: tuple[int, int] | None = None
        """A batch behind a gap, and the offset before which all was returned. If the next batch begins too low, this
        one claimed too high an offset."""
        self._skipped = False
        """Whether damage before the next batch was skipped."""

    @property
    def done(self) -> bool:
        log, segment = self._log, self._segment
        if self.next_offset < log.log_end_offset:
            return False
        return segment is None or (segment is log.segments[-1] and self._position >= segment.size)

    def read(self, bytes_max: int) -> list[memoryview]:
        """The next batches, whole and sound, about `bytes_max` of them; none at the log's end.

        Raises UnreadableError, ReplacedError, OSError. After Unreadable the batches before the bad place count as
        returned only if a former call returned them: the bad place comes up first in a call of its own.
        """
        found: list[memoryview] = []
        size = 0
        while size < bytes_max and not self.done:
            segment = self._current()
            if segment is None:
                self.next_offset = self._log.log_end_offset
                break
            end = self._end_of(segment)
            for position, header, batch in walk_batches(segment.file, self._position, segment.size, WINDOW_BYTES):
                fault = self._fault_of(header, batch, end)
                if fault is not None:
                    if found:
                        return found
                    if self._leap is not None and header[0] < self._expected:
                        fault = f"a batch claims the offsets up to {self._expected - 1}"
                        raise UnreadableError(Damage(segment.file.path, *self._leap, end, fault))
                    raise self._unreadable(segment, fault)
                self._leap = (position, self.next_offset) if header[0] > self._expected else None
                self._position, self._skipped = position + len(batch), False
                self._expected = header[0] + header[6] + 1
                if self._expected > self.next_offset:
                    self.next_offset = self._expected
                    found.append(batch)
                size += len(batch)
                if size >= bytes_max:
                    break
            else:
                if self._position < segment.size:
                    if found:
                        return found
                    raise self._unreadable(segment, "no batch begins there")
        return found

    def skip(self) -> None:
        """Continue behind the unreadable place: with the batch after it, or where the index has one."""
        segment = self._segment
        assert segment is not None
        self._skipped = True
        if self._leap is not None:
            _, self._expected = self._leap  # it has been passed
            self.next_offset, self._leap = self._expected, None
            return
        place = self._position
        raw = segment.file.read(place, HEADER_BYTES)
        if len(raw) == HEADER_BYTES:
            header: RawHeader = HEADER.unpack(raw)
            if header[0] > self.next_offset and self._begins_batch(segment, place):
                return  # only the records before it are missing
            following = place + header[1] + LOG_OVERHEAD_BYTES
            if header[1] + LOG_OVERHEAD_BYTES >= HEADER_BYTES and (
                following == segment.size or self._begins_batch(segment, following)
            ):
                self._position = following
                return
        following = segment.offset_index.boundary_after(place)
        self._position = segment.size if following is None else following

    def _current(self) -> Segment | None:
        """The segment in which reading continues, None behind the last one."""
        log, segment = self._log, self._segment
        if segment is None:
            if not log.segments:
                return None
            following = log.segments[max(bisect_right(log.bases, self.next_offset) - 1, 0)]
        elif segment not in log.segments:
            raise ReplacedError
        elif self._position < segment.size:
            return segment
        else:
            at = log.segments.index(segment) + 1
            if at == len(log.segments):
                return None
            following = log.segments[at]
        place = following.offset_index.lookup(self.next_offset)
        self._segment, self._expected, self._leap = following, following.base_offset, None
        self._position = place if place and self._begins_batch(following, place) else 0
        return following

    def _end_of(self, segment: Segment) -> int:
        return self._log.bases_end(self._log.segments.index(segment))

    def _fault_of(self, header: RawHeader, batch: memoryview, end: int) -> str | None:
        """The fault of a batch that should lie between `_expected` and `end`; None for a sound batch."""
        if crc32c(batch[ATTRIBUTES_AT:]) != header[4]:
            return "the checksum does not match"
        last = header[0] + header[6]
        if header[0] < self._expected or header[6] < 0 or last >= end:
            return f"a batch claims the offsets {header[0]} to {last} where {self._expected} to {end - 1} belong"
        if header[0] > self.next_offset and not self._skipped and self._log.durability.gaps.is_damage(header[0]):
            return f"the batches before offset {header[0]} are missing"
        return None

    def _begins_batch(self, segment: Segment, position: int) -> bool:
        """Whether a sound batch of this segment begins there."""
        found = next(walk_batches(segment.file, position, segment.size, WINDOW_BYTES), None)
        if found is None:
            return False
        _, header, batch = found
        in_place = segment.base_offset <= header[0] and header[0] + header[6] < self._end_of(segment)
        return header[3] == MAGIC and in_place and crc32c(batch[ATTRIBUTES_AT:]) == header[4]

    def _unreadable(self, segment: Segment, fault: str) -> UnreadableError:
        self._leap, end = None, self._end_of(segment)
        return UnreadableError(Damage(segment.file.path, self._position, self.next_offset, end, fault))
