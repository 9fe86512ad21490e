"""Counts what appends take beyond the usual, so that whoever makes many of them lets others go first.

Knows steps of some ten microseconds each. Does not know who asks.

How long files take to make depends on the disk, so work that makes many of them is cut by time as well: a `TimeSlice`
reads the stopwatch that the shell gave the node. The simulator and the tests have one that counts steps.
"""

from collections.abc import Callable
from typing import Final, TypeAlias


class Cost:
    """What some work has taken: `steps` of some ten microseconds each."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


BEYOND_USUAL: Final = Cost()
"""What appends have taken in this process so far beyond writing a batch: looking inside it, making a segment's files.
Who asks compares it with what it was before."""
SEGMENT: Final = 10
"""Steps for making the files of a segment. They take two or three times that; but with fsync each slice waits for a
commit of its own."""
STEP_US: Final = 10
SLICE_US: Final = 4_000
"""How long work that makes files may go on before other requests have their turn; longer by at most one partition."""

Stopwatch: TypeAlias = Callable[[], int]
"""Microseconds since some moment."""


def counted_us() -> int:
    """The stopwatch of tests and the simulator: the time that the counted steps stand for."""
    return BEYOND_USUAL.steps * STEP_US


class TimeSlice:
    """One slice of work that may make files."""

    __slots__ = ("_ends_us", "_steps", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._steps = BEYOND_USUAL.steps
        self._ends_us = stopwatch() + SLICE_US

    @property
    def is_over(self) -> bool:
        """Whether its time has passed, and something in it was beyond the usual."""
        return BEYOND_USUAL.steps > self._steps and self._stopwatch() >= self._ends_us
