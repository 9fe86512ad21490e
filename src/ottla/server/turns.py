"""Serves connections in turns: who has more than others may wait for goes to the end of a queue.

A connection is served until it has had `TURN_NS` of the loop at once, however much it has sent; the rest waits here.
A connection that used up a turn is *heavy* for a while: what it sends waits here too, instead of being served where it
is read, so that three hundred of them cost everybody else one turn and not three hundred. The queue is served for one
turn between two looks at the sockets.

Fifty connections that nothing is known of may all ask for much at once. So what costly turns take between two looks is
added up, and when that is a turn, whoever else was read with them waits here as well: those whose last turn was a light
one in a queue of their own, which comes first.

Does not know: what a connection does in its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter_ns
from typing import Protocol

TURN_NS = 4_000_000
COSTLY_NS = 1_000_000
"""A turn that takes less is a light one, and is not counted."""


class Waiting(Protocol):
    """Who asks for turns: a connection."""

    def take_turn(self) -> None: ...


class Turns:
    """The connections that wait for their next turn. Each stands here once at most: it asks only after its turn."""

    def __init__(self) -> None:
        self._light: deque[Waiting] = deque()
        self._queue: deque[Waiting] = deque()
        self._scheduled = False
        self._spent_ns = 0
        self.is_spent = False
        """Since the last look at the sockets costly turns have taken as long as there is: the others wait."""

    def ask(self, connection: Waiting, *, is_light: bool = False) -> None:
        """Call `take_turn` of this connection when those before it have had theirs."""
        (self._light if is_light else self._queue).append(connection)
        self._schedule()

    def spend(self, ns: int) -> None:
        """A costly turn was had where its request was read."""
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
