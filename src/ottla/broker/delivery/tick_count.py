"""Counts work between two ticks, so that each tick can bound it and other work has its turn."""

from __future__ import annotations

from ottla.broker.schedule import Schedule


class TickCount:
    """A count that begins at 0 with each tick of the node."""

    __slots__ = ("_count", "_schedule", "_tick")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._tick = schedule.ticks
        self._count = 0

    @property
    def count(self) -> int:
        """The number that was added since the last tick."""
        if self._tick != self._schedule.ticks:
            self._tick, self._count = self._schedule.ticks, 0
        return self._count

    def add(self, more: int) -> None:
        self._count = self.count + more
