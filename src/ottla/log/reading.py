"""Reads a log: from an offset or a timestamp to a slice of a segment's file.

Finding an offset costs an index lookup and a short walk over headers. A reader that continues where its last read ended
costs neither: the log remembers a few (offset, position) pairs where slices ended (`LogSegments.cursors`).

Slices end at batch boundaries. Only some boundaries are in the index, so a slice may be up to one index interval
shorter than requested. Source: Kafka's LogSegment.read, LocalLog.read, UnifiedLog.fetchOffsetByTimestamp.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import Any, Final

from ottla.log.answers import Damage, DamagedLogError, Isolation, OffsetOutOfRangeError, ReadResult, TimestampOffset
from ottla.log.files import FileSlice
from ottla.log.index.transactions import AbortedTransaction
from ottla.log.order import verify_order
from ottla.log.segment import RawHeader, Segment
from ottla.log.state import LogState
from ottla.protocol.records.batch import (
    ATTRIBUTES_COMPRESSION,
    ATTRIBUTES_LOG_APPEND_TIME,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
)
from ottla.protocol.records.compression import UNPACKED_BYTES_MAX, unpack
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.outline import PARTS_MAX, first_since

BATCHES_VERIFIED_MAX: Final = 4096
"""Maximum number of batches in a slice whose order had to be verified: they take some milliseconds."""
_PLACE: Final = Struct(">qi4xb6xi")
"""base_offset, batch_length, magic, last_offset_delta"""
_new_tuple = tuple[Any, ...].__new__  # as in log.py

UNPACKED_PER_SEARCH: Final = UNPACKED_BYTES_MAX
RECORDS_PER_SEARCH: Final = PARTS_MAX
"""Maximum number of records that a search for a timestamp decodes. For a batch beyond it, the search returns the first
offset of the batch, which is not after the record."""


class _Search:
    """The remaining budget of one search."""

    __slots__ = ("bytes_left", "records_left")

    def __init__(self) -> None:
        self.bytes_left = UNPACKED_PER_SEARCH
        self.records_left = RECORDS_PER_SEARCH


def read(log: LogState, offset: int, max_bytes: int, isolation: Isolation, min_one_batch: bool) -> ReadResult:
    """See Log.read. Raises OffsetOutOfRangeError."""
    offsets, segments = log.offsets, log.segments
    start, end, high_watermark = offsets.log_start_offset, offsets.log_end_offset, offsets.high_watermark
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(offset, start, end)
    stable = offsets.last_stable_offset
    limit = high_watermark if isolation == 1 else end if isolation == 0 else stable
    file_slice: FileSlice | None = None
    following = offset
    if offset < limit:
        cursor, active = segments.cursors.get(offset), segments.active
        if cursor is None or (cursor[1] == cursor[0].size and cursor[0] is not active):
            # The second condition: a slice ended where its segment ended, so the next batch is in the next segment.
            cursor = _locate(log, offset)
        if cursor is not None:
            segment, position = cursor
            stop = segment.size if limit == end and segment is active else _stop_in(log, segment, limit)
            if stop - position > max_bytes:
                stop, following = _trim(segment, position, stop, max_bytes, min_one_batch)
                if following < 0:
                    raise _damaged(segment, position, offset, "no batch begins there")
                if not offset <= following <= end:
                    following = offset  # a damaged header: a reader must not continue from its offset
                elif stop > position:
                    segments.remember(following, segment, stop)
            elif segment is active:
                following = limit
                segments.remember(following, segment, stop)
            else:
                following = min(limit, _next_base(log, segment))
            if position < segment.inherited and stop > position:
                shorter = _verified(log, segment, position, stop, offset, with_epochs=isolation == 0)
                if shorter is not None:
                    stop, following = shorter
                    segments.remember(following, segment, stop)
            if stop > position:
                file_slice = _new_tuple(FileSlice, (segment.file, position, stop - position))
                if log.durability.unreadable:
                    log.durability.read_again(file_slice)
    aborted = None
    if isolation == 2:
        aborted = aborted_transactions(log, offset, following) if file_slice is not None else []
    return _new_tuple(ReadResult, (file_slice, following, high_watermark, stable, start, end, aborted))


def _locate(log: LogState, offset: int) -> tuple[Segment, int] | None:
    """The first batch that ends at or after `offset`; compaction may have left none in the segment it belongs to.
    Raises DamagedLogError if damage hides it: the batches behind the damage must not be mistaken for the next ones."""
    for at in range(max(bisect_right(log.bases, offset) - 1, 0), len(log.segments)):
        segment = log.segments[at]
        place, found, is_certain = segment.seek(offset)
        start = segment.offset_index.lookup(offset)
        if not is_certain:  # perhaps only the index is damaged
            start, place, found = 0, 0, None
            for position, header in segment.walk(0):
                if header[0] + header[6] >= offset:
                    place, found = position, header
                    break
                place = position + header[1] + LOG_OVERHEAD_BYTES
            if found is None and place < segment.size:
                raise _damaged(segment, place, offset, "the offset is not in its place")
        if found is not None:
            if found[0] > offset and log.durability.gaps.is_damage(found[0]):
                why = f"the batches before offset {found[0]} are missing"
                raise _damaged(segment, place, _end_before(log, at, start, place), why)
            return segment, place
    return None


def _end_before(log: LogState, at: int, start: int, position: int) -> int:
    """One past the last offset before the batch at `position` of this segment; `start`: of a batch before it, or 0."""
    segment, end = log.segments[at], -1
    for place, header in segment.walk(start):
        if place >= position:
            break
        end = header[0] + header[6] + 1
    if end < 0:
        end = log.segments[at - 1].next_offset() if at else segment.base_offset
    return max(end, log.log_start_offset)


def _damaged(segment: Segment, position: int, offset: int, why: str) -> DamagedLogError:
    return DamagedLogError(Damage(segment.file.path, position, offset, -1, why))


def _verified(
    log: LogState, segment: Segment, position: int, stop: int, offset: int, *, with_epochs: bool
) -> tuple[int, int] | None:
    """(end of the slice before a batch that is out of order, the next offset), if that is before `stop`. A place that
    was verified is not verified again. Raises DamagedLogError if the slice would begin with such a batch."""
    wanted = min(stop, segment.inherited)
    start, end = segment.verified
    if start <= position and wanted <= end:
        return None
    below, gaps = _next_base(log, segment), log.durability.gaps
    found = verify_order(segment, position, wanted, offset, below, BATCHES_VERIFIED_MAX, log.epochs, gaps)
    whole_to = found.position - (found.fault is not None)  # what is wrong there must be found again
    if start <= position <= end:
        segment.verified = (start, max(end, whole_to))
    elif whole_to > position:
        segment.verified = (position, whole_to)
    if found.fault is not None and not with_epochs:  # of no concern to a consumer
        found = verify_order(segment, position, wanted, offset, below, BATCHES_VERIFIED_MAX, None, gaps)
    if found.fault is not None and found.position <= position:
        raise _damaged(segment, position, offset, f"the batch that belongs there is damaged: {found.fault.why}")
    if found.position >= wanted and found.fault is None:
        return None
    return found.position, found.next_offset


def _stop_in(log: LogState, segment: Segment, limit: int) -> int:
    """The position in `segment` at which the batches below `limit` end."""
    if limit >= log.log_end_offset or (segment is not log.active and _next_base(log, segment) <= limit):
        return segment.size
    if limit <= segment.base_offset:
        return 0
    cursor = log.segments.cursors.get(limit)
    if cursor is not None and cursor[0] is segment:
        return cursor[1]
    found = segment.find(limit)
    stop = segment.size if found is None else found[0]
    log.segments.remember(limit, segment, stop)
    return stop


def _next_base(log: LogState, segment: Segment) -> int:
    at = bisect_right(log.bases, segment.base_offset)
    return log.bases[at] if at < len(log.bases) else log.log_end_offset


def _trim(segment: Segment, position: int, stop: int, max_bytes: int, min_one_batch: bool) -> tuple[int, int]:
    """(where a slice of at most `max_bytes` ends, the base offset of the batch there)."""
    indexed, boundary = segment.offset_index.boundary_entry(position + max_bytes)
    if boundary > position:
        raw = segment.file.read(boundary, _PLACE.size)
        if len(raw) == _PLACE.size:
            base, _, magic, delta = _PLACE.unpack(raw)
            if magic == MAGIC and base <= base + delta <= indexed:  # the index is not damaged
                return boundary, base
    end, following = position, -1
    for at, header in segment.walk(position, stop):
        size = header[1] + LOG_OVERHEAD_BYTES
        if following < 0:
            following = header[0]
            if size > max_bytes and not min_one_batch:
                break
        elif at + size - position > max_bytes:
            break
        end = at + size
        following = header[0] + header[6] + 1
    return end, following


def aborted_transactions(log: LogState, offset: int, upper_bound: int) -> list[AbortedTransaction]:
    """The aborted transactions that touch [offset, upper_bound). Kafka's UnifiedLog.collectAbortedTransactions."""
    found: list[AbortedTransaction] = []
    for at in range(max(bisect_right(log.bases, offset) - 1, 0), len(log.segments)):
        for entry in log.segments[at].txn_index.aborted():
            if entry.last_offset >= offset and entry.first_offset < upper_bound:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound:
                return found
    return found


