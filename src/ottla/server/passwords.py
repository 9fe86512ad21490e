"""Derives the keys of passwords on threads, while the event loop continues: each takes milliseconds.

Source: the effect `Derive`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ottla.broker.effects import Derive

THREADS = 2
"""OpenSSL derives without the interpreter's lock."""


class Passwords:
    """The threads that derive. They start with the first password."""

    def __init__(self, derived: Callable[[int, str, bytes], None]) -> None:
        self._derived = derived
        self._pool: ThreadPoolExecutor | None = None

    def derive(self, effect: Derive) -> None:
        """Call derived(token, mechanism, salted password) on the running loop."""
        from ottla.protocol.scram import salted  # most nodes start without it

        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ottla-passwords")
        loop = asyncio.get_running_loop()

        def work() -> None:
            found = salted(effect.mechanism, effect.password, effect.salt, effect.iterations)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._derived, effect.token, effect.mechanism, found)

        self._pool.submit(work)

    def stop(self) -> None:
        """Drop the waiting passwords."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
