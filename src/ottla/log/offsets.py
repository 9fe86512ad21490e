"""Holds the offsets of one log: where it starts and ends, what is committed, and what is stable.

Only this class changes them. Invariant: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset.
"""

from __future__ import annotations


class LogOffsets:
    """The offsets of one log. `first_unstable`: the first offset of the oldest transaction that is open, or that ended
    above the high watermark; None if there is none."""

    __slots__ = ("first_unstable", "high_watermark", "log_end_offset", "log_start_offset")

    def __init__(self, log_start_offset: int, log_end_offset: int, high_watermark: int) -> None:
        """A high watermark outside the log is moved to its nearer end."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = min(max(high_watermark, log_start_offset), log_end_offset)
        self.first_unstable: int | None = None

    @property
    def last_stable_offset(self) -> int:
        first = self.first_unstable
        return first if first is not None and first < self.high_watermark else self.high_watermark

    def appended(self, log_end_offset: int) -> None:
        """Batches were written, and end at `log_end_offset`. HOT."""
        self.log_end_offset = log_end_offset

    def committed(self, high_watermark: int) -> None:
        """Every in-sync replica has what is below `high_watermark`."""
        assert high_watermark <= self.log_end_offset, (high_watermark, self.log_end_offset)
        self.high_watermark = high_watermark

    def unstable_from(self, offset: int | None) -> None:
        """Set `first_unstable`; an offset below the log start counts as the log start."""
        self.first_unstable = None if offset is None else max(offset, self.log_start_offset)

    def start_raised(self, offset: int) -> None:
        """Records below `offset` were deleted. Deleted records count as committed."""
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)

    def truncated(self, offset: int) -> None:
        """Everything from `offset` on was cut off."""
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)

    def restarted(self, offset: int) -> None:
        """The log is empty, and starts and ends at `offset`."""
        self.log_start_offset = self.high_watermark = self.log_end_offset = offset

    def check(self) -> None:
        """Invariants, for tests and the simulator."""
        assert self.log_start_offset <= self.last_stable_offset, (self.log_start_offset, self.last_stable_offset)
        assert self.last_stable_offset <= self.high_watermark, (self.last_stable_offset, self.high_watermark)
        assert self.high_watermark <= self.log_end_offset, (self.high_watermark, self.log_end_offset)
        assert self.first_unstable is None or self.log_start_offset <= self.first_unstable <= self.log_end_offset
