"""Reads the segments of a log, slice by slice, and finds the batches that are damaged.

No start and no append notices a damaged batch, only a reader does. By then it may be the last copy. So every batch is
checked periodically: its checksum, and what no checksum covers. That is its offsets, its leader epoch, and that
segments and index agree with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from ottla.log import removal
from ottla.log.answers import Damage
from ottla.log.checking import checking
from ottla.log.config import LONG_MAX
from ottla.log.state import LogState


def damage_of_gone(log: LogState) -> Damage:
    """What a log lacks whose directory another process has removed: everything, although open files can be read."""
    return Damage(log.directory, 0, log.log_start_offset, LONG_MAX, "another process has removed this directory")


def scrubbing(log: LogState) -> Iterator[int | Damage]:
    """Check the segments of a log, and the newest one up to its end. Yields the bytes of each slice, and the damage, at
    most one place of each segment. A directory that is gone is damage from the log start on. Segments that are
    replaced, cut or deleted meanwhile are skipped. Raises OSError."""
    if removal.is_gone(log):
        yield damage_of_gone(log)
        return
    base = -1
    while True:
        at = bisect_right(log.bases, base)
        if at >= len(log.segments):
            return
        is_closed = at + 1 < len(log.segments)
        segment, below, cuts = log.segments[at], log.bases_end(at), log.segments.compaction_epoch
        base = segment.base_offset
        for found in checking(segment, below, log.epochs, joins=is_closed):
            if segment not in log.segments or (not is_closed and log.segments.compaction_epoch != cuts):
                break
            yield found
