"""Holds the segments of one log in offset order, and decides when the active one must be closed.

Only this class changes the list. Every change of it makes remembered positions invalid, and raises `compaction_epoch`
if a running compaction may rely on the old list.

Source: Kafka's LogSegments.java, LogSegment.java (shouldRoll).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, overload

from ottla.log.config import LogConfig
from ottla.log.cost import BEYOND_USUAL, SEGMENT
from ottla.log.files import FileSystem
from ottla.log.index.offsets import RELATIVE_OFFSET_MAX, IndexCache
from ottla.log.index.times import TIME_ENTRY
from ottla.log.segment import Segment

CURSORS_MAX: Final = 16


class LogSegments:
    """The segments of one log.

    `bases` are their base offsets. `active` is the last one, which is appended to. `cursors` are (segment, position)
    pairs by offset, where recent reads ended. The limits `roll_offset`, `roll_timestamp`, `size_max` and
    `index_entries_max` are what an append compares with: beyond them `must_roll` decides. `cleaned_to` is where the
    last compaction ended, None if that was not read yet.
    """

    __slots__ = (
        "_config",
        "_directory",
        "_files",
        "active",
        "all",
        "bases",
        "cleaned_to",
        "compaction_epoch",
        "cursors",
        "index_cache",
        "index_entries_max",
        "index_interval",
        "roll_offset",
        "roll_timestamp",
        "size_max",
        "torn",
    )

    def __init__(
        self, files: FileSystem, directory: str, config: LogConfig, index_cache: IndexCache, segments: list[Segment]
    ) -> None:
        """`segments`: those that were found on the disk."""
        self._files = files
        self._directory = directory
        self.index_cache = index_cache
        self.all: list[Segment] = segments
        self.bases: list[int] = [segment.base_offset for segment in segments]
        self.active: Segment | None = segments[-1] if segments else None
        self.cursors: dict[int, tuple[Segment, int]] = {}
        self.torn = False  # the active segment's file ends in a part of a batch that could not be cut off
        self.cleaned_to: int | None = None
        self.compaction_epoch: int = 0  # raised whenever a running compaction's picture of the segments may be wrong
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        """Apply a new config."""
        self._config = config
        self.size_max = config.segment_bytes
        self.index_interval = config.index_interval_bytes
        self.index_entries_max = max(1, config.segment_index_bytes // TIME_ENTRY.size - 1)
        self._set_limits()

    # ---- a sequence ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    def __reversed__(self) -> Iterator[Segment]:
        return reversed(self.all)

    def __contains__(self, segment: object) -> bool:
        return segment in self.all

    @overload
    def __getitem__(self, at: int) -> Segment: ...
    @overload
    def __getitem__(self, at: slice) -> list[Segment]: ...
    def __getitem__(self, at: int | slice) -> Segment | list[Segment]:
        return self.all[at]

    def index(self, segment: Segment) -> int:
        """The index of `segment`. Raises ValueError if it is not in the log."""
        return self.all.index(segment)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.all)

    # ---- closing the active one ------------------------------------------------------------------------------------

    def must_roll(self, size: int, max_timestamp: int, last: int, now: int) -> bool:
        """Whether the active segment must be closed before a batch of `size` bytes that ends at offset `last`. Kafka's
        LogSegment.shouldRoll."""
        config, active = self._config, self.active
        if active is None:
            return True
        first = active.rolling_timestamp()
        waited = max_timestamp - first if first >= 0 else now - active.created_ms
        return (
            active.size + size > config.segment_bytes
            or (active.size > 0 and waited > config.roll_ms)
            or active.offset_index.entries >= self.index_entries_max
            or last - active.base_offset > RELATIVE_OFFSET_MAX
        )

    def _set_limits(self) -> None:
        """Set the offset and the timestamp at which the active segment must be closed."""
        active = self.active
        if active is None:
            self.roll_offset, self.roll_timestamp = -1, -1
            return
        self.roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
        first = active.rolling_timestamp()
        # Without a first timestamp the clock decides: -2 sends every append to `must_roll`.
        self.roll_timestamp = first + self._config.roll_ms if first >= 0 else -2

    def begins_with(self, max_timestamp: int) -> None:
        """The first batch of the active segment has this timestamp."""
        active = self.active
        assert active is not None
        self.roll_offset = active.base_offset + RELATIVE_OFFSET_MAX
        self.roll_timestamp = max_timestamp + self._config.roll_ms if max_timestamp >= 0 else -2

    def write_failed(self) -> None:
        """The active segment's file may end in a part of a batch. If it can't be cut off now, `repair` does it before
        the next append."""
        self.torn = True
        try:
            self.repair()
        except OSError:
            self.roll_offset = -1  # sends every append to the path that repairs first

    def repair(self) -> None:
        """Cut off the part of a batch that a failed write left. Raises OSError."""
        if not self.torn:
            return
        active = self.active
        if active is not None and active.file.size() > active.size:
            active.file.truncate(active.size)
        self.torn = False
        self._set_limits()

    # ---- changing the list -----------------------------------------------------------------------------------------

    def create(self, base_offset: int, now: int) -> Segment:
        """Create an empty segment, which is not yet in the list. Raises OSError."""
        return Segment(self._files, self._directory, base_offset, self.index_cache, now=now, create=True)

    def create_active(self, base_offset: int, now: int) -> None:
        """Create a segment at the log end, which is appended to from now on. Raises OSError."""
        segment = self.create(base_offset, now)
        self.all.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        self._set_limits()
        BEYOND_USUAL.steps += SEGMENT

    def replaced(self, segments: list[Segment]) -> None:
        """The log consists of these segments now; remembered positions become invalid."""
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1] if segments else None
        self.cursors.clear()
        self._set_limits()

    def dropped(self, dropped: list[Segment]) -> None:
        """These segments no longer belong to the log."""
        self.compaction_epoch += 1
        self.replaced([segment for segment in self.all if segment not in dropped])

    def compacted(self, group: list[Segment], cleaned: Segment) -> None:
        """One segment has replaced a group of segments. No running compaction has to give up."""
        bases = {segment.base_offset for segment in group}
        others = [segment for segment in self.all if segment.base_offset not in bases]
        self.replaced(sorted([*others, cleaned], key=lambda segment: segment.base_offset))

    def interrupt_compaction(self) -> None:
        """A running compaction has to give up: it may rely on records that were cut off."""
        self.compaction_epoch += 1

    def cleaned(self, offset: int) -> None:
        """A compaction ended at `offset`."""
        self.cleaned_to = offset

    def log_deleted(self) -> None:
        """The log has no segments any more. An object that still refers to it must not keep the space of its files."""
        for segment in self.all:
            segment.close_indexes()
        self.all, self.bases, self.active = [], [], None
        self.cursors.clear()

    # ---- positions of reads ----------------------------------------------------------------------------------------

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Remember that the batches below `offset` end at `position` of this segment. HOT."""
        cursors = self.cursors
        if offset not in cursors:
            if len(cursors) >= CURSORS_MAX:
                del cursors[next(iter(cursors))]
            cursors[offset] = (segment, position)

    def check(self) -> None:
        """Invariants, for tests and the simulator."""
        assert self.bases == [segment.base_offset for segment in self.all]
        assert self.bases == sorted(set(self.bases))
        assert self.active is (self.all[-1] if self.all else None)
        assert len(self.cursors) <= CURSORS_MAX
        assert all(segment in self.all and position <= segment.size for segment, position in self.cursors.values())
