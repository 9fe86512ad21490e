"""Connects this node to other nodes of the cluster: one connection a line, opened with the first request.

Knows how frames go out and answers come back: Kafka answers the requests of a connection in their order. Does not know
what is asked; whoever asked hears `Unanswered` where a node is not known, not reached, or lost before it answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ottla.broker.effects import Ask
from ottla.machine import Unanswered
from ottla.server.listeners import SettingsRefused, split_address

CONNECT_S: Final = 5.0
FRAME_BYTES_MAX: Final = 100 << 20
_LENGTH_BYTES: Final = 4


class Peers:
    """`address_of` says where a node is, `answered` takes what came of a request."""

    def __init__(
        self,
        address_of: Callable[[int], tuple[str, int] | None],
        answered: Callable[[int, bytes | Unanswered], None],
    ) -> None:
        self._address_of = address_of
        self._answered = answered
        self._connections: dict[tuple[int, int], _PeerConnection] = {}

    def send(self, ask: Ask) -> None:
        """Send this frame; `answered` is called once, later."""
        connection = self._connections.get((ask.node_id, ask.line))
        if connection is None or connection.over:
            connection = _PeerConnection(ask.node_id, self._address_of, self._answered)
            self._connections[ask.node_id, ask.line] = connection
        connection.send(ask.token, ask.frame)

    def stop(self) -> None:
        """Close every connection; nobody is told any more."""
        for connection in self._connections.values():
            connection.stop()


def routes_of(texts: Iterable[str]) -> dict[int, tuple[str, int]]:
    """Where to reach nodes, by id, of NODE=HOST:PORT texts. Raises SettingsRefused."""
    routes: dict[int, tuple[str, int]] = {}
    for text in texts:
        node_id, equals, address = text.partition("=")
        if not equals or not node_id.strip().isdigit():
            raise SettingsRefused(
                f"ottla.cluster.routes takes NODE=HOST:PORT, for example 2=127.0.0.1:9192, not {text!r}."
            )
        routes[int(node_id)] = split_address(address.strip())
    return routes


class _PeerConnection:
    """One connection from its first request until it is lost. `over`: it takes no more."""

    def __init__(
        self,
        node_id: int,
        address_of: Callable[[int], tuple[str, int] | None],
        answered: Callable[[int, bytes | Unanswered], None],
    ) -> None:
        self.over = False
        self._node_id = node_id
        self._address_of = address_of
        self._answered = answered
        self._waiting: deque[int] = deque()
        self._unsent: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, token: int, frame: bytes) -> None:
        self._waiting.append(token)
        if self._writer is None:
            self._unsent.append(frame)
        else:
            self._writer.write(frame)

    def stop(self) -> None:
        self.over = True
        self._waiting.clear()
        self._task.cancel()

    async def _run(self) -> None:
        try:
            why = await self._exchange()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            why = f"node {self._node_id} is not reached, or was lost: {error or type(error).__name__}"
        finally:
            self.over = True
            if self._writer is not None:
                self._writer.close()
        waiting, self._waiting = self._waiting, deque()
        for token in waiting:
            self._answered(token, Unanswered(why))

    async def _exchange(self) -> str:
        """Send and receive until nothing can be any more; says why."""
        address = self._address_of(self._node_id)
        if address is None:
            return f"node {self._node_id} has not said where it is"
        reader, self._writer = await asyncio.wait_for(asyncio.open_connection(*address), CONNECT_S)
        self._writer.writelines(self._unsent)
        self._unsent.clear()
        while True:
            length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big", signed=True)
            if not 0 <= length <= FRAME_BYTES_MAX:
                return f"node {self._node_id} sent a frame of {length} bytes"
            frame = await reader.readexactly(length)
            if not self._waiting:
                return f"node {self._node_id} sent an answer that nobody has asked for"
            self._answered(self._waiting.popleft(), frame)
