"""Runs the disk thread: what would block the loop and may wait, which is fsync and checkpoint files.

One thread, so that syncs and checkpoints happen in the order in which the node asked for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from ottla.broker.effects import Store
from ottla.log.files import DiskFiles
from ottla.log.syncing import Syncable

SYNCS_AT_ONCE = 32

log = logging.getLogger("ottla.disk")


class NodeFiles(DiskFiles):
    """The real file system of a node with a disk thread. Both threads replace checkpoint files, one after the other."""

    def __init__(self, open_files_max: int) -> None:
        super().__init__(open_files_max)
        self._replacing = Lock()

    def write_atomically(self, path: str, data: bytes, durable: bool = True) -> None:
        if not durable:  # only the loop does that
            super().write_atomically(path, data, durable=False)
            return
        with self._replacing:
            super().write_atomically(path, data)

    def carry_out(self, effect: Store) -> None:
        """Replace the file, unless the effect was withdrawn because newer bytes are written or queued. Raises
        OSError."""
        with self._replacing:
            if not effect.withdrawal.is_made:
                super().write_atomically(effect.path, effect.content)


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
            loop.call_soon_threadsafe(done, token, _sync(files, range(len(files))))

        self._pool.submit(work)

    def store(
        self,
        loop: asyncio.AbstractEventLoop,
        files: NodeFiles,
        effect: Store,
        failed: Callable[[str], None],
    ) -> None:
        """Replace a checkpoint file. A failure is logged, then failed(path) called on the loop: the older checkpoint
        only makes a recovery longer."""

        def work() -> None:
            try:
                files.carry_out(effect)
            except OSError as error:
                log.warning("the checkpoint %s could not be written: %s", effect.path, error.strerror or error)
                loop.call_soon_threadsafe(failed, effect.path)

        self._pool.submit(work)

    def stop(self) -> None:
        """Wait for the submitted work to finish."""
        self._pool.shutdown(wait=True)


def sync_beside(batches: Generator[list[Syncable], Mapping[int, str], None]) -> None:
    """Sync the files of each batch in parallel, and send back the failures: the indexes of the files, and the reasons.

    Each thread gets its share of a batch at once, because passing files one by one costs more CPU than a quick sync.
    """
    with ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="ottla-stop") as pool, contextlib.suppress(StopIteration):
        files = next(batches)
        while True:
            shares = [range(first, len(files), SYNCS_AT_ONCE) for first in range(min(SYNCS_AT_ONCE, len(files)))]
            failures: dict[int, str] = {}
            for failed in pool.map(_sync, [files] * len(shares), shares):
                failures |= failed
            files = batches.send(failures)


def _sync(files: Sequence[Syncable], places: Iterable[int]) -> dict[int, str]:
    """Sync the files at these indexes. Returns the ones that failed, and the reasons."""
    failures: dict[int, str] = {}
    for at in places:
        try:
            files[at].sync()
        except OSError as error:  # the remaining files may be of other logs
            failures[at] = error.strerror or str(error)
    return failures
