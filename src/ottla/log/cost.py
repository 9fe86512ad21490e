"""Counts what appends take beyond the usual, so that whoever makes many of them lets others go first.

Knows steps of some ten microseconds each. Does not know who asks.
"""

from typing import Final


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
