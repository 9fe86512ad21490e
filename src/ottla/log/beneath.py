"""Compares a log with the files in its directory, which another process may have removed or replaced beneath the node.

The node continues to use the files that it has open, and a restart would use those in the directory. So a segment whose
file was removed is written again from the open file. If that file was closed, or another one is in its place, the
segment is damaged: it has to be copied again from another replica. Small files are written again from
memory, and indexes from the batches. Segments that the log does not have, as an older copy of the directory brings
back, are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import Final

from ottla.log import removal, truncation
from ottla.log.answers import Damage, IndexFault
from ottla.log.checkpoints import CheckpointUnreadableError, read_partition_metadata, write_partition_metadata
from ottla.log.config import LONG_MAX
from ottla.log.epochs import EpochCache
from ottla.log.files import ReadError
from ottla.log.names import INDEX_SUFFIXES, LOG_SUFFIX, UNFINISHED_SUFFIX, is_log, offset_in
from ottla.log.segment import Segment
from ottla.log.state import LogState
from ottla.protocol.records.batch import LOG_OVERHEAD_BYTES

NAMES_PER_SLICE: Final = 256
TRIES: Final = 3
"""How often the node tries to write a removed file again: an attempt gives up if the log is cut meanwhile."""
REBUILD_BYTES: Final = 256 << 10
REBUILD_BATCHES: Final = 2_000
"""A slice of a rebuilt index ends behind so many bytes or batches."""

Note = Callable[[str], None]


def displaced(log: LogState) -> Damage | None:
    """The records that a restart would not find: from the first segment on whose file was removed or replaced, or all
    if the directory is gone. None if all files are in place. Raises OSError."""
    if removal.is_gone(log):
        why = "another process has removed this directory"
        return Damage(log.directory, 0, log.log_start_offset, LONG_MAX, why)
    return next((_lost(segment) for segment in log.segments if not segment.file.is_in_place()), None)


def _lost(segment: Segment) -> Damage:
    why = "another process has removed or replaced this file"
    return Damage(f"{segment.path}{LOG_SUFFIX}", 0, segment.base_offset, LONG_MAX, why)


def comparing(log: LogState, note: Note, now: int) -> Iterator[int | Damage]:
    """Compare the names in a log's directory, and its small files, with the log. Yields 0 after each slice but the
    last one, and the first damage. Raises OSError."""
    checked = 0
    for segment in list(log.segments):
        if checked == NAMES_PER_SLICE:
            checked = 0
            yield 0
        checked += 1
        if segment not in log.segments or segment.file.is_in_place():
            continue
        if segment is log.active and not segment.size and not removal.is_gone(log):
            truncation.renew_active(log, now)
            note(f"{segment.path}{LOG_SUFFIX}: created again, because another process has removed or replaced it.")
            continue
        for _ in range(TRIES):
            if segment in log.segments and not segment.file.is_in_place():
                yield from _putting_back(log, segment, note)
        if segment not in log.segments or segment.file.is_in_place():
            continue
        damage = displaced(log)
        if damage is not None:
            yield damage
        return
    if log.segments and log.failed is None:
        _remove_strangers(log, note, now)
        _mend_small_files(log, note)


def _putting_back(log: LogState, segment: Segment, note: Note) -> Iterator[int]:
    """Write the file of a segment again from the open one, unless another file is in its place. Yields 0 after each
    slice. Gives up if the log is cut meanwhile, or if the disk does not accept the file."""
    path, cuts = f"{segment.path}{LOG_SUFFIX}", log.segments.compaction_epoch
    if removal.is_gone(log) or log.files.exists(path):
        return
    slices = segment.file.put_back()
    with closing(slices), suppress(OSError):
        for _ in slices:
            yield 0
            if segment not in log.segments or log.segments.compaction_epoch != cuts or log.failed is not None:
                return
        note(
            f"{path}: another process has removed this file while the node used it. The node has written it again with "
            "all of its records. Find out what removes files from the data directory."
        )


def _remove_strangers(log: LogState, note: Note, now: int) -> None:
    bases = set(log.bases)
    for name in log.files.listdir(log.directory):
        if is_log(name) and offset_in(name) not in bases:
            stem = name.removesuffix(LOG_SUFFIX)
            removal.discard(log, [f"{log.directory}/{stem}{kind}" for kind in (LOG_SUFFIX, *INDEX_SUFFIXES)], now)
            note(f"{log.directory}: removed {name}, which another process has put there.")


def _mend_small_files(log: LogState, note: Note) -> None:
    if not _has_epochs(log):
        log.epochs.dirty = True
        log.write_epochs()
        note(f"{log.durability.epoch_path}: written again, because another process or the disk has changed it.")
    try:
        owner = read_partition_metadata(log.files, log.directory)
    except (CheckpointUnreadableError, ReadError):
        owner = None
    if owner != log.topic_id:
        path = write_partition_metadata(log.files, log.directory, log.topic_id)
        log.syncing.replaced(path)
        note(f"{path}: written again, because another process or the disk has changed it.")
    if not log.durability.gaps.is_as_written:
        log.durability.write_gaps()
        note(f"{log.durability.gaps.path}: written again, because another process or the disk has changed it.")


def _has_epochs(log: LogState) -> bool:
    """Whether the checkpoint has the epochs in memory; those that wait for the next append may be missing."""
    path, entries = log.durability.epoch_path, log.epochs.entries
    try:
        found = EpochCache.decode(log.files.read_bytes(path), path).entries
    except FileNotFoundError:
        return not entries
    except (CheckpointUnreadableError, ReadError):
        return False
    return log.epochs.dirty or found == entries


def mending(log: LogState, segment: Segment, fault: IndexFault, note: Note) -> Iterator[int]:
    """Rebuild the offset and the time index of a segment from its batches. Yields the bytes of each slice but the last
    one. Gives up if the log is cut or the segment is replaced meanwhile. Raises OSError."""
    files, interval, cuts = log.files, log.config.index_interval_bytes, log.segments.compaction_epoch
    for kind in INDEX_SUFFIXES:
        if files.exists(path := f"{segment.path}{kind}{UNFINISHED_SUFFIX}"):
            files.unlink(path)
    fresh = Segment(files, log.directory, segment.base_offset, log.segments.index_cache, now=0, create=False)
    fresh.begin_indexes_anew(log.segments.index_cache)
    fresh.begin_resume()
    position = 0
    while position < segment.size:
        start = position
        for at, header in islice(segment.walk(position, chunk=REBUILD_BYTES), REBUILD_BATCHES):
            size = header[1] + LOG_OVERHEAD_BYTES
            fresh.note_batch(at, size, header[0] + header[6], header[8], interval)
            position = at + size
            if position - start >= REBUILD_BYTES:
                break
        if position == start:
            fresh.close_indexes()
            return  # no batch begins there, as the next pass reports
        if position < segment.size:
            yield position - start
            if segment not in log.segments or log.segments.compaction_epoch != cuts or log.failed is not None:
                fresh.close_indexes()
                return
    _put_in_place(log, segment, fresh)
    note(f"{fault}. Its indexes were rebuilt.")


def _put_in_place(log: LogState, segment: Segment, fresh: Segment) -> None:
    """Replace the indexes of a segment. A power cut before the next fsync may lose them; a start checks their ends."""
    is_closed = segment is not log.active
    if is_closed:
        fresh.complete_time_index()
    fresh.put_indexes_in_place(durable=False)
    segment.offset_index.close()
    segment.time_index.close()
    segment.offset_index, segment.time_index = fresh.offset_index, fresh.time_index
    if is_closed:
        segment.offset_index.deactivate()
        log.syncing.closed(segment)
    else:
        log.syncing.created()


def mend_transactions(log: LogState, segment: Segment, note: Note) -> None:
    """Write the index of aborted transactions of a segment again, if its file is not as in memory. Raises OSError."""
    if segment.txn_index.is_as_written:
        return
    segment.txn_index.write_again()
    log.syncing.created()
    if segment is not log.active:
        log.syncing.closed(segment)
    note(f"{segment.path}.txnindex: written again, because another process or the disk has changed it.")
