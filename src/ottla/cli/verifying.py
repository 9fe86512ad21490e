"""Verifies the segments in a data directory, batch by batch. Reads only, so a node may be running on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ottla.broker.topics.adoption import place_of
from ottla.broker.upkeep.checkpoints import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from ottla.log.answers import Damage, IndexFault
from ottla.log.checking import checking
from ottla.log.checkpoints import LEADER_EPOCH_FILE, CheckpointUnreadableError, read_offsets
from ottla.log.config import LogConfig
from ottla.log.epochs import EpochCache
from ottla.log.files import DiskFiles
from ottla.log.gaps import Gaps
from ottla.log.index.offsets import RELATIVE_OFFSET_MAX, IndexCache
from ottla.log.names import LOG_SUFFIX, SWAP_SUFFIX, is_log, is_of_a_segment, offset_in
from ottla.log.recovery.found import Found
from ottla.log.recovery.missing import Known, look_at_ends, look_at_first_epoch
from ottla.log.segment import Segment


class _ReadOnly(DiskFiles):
    """Read-only files: a backup may be mounted read-only."""

    def descriptor(self, path: str, flags: int, mode: int = 0o644) -> int:
        return super().descriptor(path, os.O_RDONLY, mode)


def partitions(directory: Path) -> list[tuple[str, int]]:
    """The partitions (topic, index) that have a directory here, in order. Raises OSError."""
    places = (place_of(entry.name) for entry in directory.iterdir() if entry.is_dir())
    return sorted(place for place in places if place is not None)


def damages(directory: Path, topic: str, index: int) -> Iterator[int | Damage]:
    """The damage in this partition, at most one position and two indexes per segment, and the number of bytes read in
    between. Also the segments that are missing at its ends, as far as the checkpoints show.

    Files that a running node deletes meanwhile are skipped. Raises OSError.
    """
    files, path = _ReadOnly(), f"{directory}/{topic}-{index}"
    known = _known(files, directory, topic, index)
    epochs = EpochCache()
    try:
        epochs = EpochCache.decode(files.read_bytes(f"{path}/{LEADER_EPOCH_FILE}"), LEADER_EPOCH_FILE)
    except FileNotFoundError:
        pass
    except CheckpointUnreadableError as error:
        yield Damage(f"{path}/{LEADER_EPOCH_FILE}", 0, 0, -1, str(error))
    notes: list[str] = []
    gaps = Gaps.read(files, path, notes.append)
    for note in notes:
        yield Damage(gaps.path, 0, 0, -1, note)
    names = files.listdir(path)
    bases = [offset_in(name) for name in names if is_log(name)]
    cache = IndexCache()
    for name in names:
        if is_of_a_segment(name, f"{LOG_SUFFIX}{SWAP_SUFFIX}"):  # the next start puts it in the place of others
            yield from _in_swap(files, path, offset_in(name), cache)
    opened: list[Segment] = []
    for at, base in enumerate(bases):
        is_newest = at + 1 == len(bases)
        below = base + RELATIVE_OFFSET_MAX if is_newest else bases[at + 1]
        try:
            segment = Segment(files, path, base, cache, now=0, create=False)
            for found in checking(segment, below, epochs, gaps, joins=not is_newest):
                if isinstance(found, int):
                    yield found
                    continue
                # A running node may still write the end of the newest segment, and may just have replaced a closed one.
                present = os.stat(f"{segment.path}.log")
                if present.st_size == segment.size and segment.file.is_in_place():
                    yield Damage(found.path, 0, base, below, found.why) if isinstance(found, IndexFault) else found
            opened.append(segment)
        except FileNotFoundError:
            continue
    yield from _missing(path, opened, epochs, known)
    for segment in opened:
        segment.close()


def _known(files: DiskFiles, directory: Path, topic: str, index: int) -> Known:
    """Read this partition's entries of the checkpoints, which may be some seconds old. Raises OSError."""
    said: list[int] = []
    for name in (RECOVERY_POINT, LOG_START, HIGH_WATERMARK):
        try:
            said.append((read_offsets(files, f"{directory}/{name}") or {}).get((topic, index), 0))
        except CheckpointUnreadableError:
            said.append(0)
    recovery_point, start, high_watermark = said
    return Known(recovery_point, start, high_watermark)


def _missing(path: str, segments: list[Segment], epochs: EpochCache, known: Known) -> Iterator[Damage]:
    """The records that are missing at the ends of a log. Raises OSError."""
    found = Found()
    end = segments[-1].next_offset() if segments else 0
    look_at_ends(found, path, segments, end, known, LogConfig())
    look_at_first_epoch(found, path, segments, epochs, known)
    for each in found.findings:
        yield Damage(path, 0, each.first, each.end, each.sentence.removeprefix(f"{path}: "))


def _in_swap(files: DiskFiles, path: str, base: int, cache: IndexCache) -> Iterator[int | Damage]:
    """Damage in a segment that a compaction has written and not yet moved to its place. Raises OSError."""
    try:
        segment = Segment(files, path, base, cache, now=0, create=False, suffix=SWAP_SUFFIX)
        for found in checking(segment, base + RELATIVE_OFFSET_MAX, EpochCache(), None, joins=False, indexed=False):
            if not isinstance(found, IndexFault):
                yield found._replace(path=segment.file.path) if isinstance(found, Damage) else found
        segment.close()
    except FileNotFoundError:
        pass
