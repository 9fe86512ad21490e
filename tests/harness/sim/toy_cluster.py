"""Toy nodes that speak to each other, for the kernel's own tests: copies of notes on three hosts, and a lease.

`Leader` has every note on two of three disks before it acknowledges it; its followers are plain `ToyNode`s. `Holder`s
ask a `Granter` for a lease that one of them may have at a time. Both keep their promise under every fault of the
kernel; each flag plants a bug.
"""

from collections import deque
from typing import Any

from ottla.broker.channel import Channel
from ottla.broker.effects import Effect, Parked
from ottla.log.files import FileSlice
from ottla.protocol.framing import FrameSplitter
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.network import Connection, Endpoint
from ottla.sim.kernel.trace import InvariantError
from tests.harness.sim.toy import PATH, ToyClient, ToyNode, decode_notes

PATIENCE_MS = 1_000
TICK_MS = 50


class Line:
    """A connection that a node keeps open to another, over which it asks and is answered in order."""

    def __init__(self, host: Host, node: Any, to: str) -> None:
        self.host = host
        self.node = node
        self.to = to
        self.asked: deque[tuple[int, bytes]] = deque()
        """When, and what."""
        self.heard = 0
        self.connection: Connection | None = None
        self.splitter = FrameSplitter()

    def keep(self, now: int) -> None:
        """Connect where there is no connection, give one up that has been silent for too long."""
        if self.connection is not None and self.asked and max(self.asked[0][0], self.heard) + PATIENCE_MS < now:
            self.host.world.network.client_closes(self.connection)
            self.connection = None
        if self.connection is None:
            assert self.host.life is not None
            self.splitter = FrameSplitter()
            self.asked.clear()
            self.connection = self.host.life.connect(Endpoint(self.to), self)
            if self.connection is not None:
                self.node.connected(now, self)

    def ask(self, now: int, frame: bytes) -> None:
        if self.connection is not None:
            self.asked.append((now, frame))
            self.connection.to_server.write(len(frame).to_bytes(4, "big") + frame)

    def arrived(self, connection: Connection, piece: bytes) -> None:
        if connection is self.connection:
            self.heard = self.host.clock.now_ms
            for frame in self.splitter.feed(piece):
                sent_at, question = self.asked.popleft()
                self.node.heard(self.heard, self, sent_at, question, bytes(frame))

    def closed(self, connection: Connection) -> None:
        if connection is self.connection:
            self.connection = None
            connection.to_server.finish()


class Leader(ToyNode):
    """Acknowledges a note when two of the three have it. `alone`: when it has it itself, which is the planted bug."""

    def __init__(self, host: Host, followers: tuple[str, ...], *, alone: bool = False) -> None:
        super().__init__(host.disk)
        self.lines = [Line(host, self, to) for to in followers]
        self.needed = 1 if alone else 2
        self.open: dict[bytes, tuple[int, int, set[str]]] = {}
        """Of each note that is not acknowledged: the ticket and the connection, and who has it."""

    def receive(self, now: int, channel: Channel, frame: memoryview) -> list[bytes] | Parked:
        parked = super().receive(now, channel, frame)
        assert isinstance(parked, Parked)
        note = bytes(frame)
        self.open[note] = parked.ticket, channel.identity.address.connection_id, set()
        for line in self.lines:
            line.ask(now, note)
        return parked

    def synced(self, now: int, token: int, failures: Any) -> None:
        for _, _, note in self.waiting.pop(token, []):
            self._has("self", note)

    def connected(self, now: int, line: Line) -> None:
        for note, (_, _, who) in self.open.items():
            if line.to not in who:
                line.ask(now, note)

    def heard(self, now: int, line: Line, sent_at: int, question: bytes, answer: bytes) -> None:
        assert answer == question
        self._has(line.to, question)

    def _has(self, who: str, note: bytes) -> None:
        if note in self.open:
            ticket, identity, having = self.open[note]
            having.add(who)
            if len(having) == self.needed:
                self.waiting[ticket] = [(ticket, identity, note)]
                ToyNode.synced(self, 0, ticket, {})
            if len(having) == 1 + len(self.lines):
                del self.open[note]

    def tick(self, now: int) -> None:
        super().tick(now)
        for line in self.lines:
            line.keep(now)


def check_copies(hosts: list[Host], clients: list[ToyClient]) -> None:
    """Every acknowledged note is on two disks."""
    notes = [set(decode_notes(host.disk.read_bytes(PATH))[0]) for host in hosts]
    for client in clients:
        for number in client.acknowledged:
            copies = sum(number in each for each in notes)
            if copies < 2:
                raise InvariantError(f"{client.name}: {number} is acknowledged, and {copies} of {len(hosts)} have it")


