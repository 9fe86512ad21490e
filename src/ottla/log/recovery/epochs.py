"""Reads the leader epochs of a log: from their checkpoint, verified and corrected by the batches.

No checksum covers the checkpoint, nor the epoch in a batch's header, and a wrong newest epoch can win an election. So
each is compared with the other: the batches at every boundary in the checkpoint, and each batch with its neighbours,
because epochs never fall. A batch is damaged if its epoch is above the next one's, or below those of both neighbours.
The epoch of a damaged batch is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ottla.log.checkpoints import LEADER_EPOCH_FILE, CheckpointUnreadableError
from ottla.log.epochs import EpochCache
from ottla.log.files import FileSystem
from ottla.log.recovery.found import Found, What
from ottla.log.recovery.missing import Known, look_at_first_epoch
from ottla.log.segment import RawHeader, Segment

REPLAY_CHUNK_BYTES: Final = 256 << 10

Note = Callable[[str], None]


def load_epochs(
    files: FileSystem,
    directory: str,
    segments: list[Segment],
    log_start_offset: int,
    log_end_offset: int,
    checked_from: int,
    note: Note,
    found: Found,
    *,
    verify: bool = True,
    may_be_behind: bool = True,
    known: Known | None = None,
) -> EpochCache:
    """The checkpoint, corrected by the batches that it may lack: those from `checked_from` on, or all. With `known`, a
    log that has lost its first segments is reported.

    `verify`: the file may have changed since it was written. `may_be_behind`: a power cut may have lost what was
    written to it before the newest batch. If that is excluded, a single batch with a newer epoch is damaged. Raises
    OSError.
    """
    path = f"{directory}/{LEADER_EPOCH_FILE}"
    reading = _Reading(segments, log_start_offset, log_end_offset, found)
    cache: EpochCache | None = None
    if files.exists(path):
        try:
            cache = EpochCache.decode(files.read_bytes(path), path)
        except CheckpointUnreadableError as error:
            note(f"{error}; epochs are read from the batches.")
    if cache is not None and verify and checked_from > log_start_offset and reading.contradict(cache, checked_from):
        note(f"{path} contradicts the batches; epochs are read from these.")
        cache = None
    if cache is not None and known is not None:
        look_at_first_epoch(found, directory, segments, cache, known)
    if cache is None:
        cache, checked_from = EpochCache(), 0
        cache.dirty = bool(segments)
        may_be_behind = True
    checked_from = min(checked_from, reading.known_to(cache, may_be_behind=may_be_behind))
    if checked_from < log_end_offset:
        reading.correct(cache, checked_from)
    corrected = cache.dirty
    cache.truncate_from_end(log_end_offset)
    cache.truncate_from_start(log_start_offset)
    if corrected:
        # The recovery point passes the batches with these epochs: the next start will not check them.
        files.write_atomically(path, cache.encode())
        cache.dirty = False
    return cache


class _Reading:
    """The leader epochs in the batches of one log."""

    def __init__(self, segments: list[Segment], start: int, end: int, found: Found) -> None:
        self._segments = segments
        self._start = start
        self._end = end
        self._found = found

    def contradict(self, cache: EpochCache, below: int) -> bool:
        """Whether batches at the boundaries of epochs, or the newest one below `below`, are of other epochs."""
        edges = [edge for _, edge in cache.entries if self._start < edge < below]
        offsets = {self._start, min(below, self._end) - 1, *edges, *(edge - 1 for edge in edges)}
        for offset in sorted(offsets):
            header = self._batch_at(offset)
            if header is None or header[2] < 0 or header[0] + header[6] >= below:
                continue
            last = header[0] + header[6]
            if last + 1 == self._end and header[2] > cache.latest_epoch:
                continue  # `known_to` decides
            said = {cache.epoch_at(max(header[0], self._start)), cache.epoch_at(last)}
            if said != {header[2]} and not self._is_alone(header):
                return True
        return False

    def _batch_at(self, offset: int) -> RawHeader | None:
        """The batch that holds `offset`, or the next one."""
        for at, segment in enumerate(self._segments):
            if at + 1 < len(self._segments) and self._segments[at + 1].base_offset <= offset:
                continue
            found = segment.find(offset)
            if found is not None:
                return found[1]
        return None

    def _is_alone(self, header: RawHeader) -> bool:
        """Whether the batch's epoch contradicts those of its neighbours."""
        base, last = header[0], header[0] + header[6]
        before = self._batch_at(base - 1) if base > self._start else None
        after = self._batch_at(last + 1) if last + 1 < self._end else None
        lowest = before[2] if before is not None and before[0] < base else -1
        return header[2] < lowest or (after is not None and after[0] > last and header[2] > after[2] >= 0)

    def known_to(self, cache: EpochCache, *, may_be_behind: bool) -> int:
        """The offset at which the checkpoint ends if it lacks the newest batch's epoch; the log's end if it has it."""
        last = next((segment for segment in reversed(self._segments) if segment.size), None)
        if last is None:
            return self._end
        tail = [header for _, header in last.walk(last.offset_index.lookup(self._end))]
        newer = [header for header in self._believable(iter(tail)) if header[2] > cache.latest_epoch]
        if len(newer) == 1 and newer[0][0] > cache.latest_start >= 0 and not may_be_behind:
            # The checkpoint is written first.
            self._report(newer[0])
            return self._end
        if not newer:
            return self._end
        return cache.entries[-1][1] if cache.entries else 0

    def correct(self, cache: EpochCache, from_offset: int) -> None:
        """Correct the epochs by the batches from `from_offset` on."""
        for header in self._believable(self._headers(from_offset), report=True):
            if header[0] + header[6] >= self._start:
                cache.correct(header[2], header[0], header[0] + header[6])

    def _headers(self, from_offset: int) -> Iterator[RawHeader]:
        for at, segment in enumerate(self._segments):
            following = self._segments[at + 1].base_offset if at + 1 < len(self._segments) else None
            if following is not None and following <= from_offset:
                continue
            for _, header in segment.walk(segment.offset_index.lookup(from_offset), chunk=REPLAY_CHUNK_BYTES):
                yield header

    def _believable(self, headers: Iterator[RawHeader], *, report: bool = False) -> Iterator[RawHeader]:
        """The batches whose epochs do not contradict those of their neighbours."""
        before = -1
        header = next(headers, None)
        while header is not None:
            after = next(headers, None)
            epoch = header[2]
            is_spike = after is not None and epoch > after[2] >= max(before, 0)
            is_dip = 0 <= epoch < before
            if is_spike or is_dip:
                if report:
                    self._report(header)
            else:
                before = max(before, epoch)
                yield header
            header = after

    def _report(self, header: RawHeader) -> None:
        last = header[0] + header[6]
        directory = self._segments[0].path.rpartition("/")[0]
        sentence = f"{directory}: the batch at offset {header[0]} claims leader epoch {header[2]}, which is damaged."
        self._found.add(What.DAMAGED, sentence, first=header[0], end=last + 1)
