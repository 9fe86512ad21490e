"""Runs the disk thread: what would block the loop and may wait, which is fsync and checkpoint files.

One thread, so that syncs and checkpoints happen in the order in which the node asked for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ottla.log.files import FileSystem
from ottla.log.syncing import Syncable

SYNCS_AT_ONCE = 32

log = logging.getLogger("ottla.disk")


class DiskThread:
    """Runs blocking disk work beside the loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ottla-disk")

    def sync(
        self,
        loop: asyncio.AbstractEventLoop,
        token: int,
        files: Sequence[Syncable],
        done: Callable[[int, dict[int, str]], None],
    ) -> None:
        """Sync all `files`, then call done(token, failures) on the loop; see `ottla.broker.requests.Sync`."""

        def work() -> None:
            failures: dict[int, str] = {}
            for at, file in enumerate(files):
                try:
                    file.sync()
                except OSError as error:  # the others may be of other logs, and go on
                    failures[at] = error.strerror or str(error)
            loop.call_soon_threadsafe(done, token, failures)

        self._pool.submit(work)

    def store(
        self,
        loop: asyncio.AbstractEventLoop,
        files: FileSystem,
        path: str,
        content: bytes,
        failed: Callable[[str], None],
    ) -> None:
        """Replace a checkpoint file. A failure is logged, then failed(path) called on the loop: the older checkpoint
        only makes a recovery longer."""

        def work() -> None:
            try:
                files.write_atomically(path, content)
            except OSError as error:
                log.warning("the checkpoint %s could not be written: %s", path, error.strerror or error)
                loop.call_soon_threadsafe(failed, path)

        self._pool.submit(work)

    def stop(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown(wait=True)


def sync_beside(batches: Generator[list[Syncable], Mapping[int, str], None]) -> None:
    """Sync the files of each batch beside each other, and send back which failed: their places and why."""
    with ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="ottla-stop") as pool, contextlib.suppress(StopIteration):
        files = next(batches)
        while True:
            said = list(pool.map(_sync, files))
            files = batches.send({at: why for at, why in enumerate(said) if why is not None})


def _sync(file: Syncable) -> str | None:
    try:
        file.sync()
    except OSError as error:
        return error.strerror or str(error)
    return None
