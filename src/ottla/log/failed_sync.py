"""Handles a failed fsync: it decides which records may never reach the disk, and what to do about them.

Linux reports a page that it could not write to one fsync, and then treats the page as clean. A later fsync succeeds
without that page, and a restart still sees it in the page cache. So everything above the recovery point is in doubt
until it is written again. The indexes of a segment that was closed below the recovery point are in doubt too, because
recovery does not check those.
- If these records were neither acknowledged to their producers nor delivered to a consumer or another replica, they are
  cut off, and the producers send them again. With fsync durability that is so: the high watermark has not passed the
  recovery point.
- Otherwise the log stays closed to writes, and a file in its directory makes the next start check and rewrite the
  records (recovery/). With fsync durability, a start after a kill does that without the file.

Source: "Can Applications Recover from fsync Failures?" (USENIX ATC 2020).
"""

from __future__ import annotations

from contextlib import suppress

from ottla.log import truncation
from ottla.log.answers import StorageError
from ottla.log.names import FSYNC_FAILED_FILE
from ottla.log.state import LogState


def shut(log: LogState, error: OSError) -> StorageError:
    """Close the log to writes after a failed fsync. Returns the exception to raise."""
    if log.failed is None:
        log.durability.doubt(f"syncing {log.directory} failed: {error}")
        if log.high_watermark > log.recovery_point:
            _note(log)
    return StorageError(str(log.failed))


def _note(log: LogState) -> None:
    """Leave the file for the next start. On a full disk the newest producer snapshot gets its name, which needs no
    space: the next start builds that state from the records."""
    path = f"{log.directory}/{FSYNC_FAILED_FILE}"
    if log.files.exists(path):
        return
    try:
        log.files.write_atomically(path, f"{log.failed}\n".encode(), durable=False)
    except OSError:
        with suppress(OSError):  # if the disk refuses this too, it will hardly accept the log's writes again
            log.durability.rename_snapshot(path)


def reopen(log: LogState, now: int, *, others_know: bool) -> bool:
    """See Log.reopen. False if records in doubt are acknowledged or on other replicas, or if the cut fails."""
    durability, point = log.durability, log.recovery_point
    if not durability.in_doubt or log.high_watermark > point:
        return False
    if others_know:
        _note(log)
        return False
    why = durability.open_for_repair()
    before = [
        (each.producer_id, each.epoch, each.batches[0].first_sequence)
        for each in log.producers.entries.values()
        if each.batches
    ]
    try:
        # No fsync here, because it may fail again on such a disk. The fsync of the next records covers the cut, and
        # until then no client gets an acknowledgement.
        truncation.cut_to(log, point, now, durable=False)
        log.syncing.created()
        for segment in dict.fromkeys([*log.syncing.closed_segments, *log.segments[-1:]]):
            segment.rewrite_indexes()
        for path in log.syncing.replaced_files:
            if log.files.exists(path):
                log.files.write_atomically(path, log.files.read_bytes(path), durable=False)
    except OSError:
        durability.repaired(why)
        return False
    durability.repaired()
    for producer_id, epoch, first in before:
        log.producers.owe(producer_id, epoch, first)
    return True
