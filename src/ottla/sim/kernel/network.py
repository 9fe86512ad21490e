"""Simulates the network: connections between hosts, each a pair of byte streams, and the paths of these.

A host is a name; a node listens at an `Endpoint`, a client or another node opens a connection to it. The network has
latency, fragmentation, loss, and paths that carry nothing for a while. It carries bytes, not frames.

Invariants: within one direction of one connection, bytes arrive once and in order, or not at all from some point on
(TCP's promise). Nothing is promised between connections, nor between the two directions. A break may fall anywhere, so
half a frame may arrive. The two sides learn of a break at different times. The node may therefore carry out a client's
old requests long after the client has sent them again on a new connection: this is how a network duplicates requests.

A path that is cut loses nothing, because TCP sends again: data, and the closing of a connection, arrive once the path
is mended. A host that cannot wait so long has to give up by itself.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ottla.sim.kernel.clock import MS, Agenda, Micros

BYTEWISE_MAX = 48
"""Number of bytes of a bytewise write that arrive one by one; the rest follows in one piece."""

RESENT_AFTER_US = 200 * MS
"""Delay of a lost piece; also the longest time from the mending of a path until TCP's next attempt."""

CONNECT_PATIENCE_US = 5_000 * MS
"""Time until a connection over a cut path to an endpoint without a listener fails."""

Path: TypeAlias = tuple[str, str]
"""(source host, target host); the way back is another path."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which a host may listen."""

    host: str
    port: int = 9092


@dataclass(slots=True)
class Weather:
    """The current behaviour of a path; faults change it, healing restores the defaults. Probabilities are per write."""

    latency_min_us: Micros = 50
    latency_max_us: Micros = 2 * MS
    split: float = 0.10
    bytewise: float = 0.01
    spike: float = 0.01
    spike_max_us: Micros = 80 * MS
    loss: float = 0.0
    """Probability that a piece has to be sent again; pieces sent after it wait for it."""


class End(Protocol):
    """The owner of one end of a connection."""

    def arrived(self, connection: "Connection", piece: bytes) -> None: ...

    def closed(self, connection: "Connection") -> None:
        """The other side closed, or the connection broke. Called at most once; nothing arrives after it."""
        ...


