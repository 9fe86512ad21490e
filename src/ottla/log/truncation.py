"""Truncates a log: it removes its end, or all of it to continue at another offset.

Source: Kafka's UnifiedLog.scala (truncateTo, truncateFullyAndStartAt), LocalLog.scala; KAFKA-9491.
"""

from __future__ import annotations

from ottla.log import removal
from ottla.log.answers import StorageError
from ottla.log.compaction import cleanable
from ottla.log.files import ReadError
from ottla.log.recovery import state
from ottla.log.segment import Segment
from ottla.log.state import LogState
from ottla.protocol.records.batch import LOG_OVERHEAD_BYTES


def truncate_to(log: LogState, offset: int, now: int) -> bool:
    """See Log.truncate_to. Raises StorageError."""
    if log.failed is not None:
        raise StorageError(log.failed)
    if not cut_to(log, offset, now, others_have_all=True):
        return False
    try:
        end, position = _end_of_batches(log)
    except ReadError:
        assert log.active is not None
        return cut_to(log, log.active.base_offset, now)
    _drop_torn_end(log, end, position)
    if end < log.log_end_offset:
        # Compaction has removed the batch that ended there; or its offsets were damaged and it was cut off, so that it
        # has to be copied again.
        cut_to(log, end, now)
    return True


def _end_of_batches(log: LogState) -> tuple[int, int]:
    """One past the last offset of the last batch, or the log start; and the position behind that batch."""
    active = log.active
    if active is None:
        return log.log_end_offset, 0
    last = active.offset_index.last()
    end, position = active.base_offset, last[1] if last else 0
    for at, header in active.walk(position):
        end, position = header[0] + header[6] + 1, at + header[1] + LOG_OVERHEAD_BYTES
    return max(end, log.log_start_offset), position


def _drop_torn_end(log: LogState, end: int, position: int) -> None:
    """Cut what is left of a batch that was damaged or cut off: new batches would be appended behind it."""
    active = log.active
    if active is None or position >= active.size:
        return
    try:
        active.truncate_at(position, end)
        active.resume()
        active.file.sync()
    except OSError as error:
        raise log.durability.fail(f"truncating {log.directory} failed: {error}") from error


def cut_to(log: LogState, offset: int, now: int, *, durable: bool = True, others_have_all: bool = False) -> bool:
    """Do `truncate_to`; not `durable`: the next sync must bring it to the disk. `others_have_all`: a segment that can't
    be read may lose more records than it has to, as they can be copied again."""
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
        if active.file.is_in_place():
            offset = _cut_segment(log, active, offset, others_have_all)
        else:
            offset = active.base_offset
            active = renew_active(log, now)
        # The removed records must not come back: new batches will have their offsets.
        if durable:
            active.file.sync()
            log.files.sync_directory(log.directory)
    except OSError as error:
        raise log.durability.fail(f"truncating {log.directory} failed: {error}") from error
    _cut_offsets(log, offset)
    log.epochs.truncate_from_end(offset)
    try:
        log.durability.drop_snapshots_above(offset)
        replayed = state.rebuild_producers(
            log.files,
            log.directory,
            log.segments.all,
            log.producers,
            log.durability.snapshots,
            log.log_start_offset,
            offset,
            log.wall.at(now),
        )
    except OSError as error:
        if isinstance(error, ReadError) and others_have_all and offset > active.base_offset:
            return cut_to(log, active.base_offset, now, durable=durable)
        raise log.durability.fail(f"rebuilding the producers of {log.directory} failed: {error}") from error
    log.segments.replaced(log.segments.all)
    log.durability.replayed(replayed)
    log.state_rebuilt()
    log.write_epochs()
    return True


def _cut_segment(log: LogState, segment: Segment, offset: int, others_have_all: bool) -> int:
    """Drop the batches from `offset` on, or all if the disk can't read where they begin and `others_have_all`. Returns
    the new end. Raises OSError."""
    try:
        end = segment.truncate(offset, log.config.index_interval_bytes)
        segment.resume()
    except ReadError:
        if not others_have_all:
            raise
        return _cut_segment(log, segment, segment.base_offset, others_have_all=False)
    return end


def renew_active(log: LogState, now: int) -> Segment:
    """Another process has removed or replaced the file of the newest segment: replace the segment by an empty one.
    Raises OSError."""
    old = log.segments[-1]
    removal.drop_segments(log, [old], now)
    segment = log.segments.create(old.base_offset, now)
    log.segments.replaced([*log.segments, segment])
    log.syncing.created()
    return segment


def truncate_fully_and_start_at(log: LogState, offset: int, now: int) -> None:
    """See Log.truncate_fully_and_start_at. Raises StorageError."""
    if log.failed is not None:
        raise StorageError(log.failed)
    if log.segments and offset >= log.segments[0].base_offset:
        cut_to(log, offset, now)  # a segment that begins there already is empty then
    if log.on_disk:
        _begin_at(log, offset, now)
    log.durability.drop_snapshots_above(-1)
    _restarted(log, offset)
    log.write_epochs()


def start_over(log: LogState) -> None:
    """See Log.start_over. Raises StorageError."""
    removal.forget_files(log)
    log.segments.interrupt_compaction()
    log.segments.log_deleted()
    log.durability.directory_lost()
    start = log.log_start_offset
    _restarted(log, start)
    try:
        cleanable.cut_checkpoint(log, start)
        log.durability.make_directory(log.topic_id)
    except OSError as error:
        raise StorageError(f"emptying {log.directory} failed: {error}") from error


def _restarted(log: LogState, offset: int) -> None:
    """Forget what was known of the records: the log is empty, and begins at `offset`."""
    log.epochs.clear()
    log.producers.clear(offset)
    log.offsets.restarted(offset)
    log.syncing.restarted(offset)
    log.durability.cut_gaps(offset)
    log.durability.replayed(0)
    log.state_rebuilt()


def _begin_at(log: LogState, offset: int, now: int) -> None:
    """Replace all segments by one empty segment at `offset`. Its name is on the disk before they are removed: a log
    without any segment would start again, at offsets that other records had."""
    fresh = log.active
    try:
        if fresh is None or fresh.base_offset != offset:
            fresh = log.segments.create(offset, now)
            log.files.sync_directory(log.directory)
    except OSError as error:
        raise StorageError(f"a new segment in {log.directory} failed: {error}") from error
    old = [segment for segment in log.segments if segment is not fresh]
    log.segments.replaced([*old, fresh])
    try:
        for segment in old:  # one by one, as retention does: a log must not come back with a gap
            removal.drop_segments(log, [segment], now)
            log.files.sync_directory(log.directory)
    except OSError as error:
        raise log.durability.fail(f"truncating {log.directory} failed: {error}") from error


def _cut_offsets(log: LogState, offset: int) -> None:
    log.offsets.truncated(offset)
    log.syncing.truncated(offset)
    log.durability.cut_gaps(offset)
    log.segments.interrupt_compaction()
    cleanable.cut_checkpoint(log, offset)
