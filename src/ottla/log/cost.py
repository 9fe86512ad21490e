"""Counts the additional work of appends, so that a caller with many appends can let other requests run first.

The unit is a step of some ten microseconds.

The time to create files depends on the disk, so work that creates many of them is also limited by time. A `TimeSlice`
reads the stopwatch that the I/O host gave the node. The simulator and the tests use one that counts steps.
"""

from collections.abc import Callable
from typing import Final, TypeAlias


class Cost:
    """The additional work done so far: `steps` of some ten microseconds each."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


BEYOND_USUAL: Final = Cost()
"""The work of appends in this process so far beyond writing a batch: decoding it, creating a segment's files. A caller
compares it with an earlier value."""
SEGMENT: Final = 10
"""Steps for creating the files of a segment. Creating them takes two or three times that; but with fsync each slice
waits for a commit of its own."""
STEP_US: Final = 10
SLICE_US: Final = 4_000
"""Microseconds that work that creates files may run before other requests have their turn. It may exceed them by one
partition."""

Stopwatch: TypeAlias = Callable[[], int]
"""Microseconds since some moment."""


def counted_us() -> int:
    """The stopwatch of tests and the simulator: the time that the counted steps represent."""
    return BEYOND_USUAL.steps * STEP_US


class TimeSlice:
    """One slice of work that may create files."""

    __slots__ = ("_ends_us", "_steps", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._steps = BEYOND_USUAL.steps
        self._ends_us = stopwatch() + SLICE_US

    @property
    def is_over(self) -> bool:
        """Whether its time has passed, and something in it was additional work."""
        return BEYOND_USUAL.steps > self._steps and self._stopwatch() >= self._ends_us
