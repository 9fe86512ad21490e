"""Reads the host's clocks: the monotonic clock for deadlines, and the wall clock for timestamps.

The zero of the monotonic clock is the system's (on Linux, the last boot), far from 1970. If code mistakes a timestamp
for a deadline, the deadline never expires; the opposite mistake shows at once. The monotonic clock stops while the
machine sleeps, as Java's does.
"""

from time import monotonic_ns, time_ns

from ottla.machine import Millis

DRIFT_MS = 2
"""A wall clock with a smaller deviation is not corrected: both clocks are read to a whole millisecond."""


def moment() -> Millis:
    """Now, by the monotonic clock."""
    return monotonic_ns() // 1_000_000


def microseconds() -> int:
    """The node's stopwatch."""
    return monotonic_ns() // 1_000


def wall_ahead(now: Millis) -> int:
    """By how many milliseconds the wall clock is ahead of this moment, which is now."""
    return time_ns() // 1_000_000 - now


def both_clocks() -> tuple[Millis, int]:
    """`moment` and `wall_ahead` of it, with one call, as each turn of a connection needs both."""
    now = monotonic_ns() // 1_000_000
    return now, time_ns() // 1_000_000 - now
