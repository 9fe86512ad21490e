"""Removes the directories of deleted topics and moved replicas, a few at a time, and retries those that fail.

The store's note of a deletion (`deleted/`) stays until the last of its directories is removed, so that a start finishes
what a crash interrupted.

Invariants: while a directory of a deleted topic exists, no new topic of its name is created: it would find the old
records. While one exists or may return after a power cut, the store has the note of the deletion: without it, a start
would adopt the topic from its directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from typing import Final

from ottla.broker.cluster.metadata import Metadata, NobodyAwaits, Planned, RowBatch
from ottla.broker.environment import Environment
from ottla.broker.schedule import Backlog, Timed, Timer
from ottla.broker.topics.adoption import place_of
from ottla.log.answers import StorageError
from ottla.log.log import Log
from ottla.machine import Millis
from ottla.metadata.store import Delete, StoreError
from ottla.metadata.topics import DeletedTopic

REMOVALS_PER_TICK: Final = 4
"""Deleted logs whose files are removed before the node serves requests again: a few fsyncs each."""
RETRY_MS: Final = 30_000
"""How long a directory that can't be removed is left alone."""


@dataclass(eq=False, slots=True)
class Removal:
    """A directory to be removed. `log` None: an earlier incarnation of the node left it. `told`: its failure was
    logged."""

    path: str
    log: Log | None = None
    topic: DeletedTopic | None = None
    told: bool = False

    @property
    def place(self) -> tuple[str, int] | None:
        """The topic and partition whose path the directory blocks."""
        return place_of(self.path.rpartition("/")[2])

    @property
    def name(self) -> str | None:
        """The topic whose path the directory blocks."""
        return None if self.place is None else self.place[0]


