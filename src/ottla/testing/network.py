"""Simulates the network between the nodes of a test's cluster: a proxy for each pair, whose directions can be cut.

Bytes that a node sends in a cut direction wait at the sender's side, and so does the end of a connection. They arrive
when the direction is restored, as TCP retransmits lost packets. No node gets an error; a node that cannot wait must
time out by itself.

The proxy runs an event loop in a thread of its own; every method may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import permutations
from typing import Any, Final

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 1 << 16
CONNECT_S: Final = 5.0
"""How long a node may take to accept a connection; the connecting node gives up after the same time."""


class Network:
    """Connections between these nodes. `port_of`: the port on which a node listens, 0 while it is unknown."""

    def __init__(self, nodes: Iterable[int], port_of: Callable[[int], int]) -> None:
        self._port_of = port_of
        self._nodes = tuple(nodes)
        self._ways: dict[tuple[int, int], asyncio.Event] = {}
        self._entries: dict[tuple[int, int], int] = {}
        self._listening: list[asyncio.Server] = []
        self._carried: set[asyncio.Task[Any] | None] = set()
        """The connections. asyncio itself has no strong reference to one whose sender has ended its direction."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Listen on behalf of every node, for each of the other nodes."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ottla-network", daemon=True)
        self._thread.start()
        self._do(self._open())

    def entry(self, sender: int, receiver: int) -> tuple[str, int]:
        """The address to which `sender` connects to reach `receiver`."""
        return HOST, self._entries[sender, receiver]

    def cut(self, sender: int, receiver: int) -> None:
        """Stop delivering what `sender` sends to `receiver`."""
        self._do(self._set({(sender, receiver)}, is_open=False))

    def heal(self) -> None:
        """Restore every direction; waiting bytes arrive."""
        if self._thread is not None:
            self._do(self._set(self._ways, is_open=True))

    def stop(self) -> None:
        """Close every connection."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._do(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    # ---- in the event loop -----------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        for pair in permutations(self._nodes, 2):
            self._ways[pair] = asyncio.Event()
            self._ways[pair].set()
            listening = await asyncio.start_server(self._accepts(*pair), HOST, 0)
            self._listening.append(listening)
            self._entries[pair] = int(listening.sockets[0].getsockname()[1])

    async def _set(self, pairs: Iterable[tuple[int, int]], *, is_open: bool) -> None:
        for pair in pairs:
            way = self._ways[pair]
            way.set() if is_open else way.clear()

    async def _close(self) -> None:
        for listening in self._listening:
            listening.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        self._listening.clear()

    def _accepts(
        self, sender: int, receiver: int
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]:
        async def accept(near: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            self._carried.add(task)
            try:
                await self._carry(sender, receiver, near, answers)
            except (OSError, TimeoutError, asyncio.CancelledError):
                pass  # no listener, or the network stops: the connecting node sees its connection close
            finally:
                answers.transport.abort()
                self._carried.discard(task)

        return accept

    async def _carry(
        self, sender: int, receiver: int, near: asyncio.StreamReader, answers: asyncio.StreamWriter
    ) -> None:
        """Carry one connection, from its first packet to its end."""
        there, back = self._ways[sender, receiver], self._ways[receiver, sender]
        await there.wait()
        async with asyncio.timeout(CONNECT_S):
            far, requests = await asyncio.open_connection(HOST, self._port_of(receiver))
        try:
            await asyncio.gather(pump(near, requests, there), pump(far, answers, back))
        finally:
            requests.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
    """Carry bytes in a direction while it is open, and then the end of the connection, clean or not."""
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            await way.wait()
            writer.write(chunk)
            await writer.drain()
    await way.wait()
    with suppress(OSError):
        writer.write_eof()
