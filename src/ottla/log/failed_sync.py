"""Deals with an fsync that failed: which records may never reach the disk, and what is done about them.

Linux tells of a page that it could not write to one fsync, and then takes the page for clean: a later fsync succeeds
without it, and a restart sees it in the page cache as if nothing had been. So what is above the recovery point is in
doubt until it is written once more. So are the indexes of a segment that was closed below it: recovery does not look
into those.

- Where nobody was told of these records, neither their producers nor a consumer (the high watermark has not passed the
  recovery point: fsync durability), nor another replica, they are cut off. Their producers send them again.
- Else the log stays closed to writes, and a file in its directory makes the next start check and rewrite them
  (recovery/). A start after a kill does that without the file where durability is fsync.

Source: "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
"""

from __future__ import annotations

from contextlib import suppress

from ottla.log import truncation
from ottla.log.answers import StorageFailed
from ottla.log.names import FSYNC_FAILED_FILE
from ottla.log.state import LogState


def shut(log: LogState, error: OSError) -> StorageFailed:
    """An fsync of this log failed: it takes no more writes. The exception to raise."""
    if log.failed is None:
        log.fail(f"syncing {log.directory} failed: {error}")
        log.in_doubt = True
        if log.high_watermark > log.recovery_point:
            _note(log)
    return StorageFailed(log.failed)


def _note(log: LogState) -> None:
    path = f"{log.directory}/{FSYNC_FAILED_FILE}"
    if log.files.exists(path):
        return
    with suppress(OSError):  # a disk that does not take this either will hardly take the log up again
        log.files.write_atomically(path, f"{log.failed}\n".encode(), durable=False)


def reopen(log: LogState, now: int, *, others_know: bool) -> bool:
    """See Log.reopen. False where records in doubt are acknowledged, or known to others, or where the cut fails."""
    point, why = log.recovery_point, log.failed
    if not log.in_doubt or log.high_watermark > point:
        return False
    if others_know:
        _note(log)
        return False
    log.failed = None
    before = [
        (each.producer_id, each.epoch, each.batches[0].first_sequence)
        for each in log.producers.entries.values()
        if each.batches
    ]
    try:
        # Without an fsync, which on such a disk may fail again: the one that covers the next records covers the cut,
        # and until then nobody is told of them.
        truncation.cut_to(log, point, now, durable=False)
        log.syncing.created()
        for segment in dict.fromkeys([*log.syncing.closed_segments, *log.segments[-1:]]):
            segment.rewrite_indexes()
        for path in log.syncing.replaced_files:
            if log.files.exists(path):
                log.files.write_atomically(path, log.files.read_bytes(path), durable=False)
    except OSError:
        log.failed = why
        return False
    log.in_doubt = False
    for producer_id, epoch, first in before:
        log.producers.owe(producer_id, epoch, first)
    return True
