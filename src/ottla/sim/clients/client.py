"""Simulates one client process: a connection at a time, frames, timers, pauses. Knows bytes and frames, no Kafka.

Subclasses say what to send and what to make of the answers. A client that stands still (`pause`) hears nothing and
none of its timers go off; both catch up when it goes on, as in a real process.
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
    """A client process on a host of its own, both given by its name. `bootstrap` is where it connects to."""

    def __init__(self, world: World, name: str, bootstrap: Endpoint) -> None:
        self.world = world
        self.name = name
        self.bootstrap = bootstrap
        self.rng: random.Random = world.stream(name)
        self.connection: Connection | None = None
        self.paused = False
        self.running = True
        self._splitter = FrameSplitter()
        self._late: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def connected(self) -> None:
        """A new connection stands."""

    def frame_arrived(self, frame: memoryview) -> None:
        """One answer, without its length prefix."""

    def lost(self) -> None:
        """The connection is gone, by either side; nothing on it will be answered."""

    # ---- connection ------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Try until it works; then `connected`."""
        if self.connection is not None or not self.running:
            return
        self.connection = self.world.network.connect(self.name, self, self.bootstrap)
        if self.connection is None:
            self.after(self.rng.randrange(RECONNECT_MIN_US, RECONNECT_MAX_US), self.connect)
            return
        self._splitter = FrameSplitter()
        self.connected()

    def send(self, frame: bytes) -> None:
        if self.connection is not None:
            self.connection.to_server.write(len(frame).to_bytes(4, "big") + frame)

    def hang_up(self, *, lingering: bool = False) -> None:
        """Let go of the connection. `lingering`: the node will not notice for a while, and does what was asked."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.world.network.client_closes(connection, lingering=lingering)
            self.lost()

    def arrived(self, connection: Connection, piece: bytes) -> None:
        if connection is not self.connection:
            return
        for frame in list(self._splitter.feed(piece)):
            if self.connection is connection:
                self.frame_arrived(frame)

    def closed(self, connection: Connection) -> None:
        if connection is self.connection:
            self.connection = None
            connection.to_server.finish()
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
        if self.connection is not None:
            self.connection.to_client.hold()

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused = False
        late, self._late = self._late, []
        for act, args in late:
            act(*args)
        if self.connection is not None:
            self.connection.to_client.release()
