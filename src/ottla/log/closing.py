"""Completes a log for a clean stop: whole indexes, the newest epoch, producers in a snapshot."""

from __future__ import annotations

from ottla.log.left import Left, checksum_of, checksum_of_tail
from ottla.log.state import LogState


def complete(log: LogState) -> bool:
    """See Log.complete. A second call before the next append has no work."""
    active = log.active
    if not log.on_disk or log.failed is not None or active is None:
        return False
    newest = log.epochs.entries[-1:]
    if not newest or newest[0][1] < log.log_end_offset:
        log.write_epochs()  # an epoch without a batch would be dropped by the next leader's
    if log.durability.newest_snapshot != log.log_end_offset:
        log.write_snapshot()
    try:
        active.complete_time_index()
        active.flush_indexes()
        dirty = active.dirty_index_files()
        if not dirty and not log.unflushed and log.syncing.idle:
            return False
        active.touch_indexes()
    except OSError as error:
        raise log.durability.fail(f"closing {active.path} failed: {error}") from error
    log.syncing.closed(active, dirty)
    return True


def left_by(log: LogState) -> Left | None:
    """The state in which the log is left, None if it has no segment. It is complete, and its files are not closed yet.
    Raises OSError."""
    if log.active is None:
        return None
    return Left(
        log.topic_id,
        log.log_start_offset,
        log.log_end_offset,
        len(log.segments),
        log.size_bytes,
        log.latest_epoch,
        checksum_of(log.files, log.durability.epoch_path),
        checksum_of_tail(log.active),
    )
