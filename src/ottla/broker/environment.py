"""Holds what the I/O host gives a node and all its packages share: files, clocks, randomness, settings, timers, log
sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.broker.completions import Completions
from ottla.broker.config.live import LiveSettings
from ottla.broker.effects import Outbox
from ottla.broker.schedule import Schedule
from ottla.log.cost import Stopwatch, TimeSlice
from ottla.log.files import FileSystem
from ottla.machine import Entropy, WallClock


class Environment(NamedTuple):
    """The services of the I/O host. `notes` logs information; `warn` logs what an operator should act on.

    `fault` is called with a description and the exception while an unexpected exception is handled. It raises the
    exception if the host provides no handler. `same_boot`: the machine has not restarted since the last node wrote
    here, so its writes are still in the page cache. `stopwatch` times slices of work and affects no other decision.
    """

    node_id: int
    files: FileSystem
    directory: str
    settings: LiveSettings
    entropy: Entropy
    wall: WallClock
    outbox: Outbox
    schedule: Schedule
    completions: Completions
    same_boot: bool
    notes: Callable[[str], None]
    warn: Callable[[str], None]
    fault: Callable[[str, Exception], None]
    stopwatch: Stopwatch

    def time_slice(self) -> TimeSlice:
        """A slice of work that creates files, starting now."""
        return TimeSlice(self.stopwatch)
