"""Holds what the shell gives a node and all its rooms share: files, clocks, chance, settings, timers, and where to
tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ottla.broker.config.live import LiveSettings
from ottla.broker.effects import Outbox
from ottla.broker.schedule import Schedule
from ottla.log.cost import Stopwatch, TimeSlice
from ottla.log.files import FileSystem
from ottla.machine import Entropy, WallClock


@dataclass(frozen=True, slots=True)
class Environment:
    """`notes` hears what may interest somebody, `warn` what somebody should do something about.

    `fault` is called with what failed and why, while an exception that nobody expected is handled; it raises where
    nobody is there to hear it. `same_boot`: what the last node here wrote is in the page cache still. `stopwatch` times
    slices of work and decides nothing else.
    """

    node_id: int
    files: FileSystem
    directory: str
    settings: LiveSettings
    entropy: Entropy
    wall: WallClock
    outbox: Outbox
    schedule: Schedule
    same_boot: bool
    notes: Callable[[str], None]
    warn: Callable[[str], None]
    fault: Callable[[str, Exception], None]
    stopwatch: Stopwatch

    def time_slice(self) -> TimeSlice:
        """A slice of work that makes files, from now on."""
        return TimeSlice(self.stopwatch)
