"""Recovers the state of a log's producers: the newest sound snapshot, and the batches after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ottla.log.files import FileSystem
from ottla.log.index.transactions import AbortedTransaction, IndexSummary
from ottla.log.names import SNAPSHOT_SUFFIX, is_of_a_segment, offset_in, snapshot_name
from ottla.log.producers import ProducerState, SnapshotUnreadableError, indexes_in, marker_in
from ottla.log.segment import Segment
from ottla.machine import WallMillis
from ottla.protocol.records.batch import ATTRIBUTES_CONTROL, ATTRIBUTES_TRANSACTIONAL

REPLAY_CHUNK_BYTES: Final = 256 << 10

Note = Callable[[str], None]


def sound_snapshots(files: FileSystem, directory: str, names: list[str], trusted_to: int, note: Note) -> list[int]:
    """Offsets of the snapshots up to `trusted_to`; the others may not match the log and are removed."""
    snapshots: list[int] = []
    for offset in [offset_in(name) for name in names if is_of_a_segment(name, SNAPSHOT_SUFFIX)]:
        if offset > trusted_to:
            files.unlink(f"{directory}/{snapshot_name(offset)}")
            note(f"{directory}: removed {snapshot_name(offset)}, which may not match the log.")
        else:
            snapshots.append(offset)
    return snapshots


def cut_transaction_indexes(segments: list[Segment], log_end_offset: int, trusted_to: int, note: Note) -> int:
    """Remove from transaction indexes the entries that can't be of their segment, with all later ones, and those of
    markers from `trusted_to` on. The latter may be torn, which their content doesn't show.

    The replay of producers adds them again if it begins at or before the returned offset. That is the log's end if
    nothing was removed.
    """
    whole_to = log_end_offset
    for at, segment in enumerate(segments):
        end = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
        if segment.txn_index.cut_unsound(segment.base_offset, min(end, trusted_to)):
            note(f"{segment.file.path}: cut entries off its transaction index that may be unsound.")
            whole_to = min(whole_to, segment.base_offset)
    return whole_to


def rebuild_producers(
    files: FileSystem,
    directory: str,
    segments: list[Segment],
    producers: ProducerState,
    snapshots: list[int],
    log_start_offset: int,
    end_offset: int,
    wall_ms: WallMillis,
    *,
    note: Note = lambda _: None,
    verify: bool = False,
) -> int:
    """Build the producer state of a log with this end: the newest sound snapshot, then the batches after it.

    Unreadable snapshots are deleted and removed from `snapshots`. Aborts that the replay finds are added to their
    segment's transaction index if it lacks them. `verify`: the indexes were read from the disk, so they are compared
    with the snapshot, and their later entries are replaced. Returns the number of replayed batches.
    """
    producers.clear(log_start_offset)
    # Deleting records removes no producer, so the remaining records of the first segment count.
    start = segments[0].base_offset if segments else log_start_offset
    expected: dict[int, IndexSummary] = {}
    while snapshots:
        newest = snapshots[-1]
        path = f"{directory}/{snapshot_name(newest)}"
        try:
            snapshot = files.read_bytes(path)
            producers.restore(snapshot, newest, wall_ms)
            start, expected = newest, indexes_in(snapshot)
            break
        except (SnapshotUnreadableError, FileNotFoundError) as error:
            snapshots.pop()
            if files.exists(path):
                files.unlink(path)
            note(f"{path}: removed, {error}.")
    replayed = 0
    if verify:
        replayed += _verify_transaction_indexes(directory, segments, start, end_offset, expected, note)
    if start < end_offset:
        replayed += sum(_replay(segment, producers, start) for segment in _from(start, segments))
    producers.end_offset = end_offset
    return replayed


def indexed(segments: list[Segment]) -> dict[int, IndexSummary]:
    """The summaries of the transaction indexes that have entries, by base offset."""
    summaries = {segment.base_offset: segment.txn_index.summary() for segment in segments}
    return {base_offset: summary for base_offset, summary in summaries.items() if summary.entries}


def _verify_transaction_indexes(
    directory: str,
    segments: list[Segment],
    start: int,
    end_offset: int,
    expected: dict[int, IndexSummary],
    note: Note,
) -> int:
    """Drop the entries from `start` on, which a replay adds again, and compare the others with a snapshot's summaries.
    If they differ, rebuild all from the batches. Without a summary, the indexes are trusted. Returns the number of
    replayed batches."""
    if start < end_offset:
        for segment in _from(start, segments):
            segment.txn_index.truncate_to(start)
    bases = {segment.base_offset for segment in segments}  # retention may have deleted others since
    if not expected or indexed(segments) == {base: expected[base] for base in expected if base in bases}:
        return 0
    note(f"{directory}: rebuilt its indexes of aborted transactions, because they did not match.")
    for segment in segments:
        segment.txn_index.truncate_to(segment.base_offset)
    all_producers = ProducerState(0)
    return sum(_replay(segment, all_producers, segment.base_offset) for segment in segments)


def _from(start: int, segments: list[Segment]) -> Iterator[Segment]:
    """The segments that may have offsets from `start` on."""
    for at, segment in enumerate(segments):
        if at + 1 == len(segments) or segments[at + 1].base_offset > start:
            yield segment


def _replay(segment: Segment, producers: ProducerState, start: int) -> int:
    count = 0
    position = segment.offset_index.lookup(start) if start > segment.base_offset else 0
    for at, header in segment.walk(position, chunk=REPLAY_CHUNK_BYTES):
        base, _, _, _, _, attributes, delta, _, max_timestamp, producer_id, epoch, sequence, _ = header
        if base + delta < start:
            continue
        count += 1
        if producer_id < 0:
            continue
        if not attributes & ATTRIBUTES_CONTROL:
            producers.add(
                producer_id,
                epoch,
                sequence,
                base,
                base + delta,
                max_timestamp,
                transactional=bool(attributes & ATTRIBUTES_TRANSACTIONAL),
            )
            continue
        marker = marker_in(segment.read_batch(at, header))
        if marker is None:
            producers.emptied_marker(producer_id, epoch, max_timestamp)
            continue
        ended = producers.end_transaction(
            producer_id, epoch, marker.coordinator_epoch, base, max_timestamp, aborted=not marker.committed
        )
        if ended is None:
            continue
        if ended.aborted:
            known = segment.txn_index.aborted()
            if not known or known[-1].last_offset < base:
                stable = producers.last_stable_offset_after(ended)
                segment.txn_index.append(AbortedTransaction(producer_id, ended.first_offset, base, stable))
        producers.complete(ended)
    return count
