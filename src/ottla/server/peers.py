"""Connects this node to other nodes of the cluster, with one connection a line, opened by the first request.

Kafka answers the requests of a connection in order. A caller gets `Unanswered` if the node is unknown, unreachable, or
lost before it answered.

A connection begins with the proofs of both nodes (`broker/cluster/introduction.py`). Requests wait until the other node
has proved itself.

Answers to followers' fetches have megabytes. An answer is passed on in the memory that it was received in, and this
process copies none of it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

from ottla.broker.effects import PeerRequest
from ottla.machine import Unanswered
from ottla.server.buffers import Buffers
from ottla.server.listeners import SettingsRefusedError, split_address

if TYPE_CHECKING:
    from ottla.broker.cluster.introduction import Introduction
    from ottla.server.tls import Tls

CONNECT_S: Final = 5.0
"""Time that a connection and the other node's proof may take, in seconds."""
ANSWER_BYTES_MAX: Final = 100 << 20
INTRODUCTION_BYTES_MAX: Final = 4096
"""The longest answer before the other node is proved."""
_LENGTH: Final = Struct(">i")


class Way(NamedTuple):
    """Where a connection to a node goes, and the name or address that the node's certificate must have."""

    host: str
    port: int
    name: str


AddressOf: TypeAlias = Callable[[int], Way | None]
"""Returns the way to a node; None if the node has not registered an address."""
Answered: TypeAlias = Callable[[int, memoryview | Unanswered], None]
"""Receives the outcome of the request with this token. The connection reuses the answer's memory once this returns."""


log = logging.getLogger("ottla.cluster")


class Introduces(Protocol):
    """Begins connections: `broker.cluster.trust.Trust`."""

    def introduces(self, node_id: int, /) -> bool: ...

    def introduction(self, node_id: int, binding: bytes, /) -> Introduction | None: ...


class Peers:
    """Sends requests to other nodes. `address_of` returns a node's address; `answered` receives the outcome of each
    request; `trust` returns what begins connections. All connections of the process read into `scratch` and
    `buffers`."""

    def __init__(
        self,
        address_of: AddressOf,
        answered: Answered,
        trust: Callable[[], Introduces],
        scratch: memoryview,
        buffers: Buffers,
    ) -> None:
        self.address_of = address_of
        self.answered = answered
        self.scratch = scratch
        self.buffers = buffers
        self.tls: Tls | None = None
        """The TLS of the listener between nodes, None if that has none."""
        self._trust = trust
        self._distrusted: set[int] = set()
        """The nodes whose last connection ended without a proof."""
        self._connections: dict[tuple[int, int], _PeerConnection] = {}

    def send(self, ask: PeerRequest) -> None:
        """Send this frame; `answered` is called once, later."""
        connection = self._connections.get((ask.node_id, ask.line))
        if connection is not None and connection.is_bare and self._trust().introduces(ask.node_id):
            connection.end(f"node {ask.node_id} runs a newer version now")
        if connection is not None and connection.way not in (None, self.address_of(ask.node_id)):
            connection.end(f"node {ask.node_id} has another address now")  # perhaps another process has replaced it
        if connection is None or connection.over:
            connection = self._connections[ask.node_id, ask.line] = _PeerConnection(ask.node_id, self)
        connection.send(ask.token, ask.frame)

    def introduction(self, node_id: int, binding: bytes) -> Introduction | None:
        """The beginning of a connection to this node; None if it needs none."""
        return self._trust().introduction(node_id, binding)

    def proved(self, node_id: int) -> None:
        self._distrusted.discard(node_id)

    def not_proved(self, node_id: int, why: str) -> None:
        """A connection to this node has ended, because one of both was not proved."""
        if node_id not in self._distrusted:
            self._distrusted.add(node_id)
            log.warning("a connection to node %d is not used: %s", node_id, why)

    def stop(self) -> None:
        """Close every connection; `answered` is not called any more."""
        for connection in self._connections.values():
            connection.stop()


def routes_of(texts: Iterable[str]) -> dict[int, tuple[str, int]]:
    """The addresses of nodes, by id, from NODE=HOST:PORT texts. Raises SettingsRefusedError."""
    routes: dict[int, tuple[str, int]] = {}
    for text in texts:
        node_id, equals, address = text.partition("=")
        if not equals or not node_id.strip().isdigit():
            raise SettingsRefusedError(
                f"ottla.cluster.routes takes NODE=HOST:PORT, for example 2=127.0.0.1:9192, not {text!r}."
            )
        routes[int(node_id)] = split_address(address.strip())
    return routes


