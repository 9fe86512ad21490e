"""Writes the trace of a run: what happened, line by line, and one hash over all of it.

Two runs of one seed must have the same hash; the test suite holds that under two PYTHONHASHSEEDs. Also the one error
that says a promise was broken.
"""

import hashlib
from collections import deque

from ottla.sim.kernel.clock import MS, Clock

LINES_KEPT_MAX = 400


class InvariantError(AssertionError):
    """Raised if a promise is broken. The message says which, where and when."""


class Trace:
    """Lines of a run. Keeps the last `LINES_KEPT_MAX`, or all of them where `keep_all` asks for it."""

    __slots__ = ("_clock", "_digest", "count", "lines")

    def __init__(self, clock: Clock, *, keep_all: bool = False) -> None:
        self._clock = clock
        self._digest = hashlib.blake2b(digest_size=8)
        self.lines: deque[str] = deque(maxlen=None if keep_all else LINES_KEPT_MAX)
        self.count = 0

    def add(self, who: str, what: str) -> None:
        now_us = self._clock.now_us
        line = f"{now_us // MS:>7}.{now_us % MS:03d} {who:<10} {what}"
        self._digest.update(line.encode())
        self.lines.append(line)
        self.count += 1

    def digest(self) -> str:
        return self._digest.hexdigest()
