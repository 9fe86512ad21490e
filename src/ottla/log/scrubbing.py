"""Reads the segments of a log, slice by slice, and finds the batches that are damaged.

No start and no append notices a damaged batch, only a reader does. By then it may be the last copy. So every batch is
checked periodically: its checksum, and what no checksum covers. That is its offsets, its leader epoch, and that
segments and index agree with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from ottla.log import beneath
from ottla.log.answers import Damage, IndexFault
from ottla.log.checking import checking
from ottla.log.state import LogState


def scrubbing(log: LogState, note: Callable[[str], None] = lambda _: None, base: int = -1) -> Iterator[int | Damage]:
    """Check the segments of a log with base offsets above `base`, and the newest one up to its end. Yields the bytes of
    each slice, and the damage, at most one place of each segment. Indexes that do not agree with the batches are
    rebuilt, which is reported to `note`. Segments that are replaced, cut or deleted meanwhile are skipped. Raises
    OSError."""
    interval = log.config.index_interval_bytes
    while True:
        at = bisect_right(log.bases, base)
        if at >= len(log.segments):
            return
        is_closed = at + 1 < len(log.segments)
        segment, below, cuts = log.segments[at], log.bases_end(at), log.segments.compaction_epoch
        base = segment.base_offset
        beneath.mend_transactions(log, segment, note)
        for found in checking(segment, below, log.epochs, log.durability.gaps, joins=is_closed, interval=interval):
            was_cut = log.segments.compaction_epoch != cuts and not (is_closed and segment is not log.active)
            if segment not in log.segments or was_cut:
                break
            if isinstance(found, IndexFault):
                yield from beneath.mending(log, segment, found, note)
            else:
                yield found
