"""Snapshots of a log's producer state: what spares a start from replaying the whole log.

A snapshot at offset N is the state below N, in Kafka's format (producers.py). Those at segments' beginnings stay, for
truncation and retention, and the newest one. Losing one costs replaying, so one that can't be written now is put off,
except where segments are about to go. Source: Kafka's ProducerStateManager.java.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ottla.log.answers import StorageFailed
from ottla.log.names import snapshot_name

if TYPE_CHECKING:
    from ottla.log.log import Log

SNAPSHOT_BATCHES: Final = 2048  # a killed process leaves at most so many batches to replay into the producer state
SNAPSHOT_BYTES: Final = 16 << 20


def write_when_due(log: Log, batches: int, octets: int) -> None:
    """See Log.snapshot_when_due; so many batches and bytes have come since the last one."""
    # A snapshot costs with the number of producers, so many producers get theirs less often.
    due = max(SNAPSHOT_BATCHES, 4 * len(log.producers.entries))
    if batches >= due or (octets >= SNAPSHOT_BYTES and batches * 4 >= due):
        with contextlib.suppress(StorageFailed):
            write(log)
        log.replayed(0)


def write(log: Log) -> None:
    """See Log.write_snapshot."""
    end = log.log_end_offset
    path = _path(log, end)
    log.producers.end_offset = end
    try:
        if log.active is not None:
            log.active.txn_index.flush()  # a replay from the snapshot on would not find these aborts again
        log.files.write_atomically(path, log.producers.encode(), durable=False)
        log.syncing.replaced(path)
        previous = log.snapshots[-1] if log.snapshots else -1
        if previous != end:
            log.snapshots.append(end)
            at = bisect_right(log.bases, previous) - 1
            if previous >= 0 and (at < 0 or log.bases[at] != previous):
                drop(log, previous)
    except OSError as error:
        raise StorageFailed(f"writing {path} failed: {error}") from error
    log.replayed(0)


def drop(log: Log, offset: int) -> None:
    """See Log.drop_snapshot."""
    if offset in log.snapshots:
        path = _path(log, offset)
        if log.files.exists(path):
            log.files.unlink(path)
            log.syncing.created()
        log.snapshots.remove(offset)


def _path(log: Log, offset: int) -> str:
    return f"{log.directory}/{snapshot_name(offset)}"
