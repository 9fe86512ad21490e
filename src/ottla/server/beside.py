"""Runs pure work on threads while the event loop continues. A stop drops what has not begun."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Result = TypeVar("Result")


class Beside:
    """Threads of one name. They start with the first work."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        """Call `done` with the result of `work` on the running loop. `work` must not raise."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
        loop = asyncio.get_running_loop()

        def run() -> None:
            result = work()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(done, result)

        self._pool.submit(run)

    def finish(self) -> None:
        """Wait until all work is done."""
        if self._pool is not None:
            self._pool.shutdown()

    def stop(self) -> None:
        """Drop the work that waits."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