def offset_for_timestamp(log: LogState, timestamp: int) -> TimestampOffset | None:
    """See Log.offset_for_timestamp."""
    start, search = log.log_start_offset, _Search()
    for at, segment in enumerate(log.segments):
        if at + 1 < len(log.bases) and log.bases[at + 1] <= start:
            continue
        if segment.max_timestamp()[0] < timestamp:
            continue
        found = segment.find_timestamp(timestamp, start)
        while found is not None:
            exact = _record_in(search, segment, found, timestamp, start)
            if exact is not None:
                return exact
            position, header = found
            # Its records with such a timestamp are below the log start, or the header claims one that is not there.
            found = next(
                (
                    later
                    for later in segment.walk(position + header[1] + LOG_OVERHEAD_BYTES)
                    if later[1][8] >= timestamp
                ),
                None,
            )
    return None


def _record_in(
    search: _Search, segment: Segment, found: tuple[int, RawHeader], timestamp: int, start: int
) -> TimestampOffset | None:
    position, header = found
    base, _, epoch, _, _, attributes, last_delta, base_timestamp, max_timestamp, _, _, _, count = header
    by_header = TimestampOffset(max_timestamp, max(base, start), epoch)
    if attributes & ATTRIBUTES_LOG_APPEND_TIME or count > search.records_left:
        return by_header
    if not count:
        return None  # compaction left only the header
    try:
        batch = segment.read_batch(position, header)
        plain = unpack(attributes & ATTRIBUTES_COMPRESSION, batch[HEADER_BYTES:], search.bytes_left)
        record = first_since(plain, count, timestamp - base_timestamp, start - base)
    except CorruptRecordsError:  # too large, or a client's invalid bytes: only the header is known
        return by_header
    search.records_left -= count
    search.bytes_left -= len(plain)
    if record is None:
        return None
    found_timestamp = base_timestamp + record[0]
    if found_timestamp > max_timestamp or record[1] > last_delta:
        return by_header  # it contradicts its header, and may be more than an answer can hold
    return TimestampOffset(found_timestamp, base + record[1], epoch)


def max_timestamp(log: LogState) -> TimestampOffset | None:
    """See Log.max_timestamp."""
    best: Segment | None = None
    for segment in log.segments:
        if segment.max_timestamp()[0] >= 0 and (best is None or segment.max_timestamp()[0] > best.max_timestamp()[0]):
            best = segment
    if best is None:
        return None
    timestamp = best.max_timestamp()[0]
    found = best.find_timestamp(timestamp, best.base_offset)
    return _record_in(_Search(), best, found, timestamp, best.base_offset) if found is not None else None
