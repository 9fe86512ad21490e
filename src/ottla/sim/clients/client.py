"""Simulates one client process: connections, frames, timers, pauses, but nothing of Kafka.

A client has one main connection at a time, and others next to it (`connection_to`), one for each further node. They end
together: if one of them is lost, the client closes all and starts again.

Subclasses decide what to send and handle the answers. A paused client (`pause`) receives nothing and none of its timers
fire; both catch up when it resumes, as in a real process.
"""

import random
from collections.abc import Callable
from typing import Any

from ottla.protocol.framing import FrameSplitter
from ottla.sim.kernel.clock import MS, Booking, Micros
from ottla.sim.kernel.network import Connection, Endpoint
from ottla.sim.kernel.world import World

RECONNECT_MIN_US = 20 * MS
RECONNECT_MAX_US = 200 * MS


class Client:
    """A client process on a host of its own, both with the client's name. `bootstrap` is the endpoint it connects
    to."""

    def __init__(self, world: World, name: str, bootstrap: Endpoint) -> None:
        self.world = world
        self.name = name
        self.bootstrap = bootstrap
        self.rng: random.Random = world.stream(name)
        self.connection: Connection | None = None
        self.paused = False
        self.running = True
        self._beside: dict[Endpoint, Connection] = {}
        self._splitters: dict[int, FrameSplitter] = {}
        """Of each open connection, by its identity."""
        self._late: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """Called when a new connection is open."""

    def frame_arrived(self, connection: Connection, frame: memoryview) -> None:
        """One answer, without its length prefix."""

    def lost(self) -> None:
        """Called when either side has closed the connections; requests on them will not be answered."""

    # ---- connection ------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Try until it works; then `connected`."""
        if self.connection is not None or not self.running:
            return
        self.connection = self.open(self.bootstrap)
        if self.connection is None:
            self.after(self.rng.randrange(RECONNECT_MIN_US, RECONNECT_MAX_US), self.connect)
            return
        self.connected()

    def open(self, endpoint: Endpoint) -> Connection | None:
        """Open a connection to an endpoint, on which frames are received; None if no node listens there."""
        connection = self.world.network.connect(self.name, self, endpoint)
        if connection is not None:
            self._splitters[connection.identity] = FrameSplitter()
        return connection

    def connection_to(self, endpoint: Endpoint) -> Connection | None:
        """Return the open connection to an endpoint, or open a further one; None if no node listens there."""
        if self.connection is not None and self.connection.endpoint == endpoint:
            return self.connection
        beside = self._beside.get(endpoint) or self.open(endpoint)
        if beside is not None:
            self._beside[endpoint] = beside
        return beside

    def has(self, connection: Connection) -> bool:
        """Whether this is one of the client's connections, still."""
        return connection.identity in self._splitters

    def send(self, frame: bytes) -> None:
        if self.connection is not None:
            self.connection.to_server.write(len(frame).to_bytes(4, "big") + frame)

    def hang_up(self, *, lingering: bool = False) -> None:
        """Close the connections. `lingering`: the nodes do not notice for a while, and carry out earlier requests."""
        connections = self._forget_connections()
        for connection in connections:
            self.world.network.client_closes(connection, lingering=lingering)
        if connections:
            self.lost()

    def _forget_connections(self) -> list[Connection]:
        connections = self._connections()
        self.connection = None
        self._beside.clear()
        self._splitters.clear()
        return connections

    def _connections(self) -> list[Connection]:
        return [] if self.connection is None else [self.connection, *self._beside.values()]

    def arrived(self, connection: Connection, piece: bytes) -> None:
        splitter = self._splitters.get(connection.identity)
        if splitter is None:
            return
        for frame in list(splitter.feed(piece)):
            if self.has(connection):
                self.frame_arrived(connection, frame)

    def closed(self, connection: Connection) -> None:
        if not self.has(connection):
            return
        for each in self._forget_connections():
            if each is connection:
                connection.to_server.finish()
            else:
                self.world.network.client_closes(each, lingering=self.rng.random() < 0.5)
        self.lost()

    # ---- time ------------------------------------------------------------------------------------------------------

    def after(self, delay_us: Micros, act: Callable[..., None], *args: Any) -> Booking:
        return self.world.agenda.after(delay_us, self._go, act, args)

    def _go(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.paused:
            self._late.append((act, args))
        else:
            act(*args)

    def pause(self) -> None:
        self.paused = True
        for connection in self._connections():
            connection.to_client.hold()

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused = False
        late, self._late = self._late, []
        for act, args in late:
            act(*args)
        for connection in self._connections():
            connection.to_client.release()
