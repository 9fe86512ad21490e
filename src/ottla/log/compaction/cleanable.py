"""Finds the input of a compaction: which part of a log is dirty, and where the last compaction ended.

The dirty part begins where the last compaction ended. It ends at the first of: the active segment, the last stable
offset, a segment with a record younger than `min.compaction.lag.ms`. A log is due when the dirty part's share of what
would be compacted is above `min.cleanable.dirty.ratio`, or a dirty record is older than `max.compaction.lag.ms`.

The offsets at which compactions ended are in `cleaner-offset-checkpoint` in the data directory, one line per compacted
partition. Losing the file costs one compaction of everything. Source: Kafka's LogCleanerManager.scala.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.log.checkpoints import cleaner_path, encode_offsets, place_in, read_cleaned
from ottla.log.config import LONG_MAX
from ottla.log.segment import Segment
from ottla.log.state import LogState


class Dirty(NamedTuple):
    """The offsets a compaction may clean for the first time: [first, end)."""

    first: int
    end: int


def dirty_part(log: LogState, now: int) -> Dirty:
    """The part of the log to compact now; empty when first >= end."""
    if not log.segments:
        return Dirty(log.log_end_offset, log.log_end_offset)
    first = max(cleaned_to(log), log.log_start_offset)
    if first > log.log_end_offset:
        first = log.log_start_offset  # the checkpoint is of another history
    end = min(log.last_stable_offset, log.segments[-1].base_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in _within(log, first, end):
            if segment.largest_timestamp(log.wall) > log.wall.at(now) - lag_ms:
                end = min(end, max(segment.base_offset, first))
                break
    return Dirty(first, end)


def cleanable_ratio(log: LogState, now: int) -> float:
    """See Log.cleanable_ratio."""
    if log.failed is not None or not log.config.compacted or len(log.segments) < 2:
        return 0.0
    dirty = dirty_part(log, now)
    if dirty.first >= dirty.end:
        return 0.0
    cleanable = sum(segment.size for segment in _within(log, dirty.first, dirty.end))
    if cleanable == 0:
        return 0.0
    clean = sum(segment.size for segment in log.segments if segment.base_offset < dirty.first)
    ratio = cleanable / (clean + cleanable)
    if ratio > log.config.min_cleanable_dirty_ratio or _waited_too_long(log, dirty, now):
        return ratio
    return 0.0


def _waited_too_long(log: LogState, dirty: Dirty, now: int) -> bool:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= LONG_MAX:
        return False
    stamps = [segment.rolling_timestamp() for segment in _within(log, dirty.first, dirty.end)]
    oldest = min((stamp for stamp in stamps if stamp > 0), default=None)
    return oldest is not None and oldest < log.wall.at(now) - lag_ms


def _within(log: LogState, first: int, end: int) -> list[Segment]:
    """Closed segments that begin below `end` and hold offsets from `first` on."""
    closed = range(len(log.segments) - 1)
    return [log.segments[at] for at in closed if log.bases[at] < end and log.bases_end(at) > first]


def cleaned_to(log: LogState) -> int:
    """The offset at which the last compaction ended, 0 if there was none."""
    known = log.segments.cleaned_to
    if known is None:
        known = read_cleaned(log.files, log.directory).get(place_in(log.directory), 0)
        log.segments.cleaned(known)
    return known


def write_checkpoint(log: LogState, offset: int) -> None:
    """A compaction ended at `offset`. Raises OSError."""
    log.segments.cleaned(offset)
    offsets = read_cleaned(log.files, log.directory)
    offsets[place_in(log.directory)] = offset
    _write(log, offsets)


def cut_checkpoint(log: LogState, offset: int) -> None:
    """The log was truncated to `offset`: later records there are dirty."""
    if log.config.compacted and cleaned_to(log) > offset:
        write_checkpoint(log, offset)


def forget_checkpoint(log: LogState) -> None:
    """The partition is deleted; another one of its name starts from nothing."""
    offsets = read_cleaned(log.files, log.directory)
    if offsets.pop(place_in(log.directory), None) is not None:
        _write(log, offsets)


def _write(log: LogState, offsets: dict[tuple[str, int], int]) -> None:
    # Not durable: a lost line only means that a compaction is done again.
    log.files.write_atomically(cleaner_path(log.directory), encode_offsets(offsets), durable=False)
