"""Truncates a log: it removes its end, or all of it to continue at another offset.

Source: Kafka's UnifiedLog.scala (truncateTo, truncateFullyAndStartAt), LocalLog.scala; KAFKA-9491.
"""

from __future__ import annotations

from ottla.log import removal
from ottla.log.answers import StorageFailed
from ottla.log.compaction import cleanable
from ottla.log.recovery import state
from ottla.log.segment import Segment
from ottla.log.state import LogState


def truncate_to(log: LogState, offset: int, now: int) -> bool:
    """See Log.truncate_to."""
    if log.failed is not None:
        raise StorageFailed(log.failed)
    return cut_to(log, offset, now)


def cut_to(log: LogState, offset: int, now: int, *, durable: bool = True) -> bool:
    """Do `truncate_to`; not `durable`: the next sync must bring it to the disk."""
    log.epochs.truncate_from_end(offset)
    if offset >= log.log_end_offset:
        log.state_rebuilt()
        return False
    if not log.segments or offset < log.segments[0].base_offset:
        truncate_fully_and_start_at(log, offset, now)
        return True
    try:
        removal.drop_segments(log, [segment for segment in reversed(log.segments) if segment.base_offset > offset], now)
        active = log.segments[-1]
        active.offset_index.activate()
        offset = active.truncate(offset)
        active.resume()
        # The removed records must not come back: new batches will have their offsets.
        if durable:
            active.file.sync()
            log.files.sync_directory(log.directory)
    except OSError as error:
        raise log.fail(f"truncating {log.directory} failed: {error}") from error
    _cut_offsets(log, offset)
    log.epochs.truncate_from_end(offset)
    for snapshot in [snapshot for snapshot in log.snapshots if snapshot > offset]:
        log.drop_snapshot(snapshot)
    replayed = state.rebuild_producers(
        log.files,
        log.directory,
        log.segments,
        log.producers,
        log.snapshots,
        log.log_start_offset,
        offset,
        log.wall.at(now),
    )
    log.segments_replaced(log.segments)
    log.replayed(replayed)
    log.state_rebuilt()
    log.write_epochs()
    return True


def truncate_fully_and_start_at(log: LogState, offset: int, now: int) -> None:
    """See Log.truncate_fully_and_start_at."""
    if log.failed is not None:
        raise StorageFailed(log.failed)
    if log.segments and offset >= log.segments[0].base_offset:
        cut_to(log, offset, now)  # a segment that begins there already is empty then
    if log.on_disk:
        _begin_at(log, offset, now)
    for snapshot in list(log.snapshots):
        log.drop_snapshot(snapshot)
    log.epochs.clear()
    log.producers.clear(offset)
    log.log_start_offset = log.high_watermark = log.log_end_offset = offset
    log.syncing.restarted(offset)
    log.replayed(0)
    log.state_rebuilt()
    log.write_epochs()


def _begin_at(log: LogState, offset: int, now: int) -> None:
    """Replace all segments by one empty segment at `offset`. Its name is on the disk before they are removed: a log
    without any segment would start again, at offsets that other records had."""
    fresh = log.active
    try:
        if fresh is None or fresh.base_offset != offset:
            fresh = Segment(log.files, log.directory, offset, log.index_cache, now=now, create=True)
            log.files.sync_directory(log.directory)
    except OSError as error:
        raise StorageFailed(f"a new segment in {log.directory} failed: {error}") from error
    old = [segment for segment in log.segments if segment is not fresh]
    log.segments_replaced([*old, fresh])
    try:
        for segment in old:  # one by one, as retention does: a log must not come back with a gap
            removal.drop_segments(log, [segment], now)
            log.files.sync_directory(log.directory)
    except OSError as error:
        raise log.fail(f"truncating {log.directory} failed: {error}") from error


def _cut_offsets(log: LogState, offset: int) -> None:
    log.log_end_offset = offset
    log.log_start_offset = min(log.log_start_offset, offset)
    log.high_watermark = min(log.high_watermark, offset)
    log.syncing.truncated(offset)
    log.compaction_epoch += 1
    cleanable.cut_checkpoint(log, offset)