class Removals:
    """The directories of deleted topics of one node."""

    def __init__(self, environment: Environment, metadata: Metadata) -> None:
        self._environment = environment
        self._metadata = metadata
        schedule = environment.schedule
        self._retry = Timer(schedule, Timed.REMOVALS, self._try_again)
        self._waiting = Backlog[Removal](schedule, Timed.REMOVALS, self._remove_some)
        self._stuck: list[Removal] = []
        self._nobody = NobodyAwaits("forgetting deleted topics", environment.fault)
        self._settled: list[str] = []
        """Notes of finished deletions; they are removed after the start's own commit."""

    def begin(
        self, now: Millis, paths: Iterable[str], deleted: Iterable[DeletedTopic], unread: AbstractSet[str]
    ) -> None:
        """At start: remove the rest of earlier deletions. Failed removals are tried again, also after the next start.

        `unread`: names of topics of which a directory could not be read. It may be a deleted topic's.
        """
        self._remove(now, [Removal(path) for path in paths])
        if not self._stuck:
            self._settled = [topic.key for topic in deleted if topic.name not in unread]

    def begun(self, now: Millis) -> None:
        """The start has made its own commit, after which the store no longer knows which commits it has lost."""
        self._metadata.at_once(now, self._forgetting(self._settled))

    def add(self, topic: DeletedTopic | None, logs: Iterable[Log]) -> None:
        """These logs have no owner now, as their topic was deleted or has no replica here: the next ticks remove
        them."""
        for log in logs:
            self._waiting.append(Removal(log.directory, log, topic))

    def _try_again(self, now: Millis) -> None:
        """Schedule another attempt for the failed removals."""
        stuck, self._stuck = self._stuck, []
        for removal in stuck:
            self._waiting.append(removal)

    def _remove_some(self, now: Millis) -> None:
        self.remove(now, list(islice(self._waiting, REMOVALS_PER_TICK)))

    def finish(self, now: Millis) -> None:
        """At a clean stop: remove everything that waits for it."""
        self._metadata.at_once(now, self._forgetting(self._take_away(now, [*self._waiting, *self._stuck])))

    def clear_way(self, now: Millis, names: Iterable[str]) -> dict[tuple[str, int], str]:
        """Move old directories out of the way of partitions of these topics. Returns why it failed, by partition.

        The next ticks remove the moved directories.
        """
        wanted = set(names)
        in_the_way = [removal for removal in (*self._waiting, *self._stuck) if removal.name in wanted]
        if in_the_way:
            self._bury(now, [removal for removal in in_the_way if removal.log is not None])
            self.remove(now, [removal for removal in in_the_way if removal.log is None and removal.name in wanted])
        return {
            removal.place: f"{removal.path}, which an earlier partition of that name left, can't be removed yet"
            for removal in self._stuck
            if removal.place is not None and removal.name in wanted
        }

    def _bury(self, now: Millis, removals: list[Removal]) -> None:
        """Rename the directories of these logs, and sync their parent once for all of them."""
        files, directory = self._environment.files, self._environment.directory
        buried: dict[Removal, str] = {}
        for removal in removals:
            assert removal.log is not None
            try:
                buried[removal] = removal.log.bury()
            except (OSError, StorageError) as error:
                self._stick_waiting(now, removal, error)
        if buried:
            try:
                files.sync_directory(directory)
            except OSError as error:
                for removal in buried:
                    self._stick_waiting(now, removal, error)
                return
        for removal, path in buried.items():
            removal.path, removal.log = path, None

    def _stick_waiting(self, now: Millis, removal: Removal, error: Exception) -> None:
        self._forget({removal})
        self._stick(now, removal, error)

    def is_in_the_way(self, name: str, index: int) -> bool:
        """Whether a directory that is to be removed is at this partition's path."""
        return any(removal.place == (name, index) for removal in (*self._waiting, *self._stuck))

    def remove(self, now: Millis, removals: list[Removal]) -> None:
        """Remove these directories, and the notes of topics that have none left."""
        settled = self._take_away(now, removals)
        if settled:
            self._metadata.change(now, lambda now: self._forgetting(settled), self._nobody)

    def _take_away(self, now: Millis, removals: list[Removal]) -> list[str]:
        """Remove these directories; returns the notes of topics that have none left."""
        self._forget(set(removals))
        self._remove(now, removals)
        left = {removal.topic.key for removal in (*self._waiting, *self._stuck) if removal.topic is not None}
        return sorted({removal.topic.key for removal in removals if removal.topic is not None} - left)

    def _forget(self, going: AbstractSet[Removal]) -> None:
        """Take these out of the queues."""
        self._waiting.discard(going)
        self._stuck = [removal for removal in self._stuck if removal not in going]
        if not self._stuck:
            self._retry.cancel()

    def _remove(self, now: Millis, removals: list[Removal]) -> None:
        files, directory = self._environment.files, self._environment.directory
        unsynced: list[Removal] = []
        for removal in removals:
            try:
                if removal.log is not None:
                    removal.log.delete()
                elif files.exists(removal.path):
                    files.rmtree(removal.path)
            except (OSError, StorageError) as error:
                self._stick(now, removal, error)
            else:
                if removal.log is None and removal.name is not None:  # all others are identified by their names
                    unsynced.append(removal)
        if unsynced:
            try:
                files.sync_directory(directory)
            except OSError as error:
                for removal in unsynced:
                    self._stick(now, removal, error)

    def _stick(self, now: Millis, removal: Removal, error: Exception) -> None:
        self._stuck.append(removal)
        self._retry.set(now + RETRY_MS)
        if not removal.told:
            removal.told = True
            self._environment.warn(f"{removal.path} can't be removed, which is tried again: {error}")

    def _forgetting(self, keys: Iterable[str]) -> Planned:
        """The plan to remove these notes."""
        done = sorted(set(keys))
        if done:
            try:
                yield RowBatch((), [Delete(key) for key in done])
            except StoreError as failed:
                self._environment.notes(f"the next start looks for the files of deleted topics again: {failed}")
