"""Measures usage over time, and computes how long to wait until it is back at a limit.

A `Rate` counts the usage of the last windows. A `Bucket` fills at the limit and may be overdrawn once: the debt is paid
back before anything more may be used.

Sources: Kafka's Rate.java, SampledStat.java, TokenBucket.java, QuotaUtils.java.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from ottla.machine import Millis

WAIT_MS_MAX: Final = 2**31 - 1
"""The longest time that an answer can name."""


class Rate:
    """How much was used in the last `samples` windows of `window_ms` each, the one that has begun among them."""

    __slots__ = ("__weakref__", "_begun", "_samples", "_window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        self._samples = samples
        self._window_ms = window_ms
        self._begun: deque[tuple[Millis, float]] = deque()
        """The start of each sample, and the usage in it."""

    def record(self, now: Millis, used: float) -> None:
        begun = self._begun
        if begun and now - begun[-1][0] < self._window_ms:
            began, before = begun.pop()
            begun.append((began, before + used))
        else:
            begun.append((now, used))

    def wait_ms(self, now: Millis, limit: float) -> int:
        """The time until the rate is down to `limit` per second; 0 if it is not above."""
        begun = self._begun
        while begun and now - begun[0][0] >= self._samples * self._window_ms:
            begun.popleft()
        if not begun:
            return 0
        elapsed_ms = now - begun[0][0]
        missing = self._samples - 1 - elapsed_ms // self._window_ms
        elapsed_ms += max(missing, 0) * self._window_ms
        used = sum(used for _, used in begun)
        return _told(used * 1000 / limit - max(elapsed_ms, self._window_ms))


class Bucket:
    """Holds the remaining quota, at most what `limit` gives in `burst_ms`.

    A client that uses more than remains goes into debt, and waits until it is paid back.
    """

    __slots__ = ("__weakref__", "_burst_ms", "_full_at", "_limit")

    def __init__(self, limit: float, burst_ms: int) -> None:
        self._limit = limit
        self._burst_ms = burst_ms
        self._full_at = -math.inf
        """When it will be full, or was."""

    def record(self, now: Millis, used: float) -> None:
        self._full_at = max(self._full_at, now) + used * 1000 / self._limit

    def wait_ms(self, now: Millis, limit: float) -> int:
        """The time until the debt is paid back; 0 if there is none."""
        return _told(self._full_at - now - self._burst_ms)


def _told(wait_ms: float) -> int:
    return round(min(max(0, wait_ms), WAIT_MS_MAX))
