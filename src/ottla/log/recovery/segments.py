"""Recovers the segments of a log: where their sound batches end, and whether their indexes match."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from ottla.log.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE
from ottla.log.config import LONG_MAX, LogConfig
from ottla.log.files import File, FileSystem
from ottla.log.gaps import GAPS_FILE, Gaps
from ottla.log.index.offsets import RELATIVE_OFFSET_MAX, IndexCache
from ottla.log.names import INDEX_SUFFIXES, is_log, offset_in
from ottla.log.recovery.found import Found, What
from ottla.log.segment import RawHeader, Segment, walk_batches
from ottla.protocol.records.batch import ATTRIBUTES_AT, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC
from ottla.protocol.records.checksum import crc32c

REPLAY_CHUNK_BYTES: Final = 256 << 10


class SegmentRecovery:
    """The segments found in one directory, in offset order, and `end_offset`, where the log they make ends.

    Repairs are reported to `note`, and what is lost or damaged to `found`.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        cache: IndexCache,
        now: int,
        note: Callable[[str], None],
        found: Found,
        gaps: Gaps,
    ) -> None:
        self.files = files
        self.directory = directory
        self.config = config
        self.cache = cache
        self.now = now
        self.note = note
        self.found = found
        self.gaps = gaps
        self.gaps_in_doubt_from = LONG_MAX
        """Gaps that end above may have lost their mark in a power cut."""
        self.segments: list[Segment] = []
        self.end_offset = 0

    def open(self, names: list[str]) -> None:
        """Open the existing segments, and rebuild the indexes of closed segments that do not match."""
        logs = [name for name in names if is_log(name)]
        for name in logs:
            segment = Segment(self.files, self.directory, offset_in(name), self.cache, now=self.now, create=False)
            self.segments.append(segment)
        bases = {name.removesuffix(".log") for name in logs}
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in INDEX_SUFFIXES and stem not in bases:
                self.files.unlink(f"{self.directory}/{name}")
                self.note(f"{self.directory}: removed {name}, whose segment is gone.")
        for segment in self.segments[:-1]:
            if not segment.index_tail_is_sound(self.config.index_interval_bytes):
                self._rebuild_indexes(segment, "they were missing or did not match")

    def find_end(self) -> None:
        """After a clean stop: activate the last segment and walk the batches behind its last index entry."""
        if not self.segments:
            return
        active = self.segments[-1]
        if active.size and not active.index_tail_is_sound(self.config.index_interval_bytes):
            self._rebuild_indexes(active, "they were missing or did not match")
        self._load_index(active)
        self.end_offset = self._resume(active)

    def repair(self, recovery_point: int, power_cut: bool, write_again: bool = False, reached: int = 0) -> None:
        """After a kill or a power cut: check what was not certainly on the disk, cut at the first unsound batch.

        `reached`: the log once ended there or later.
        """
        segments = self.segments
        if not segments:
            return
        first = len(segments) - 1
        if power_cut:
            self._reconcile_names()
        if power_cut or write_again:
            bases = [segment.base_offset for segment in segments]
            # Also the segment that ends there: it may have been closed since, and its indexes not be on the disk.
            first = min(max(bisect_left(bases, recovery_point) - 1, 0), len(segments) - 1)
        for at in range(first, len(segments)):
            segment = segments[at]
            self._load_index(segment)
            if power_cut:
                segment.offset_index.cut(0)
            elif write_again:
                segment.offset_index.truncate_to(recovery_point)
            whole_from = reached if at + 1 == len(segments) else 0
            end = self._check_batches(segment, recovery_point if power_cut else 0, self._below(segment), whole_from)
            if end < segment.size:
                self._cut(segment, end, segments[at + 1 :])
                break
            if at + 1 < len(segments) and self._next_offset(segment) < segments[at + 1].base_offset:
                self._drop_after(segments[at + 1 :], "what came before it was lost")
                break
            if at + 1 < len(segments):
                segment.complete_time_index()
                segment.flush_indexes()
                segment.offset_index.deactivate()
        self.end_offset = self._resume(segments[-1])

    def _below(self, segment: Segment) -> int:
        """The offset below which all of the segment's are."""
        at = self.segments.index(segment) + 1
        return self.segments[at].base_offset if at < len(self.segments) else segment.base_offset + RELATIVE_OFFSET_MAX

    def write_again(self, recovery_point: int) -> None:
        """Write everything above the recovery point again, so that it reaches the disk; `repair` has checked it."""
        written = 0
        for segment in self.segments:
            found = segment.find(recovery_point)
            if found is not None:
                segment.file.rewrite(found[0])
                written += segment.size - found[0]
        if written:
            for name in self.files.listdir(self.directory):
                if name in (PARTITION_METADATA_FILE, LEADER_EPOCH_FILE, GAPS_FILE):
                    path = f"{self.directory}/{name}"
                    self.files.write_atomically(path, self.files.read_bytes(path))
            self.files.sync_directory(self.directory)
            self.files.sync_directory(self.directory.rpartition("/")[0] or ".")
            self.note(f"{self.directory}: wrote {written} bytes above offset {recovery_point} again.")

    def _reconcile_names(self) -> None:
        """Renames may be lost one by one: a segment that compaction merged into the one before it may be back."""
        segments = self.segments
        at = 0
        while at + 1 < len(segments):
            if segments[at].next_offset() > segments[at + 1].base_offset:
                self.remove([segments[at + 1]], "its records are in the segment before it")
                del segments[at + 1]
            else:
                at += 1

    def remove(self, removed: list[Segment], why: str) -> None:
        """Close these and unlink their files, the log last."""
        for segment in removed:
            segment.close()
            for path in reversed(segment.names()):
                if self.files.exists(path):
                    self.files.unlink(path)
            self.note(f"{segment.path}.log: removed, {why}.")

    def _load_index(self, segment: Segment) -> None:
        """Load the indexes, with the files cut to whole, rising entries that match."""
        unsound = segment.offset_index.load()
        segment.offset_index.activate()
        unsound_times = segment.time_index.load()
        if not segment.indexes_match():
            self._rebuild_indexes(segment, "they did not match the batches")
            return
        if unsound:
            segment.offset_index.cut_file()
        if unsound_times:
            segment.time_index.cut_file()
        if unsound or unsound_times:
            self.note(f"{segment.file.path}: cut {unsound + unsound_times} bytes of unsound index entries.")

    def _check_batches(self, segment: Segment, trusted_below: int, below: int, whole_from: int) -> int:
        """Check the batches behind the last index entry, from offset `trusted_below` on by CRC, and index them.

        All offsets must rise and lie below `below`. Returns the position where sound batches end.
        """
        last = segment.offset_index.last()
        start = last[1] if last else 0
        segment.time_index.truncate_to(segment.base_offset if last is None else last[0] + 1)
        segment.begin_resume()
        end = start
        for position, header in self._vouched(segment, start, trusted_below, below, whole_from):
            last_offset = header[0] + header[6]
            size = header[1] + LOG_OVERHEAD_BYTES
            if last is not None and position == start:
                segment.note_indexed_batch(size, last_offset, header[8])
            else:
                segment.note_batch(position, size, last_offset, header[8], self.config.index_interval_bytes)
            end = position + size
        return end

    def _vouched(
        self, segment: Segment, start: int, trusted_below: int, below: int, whole_from: int
    ) -> Iterator[tuple[int, RawHeader]]:
        """The batches from position `start` on whose offsets rise and lie below `below`. No checksum covers a batch's
        base offset: one that comes after a gap, and is followed by lower offsets, claims too high ones and is left out;
        so it is where what follows it is no batch, unless compaction may have made the gap. The last batch behind a gap
        is reported, in a compacted log only if the log ends below `whole_from`: it has lost records anyway. So is a gap
        that nothing explains. A segment without a gap begins with the batch that it is named after."""
        before: tuple[int, RawHeader] | None = None
        expected, gap_from, end = segment.base_offset, -1, start
        is_vouched = start > 0  # by the index entry that points to it
        for position, header in scan_batches(segment.file, start, segment.size, trusted_below):
            base, last_offset = header[0], header[0] + header[6]
            if base < expected or header[6] < 0 or last_offset >= below:
                if before is not None and gap_from < 0:
                    yield before
                return
            if before is not None:
                self._look_at_gap(segment, gap_from, before[1][0])
                yield before
            gap_from = expected if base > expected and not is_vouched else -1
            is_vouched = False
            before, expected, end = (position, header), last_offset + 1, position + header[1] + LOG_OVERHEAD_BYTES
        if before is None:
            return
        base = before[1][0]
        is_lost = self._is_lost(gap_from, base)
        is_unlikely = gap_from >= 0 and (not self.config.compacted or expected < whole_from or is_lost)
        if is_unlikely and end < segment.size:
            return
        yield before
        if is_unlikely:
            sentence = f"{segment.file.path}: the last batch claims offset {base}, behind a gap."
            self.found.add(What.DAMAGED, sentence, first=gap_from)

    def _is_lost(self, gap_from: int, gap_end: int) -> bool:
        """Whether there is a gap, and its records are lost. After a power cut, a gap above the recovery point is
        permitted from now on. Raises OSError."""
        if not 0 <= gap_from < gap_end or not self.gaps.is_damage(gap_end):
            return False
        if gap_end > self.gaps_in_doubt_from:
            self.gaps.permit(gap_end, durable=True)
            return False
        return True

    def _look_at_gap(self, segment: Segment, gap_from: int, gap_end: int) -> None:
        if self._is_lost(gap_from, gap_end):
            self.found.add_gap(segment.file.path, gap_from, gap_end)

    def _cut(self, segment: Segment, end: int, later: list[Segment]) -> None:
        lost, torn = segment.size - end, not later and self._is_part_of_a_batch(segment, end)
        next_offset = self._next_offset(segment, end)
        segment.truncate_at(end, next_offset)
        segment.file.sync()
        self.found.add(
            What.TORN if torn else What.CUT,
            f"{segment.file.path}: cut {lost} bytes behind offset {next_offset - 1}, which were no whole batch.",
            first=next_offset,
            size=lost,
        )
        self._drop_after(later, "it came after the cut")

    def _is_part_of_a_batch(self, segment: Segment, position: int) -> bool:
        """Whether the bytes from `position` on may be a part of one batch that a killed append wrote."""
        raw = segment.file.read(position, HEADER_BYTES)
        if len(raw) < HEADER_BYTES:
            return any(raw)  # zeros are what a power cut leaves
        header: RawHeader = HEADER.unpack(raw)
        return header[3] == MAGIC and header[1] + LOG_OVERHEAD_BYTES > segment.size - position

    def _next_offset(self, segment: Segment, end: int | None = None) -> int:
        """One past the last offset before position `end` of a segment whose index is loaded."""
        next_offset = segment.base_offset
        stop = segment.size if end is None else end
        for _, header in segment.walk(segment.offset_index.boundary(max(stop - 1, 0)), stop):
            next_offset = header[0] + header[6] + 1
        return next_offset

    def _drop_after(self, later: list[Segment], why: str) -> None:
        if lost := sum(segment.size for segment in later):
            first, of = later[0].base_offset, "a segment" if len(later) == 1 else f"{len(later)} segments"
            sentence = f"{self.directory}: lost {lost} bytes of {of} from offset {first} on, as {why}."
            self.found.add(What.CUT, sentence, first=first, size=lost)
        self.remove(later[::-1], why)
        self.files.sync_directory(self.directory)
        del self.segments[len(self.segments) - len(later) :]

    def _resume(self, active: Segment) -> int:
        active.resume()
        last = active.offset_index.last()
        end = active.base_offset
        sound = last[1] if last else 0
        for position, header in active.walk(sound):
            end = header[0] + header[6] + 1
            sound = position + header[1] + LOG_OVERHEAD_BYTES
        if sound < active.size:
            # Only after a stop that called itself clean: keep what is whole.
            lost = active.size - sound
            self.found.add(
                What.TORN if self._is_part_of_a_batch(active, sound) else What.CUT,
                f"{active.file.path}: cut {lost} bytes at the end, which were no whole batch.",
                first=end,
                size=lost,
            )
            active.truncate_at(sound, end)
            active.resume()
        return end

    def _rebuild_indexes(self, segment: Segment, why: str) -> None:
        """Rebuild both sparse indexes from the batches' headers."""
        self.note(f"{segment.file.path}: rebuilt its indexes, because {why}.")
        segment.begin_indexes_anew(self.cache)
        segment.begin_resume()
        expected, below = segment.base_offset, self._below(segment)
        for position, header in segment.walk(0, chunk=REPLAY_CHUNK_BYTES):
            if header[0] < below:
                self._look_at_gap(segment, expected, header[0])
            expected = header[0] + header[6] + 1
            segment.note_batch(
                position,
                header[1] + LOG_OVERHEAD_BYTES,
                header[0] + header[6],
                header[8],
                self.config.index_interval_bytes,
            )
        if segment is not self.segments[-1]:
            segment.complete_time_index()
        # A recovery that ends here must not leave files that the next one would mistake for an index on the disk.
        segment.put_indexes_in_place()
        if segment is not self.segments[-1]:
            segment.offset_index.deactivate()

    def reconcile_start(self, log_start_offset: int, high_watermark: int) -> int:
        """Return the log start offset. A start beyond the end means that all records were deleted and that offsets up
        to the start were assigned: the log is then empty and continues there. A start is never above the high
        watermark, which is in another file. If it is, the checkpoint is damaged, and no record is deleted because of
        it."""
        if not self.segments:
            self.end_offset = log_start_offset
            return log_start_offset
        if max(self.end_offset, high_watermark) < log_start_offset:
            self.note(
                f"{self.directory}: ends at {self.end_offset}, and its log start {log_start_offset} is above its "
                f"high watermark too: the checkpoint of log starts is damaged. Every record here is kept."
            )
            log_start_offset = 0
        if self.end_offset < log_start_offset:
            self.note(
                f"{self.directory}: ends at {self.end_offset}, below its log start {log_start_offset}; it is "
                "empty now and continues there."
            )
            self.remove(self.segments[::-1], "the log starts behind it")
            fresh = Segment(self.files, self.directory, log_start_offset, self.cache, now=self.now, create=True)
            self.segments = [fresh]
            self.end_offset = log_start_offset
        return max(log_start_offset, self.segments[0].base_offset)

    def sync_repairs(self) -> None:
        """Sync rebuilt indexes. They are below the recovery point, where the next recovery trusts them."""
        written = [file for segment in self.segments for file in segment.dirty_index_files()]
        for file in written:
            file.sync()
        if written:
            self.files.sync_directory(self.directory)

    def sync_closed_segments(self, recovery_point: int) -> None:
        """Sync closed segments that a killed process may have left unsynced. From here on only the active one is
        synced, and the recovery point moves over all of them. A segment that ends there may lack its indexes.

        Indexes are written again, because an fsync of theirs may have failed. The active one's wait for its own.
        """
        segments = self.segments
        for segment, following in pairwise(segments):
            if following.base_offset >= recovery_point:
                segment.file.sync()
                segment.rewrite_indexes()
                for file in segment.dirty_index_files():
                    file.sync()
        if segments:
            segments[-1].rewrite_indexes()

    def sync_cuts(self) -> None:
        """Sync the cut of an earlier recovery, which may not be on the disk: the removed records must not come back
        behind new ones."""
        if self.segments:
            self.segments[-1].file.sync()
        self.files.sync_directory(self.directory)


def scan_batches(file: File, position: int, end: int, trusted_below: int) -> Iterator[tuple[int, RawHeader]]:
    """Consecutive batches that are whole and match their CRC, from `position` on; stops at the first that does not. The
    CRCs of batches that end below offset `trusted_below` are not checked."""
    for at, header, batch in walk_batches(file, position, end):
        if header[0] + header[6] >= trusted_below and crc32c(batch[ATTRIBUTES_AT:]) != header[4]:
            return
        yield at, header
