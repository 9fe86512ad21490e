"""Keeps the loading shards of one topic in turn, with the time at which each may continue.

Invariant: the timer is set to the earliest time at which one of them may continue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.machine import Millis


class Loads(Protocol):
    """Something that is loaded. `loads_from`: when to begin; only `Loading.put_off` changes it during the load."""

    loads_from: Millis


LoadsT = TypeVar("LoadsT", bound=Loads)


class Loading(Generic[LoadsT]):
    """`load` loads a slice of the shard whose turn it is."""

    def __init__(self, schedule: Schedule, part: Timed, load: Callable[[Millis, LoadsT], None]) -> None:
        self._load = load
        self._queue: deque[LoadsT] = deque()
        self._timer = Timer(schedule, part, self.load_next)

    def add(self, loads: LoadsT) -> None:
        self._queue.append(loads)
        self._set_timer()

    def remove(self, loads: LoadsT) -> None:
        """It is loaded, or given up; it need not be here."""
        if loads in self._queue:
            self._queue.remove(loads)
            self._set_timer()

    def put_off(self, loads: LoadsT, until: Millis) -> None:
        """Leave it alone until then."""
        loads.loads_from = until
        self._set_timer()

    def had_turn(self, loads: LoadsT) -> None:
        """A slice of it was loaded: others have their turn first now."""
        if self._queue[0] is loads:
            self._queue.rotate(-1)

    def __contains__(self, loads: LoadsT) -> bool:
        return loads in self._queue

    def may_go_on(self, now: Millis) -> bool:
        """Whether one of them has a slice to load."""
        return any(each.loads_from <= now for each in self._queue)

    def load_next(self, now: Millis) -> None:
        """Load a slice of the shard whose turn it is."""
        loads = next((each for each in self._queue if each.loads_from <= now), None)
        try:
            if loads is not None:
                self._load(now, loads)
        finally:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._queue:
            self._timer.set(min(each.loads_from for each in self._queue))
        else:
            self._timer.cancel()
