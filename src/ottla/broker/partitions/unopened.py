"""Retries to open the logs that could not be opened at the start, while all other partitions are served.

Each offline partition has a reason and a time for its next attempt. A partition whose files were repaired becomes
available without a restart; one whose directory was removed becomes available empty.

The boot id that a start writes does not cover these partitions: after a power cut, such a log may still be torn. The
repairs of an attempt to open it may be only in the page cache. So a file in the data directory names them, and during
a recovery from a power cut it names all partitions. A log that it names is checked whole when it is opened again, by
this incarnation of the node or a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from ottla.broker.environment import Environment
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import Timed, Timer
from ottla.log.checkpoints import CheckpointUnreadableError, read_unrecovered, write_unrecovered
from ottla.machine import Millis

RETRY_MS: Final = 10_000


class Unopened:
    """The partitions of one node that have no open log. `open_again` tries one, and returns True if it is open now."""

    def __init__(self, environment: Environment, open_again: Callable[[Millis, Partition], bool]) -> None:
        self._environment = environment
        self._open_again = open_again
        self._partitions: dict[Partition, str] = {}
        self._retry = Timer(environment.schedule, Timed.UNOPENED, self._open_all_again)
        self._interrupted: set[tuple[str, int]] = set()
        self._noted: set[tuple[str, int]] = set()

    def begin(self, places: Collection[tuple[str, int]], *, power_cut: bool) -> None:
        """Logs are opened from here on, those of these partitions (topic, index). Raises OSError."""
        environment = self._environment
        try:
            self._interrupted = read_unrecovered(environment.files, environment.directory)
        except CheckpointUnreadableError as unreadable:
            environment.notes(f"{unreadable}; every log is checked whole")
            self._interrupted = set(places)
        self._noted = self._interrupted
        if power_cut:
            self._noted = self._interrupted | set(places)
            write_unrecovered(environment.files, environment.directory, self._noted)

    def is_interrupted(self, place: tuple[str, int]) -> bool:
        """Whether an earlier incarnation of the node began to open this partition's log and did not finish."""
        return place in self._interrupted

    def note(self, places: Collection[tuple[str, int]]) -> None:
        """All partitions except these are open, or deleted."""
        left = set(places)
        if left != self._noted:
            with suppress(OSError):  # a file that names too many only makes for more checks
                write_unrecovered(self._environment.files, self._environment.directory, left)
                self._noted = left

    def _note(self) -> None:
        self.note({(partition.topic_name, partition.index) for partition in self._partitions})

    def add(self, now: Millis, partition: Partition, why: str, advice: str) -> None:
        """This partition's log could not be read. `why` is logged once, with the advice."""
        self._partitions[partition] = why
        self._retry.set(now + RETRY_MS)
        self._environment.warn(f"{partition.name} is offline; will retry: {why}. {advice}")

    def all(self) -> list[Partition]:
        """The offline partitions."""
        return list(self._partitions)

    def forget(self, partition: Partition) -> None:
        """This partition is deleted."""
        if self._partitions.pop(partition, None) is not None:
            self._note()
            if not self._partitions:
                self._retry.cancel()

    def _open_all_again(self, now: Millis) -> None:
        self._retry.set(now + RETRY_MS)
        for partition in list(self._partitions):
            if self._open_again(now, partition):
                del self._partitions[partition]
                self._note()
                self._environment.notes(f"{partition.name} is in service again")
        if not self._partitions:
            self._retry.cancel()