class _PeerConnection(asyncio.BufferedProtocol):
    """One connection from its first request until it is lost. `over`: it accepts no more requests. `is_bare`: it was
    begun without proofs, because the other node is of an earlier version.

    Answers are passed on from the scratch buffer that they were read into. Only an incomplete answer moves to a buffer
    of its own, and the rest of it is then read directly into that.
    """

    def __init__(self, node_id: int, peers: Peers) -> None:
        self.over = False
        self.is_bare = False
        self.way: Way | None = None
        self._node_id = node_id
        self._peers = peers
        self._answered = peers.answered
        self._scratch = peers.scratch
        self._buffers = peers.buffers
        self._waiting: deque[int] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._introduction: Introduction | None = None  # until both nodes are proved
        self._ready = asyncio.Event()  # requests may be sent
        self._partial: memoryview | None = None  # an incomplete answer with its length prefix
        self._filled = 0  # how many of its bytes have arrived
        self._task = asyncio.get_running_loop().create_task(self._connect())

    # ---- requests out ----------------------------------------------------------------------------------------------

    def send(self, token: int, frame: bytes) -> None:
        self._waiting.append(token)
        if self._transport is None or not self._ready.is_set():
            self._unsent.append(frame)
        else:
            self._transport.write(frame)

    async def _connect(self) -> None:
        way, tls = self._peers.address_of(self._node_id), self._peers.tls
        self.way = way
        if way is None:
            self.end(f"node {self._node_id} has not said where it is")
            return
        loop = asyncio.get_running_loop()
        context, name = (None, None) if tls is None else (tls.outgoing, way.name)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: self, way.host, way.port, ssl=context, server_hostname=name)
                await self._ready.wait()
        except (OSError, TimeoutError) as error:
            if isinstance(error, ssl.SSLError):
                from ottla.server.tls_settings import reason

                self._peers.not_proved(self._node_id, reason(error))
            self._lost(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        introduction = self._introduction = self._peers.introduction(self._node_id, _binding_of(tls))
        self.is_bare = introduction is None
        if introduction is None:
            self._begin(b"")
        else:
            self._transport.write(introduction.begin())

    def _begin(self, first: bytes) -> None:
        """Send this, and right behind it the requests that have waited."""
        assert self._transport is not None
        self._transport.writelines([first, *self._unsent])
        self._unsent.clear()
        self._ready.set()

    def _introduce(self, answer: memoryview) -> None:
        """Continue with the next answer before those to requests."""
        from ottla.protocol.node_proof import NotProvedError

        introduction = self._introduction
        assert introduction is not None
        try:
            more = introduction.receive(bytes(answer))
        except NotProvedError as failed:
            self._peers.not_proved(self._node_id, str(failed))
            self.end(f"node {self._node_id} is not proved: {failed}")
            return
        if more:
            self._begin(more)
        if introduction.is_over:
            self._introduction = None
            self._peers.proved(self._node_id)

    # ---- answers in ------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch if self._partial is None else self._partial[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        partial = self._partial
        if partial is None:
            self._take(self._scratch, nbytes)
            return
        self._filled += nbytes
        if self._filled == len(partial):
            self._partial = None
            self._take(partial, self._filled)
            self._buffers.give_back(partial)

    def _take(self, view: memoryview, end: int) -> None:
        """Pass on the complete answers in view[:end], and keep the incomplete one behind them."""
        position, size = 0, _LENGTH.size
        while end - position >= _LENGTH.size and not self.over:
            length: int = _LENGTH.unpack_from(view, position)[0]
            size = _LENGTH.size + length
            if not 0 <= length <= (ANSWER_BYTES_MAX if self._introduction is None else INTRODUCTION_BYTES_MAX):
                self.end(f"node {self._node_id} sent a frame of {length} bytes")
            elif end - position < size:
                break
            elif self._introduction is not None:
                self._introduce(view[position + _LENGTH.size : position + size])
                position, size = position + size, _LENGTH.size
            elif not self._waiting:
                self.end(f"node {self._node_id} sent an answer to no request")
            else:
                self._answered(self._waiting.popleft(), view[position + _LENGTH.size : position + size])
                position, size = position + size, _LENGTH.size
        have = end - position
        if have and not self.over:
            self._partial = self._buffers.take(size, size)
            self._partial[:have] = view[position:end]
            self._filled = have

    # ---- the end ---------------------------------------------------------------------------------------------------

    def eof_received(self) -> None:
        """Report the close at once, before any later request; `connection_lost` is called later."""
        self._lost(EOFError("it hung up"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc or EOFError("it hung up"))

    def _lost(self, error: Exception) -> None:
        self.end(f"node {self._node_id} is not reached, or was lost: {str(error) or type(error).__name__}")

    def end(self, why: str) -> None:
        """Close the connection, and report `Unanswered` to every waiting request."""
        waiting = self._waiting
        self.stop()
        for token in waiting:
            self._answered(token, Unanswered(why))

    def stop(self) -> None:
        """Close; `answered` is not called any more."""
        self.over = True
        self._waiting = deque()
        self._task.cancel()
        if self._transport is not None:
            self._transport.close()


def _binding_of(tls: ssl.SSLObject | None) -> bytes:
    """What proofs on a connection cover; b"" without TLS."""
    if tls is None:
        return b""
    from ottla.server.tls import binding_of  # a node without TLS starts without it

    return binding_of(tls)
