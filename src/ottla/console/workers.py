"""Runs blocking work on a bounded number of threads, with a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
THREADS: Final = 8
WAITING_MAX: Final = 64


class BusyError(Exception):
    """Too many requests wait for a thread."""


class Workers:
    """A pool of threads for requests of browsers."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ottla-console")
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of work on a thread. Raises BusyError if the queue is full."""
        if self._waiting >= THREADS + WAITING_MAX:
            raise BusyError("The console is busy: too many requests wait for the cluster.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