class Pipe:
    """One direction of a connection. Pieces wait in order, each with its earliest arrival time."""

    __slots__ = (
        "_connection",
        "_due_us",
        "_pieces",
        "_receiver",
        "closed",
        "drained",
        "held",
        "in_flight",
        "network",
        "path",
    )

    def __init__(self, network: "Network", connection: "Connection", path: Path, receiver: End) -> None:
        self.network = network
        self.path = path
        self._connection = connection
        self._receiver = receiver
        self._pieces: deque[tuple[Micros, bytes | None]] = deque()
        self._due_us: Micros = 0
        self.in_flight = 0
        """Bytes written and not yet received: those in both kernels."""
        self.closed = False
        self.held = False
        self.drained: Callable[[Connection], None] | None = None
        """Called each time the receiver has received data: the sender may have space again."""

    def write(self, octets: bytes) -> None:
        if self.closed or not octets:
            return
        self.in_flight += len(octets)
        weather = self.network.weather_of(self.path)
        for piece in self.network.pieces_of(octets, weather):
            self._book(piece, self.network.latency(weather))

    def finish(self) -> None:
        """Deliver everything written, then report the end of the stream to the receiver."""
        if not self.closed:
            self._book(None, self.network.latency(self.network.weather_of(self.path)))

    def cut(self, delay_us: Micros) -> None:
        """Lose everything in flight; the receiver learns of it after the delay."""
        if self.closed:
            return
        self._pieces.clear()
        self.in_flight = 0
        self._due_us = 0
        self._book(None, delay_us)

    def deafen(self) -> None:
        """Close the receiver's end: it receives nothing more, not even the end of the stream."""
        self.closed = True
        self._pieces.clear()
        self.in_flight = 0

    def hold(self) -> None:
        """Stop receiving for now: the process is paused, or its buffer is full."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self.take()

    @property
    def waits(self) -> bool:
        """Whether data is in flight, or would be if the path carried it."""
        return bool(self._pieces)

    def _book(self, piece: bytes | None, delay_us: Micros) -> None:
        agenda = self.network.agenda
        due_us = agenda.clock.now_us + delay_us
        if due_us < self._due_us:
            due_us = self._due_us
        self._due_us = due_us
        self._pieces.append((due_us, piece))
        agenda.at(due_us, self.take)

    def take(self) -> None:
        """Deliver the arrived data to the receiver, if the path carries anything."""
        pieces = self._pieces
        if not pieces or self.held or self.closed or self.network.is_cut(self.path):
            return
        now_us = self.network.agenda.clock.now_us
        while pieces and pieces[0][0] <= now_us and not self.held and not self.closed:
            piece = pieces.popleft()[1]
            if piece is None:
                self.closed = True
                self._receiver.closed(self._connection)
            else:
                self.in_flight -= len(piece)
                self._receiver.arrived(self._connection, piece)
                if self.drained is not None:
                    self.drained(self._connection)


class Connection:
    """One connection: `client_host` opened it, a node accepted it at `endpoint`. `identity` is never used twice in a
    run."""

    __slots__ = ("client_host", "endpoint", "identity", "to_client", "to_server")

    def __init__(
        self, network: "Network", identity: int, client_host: str, client: End, endpoint: Endpoint, server: End
    ) -> None:
        self.identity = identity
        self.client_host = client_host
        self.endpoint = endpoint
        self.to_server = Pipe(network, self, (client_host, endpoint.host), server)
        self.to_client = Pipe(network, self, (endpoint.host, client_host), client)

    @property
    def over(self) -> bool:
        return self.to_server.closed and self.to_client.closed

    def pipes_to(self, host: str) -> list[Pipe]:
        """The directions that end at this host."""
        return [pipe for pipe in (self.to_server, self.to_client) if pipe.path[1] == host]


class Nobody:
    """The other end if no host listens."""

    def arrived(self, connection: Connection, piece: bytes) -> None: ...

    def closed(self, connection: Connection) -> None: ...


class Network:
    """Every connection there is, and what may happen to them."""

    def __init__(self, agenda: Agenda, rng: random.Random) -> None:
        self.agenda = agenda
        self.rng = rng
        self.weather = Weather()
        """The weather of every path without its own."""
        self.weathers: dict[Path, Weather] = {}
        self.connections: dict[int, Connection] = {}
        self._identities = 0
        self._listening: dict[Endpoint, End] = {}
        self._cut: set[Path] = set()
        self._apart: list[frozenset[str]] = []

    # ---- connections -----------------------------------------------------------------------------------------------

    def listen(self, endpoint: Endpoint, server: End) -> None:
        """Let `server` accept the connections to this endpoint."""
        assert endpoint not in self._listening, f"somebody listens at {endpoint}"
        self._listening[endpoint] = server

    def connect(self, client_host: str, client: End, endpoint: Endpoint) -> Connection | None:
        """Open a connection, on which the client may write at once. None: no host listens there, which the client
        learns at once unless the path is cut."""
        server = self._listening.get(endpoint)
        way, back = (client_host, endpoint.host), (endpoint.host, client_host)
        if server is None and not self.is_cut(way) and not self.is_cut(back):
            return None
        self._identities += 1
        connection = Connection(self, self._identities, client_host, client, endpoint, server or Nobody())
        self.connections[connection.identity] = connection
        if server is None:
            connection.to_server.deafen()
            connection.to_client.cut(CONNECT_PATIENCE_US)
        return connection

    def listens(self, endpoint: Endpoint) -> bool:
        """Whether a live node listens there."""
        return endpoint in self._listening

    def client_closes(self, connection: Connection, *, lingering: bool = False) -> None:
        """Close the client's end. `lingering`: sent data still arrives, and the node learns of the close much later."""
        connection.to_client.deafen()
        if lingering:
            delay_us = self.rng.randrange(3_000 * MS)
            self.agenda.after(delay_us, connection.to_server.finish)
        else:
            connection.to_server.finish()
        self._sweep()

    def server_closes(self, connection: Connection) -> None:
        """Close the connection after the server's writes; requests still in flight to it are lost."""
        connection.to_server.deafen()
        connection.to_client.finish()
        self._sweep()

    def break_off(self, connection: Connection) -> None:
        """Break the connection: data in flight is lost both ways, and each side learns of it in its own time."""
        connection.to_client.cut(self.rng.randrange(200 * MS))
        connection.to_server.cut(self.rng.randrange(2_000 * MS))

    def host_died(self, host: str) -> None:
        """Stop listening and receiving on this host. The other sides learn of it by the reset or, if the machine is
        gone too, after a while."""
        for endpoint in [endpoint for endpoint in self._listening if endpoint.host == host]:
            del self._listening[endpoint]
        for connection in list(self.connections.values()):
            if connection.endpoint.host == host:
                connection.to_server.deafen()
                connection.to_client.cut(self.rng.randrange(300 * MS))
            elif connection.client_host == host:
                connection.to_client.deafen()
                connection.to_server.cut(self.rng.randrange(300 * MS))
        self._sweep()

    def alive(self) -> list[Connection]:
        self._sweep()
        return [c for c in self.connections.values() if not c.to_server.closed and not c.to_client.closed]

    def _sweep(self) -> None:
        over = [identity for identity, connection in self.connections.items() if connection.over]
        for identity in over:
            del self.connections[identity]

    # ---- paths -----------------------------------------------------------------------------------------------------

    def is_cut(self, path: Path) -> bool:
        """Whether the path carries nothing now."""
        if not self._apart:
            return path in self._cut
        return path in self._cut or any((path[0] in hosts) != (path[1] in hosts) for hosts in self._apart)

    def cut_path(self, source: str, target: str) -> None:
        """Cut the path from `source` to `target`: nothing arrives from now on. The way back is another path."""
        self._cut.add((source, target))

    def part(self, hosts: Collection[str]) -> None:
        """Cut every path between these hosts and all others: the network falls into two parts."""
        self._apart.append(frozenset(hosts))

    def mend_path(self, source: str, target: str) -> None:
        waiting = self._waiting()
        self._cut.discard((source, target))
        self._send_again(waiting)

    def mend(self) -> None:
        """Every path carries again."""
        waiting = self._waiting()
        self._cut.clear()
        self._apart.clear()
        self._send_again(waiting)

    def _waiting(self) -> list[Pipe]:
        """Return the pipes with data that a cut path holds back."""
        pipes = [pipe for each in self.connections.values() for pipe in (each.to_server, each.to_client)]
        return [pipe for pipe in pipes if pipe.waits and self.is_cut(pipe.path)]

    def _send_again(self, waiting: list[Pipe]) -> None:
        """Deliver the data of these pipes at TCP's next attempt, if their path carries it."""
        for pipe in waiting:
            if not self.is_cut(pipe.path):
                self.agenda.after(self.rng.randrange(RESENT_AFTER_US), pipe.take)

    def weather_of(self, path: Path) -> Weather:
        return self.weathers.get(path, self.weather)

    def latency(self, weather: Weather) -> Micros:
        rng = self.rng
        resent_us = 0
        while weather.loss and rng.random() < weather.loss:
            resent_us += RESENT_AFTER_US
        if rng.random() < weather.spike:
            return resent_us + rng.randrange(weather.spike_max_us)
        return resent_us + rng.randrange(weather.latency_min_us, weather.latency_max_us)

    def pieces_of(self, octets: bytes, weather: Weather) -> list[bytes]:
        """Cut a write as a network may: whole, in a few pieces, or its head byte by byte."""
        chance = self.rng.random()
        if chance >= weather.split + weather.bytewise or len(octets) < 2:
            return [octets]
        if chance < weather.bytewise:
            head, tail = octets[:BYTEWISE_MAX], octets[BYTEWISE_MAX:]
            pieces = [head[i : i + 1] for i in range(len(head))]
            return [*pieces, tail] if tail else pieces
        cuts = sorted(self.rng.randrange(1, len(octets)) for _ in range(self.rng.randrange(1, 4)))
        edges = [0, *cuts, len(octets)]
        return [octets[a:b] for a, b in itertools.pairwise(edges) if a < b]
