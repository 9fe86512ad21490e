"""Decodes long requests on a separate thread, one after the other, while the event loop continues.

Decoding is a pure function of the bytes. The interpreter runs one thread at a time, so this is not faster. But the loop
waits for at most one thread switch instead of for a whole request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ottla.broker.requests import Decoded


class Decoding:
    """The thread that decodes long requests. It starts with the first one."""

    def __init__(self, decode: Callable[[memoryview], Decoded]) -> None:
        self._decode = decode
        self._pool: ThreadPoolExecutor | None = None

    def decode(self, frame: memoryview, done: Callable[[memoryview, Decoded | Exception], None]) -> None:
        """Call done(frame, what was read or why it could not be) on the running loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="ottla-decode")
        loop = asyncio.get_running_loop()

        def work() -> None:
            read: Decoded | Exception
            try:
                read = self._decode(frame)
            except Exception as error:
                read = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done, frame, read)

        self._pool.submit(work)

    def stop(self) -> None:
        """Drop the waiting requests."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
