"""Opens a log step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.log.checkpoints import LEADER_EPOCH_FILE
from ottla.log.config import LONG_MAX, LogConfig
from ottla.log.epochs import EpochCache
from ottla.log.files import FileSystem
from ottla.log.gaps import Gaps
from ottla.log.index.offsets import IndexCache
from ottla.log.left import Left, checksum_of
from ottla.log.names import FSYNC_FAILED_FILE
from ottla.log.producers import ProducerState
from ottla.log.recovery import missing, state
from ottla.log.recovery.epochs import load_epochs
from ottla.log.recovery.found import Found
from ottla.log.recovery.leftovers import Leftovers
from ottla.log.recovery.missing import Known
from ottla.log.recovery.segments import SegmentRecovery
from ottla.log.recovery.state import Note
from ottla.log.segment import Segment
from ottla.machine import WallClock, WallMillis


@dataclass(slots=True)
class Loaded:
    """The result of `load`: the parts of a Log."""

    epochs: EpochCache
    producers: ProducerState
    gaps: Gaps
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
    found: Found = field(default_factory=Found)


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
    start_known: bool = True,
    left: Left | None = None,
) -> Loaded:
    """Find the log in `directory` and repair it. Raises OSError."""
    epochs, producers = EpochCache(), ProducerState(producer_id_expiration_ms)
    loaded = Loaded(epochs, producers, Gaps(files, directory, log_start_offset), wall=wall, found=Found(note))
    known = Known(recovery_point, log_start_offset if start_known else None, high_watermark, left)
    loaded.log_start_offset = loaded.log_end_offset = loaded.recovery_point = log_start_offset
    loaded.producers.end_offset = log_start_offset
    if not files.exists(directory):
        _look_for_losses(loaded, directory, config, known, clean=clean_shutdown)
        return loaded
    loaded.on_disk = True
    gaps = loaded.gaps = Gaps.read(files, directory, note)
    found = SegmentRecovery(files, directory, config, cache, now, note, loaded.found, gaps)
    try:
        names = Leftovers(files, directory, cache, now, note, loaded.found).clear(files.listdir(directory))
        in_doubt = interrupted or FSYNC_FAILED_FILE in names
        clean = clean_shutdown and not in_doubt
        power_cut = not clean and (interrupted or not same_boot)
        # After a clean stop or a power cut, what is read is on the disk. Otherwise it may be in memory only.
        loaded.killed = not clean and (interrupted or same_boot)
        found.gaps_in_doubt_from = recovery_point if power_cut else LONG_MAX
        found.open(names)
        write_again = (write_again or in_doubt) and loaded.killed
        if clean:
            found.find_end()
        else:
            found.repair(recovery_point, power_cut, write_again, max(recovery_point, high_watermark))
        if write_again:
            found.write_again(recovery_point)
        start = loaded.log_start_offset = found.reconcile_start(log_start_offset, high_watermark)
        end = loaded.log_end_offset = found.end_offset
        loaded.segments = found.segments
        gaps.cut(end)
        _look_for_losses(loaded, directory, config, known, clean=clean)
        loaded.recovery_point = min(recovery_point, end) if loaded.killed and not write_again else end
        # Epochs are written with the first append of each. A power cut may lose the epoch and leave the batch.
        trusted_to = recovery_point if power_cut else end
        loaded.epochs = _load_epochs(files, directory, loaded, start, end, trusted_to, note, known, clean=clean)
        _load_producers(files, directory, names, loaded, trusted_to, wall.at(now), note)
        found.sync_repairs()
        if loaded.killed:
            found.sync_closed_segments(recovery_point)
        if interrupted:
            found.sync_cuts()
        if FSYNC_FAILED_FILE in names:
            files.unlink(f"{directory}/{FSYNC_FAILED_FILE}")
    except Exception:
        for segment in found.segments:  # the next attempt may find other files of these names
            segment.close()
        raise
    return loaded


def _look_for_losses(loaded: Loaded, directory: str, config: LogConfig, known: Known, *, clean: bool) -> None:
    found, segments, end = loaded.found, loaded.segments, loaded.log_end_offset
    if clean and known.left is not None:
        if not missing.is_as_left(segments, end, known.left):
            missing.compare_with_left(found, directory, segments, end, known.left, loaded.gaps)
        return
    missing.look_at_ends(found, directory, segments, end, known, config)
    missing.look_for_gaps(found, segments, loaded.gaps)


def _load_epochs(
    files: FileSystem,
    directory: str,
    loaded: Loaded,
    start: int,
    end: int,
    trusted_to: int,
    note: Note,
    known: Known,
    *,
    clean: bool,
) -> EpochCache:
    as_left = known.left if clean else None
    verify = as_left is None or checksum_of(files, f"{directory}/{LEADER_EPOCH_FILE}") != as_left.epochs
    epochs = load_epochs(
        files,
        directory,
        loaded.segments,
        start,
        end,
        trusted_to,
        note,
        loaded.found,
        verify=verify,
        may_be_behind=trusted_to < end,
        known=known if as_left is None else None,
    )
    if as_left is not None and verify:
        missing.look_at_newest_epoch(loaded.found, directory, epochs, end, as_left)
    return epochs


def _load_producers(
    files: FileSystem,
    directory: str,
    names: list[str],
    loaded: Loaded,
    trusted_to: int,
    wall_ms: WallMillis,
    note: Note,
) -> None:
    segments, end = loaded.segments, loaded.log_end_offset
    whole_to = state.cut_transaction_indexes(segments, end, trusted_to, note)
    loaded.snapshots = state.sound_snapshots(files, directory, names, min(whole_to, trusted_to), note)
    loaded.batches_since_snapshot = state.rebuild_producers(
        files,
        directory,
        segments,
        loaded.producers,
        loaded.snapshots,
        loaded.log_start_offset,
        end,
        wall_ms,
        note=note,
        verify=True,
    )