LEASE_MS = 1_000
ASKED_IN_A_ROW = 3
REST_MS = 1_100
DRIFT_PPM_MAX = 50_000
"""What a clock may be wrong by; a holder whose clock is slow holds for longer than it thinks."""


class LeaseNode:
    """What granter and holders have in common: nothing on the disk, a tick now and then."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.next_tick: int | None = None

    def start(self, now: int) -> None:
        self.next_tick = now

    def introduction(self, node_id: int) -> None: ...

    def stop(self, now: int) -> None: ...

    def receive(self, now: int, channel: Channel, frame: memoryview) -> list[bytes] | Parked:
        raise AssertionError("nobody asks a holder")

    def disconnected(self, now: int, connection: int) -> None: ...

    def deadline(self) -> int | None:
        return self.next_tick

    def tick(self, now: int) -> None:
        self.next_tick = now + TICK_MS

    def take_effects(self, now: int) -> list[Effect]:
        return []

    def answered(self, now: int, token: int, answer: object) -> None:
        raise AssertionError("it asks no node by an effect")

    def wall_clock_is(self, now: int, ahead_ms: int) -> None: ...

    def not_stored(self, path: str) -> None: ...

    def unreadable(self, part: FileSlice, error: OSError) -> None: ...

    def synced(self, now: int, token: int, failures: Any) -> None: ...


class Granter(LeaseNode):
    """Answers who asks for the lease with how long it may be held, or not at all: with 0. What it granted in an earlier
    life it waits out. `forgets`: it does not."""

    def __init__(self, host: Host, *, forgets: bool = False) -> None:
        super().__init__(host)
        self.forgets = forgets
        self.holder = ""
        self.until = 0

    def start(self, now: int) -> None:
        super().start(now)
        if not self.forgets:
            self.until = now + LEASE_MS * (1_000_000 + DRIFT_PPM_MAX) // 1_000_000

    def receive(self, now: int, channel: Channel, frame: memoryview) -> list[bytes] | Parked:
        who = bytes(frame).decode()
        granted = who == self.holder or now >= self.until
        if granted:
            self.holder, self.until = who, now + LEASE_MS
        answer = (LEASE_MS if granted else 0).to_bytes(4, "big") + self.host.clock.wall_ms.to_bytes(8, "big")
        return [len(answer).to_bytes(4, "big"), answer]


class Holder(LeaseNode):
    """Asks for the lease a few times in a row, and holds it as long as it may since it asked; then it rests. Bugs:
    `by_wall` counts by the granter's wall clock, `from_answer` from when the answer came, `trusts` takes its own clock
    for right."""

    def __init__(self, host: Host, *, by_wall: bool = False, from_answer: bool = False, trusts: bool = False) -> None:
        super().__init__(host)
        self.line = Line(host, self, "granter")
        self.by_wall = by_wall
        self.from_answer = from_answer
        self.trusts = trusts
        self.until = 0
        self.granted = 0
        self.rests_until = 0

    def tick(self, now: int) -> None:
        super().tick(now)
        self.line.keep(now)
        if not self.line.asked and now >= self.rests_until:
            self.line.ask(now, self.host.name.encode())

    def connected(self, now: int, line: Line) -> None: ...

    def heard(self, now: int, line: Line, sent_at: int, question: bytes, answer: bytes) -> None:
        length_ms = int.from_bytes(answer[:4], "big")
        if length_ms:
            if not self.holds():
                self.host.world.trace.add(self.host.name, "has the lease")
            self.granted += 1
            if self.granted % ASKED_IN_A_ROW == 0:
                self.rests_until = now + REST_MS
            if self.by_wall:
                self.until = int.from_bytes(answer[4:], "big") + length_ms
            else:
                drift = 0 if self.trusts else 2 * DRIFT_PPM_MAX
                self.until = (now if self.from_answer else sent_at) + length_ms * (1_000_000 - drift) // 1_000_000

    def holds(self) -> bool:
        return (self.host.clock.wall_ms if self.by_wall else self.host.clock.now_ms) < self.until


def check_lease(holders: list[Host]) -> None:
    """At most one of them takes the lease for its own."""
    holding = [host.name for host in holders if host.up and host.life is not None and host.life.node.holds()]  # type: ignore[attr-defined]
    if len(holding) > 1:
        raise InvariantError(f"{' and '.join(holding)} have the lease")
