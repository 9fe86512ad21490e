"""Decides which segments to delete, by time, size and log start, and when a log next needs upkeep.

Retention stops at the high watermark (KAFKA-5634). In Kafka, one timestamp in the future stops retention indefinitely;
here it does not. removal.py does the deletion.

Source: Kafka's UnifiedLog.scala (deleteOldSegments).
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.log import removal
from ottla.log.config import LONG_MAX
from ottla.log.segment import Segment
from ottla.log.state import PRODUCER_CHECK_INTERVAL_MS, LogState
from ottla.log.syncing import Syncable


def deadline(log: LogState, now: int) -> int | None:
    """See Log.deadline."""
    upkeep = log.retention
    moments: list[int] = []
    if upkeep.deletions:
        moments.append(upkeep.deletions[0][0])
    if log.segments and log.failed is None:
        if upkeep.due or upkeep.start_moved:
            moments.append(now)
        elif log.config.deletes and log.config.retention_ms >= 0 and log.size_bytes:
            if now < upkeep.next_check_ms:  # do not even open its time index before
                moments.append(upkeep.next_check_ms)
            elif log.segments[0] is log.active and _is_ahead(log, log.segments[0], now):
                moments.append(now)  # it is closed then
            else:
                outlived = _newest(log, log.segments[0], now) + log.config.retention_ms + 1
                moments.append(max(log.wall.moment(outlived), now))
        if log.unflushed > 0 and log.config.flush_ms != LONG_MAX:
            moments.append(log.syncing.dirty_at(now) + log.config.flush_ms)
        if log.producers.entries:
            moments.append(upkeep.producer_check_ms)
    return min(moments, default=None)


def flush_due(log: LogState, now: int) -> bool:
    """See Log.flush_due."""
    waiting = log.unflushed
    if waiting <= 0:
        return False
    if waiting >= log.config.flush_messages:
        return True
    since = log.syncing.dirty_since_ms
    return since is not None and now - since >= log.config.flush_ms


def maintaining(log: LogState, now: int) -> Iterator[Syncable]:
    """See Log.maintaining."""
    removal.remove_deleted_files(log, now)
    if log.failed is not None:
        return
    upkeep = log.retention
    if upkeep.due or now >= upkeep.next_check_ms:
        yield from deleting_old(log, now)
    elif upkeep.start_moved:
        yield from _deleting_first(log, _below_start(log), now)
    if now >= upkeep.producer_check_ms:
        wall = log.wall
        log.producers.expire(wall.at(now))
        oldest = min((entry.last_timestamp for entry in log.producers.entries.values()), default=wall.at(now))
        following = now + PRODUCER_CHECK_INTERVAL_MS
        if oldest >= 0:
            following = max(following, wall.moment(oldest + log.producers.expiration_ms))
        upkeep.producers_checked(following)


def deleting_old(log: LogState, now: int) -> Iterator[Syncable]:
    """Apply retention by log start, time and size, in the steps of `Log.maintaining`."""
    log.retention.checked(now)
    count = _below_start(log)
    if log.config.deletes:
        if log.active is not None and log.config.retention_ms >= 0 and _is_ahead(log, log.active, now):
            log.roll(now)  # its newest timestamp would keep it from being closed by time
        count = max(count, _breaching_time(log, now), _breaching_size(log))
    yield from _deleting_first(log, count, now)


def _below_start(log: LogState) -> int:
    count = 0
    while count < len(log.segments) and _deletable(log, count) and log.bases_end(count) <= log.log_start_offset:
        count += 1
    return count


def _deleting_first(log: LogState, count: int, now: int) -> Iterator[Syncable]:
    upkeep = log.retention
    upkeep.below_start_removed()
    if count == 0:
        return
    if count == len(log.segments) and not log.roll(now):
        count -= 1  # the active segment is empty already
    if count and log.producers.entries and log.durability.newest_snapshot < log.bases_end(count - 1):
        log.write_snapshot()  # the producer state in the removed batches would be lost
    upkeep.requests_served()
    going = log.segments[:count]
    if going:
        # A start finds out by the epochs whether segments were deleted or are lost.
        move_log_start(log, log.bases_end(count - 1))
        log.write_epochs()
        upkeep.below_start_removed()
        # A log that lost the name of its newest segment would start again, at offsets that other records had. A segment
        # that was removed before these must not come back alone.
        yield log.files.directory(log.directory)
    for segment in going:
        if log.failed is not None or log.segments[:1] != [segment] or segment is log.active:
            return  # truncated, compacted or deleted while the disk was waited for
        removal.drop_segments(log, [segment], now)
        # One by one, because names are lost one by one too, and a log must not come back with a gap.
        yield log.files.directory(log.directory)


def _deletable(log: LogState, at: int) -> bool:
    """Only what is below the high watermark, and not an active segment that is empty anyway."""
    segment = log.segments[at]
    if segment is log.active and segment.size == 0:
        return False
    return log.high_watermark >= log.bases_end(at)


def _breaching_time(log: LogState, now: int) -> int:
    if log.config.retention_ms < 0:
        return 0
    count = 0
    while (
        count < len(log.segments)
        and _deletable(log, count)
        and log.wall.at(now) - _newest(log, log.segments[count], now) > log.config.retention_ms
    ):
        count += 1
    return count


def _is_ahead(log: LogState, segment: Segment, now: int) -> bool:
    """Whether an append would refuse the segment's greatest timestamp today: further ahead than the clock may be."""
    return (
        segment.size > 0 and segment.max_timestamp()[0] > log.wall.at(now) + log.config.message_timestamp_after_max_ms
    )


def _newest(log: LogState, segment: Segment, now: int) -> int:
    """The age of a segment's records. Timestamps in the future (older versions stored some) don't show it. Then the
    time counts when the segment was closed or opened, because no record in it is newer."""
    if _is_ahead(log, segment, now):
        return log.wall.at(now if segment is log.active else segment.created_ms)
    return segment.largest_timestamp(log.wall)


def _breaching_size(log: LogState) -> int:
    if log.config.retention_bytes < 0:
        return 0
    excess = log.size_bytes - log.config.retention_bytes
    count = 0
    while count < len(log.segments) and _deletable(log, count) and excess - log.segments[count].size >= 0:
        excess -= log.segments[count].size
        count += 1
    return count


def move_log_start(log: LogState, offset: int) -> bool:
    """Raise the log start. Records below it are no longer readable; their segments are removed at the next upkeep."""
    if offset <= log.log_start_offset:
        return False
    log.offsets.start_raised(offset)
    log.epochs.truncate_from_start(offset)
    log.producers.log_start_moved(offset)
    log.state_rebuilt()
    log.retention.start_raised()
    return True
