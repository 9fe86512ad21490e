"""Runs the store thread: it commits to the metadata store and polls it, one call after the other, beside the event
loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias

from ottla.broker.cluster import store_work
from ottla.broker.effects import Commit, CommitOutcome, OutcomeUnknown, Reading, Reread, Unread
from ottla.metadata.image import MetadataDelta, MetadataImage, delta_since
from ottla.metadata.store import MetadataStore, StoreError

Told: TypeAlias = MetadataDelta | StoreError | None
"""The result of polling the store."""

log = logging.getLogger("ottla.metadata")


class NodeStore(MetadataStore, Protocol):
    """A metadata store, as the I/O host uses it."""

    def marked(self) -> int:
        """The newest known generation, without reading the store; a value that no image has if it is unknown."""
        ...

    def hurry(self) -> None:
        """Note that clients are served from now on."""
        ...

    def gone(self) -> str | None:
        """The reason why this is no longer the store that was opened; None while it is. Called frequently, on the
        loop."""
        ...


class StoreThread:
    """Carries out `Commit` and `Reread`; `committed` and `reread` are called on the loop, with the token first."""

    def __init__(
        self,
        store: MetadataStore,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[int, CommitOutcome], None],
        reread: Callable[[int, Reading | Unread], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._committed = committed
        self._reread = reread
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ottla-store")

    def carry_out(self, effect: Commit | Reread) -> None:
        """Start this effect once all earlier ones have ended."""
        if isinstance(effect, Commit):
            self._pool.submit(self._commit, effect)
        else:
            self._pool.submit(self._read, effect)

    def look(self, image: MetadataImage, heard: Callable[[Told], None]) -> None:
        """Pass to `heard`, on the loop, what the store has beyond this image; None if there is nothing new."""
        self._pool.submit(self._look, image, heard)

    def _look(self, image: MetadataImage, heard: Callable[[Told], None]) -> None:
        told: Told = None
        try:
            if self._store.generation != image.generation:
                told = delta_since(self._store, image)
        except StoreError as failed:
            told = failed
        except Exception as error:  # unexpected: the caller would wait for this result indefinitely
            told = StoreError(repr(error))
        self._loop.call_soon_threadsafe(heard, told)

    def _commit(self, effect: Commit) -> None:
        try:
            outcome = store_work.commit(self._store, effect)
        except Exception as error:  # unexpected: its effect is read from the store
            log.exception("a commit to the metadata store failed; its outcome will be read from the store")
            outcome = OutcomeUnknown(repr(error))
        self._loop.call_soon_threadsafe(self._committed, effect.token, outcome)

    def _read(self, effect: Reread) -> None:
        try:
            answer = store_work.reread(self._store, effect)
        except Exception as error:
            log.exception("the metadata store can't be read; it is tried again")
            answer = Unread(repr(error))
        self._loop.call_soon_threadsafe(self._reread, effect.token, answer)

    def stop(self) -> None:
        """Wait for the submitted work to finish."""
        self._pool.shutdown(wait=True)
