"""The simulated network: connections between clients and the node, each a pair of byte streams.

Knows: latency, fragmentation, cuts. Does not know frames or Kafka: it carries bytes. Invariants: within one direction
of one connection bytes arrive once and in order, or not at all from some point on (TCP's promise); nothing is promised
between connections, nor between the two directions. A cut falls anywhere, so a frame may arrive by half. The two sides
learn of a cut at different times: a client that has given up may have its old requests carried out long after it sent
them again on a new connection, which is how a network duplicates.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ottla.sim.kernel.clock import MS, Agenda, Micros

BYTEWISE_MAX = 48
"""So many bytes of a bytewise write arrive one by one; the rest follows in one piece."""


@dataclass(slots=True)
class Weather:
    """How the network behaves now; faults change it, healing puts the defaults back. Probabilities are per write."""

    latency_min_us: Micros = 50
    latency_max_us: Micros = 2 * MS
    split: float = 0.10
    bytewise: float = 0.01
    spike: float = 0.01
    spike_max_us: Micros = 80 * MS


class End(Protocol):
    """Whoever holds one end of a connection."""

    def arrived(self, connection: "Connection", piece: bytes) -> None: ...

    def closed(self, connection: "Connection") -> None:
        """The other side closed, or the connection broke. Called at most once; nothing arrives after it."""
        ...


class Pipe:
    """One direction. Pieces wait in order, each with the time from which it may be taken."""

    __slots__ = ("_connection", "_due_us", "_pieces", "_receiver", "closed", "drained", "held", "in_flight", "network")

    def __init__(self, network: "Network", connection: "Connection", receiver: End) -> None:
        self.network = network
        self._connection = connection
        self._receiver = receiver
        self._pieces: deque[tuple[Micros, bytes | None]] = deque()
        self._due_us: Micros = 0
        self.in_flight = 0
        """Bytes written and not yet taken: what the sender's kernel and ours hold."""
        self.closed = False
        self.held = False
        self.drained: Callable[[Connection], None] | None = None
        """Called each time the receiver has taken something: the sender may have room again."""

    def write(self, octets: bytes) -> None:
        if self.closed or not octets:
            return
        self.in_flight += len(octets)
        for piece in self.network.pieces_of(octets):
            self._book(piece, self.network.latency())

    def finish(self) -> None:
        """Everything written still arrives, then the receiver is told that it was the last."""
        if not self.closed:
            self._book(None, self.network.latency())

    def cut(self, delay_us: Micros) -> None:
        """What is in flight is lost; the receiver learns of it after the delay."""
        if self.closed:
            return
        self._pieces.clear()
        self.in_flight = 0
        self._due_us = 0
        self._book(None, delay_us)

    def deafen(self) -> None:
        """The receiver itself let go: it hears nothing more, not even the end."""
        self.closed = True
        self._pieces.clear()
        self.in_flight = 0

    def hold(self) -> None:
        """The receiver takes nothing for now: its process stands still, or its buffer is full."""
        self.held = True

    def release(self) -> None:
        self.held = False
        self._take()

    def _book(self, piece: bytes | None, delay_us: Micros) -> None:
        now_us = self.network.agenda.clock.now_us
        self._due_us = max(self._due_us, now_us + delay_us)
        self._pieces.append((self._due_us, piece))
        self.network.agenda.at(self._due_us, self._take)

    def _take(self) -> None:
        now_us = self.network.agenda.clock.now_us
        pieces = self._pieces
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
    """One connection; `identity` is never used twice in a run."""

    __slots__ = ("client", "host", "identity", "to_client", "to_node")

    def __init__(self, network: "Network", identity: int, host: str, client: End, node: End) -> None:
        self.identity = identity
        self.host = host
        self.client = client
        self.to_node = Pipe(network, self, node)
        self.to_client = Pipe(network, self, client)

    @property
    def over(self) -> bool:
        return self.to_node.closed and self.to_client.closed


class Network:
    """Every connection there is, and what may happen to them."""

    def __init__(self, agenda: Agenda, rng: random.Random) -> None:
        self.agenda = agenda
        self.rng = rng
        self.weather = Weather()
        self.connections: dict[int, Connection] = {}
        self._identities = 0

    def connect(self, host: str, client: End, node: End) -> Connection:
        self._identities += 1
        connection = Connection(self, self._identities, host, client, node)
        self.connections[connection.identity] = connection
        return connection

    def client_closes(self, connection: Connection, *, lingering: bool) -> None:
        """The client lets go. `lingering`: what it sent still arrives, and the node learns of the close much later."""
        connection.to_client.deafen()
        if lingering:
            delay_us = self.rng.randrange(3_000 * MS)
            self.agenda.after(delay_us, connection.to_node.finish)
        else:
            connection.to_node.finish()
        self._sweep()

    def node_closes(self, connection: Connection) -> None:
        """The node lets go after what it wrote; requests still under way to it are lost."""
        connection.to_node.deafen()
        connection.to_client.finish()
        self._sweep()

    def break_off(self, connection: Connection) -> None:
        """The path fails: what is in flight is lost both ways, each side learns of it in its own time."""
        connection.to_client.cut(self.rng.randrange(200 * MS))
        connection.to_node.cut(self.rng.randrange(2_000 * MS))

    def node_died(self) -> None:
        """Nobody listens any more; clients learn of it by the reset or, if the machine is gone too, by and by."""
        for connection in list(self.connections.values()):
            connection.to_node.deafen()
            connection.to_client.cut(self.rng.randrange(300 * MS))
        self._sweep()

    def alive(self) -> list[Connection]:
        self._sweep()
        return [c for c in self.connections.values() if not c.to_node.closed and not c.to_client.closed]

    def latency(self) -> Micros:
        rng, weather = self.rng, self.weather
        if rng.random() < weather.spike:
            return rng.randrange(weather.spike_max_us)
        return rng.randrange(weather.latency_min_us, weather.latency_max_us)

    def pieces_of(self, octets: bytes) -> list[bytes]:
        """Cut a write as a network may: whole, in a few pieces, or its head byte by byte."""
        chance = self.rng.random()
        weather = self.weather
        if chance >= weather.split + weather.bytewise or len(octets) < 2:
            return [octets]
        if chance < weather.bytewise:
            head, tail = octets[:BYTEWISE_MAX], octets[BYTEWISE_MAX:]
            pieces = [head[i : i + 1] for i in range(len(head))]
            return [*pieces, tail] if tail else pieces
        cuts = sorted(self.rng.randrange(1, len(octets)) for _ in range(self.rng.randrange(1, 4)))
        edges = [0, *cuts, len(octets)]
        return [octets[a:b] for a, b in itertools.pairwise(edges) if a < b]

    def _sweep(self) -> None:
        over = [identity for identity, connection in self.connections.items() if connection.over]
        for identity in over:
            del self.connections[identity]
