"""Compares an opened log with everything that is known of it, and reports what is missing.

Three things are known. The offset checkpoints have how far the log was on the disk, where it started, and what was
committed. The last clean stop recorded how it left the log. And segments join: compaction keeps the last batch of a
segment, and a segment begins where the one before it ended.

Retention and DeleteRecords move the start of a log before a checkpoint records it. So after a kill a missing head is
noticed by the leader epochs, which retention cuts before it deletes a segment; and in a compacted log without
retention, because nothing moves its start.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ottla.log.config import LogConfig
from ottla.log.epochs import EpochCache
from ottla.log.gaps import Gaps
from ottla.log.left import Left, checksum_of_tail
from ottla.log.recovery.found import Found, What
from ottla.log.segment import Segment, walk_batches
from ottla.protocol.records.batch import ATTRIBUTES_AT, LOG_OVERHEAD_BYTES
from ottla.protocol.records.checksum import crc32c


class Known(NamedTuple):
    """The knowledge about a log before it is opened. `start`: the checkpointed log start, None if its file could not be
    read; `left`: how the last clean stop left the log, None if that is unknown."""

    recovery_point: int = 0
    start: int | None = 0
    high_watermark: int = 0
    left: Left | None = None


def look_at_ends(
    found: Found, directory: str, segments: list[Segment], end: int, known: Known, config: LogConfig
) -> None:
    """Report what the log lacks according to the checkpoints. `end`: the log's end."""
    reached = max(known.recovery_point, known.high_watermark)
    start = known.start or 0
    if not segments:
        if reached > start:
            found.add(
                What.ALL,
                f"{directory}: it has no segment, but the log once ended at offset {reached} or later.",
                first=start,
                end=reached,
            )
        return
    if end < reached:
        found.add(
            What.SHORT,
            f"{directory}: ends at offset {end}, but it once ended at {reached} or later.",
            first=end,
            end=reached,
        )
    first = segments[0].base_offset
    if known.start is not None and first > known.start and config.compacted and not config.deletes:
        _report_head(found, directory, start, first)


def _report_head(found: Found, directory: str, start: int, first: int) -> None:
    sentence = f"{directory}: begins at offset {first}, but it should begin at {start}: segments are missing."
    found.add(What.HEAD, sentence, first=start, end=first)


def look_at_first_epoch(
    found: Found, directory: str, segments: list[Segment], epochs: EpochCache, known: Known
) -> None:
    """Report the loss of segments before the first one: their leader epochs are still in the checkpoint."""
    earliest, is_reported = epochs.earliest, any(each.what is What.HEAD for each in found.findings)
    if earliest is None or not segments or is_reported:
        return
    first = segments[0].base_offset
    if first > max(known.start or 0, earliest[1]):
        _report_head(found, directory, max(known.start or 0, earliest[1]), first)


def look_for_gaps(found: Found, segments: list[Segment], gaps: Gaps) -> None:
    """Report where segments do not join, and where the last batches of a closed one are damaged or missing."""
    for segment, following in pairwise(segments):
        end, walked_to = _end_of(segment, following.base_offset, found, gaps)
        path = f"{segment.path}.log"
        if walked_to < segment.size:
            sentence = f"{path}: is damaged behind offset {end - 1}: no batch begins at position {walked_to}."
            found.add(What.DAMAGED, sentence, first=end, end=following.base_offset)
        elif end < following.base_offset:
            sentence = f"{path}: ends at offset {end}, and the next segment begins at {following.base_offset}."
            found.add(What.MIDDLE, sentence, first=end, end=following.base_offset)
        elif end > following.base_offset:
            sentence = f"{path}: claims offset {end - 1}, but the next segment begins at {following.base_offset}."
            found.add(What.DAMAGED, sentence, first=segment.base_offset, end=following.base_offset)


def _end_of(segment: Segment, below: int, found: Found, gaps: Gaps) -> tuple[int, int]:
    """One past the last offset of a closed segment, and the position where its last sound batch ends. Reports gaps
    behind the last index entry, which end below `below`."""
    last = segment.offset_index.last_on_disk()
    walked_to, end = last[1] if last else 0, segment.base_offset
    indexed_at = last[1] if last else -1
    for position, header in segment.walk(walked_to):
        if end < header[0] < below and position != indexed_at and gaps.is_damage(header[0]):
            found.add_gap(segment.file.path, end, header[0])
        end, walked_to = header[0] + header[6] + 1, position + header[1] + LOG_OVERHEAD_BYTES
    return end, walked_to


def is_as_left(segments: list[Segment], end: int, left: Left) -> bool:
    """Whether a log has the files that the last clean stop left. Raises OSError."""
    return (
        bool(segments)
        and (len(segments), sum(segment.size for segment in segments)) == (left.segments, left.size)
        and end == left.end
        and segments[0].base_offset <= left.start
        and checksum_of_tail(segments[-1]) == left.tail
    )


def compare_with_left(found: Found, directory: str, segments: list[Segment], end: int, left: Left, gaps: Gaps) -> None:
    """Report how the files of a log differ from what the last clean stop left. Raises OSError."""
    before = len(found.findings)
    if segments:
        first = segments[0].base_offset
        if first > left.start:
            _report_head(found, directory, left.start, first)
        look_for_gaps(found, segments, gaps)
        _look_at_tail(found, segments[-1])
    if end < left.end and segments:
        sentence = f"{directory}: ends at offset {end}, but the last clean stop left it with an end of {left.end}."
        found.add(What.SHORT, sentence, first=end, end=left.end)
    elif not segments:
        sentence = f"{directory}: it has no segment, but ended at the last clean stop at offset {left.end}."
        found.add(What.ALL, sentence, first=left.start, end=left.end)
    elif len(found.findings) == before:
        sentence = f"{directory}: its files are not those that the last clean stop left."
        found.add(What.CHANGED, sentence, first=left.start, end=left.end)


def _look_at_tail(found: Found, active: Segment) -> None:
    """Report the first batch behind the last index entry that does not match its checksum."""
    last = active.offset_index.last()
    for position, header, batch in walk_batches(active.file, last[1] if last else 0, active.size):
        if crc32c(batch[ATTRIBUTES_AT:]) != header[4]:
            sentence = (
                f"{active.path}.log, position {position}: the batch at offset {header[0]} does not match its checksum."
            )
            found.add(What.DAMAGED, sentence, first=header[0], end=header[0] + header[6] + 1)
            return


def look_at_newest_epoch(found: Found, directory: str, epochs: EpochCache, end: int, left: Left) -> None:
    """Report a newest leader epoch that is not the one that the last clean stop left."""
    if epochs.latest_epoch != left.newest_epoch:
        sentence = (
            f"{directory}: has leader epoch {epochs.latest_epoch}, and the last clean stop left {left.newest_epoch}."
        )
        found.add(What.CHANGED, sentence, first=epochs.latest_start, end=end)
