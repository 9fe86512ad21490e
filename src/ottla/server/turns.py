"""Turns: who has more to be served than others may wait for goes to the end of a queue.

A connection is served until it has had `TURN_NS` of the loop at once, however much it has sent; the rest waits here.
A connection that used up a turn is *heavy* for a while: what it sends waits here too, instead of being served where it
is read, so that three hundred of them cost everybody else one turn and not three hundred. The queue is served for one
turn between two looks at the sockets.

Does not know: what a connection does in its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.server.connection import Connection

TURN_NS = 4_000_000


class Turns:
    """The connections that wait for their next turn. Each stands here once at most: it asks only after its turn."""

    def __init__(self) -> None:
        self._queue: deque[Connection] = deque()
        self._scheduled = False

    def ask(self, connection: Connection) -> None:
        """Call `take_turn` of this connection when those before it have had theirs."""
        self._queue.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if self._queue and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        until = perf_counter_ns() + TURN_NS
        try:
            for _ in range(len(self._queue)):
                self._queue.popleft().take_turn()
                if perf_counter_ns() >= until:
                    break
        finally:
            self._scheduled = False
            self._schedule()
