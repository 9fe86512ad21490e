"""Opening a log: what a stop, a kill or a power cut left behind becomes a log again, keeping every complete batch.

Three cases, told by the caller:
- clean stop: files are as they say; only the last few batches behind the last index entry are walked, to find the end.
- the process was killed (`same_boot`): the page cache survived, so all that was written is there, and what is on disk
  is sound up to the last persisted index entry of the active segment. Batches behind it are checked.
- the machine went down: every batch at or above the recovery point is checked against its CRC, and the indexes of
  those segments are rebuilt, for they are not synced with every flush. Snapshots above it are not trusted.
The log is cut at the first batch that is torn or corrupt or whose offsets are out of place (no checksum covers them),
and segments behind that go. Whatever a flipped bit says, opening a log raises nothing but OSError.

A recovery that ended in the middle (`interrupted`), killed or by an error of the disk, leaves the log to be checked as
after a power cut, whatever boot it is by then, and as after a kill: what it repaired may be in the page cache only.

With `write_again`, or when the log was shut because of an fsync that failed, a kill is no reason to trust the page
cache: it may show batches that the kernel gave up writing, and an fsync now would say nothing of them. What is above
the recovery point is checked and written again.

Leftovers: `.cleaned`, `.tmp` are unfinished and go; `.deleted` are finished and go; a `.log.swap` is a compaction that
had decided (compaction.py) and is completed. Indexes that are missing or not sound are rebuilt from their segment;
producer state from the newest sound snapshot and the batches after it; epochs from the batches where their checkpoint
is lost or, after a power cut, says otherwise. Source: Kafka's LogLoader.java, LogSegment.recover,
ProducerStateManager.truncateAndReload.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from crc32c import crc32c

from ottla.log.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE, CheckpointUnreadable
from ottla.log.config import LogConfig
from ottla.log.epochs import EpochCache
from ottla.log.files import File, FileSystem
from ottla.log.index.offsets import RELATIVE_OFFSET_MAX, IndexCache
from ottla.log.index.transactions import AbortedTransaction
from ottla.log.producers import ProducerState, SnapshotUnreadable, marker_in
from ottla.log.segment import LOG_OVERHEAD, UNFINISHED_SUFFIX, RawHeader, Segment, segment_name, walk_batches
from ottla.machine import WallClock, WallMillis
from ottla.protocol.records.batch import ATTRIBUTES_CONTROL, ATTRIBUTES_TRANSACTIONAL

CRC_COVERS_FROM: Final = 21
REPLAY_CHUNK_BYTES: Final = 256 << 10
LEFTOVERS: Final = (".deleted", ".cleaned", UNFINISHED_SUFFIX)
SWAP_SUFFIX: Final = ".swap"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ".txnindex")
SNAPSHOT_SUFFIX: Final = ".snapshot"
IN_DOUBT_FILE: Final = "fsync-failed"
"""Stands in the directory of a log that was shut because an fsync failed; a kill must not make anybody forget it."""

Note = Callable[[str], None]


@dataclass(slots=True)
class Loaded:
    """What `load` found: the parts of a Log."""

    epochs: EpochCache
    producers: ProducerState
    segments: list[Segment] = field(default_factory=list[Segment])
    snapshots: list[int] = field(default_factory=list[int])
    deletions: list[str] = field(default_factory=list[str])
    log_start_offset: int = 0
    log_end_offset: int = 0
    recovery_point: int = 0
    batches_since_snapshot: int = 0
    on_disk: bool = False
    killed: bool = False  # what is on the disk may lack names, the directory's own as well
    wall: WallClock = field(default_factory=WallClock)


def snapshot_name(offset: int) -> str:
    return f"{segment_name(offset)}{SNAPSHOT_SUFFIX}"


def load(
    files: FileSystem,
    directory: str,
    config: LogConfig,
    cache: IndexCache,
    wall: WallClock,
    *,
    now: int,
    clean_shutdown: bool,
    same_boot: bool,
    recovery_point: int,
    log_start_offset: int,
    high_watermark: int,
    producer_id_expiration_ms: int,
    note: Note,
    write_again: bool = False,
    interrupted: bool = False,
) -> Loaded:
    """Find the log in `directory` and repair it. Raises OSError."""
    loaded = Loaded(EpochCache(), ProducerState(producer_id_expiration_ms), wall=wall)
    loaded.log_start_offset = loaded.log_end_offset = loaded.recovery_point = log_start_offset
    loaded.producers.end_offset = log_start_offset
    if not files.exists(directory):
        return loaded
    loaded.on_disk = True
    loading = _Loading(files, directory, config, cache, now, note, loaded)
    try:
        names = loading.clear_leftovers(files.listdir(directory))
        loading.open_segments(names)
        in_doubt = IN_DOUBT_FILE in names
        clean = clean_shutdown and not (in_doubt or interrupted)
        power_cut = not clean and (interrupted or not same_boot)
        # What is read after a clean stop or a power cut is on the disk; after anything else it may be in memory only.
        loaded.killed = not clean and (interrupted or same_boot)
        write_again = (write_again or in_doubt) and loaded.killed
        if clean:
            loading.find_end()
        else:
            loading.repair(recovery_point, power_cut, write_again)
        if write_again:
            loading.write_again(recovery_point)
        loading.reconcile_start(log_start_offset, high_watermark)
        # Epochs are written with the first append of each: a power cut may take that, and leave the batch.
        loading.load_epochs(recovery_point if power_cut else loaded.log_end_offset)
        in_memory = loaded.killed and not write_again
        loaded.recovery_point = min(recovery_point, loaded.log_end_offset) if in_memory else loaded.log_end_offset
        loading.load_producers(names, recovery_point if power_cut else loaded.log_end_offset)
        loading.sync_repairs()
        if loaded.killed:
            loading.sync_closed_segments(recovery_point)
        if interrupted:
            loading.sync_cuts()
        if in_doubt:
            files.unlink(f"{directory}/{IN_DOUBT_FILE}")
    except Exception:
        for segment in loaded.segments:  # the next attempt may find other files of these names
            segment.close()
        raise
    return loaded


class _Loading:
    """One `load` under way."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        cache: IndexCache,
        now: int,
        note: Note,
        loaded: Loaded,
    ) -> None:
        self.files = files
        self.directory = directory
        self.config = config
        self.cache = cache
        self.now = now
        self.note = note
        self.loaded = loaded

    # Files

    def clear_leftovers(self, names: list[str]) -> list[str]:
        """Remove unfinished and finished business; complete a compaction that had decided. The names that remain."""
        kept: list[str] = []
        for name in names:
            if name.endswith(LEFTOVERS):
                self.files.unlink(f"{self.directory}/{name}")
                self.note(f"{self.directory}: removed the leftover {name}.")
            else:
                kept.append(name)
        swaps = [name for name in kept if name.endswith(SWAP_SUFFIX)]
        if swaps:
            undecided = {name.split(".")[0] for name in names if name.endswith(".log.cleaned")}
            kept = self._complete_swaps(kept, swaps, undecided)
        return kept

    def _without_log(self, names: list[str], swaps: list[str], undecided: set[str]) -> None:
        """Index files of a compaction whose log is no `.swap`: not yet one, and the old segments stand, or no longer.

        Names get lost one by one, so the new log may stand beside the indexes of the old one: they are made anew.
        """
        for name in swaps:
            stem, _, kind = name.removesuffix(SWAP_SUFFIX).partition(".")
            if kind == "txnindex" and stem not in undecided:
                self.files.rename(f"{self.directory}/{name}", f"{self.directory}/{stem}.txnindex")
                names[names.index(name)] = f"{stem}.txnindex"
                continue
            for path in (name, f"{stem}.index", f"{stem}.timeindex"):
                if path in names:
                    self.files.unlink(f"{self.directory}/{path}")
                    names.remove(path)
            self.note(f"{self.directory}: removed {name} of a compaction that was cut short.")

    def _complete_swaps(self, names: list[str], swaps: list[str], undecided: set[str]) -> list[str]:
        decided = [name for name in swaps if _is_of_a_segment(name, f".log{SWAP_SUFFIX}")]
        bases = {name.removesuffix(f".log{SWAP_SUFFIX}") for name in decided}
        self._without_log(names, [name for name in swaps if name.split(".")[0] not in bases], undecided)
        for name in decided:
            base = int(name.removesuffix(f".log{SWAP_SUFFIX}"))
            swap = Segment(self.files, self.directory, base, self.cache, now=self.now, create=False, suffix=SWAP_SUFFIX)
            covered_to = swap.next_offset()
            swap.close()
            for old in [old for old in names if _is_log(old) and base <= _offset_in(old) < max(covered_to, base + 1)]:
                for path in (f"{old.removesuffix('.log')}{suffix}" for suffix in (".log", *INDEX_SUFFIXES)):
                    if path in names:
                        self.files.unlink(f"{self.directory}/{path}")
                        names.remove(path)
        if decided:
            self.files.sync_directory(self.directory)
        # The indexes first: while the log still is a swap, a crash here comes back to here.
        for name in sorted((n for n in names if n.endswith(SWAP_SUFFIX)), key=lambda n: (".log" in n, n)):
            final = name.removesuffix(SWAP_SUFFIX)
            self.files.rename(f"{self.directory}/{name}", f"{self.directory}/{final}")
            names[names.index(name)] = final
            self.note(f"{self.directory}: completed the compaction into {final}.")
        self.files.sync_directory(self.directory)
        return sorted(names)

    def open_segments(self, names: list[str]) -> None:
        logs = [name for name in names if _is_log(name)]
        for name in logs:
            segment = Segment(self.files, self.directory, _offset_in(name), self.cache, now=self.now, create=False)
            self.loaded.segments.append(segment)
        bases = {name.removesuffix(".log") for name in logs}
        for name in names:
            stem, dot, suffix = name.partition(".")
            if dot + suffix in INDEX_SUFFIXES and stem not in bases:
                self.files.unlink(f"{self.directory}/{name}")
                self.note(f"{self.directory}: removed {name}, whose segment is gone.")
        for segment in self.loaded.segments[:-1]:
            if not segment.index_tail_is_sound(self.config.index_interval_bytes):
                self._rebuild_indexes(segment, "they were missing or did not match")

    # Finding the end

    def find_end(self) -> None:
        """After a clean stop: activate the last segment and walk the batches behind its last index entry."""
        if not self.loaded.segments:
            return
        active = self.loaded.segments[-1]
        if active.size and not active.index_tail_is_sound(self.config.index_interval_bytes):
            self._rebuild_indexes(active, "they were missing or did not match")
        self._load_index(active)
        self.loaded.log_end_offset = self._resume(active)

    def repair(self, recovery_point: int, power_cut: bool, write_again: bool = False) -> None:
        """After a kill or a power cut: check what was not certainly on the disk, cut at the first unsound batch."""
        segments = self.loaded.segments
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
            below = (
                segments[at + 1].base_offset if at + 1 < len(segments) else segment.base_offset + RELATIVE_OFFSET_MAX
            )
            end = self._check_batches(segment, recovery_point if power_cut else 0, below)
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
        self.loaded.log_end_offset = self._resume(segments[-1])

    def write_again(self, recovery_point: int) -> None:
        """Bring what is above the recovery point to the disk by writing it once more; `repair` has checked it."""
        written = 0
        for segment in self.loaded.segments:
            found = segment.find(recovery_point)
            if found is not None:
                segment.file.rewrite(found[0])
                written += segment.size - found[0]
        if written:
            for name in self.files.listdir(self.directory):
                if name in (PARTITION_METADATA_FILE, LEADER_EPOCH_FILE):
                    path = f"{self.directory}/{name}"
                    self.files.write_atomically(path, self.files.read_bytes(path))
            self.files.sync_directory(self.directory)
            self.files.sync_directory(self.directory.rpartition("/")[0] or ".")
            self.note(f"{self.directory}: wrote {written} bytes above offset {recovery_point} again.")

    def _reconcile_names(self) -> None:
        """Renames may be lost one by one: a segment that compaction merged into the one before it may be back."""
        segments = self.loaded.segments
        at = 0
        while at + 1 < len(segments):
            if segments[at].next_offset() > segments[at + 1].base_offset:
                self._remove([segments[at + 1]], "its records are in the segment before it")
                del segments[at + 1]
            else:
                at += 1

    def _remove(self, removed: list[Segment], why: str) -> None:
        for segment in removed:
            segment.close()
            for path in reversed(segment.names()):
                if self.files.exists(path):
                    self.files.unlink(path)
            self.note(f"{segment.path}.log: removed, {why}.")

    def _load_index(self, segment: Segment) -> None:
        """Into memory, and the index files cut to whole, rising entries that match."""
        unsound = segment.offset_index.load()
        segment.offset_index.activate()
        unsound_times = segment.time_index.load()
        last = segment.offset_index.last()
        if last is not None and not segment.batch_ends_at(*last):
            self._rebuild_indexes(segment, "the index does not match the batches")
            return
        if not segment.time_index_is_sound():
            self._rebuild_indexes(segment, "the time index does not match the batches")
            return
        if unsound:
            segment.offset_index.cut_file()
        if unsound_times:
            segment.time_index.cut_file()
        if unsound or unsound_times:
            self.note(f"{segment.file.path}: cut {unsound + unsound_times} bytes of unsound index entries.")

    def _check_batches(self, segment: Segment, trusted_below: int, below: int) -> int:
        """Check the batches behind the last index entry, from offset `trusted_below` on by CRC, and index them.

        All offsets must rise and lie below `below`. Returns the position where sound batches end.
        """
        last = segment.offset_index.last()
        start = last[1] if last else 0
        segment.time_index.truncate_to(segment.base_offset if last is None else last[0] + 1)
        segment.begin_resume()
        end = start
        expected = segment.base_offset
        for position, header in scan_batches(segment.file, start, segment.size, trusted_below):
            last_offset = header[0] + header[6]
            if header[0] < expected or header[6] < 0 or last_offset >= below:
                break
            expected = last_offset + 1
            size = header[1] + LOG_OVERHEAD
            if last is not None and position == start:
                segment.note_indexed_batch(size, last_offset, header[8])
            else:
                segment.note_batch(position, size, last_offset, header[8], self.config.index_interval_bytes)
            end = position + size
        return end

    def _cut(self, segment: Segment, end: int, later: list[Segment]) -> None:
        lost = segment.size - end
        next_offset = self._next_offset(segment, end)
        segment.truncate_at(end, next_offset)
        segment.file.sync()
        self.note(f"{segment.file.path}: cut {lost} bytes behind offset {next_offset - 1}, which were no whole batch.")
        self._drop_after(later, "it came after the cut")

    def _next_offset(self, segment: Segment, end: int | None = None) -> int:
        """One past the last offset before position `end` of a segment whose index is loaded."""
        next_offset = segment.base_offset
        stop = segment.size if end is None else end
        for _, header in segment.walk(segment.offset_index.boundary(max(stop - 1, 0)), stop):
            next_offset = header[0] + header[6] + 1
        return next_offset

    def _drop_after(self, later: list[Segment], why: str) -> None:
        self._remove(later[::-1], why)
        self.files.sync_directory(self.directory)
        del self.loaded.segments[len(self.loaded.segments) - len(later) :]

    def _resume(self, active: Segment) -> int:
        active.resume()
        last = active.offset_index.last()
        end = active.base_offset
        sound = last[1] if last else 0
        for position, header in active.walk(sound):
            end = header[0] + header[6] + 1
            sound = position + header[1] + LOG_OVERHEAD
        if sound < active.size:
            # Only after a stop that called itself clean: keep what is whole.
            self.note(f"{active.file.path}: cut {active.size - sound} bytes at the end, which were no whole batch.")
            active.truncate_at(sound, end)
            active.resume()
        return end

    def _rebuild_indexes(self, segment: Segment, why: str) -> None:
        """Make both sparse indexes again from the batches' headers."""
        self.note(f"{segment.file.path}: rebuilt its indexes, because {why}.")
        segment.begin_indexes_anew(self.cache)
        segment.begin_resume()
        for position, header in segment.walk(0, chunk=REPLAY_CHUNK_BYTES):
            segment.note_batch(
                position,
                header[1] + LOG_OVERHEAD,
                header[0] + header[6],
                header[8],
                self.config.index_interval_bytes,
            )
        if segment is not self.loaded.segments[-1]:
            segment.complete_time_index()
        # A recovery that ends here must not leave behind what the next one would take for an index on the disk.
        segment.put_indexes_in_place()
        if segment is not self.loaded.segments[-1]:
            segment.offset_index.deactivate()

    def sync_repairs(self) -> None:
        """Indexes made anew lie below the recovery point, where the next recovery trusts them: they go to the disk."""
        written = [file for segment in self.loaded.segments for file in segment.dirty_index_files()]
        for file in written:
            file.sync()
        if written:
            self.files.sync_directory(self.directory)

    def sync_closed_segments(self, recovery_point: int) -> None:
        """A killed process may have left closed segments that are not on the disk; from here on only the active one is
        synced, and the recovery point moves over all of them. One that ends there may lack its indexes.

        Indexes are written once more, for an fsync of theirs may have failed. The active one's wait for its own.
        """
        segments = self.loaded.segments
        for segment, following in pairwise(segments):
            if following.base_offset >= recovery_point:
                segment.file.sync()
                segment.rewrite_indexes()
                for file in segment.dirty_index_files():
                    file.sync()
        if segments:
            segments[-1].rewrite_indexes()

    def sync_cuts(self) -> None:
        """An earlier recovery may have cut the log without bringing that to the disk: what it cut must not come back
        behind new records."""
        if self.loaded.segments:
            self.loaded.segments[-1].file.sync()
        self.files.sync_directory(self.directory)

    # Offsets and state

    def reconcile_start(self, log_start_offset: int, high_watermark: int) -> None:
        """Where the log starts. A start beyond the end says that what is there was deleted, and that offsets up to it
        were given: the log is empty and goes on there. No start was ever above the high watermark, which another file
        tells: that is damage, and nothing is deleted for its sake."""
        loaded = self.loaded
        if not loaded.segments:
            loaded.log_end_offset = log_start_offset
            return
        if max(loaded.log_end_offset, high_watermark) < log_start_offset:
            self.note(
                f"{self.directory}: ends at {loaded.log_end_offset}, and its log start {log_start_offset} is above its "
                f"high watermark too: the checkpoint of log starts is damaged. Every record here is kept."
            )
            log_start_offset = 0
        if loaded.log_end_offset < log_start_offset:
            self.note(
                f"{self.directory}: ends at {loaded.log_end_offset}, below its log start {log_start_offset}; it is "
                "empty now and goes on there."
            )
            self._remove(loaded.segments[::-1], "the log starts behind it")
            fresh = Segment(self.files, self.directory, log_start_offset, self.cache, now=self.now, create=True)
            loaded.segments = [fresh]
            loaded.log_end_offset = log_start_offset
        loaded.log_start_offset = max(log_start_offset, loaded.segments[0].base_offset)

    def load_epochs(self, checked_from: int) -> None:
        """The checkpoint, corrected by the batches that it need not know: those from `checked_from` on, or all."""
        path = f"{self.directory}/{LEADER_EPOCH_FILE}"
        loaded = self.loaded
        cache: EpochCache | None = None
        if self.files.exists(path):
            try:
                cache = EpochCache.decode(self.files.read_bytes(path), path)
            except CheckpointUnreadable as error:
                self.note(f"{error}; epochs are read from the batches.")
        if cache is None:
            cache, checked_from = EpochCache(), 0
        self._correct_epochs(cache, min(checked_from, self._epochs_known_to(cache)))
        corrected = cache.dirty
        cache.truncate_from_end(loaded.log_end_offset)
        cache.truncate_from_start(loaded.log_start_offset)
        if corrected:
            # The recovery point passes the batches that say so: the next start will not look at them.
            self.files.write_atomically(path, cache.encode())
            cache.dirty = False
        loaded.epochs = cache

    def _epochs_known_to(self, cache: EpochCache) -> int:
        """Where the checkpoint ends if it lacks the newest batch's epoch; the log's end if it has it."""
        newest = -1
        last = next((segment for segment in reversed(self.loaded.segments) if segment.size), None)
        if last is not None:
            for _, header in last.walk(last.offset_index.lookup(self.loaded.log_end_offset)):
                newest = max(newest, header[2])
        if newest <= cache.latest_epoch:
            return self.loaded.log_end_offset
        return cache.entries[-1][1] if cache.entries else 0

    def _correct_epochs(self, cache: EpochCache, from_offset: int) -> None:
        loaded = self.loaded
        if from_offset >= loaded.log_end_offset:
            return
        for at, segment in enumerate(loaded.segments):
            following = loaded.segments[at + 1].base_offset if at + 1 < len(loaded.segments) else None
            if following is not None and following <= from_offset:
                continue
            for _, header in segment.walk(segment.offset_index.lookup(from_offset), chunk=REPLAY_CHUNK_BYTES):
                if header[0] + header[6] >= loaded.log_start_offset:
                    cache.correct(header[2], header[0], header[0] + header[6])

    def load_producers(self, names: list[str], snapshots_trusted_to: int) -> None:
        loaded = self.loaded
        for offset in [_offset_in(name) for name in names if _is_of_a_segment(name, SNAPSHOT_SUFFIX)]:
            if offset > min(loaded.log_end_offset, snapshots_trusted_to):
                self.files.unlink(f"{self.directory}/{snapshot_name(offset)}")
                self.note(f"{self.directory}: removed {snapshot_name(offset)}, which may not match the log.")
            else:
                loaded.snapshots.append(offset)
        segments = loaded.segments
        for at, segment in enumerate(segments):
            end = segments[at + 1].base_offset if at + 1 < len(segments) else loaded.log_end_offset
            if segment.txn_index.cut_unsound(segment.base_offset, end):
                self.note(f"{segment.file.path}: cut unsound entries off its transaction index.")
        loaded.batches_since_snapshot = rebuild_producers(
            self.files,
            self.directory,
            segments,
            loaded.producers,
            loaded.snapshots,
            loaded.log_start_offset,
            loaded.log_end_offset,
            loaded.wall.at(self.now),
            note=self.note,
        )


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
) -> int:
    """Make the producer state that a log with this end has: the newest sound snapshot, then the batches after it.

    Snapshots that cannot be read are deleted and taken off `snapshots`. Aborts that the replay meets and their
    segment's transaction index lacks are put there. Returns how many batches were replayed.
    """
    producers.clear(log_start_offset)
    # Deleted records take no producer with them: what still is in the first segment counts.
    start = segments[0].base_offset if segments else log_start_offset
    while snapshots:
        newest = snapshots[-1]
        path = f"{directory}/{snapshot_name(newest)}"
        try:
            producers.restore(files.read_bytes(path), newest, wall_ms)
            start = newest
            break
        except (SnapshotUnreadable, FileNotFoundError) as error:
            snapshots.pop()
            if files.exists(path):
                files.unlink(path)
            note(f"{path}: removed, {error}.")
    replayed = 0
    if start < end_offset:
        for at, segment in enumerate(segments):
            if at + 1 == len(segments) or segments[at + 1].base_offset > start:
                replayed += _replay(segment, producers, start)
    producers.end_offset = end_offset
    return replayed


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


def scan_batches(file: File, position: int, end: int, trusted_below: int) -> Iterator[tuple[int, RawHeader]]:
    """Consecutive batches that are whole and match their CRC, from `position` on; stops at the first that does not.

    The CRCs of batches that end below offset `trusted_below` are not looked at.
    """
    for at, header, batch in walk_batches(file, position, end):
        if header[0] + header[6] >= trusted_below and crc32c(batch[CRC_COVERS_FROM:]) != header[4]:
            return
        yield at, header


def _is_log(name: str) -> bool:
    return _is_of_a_segment(name, ".log")


def _is_of_a_segment(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and name.removesuffix(suffix).isdecimal()


def _offset_in(name: str) -> int:
    return int(name.split(".")[0])
