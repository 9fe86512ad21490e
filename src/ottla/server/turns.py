"""Serves connections in turns: a connection that uses more than its share goes to the end of a queue.

A connection is served until it has used `TURN_NS` of the loop without a break, however much it has sent. The rest waits
here. A connection that used up a turn is *heavy* for a while: its requests wait here too, instead of being served where
they are read. So three hundred heavy connections delay the others by one turn and not by three hundred. The queue is
served for one turn between two polls of the sockets.

Fifty connections without a history may all send expensive requests at once. So the time of expensive turns between two
polls is added up. Once the sum reaches one turn, the other connections that were read in the same poll also wait here.
Connections whose last turn was light have a queue of their own, which is served first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter_ns
from typing import Protocol

from ottla.broker.observations.long_turns import LONG_MS

TURN_NS = 4_000_000
COSTLY_NS = 1_000_000
"""A turn that takes less time is light, and is not counted."""
LONG_TURN_NS = LONG_MS * 1_000_000
"""The node remembers what ran in a turn that took so long (`broker.observations.long_turns`)."""


class Waiting(Protocol):
    """A connection, which asks for turns."""

    def take_turn(self) -> None: ...


class Turns:
    """The connections that wait for their next turn. Each is queued at most once: it asks only after its turn."""

    def __init__(self) -> None:
        self._light: deque[Waiting] = deque()
        self._queue: deque[Waiting] = deque()
        self._scheduled = False
        self._spent_ns = 0
        self.is_spent = False
        """Whether expensive turns have used up the time since the last poll of the sockets; then the other connections
        wait."""

    def ask(self, connection: Waiting, *, is_light: bool = False) -> None:
        """Call `take_turn` of this connection when those before it have had theirs."""
        (self._light if is_light else self._queue).append(connection)
        self._schedule()

    def spend(self, ns: int) -> None:
        """Add the time of an expensive turn that was served where its request was read."""
        self._spent_ns += ns
        self.is_spent = self._spent_ns >= TURN_NS
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        until = perf_counter_ns() + TURN_NS
        try:
            for queue in (self._light, self._queue):
                for _ in range(len(queue)):
                    queue.popleft().take_turn()
                    if perf_counter_ns() >= until:
                        break
        finally:
            self._spent_ns, self.is_spent = 0, False
            self._scheduled = False
            if self._light or self._queue:
                self._schedule()
