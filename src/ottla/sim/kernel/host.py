"""Simulates a host: a disk, a clock, a name in the network, and the incarnations of the node that runs on it.

`Life` drives a node exactly as the real I/O host does: frames in the order of arrival, answers in the order of the
requests of each connection, `tick` at each `deadline`. It carries out effects after every call, and syncs one at a
time, with a callback at the end. `Host` does what the real one cannot: it kills the process or cuts the power at any
step, then starts it again.

It handles connections from clients and those that the node opens itself, but does not read frames.
"""

import errno
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ottla.broker.channel import Channel, Owed
from ottla.broker.client_identity import Address, Identity
from ottla.broker.cluster import store_work
from ottla.broker.cluster.introduction import Introduction
from ottla.broker.effects import (
    Audited,
    Close,
    Commit,
    CommitOutcome,
    Derive,
    Effect,
    FetchKeys,
    Mute,
    Parked,
    Part,
    PeerRequest,
    Reading,
    Reply,
    Reread,
    Store,
    Sync,
    Unread,
)
from ottla.broker.requests import RequestRefusedError
from ottla.log.files import FileSlice, ReadError
from ottla.machine import Millis, Ticket, Unanswered
from ottla.metadata.store import StoreError
from ottla.protocol.framing import FrameSplitter
from ottla.protocol.scram import salted
from ottla.sim.kernel.clock import MS, Booking, HostClock, Micros
from ottla.sim.kernel.disk import Disk, PowerCut, SimFile
from ottla.sim.kernel.network import Connection, End, Endpoint
from ottla.sim.kernel.store import FarStore
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.kernel.world import World

UNSENT_MAX = 16 << 10
"""Bytes a connection may have on the way to a slow reader before its requests wait."""

CALM_DISK_US: Micros = 4 * MS
"""Maximum duration of a sync without faults."""


RINGS_A_SECOND_MAX = 700
"""Limit of ticks in a simulated second; with more, a real node would waste a core."""


PORT_WITH_LOGIN = 9094
"""At this port of every host, clients have to authenticate (SASL)."""


def with_login(endpoint: Endpoint) -> Endpoint:
    """Where the host of this endpoint listens for clients that authenticate."""
    return Endpoint(endpoint.host, PORT_WITH_LOGIN)


class NodeUnderTest(Protocol):
    """The node that runs on a host: `ottla.broker.node.Node`, or a toy in the kernel's own tests."""

    def start(self, now: Millis) -> None: ...

    def stop(self, now: Millis) -> None: ...

    def receive(self, now: Millis, channel: Channel, frame: memoryview) -> Sequence[Part] | Parked | None: ...

    def disconnected(self, now: Millis, connection: int) -> None: ...

    def deadline(self) -> Millis | None: ...

    def tick(self, now: Millis) -> None: ...

    def take_effects(self, now: Millis) -> list[Effect]: ...

    def synced(self, now: Millis, token: int, failures: Mapping[int, str]) -> None: ...

    def answered(self, now: Millis, token: int, answer: bytes | Unanswered) -> None: ...

    def committed(self, now: Millis, token: int, outcome: CommitOutcome) -> None: ...

    def reread(self, now: Millis, token: int, answer: Reading | Unread) -> None: ...

    def derived(self, now: Millis, token: int, mechanism: str, salted_password: bytes) -> None: ...

    def introduction(self, node_id: int) -> Introduction | None: ...

    def wall_clock_is(self, now: Millis, ahead_ms: int) -> None: ...

    def not_stored(self, path: str) -> None: ...

    def unreadable(self, part: FileSlice, error: OSError) -> None: ...


class NodeSide:
    """The node's side of one connection: frames received but not served, and answers in flight."""

    __slots__ = ("channel", "connection", "frames", "muted_until_us", "splitter")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        listener = connection.endpoint
        advertised = (listener.host, listener.port)
        protocol = "SASL_PLAINTEXT" if listener.port == PORT_WITH_LOGIN else "PLAINTEXT"
        address = Address(
            connection.identity,
            connection.client_host,
            listener=protocol,
            security_protocol=protocol,
            advertised=advertised,
        )
        self.splitter = FrameSplitter()
        self.frames: deque[memoryview] = deque()
        self.channel = Channel(Identity(address))
        self.muted_until_us: Micros = 0

    def send(self, leaving: Sequence[Owed]) -> tuple[FileSlice, OSError] | None:
        """Send these answers. Returns a slice that can't be read, or that its file is too short for; then the answer is
        not sent."""
        for owed in leaving:
            read: list[bytes] = []
            for part in owed.parts or ():
                try:
                    read.append(part.read() if isinstance(part, FileSlice) else bytes(part))
                except ReadError as error:
                    assert isinstance(part, FileSlice)
                    return part, error
                if isinstance(part, FileSlice) and len(read[-1]) < part.length:
                    return part, OSError(errno.ENODATA, "the file is too short")
            octets = b"".join(read)
            if octets:
                self.connection.to_client.write(octets)
        return None


class Life:
    """One incarnation of the node's process, with the I/O host around it, until it dies."""

    def __init__(self, host: "Host", node: NodeUnderTest) -> None:
        self.host = host
        self.world = host.world
        self.node = node
        self.alive = False
        self.paused = False
        self._unheard: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self.sides: dict[int, NodeSide] = {}
        self.steps = 0
        """Number of calls into the node so far."""
        self._alarm: Booking | None = None
        self._alarm_us: Micros = 0
        self._rings = 0
        self._rings_second = 0
        self._disk_work: deque[Sync | Store] = deque()
        self._lines: dict[tuple[int, int], PeerLine] = {}
        self._disk_busy: tuple[Sync | Store, list[int]] | None = None
        self._unsent_commit: Commit | None = None
        self.wall_ahead_ms = host.clock.wall_ahead_ms
        """Offset of the host's wall clock, as last reported to the node."""

    # ---- from the network ------------------------------------------------------------------------------------------

    def arrived(self, connection: Connection, piece: bytes) -> None:
        if not self.alive:
            return
        side = self.sides.get(connection.identity)
        if side is None:
            side = self.sides[connection.identity] = NodeSide(connection)
            connection.to_client.drained = self._drained
        side.frames.extend(side.splitter.feed(piece))
        if self.paused:
            connection.to_server.hold()
        else:
            self._serve(side)

    def closed(self, connection: Connection) -> None:
        side = self.sides.pop(connection.identity, None)
        if side is not None and self.alive:
            connection.to_client.cut(0)
            self.hear(self.node.disconnected, connection.identity)

    def hear(self, act: Callable[..., None], *args: object) -> None:
        """Like `enter`, but a paused process makes the call when it resumes."""
        if self.paused:
            self._unheard.append((act, args))
        else:
            self.enter(act, *args)

    def _serve(self, side: NodeSide) -> None:
        """Handle the complete frames, unless the connection is muted or its reader is too slow."""
        frames, channel = side.frames, side.channel
        while self.alive and not self._halts(side) and frames and channel.may_serve(frames[0]):
            self.enter(self._receive, side, frames.popleft())

    def _halts(self, side: NodeSide) -> bool:
        """Whether the connection serves nothing now; then it also receives nothing from the network."""
        channel, connection = side.channel, side.connection
        channel.note_unsent(connection.to_client.in_flight > UNSENT_MAX)
        channel.mute(side.muted_until_us > self.world.clock.now_us)
        if channel.halted and not channel.closing and not connection.to_server.held:
            connection.to_server.hold()
        return channel.halted

    def _drained(self, connection: Connection) -> None:
        side = self.sides.get(connection.identity)
        if side is not None and connection.to_server.held and not self.paused:
            self._resume(side)

    def _resume(self, side: NodeSide) -> None:
        if self.sides.get(side.connection.identity) is not side:
            return
        if self.alive and not self.paused and not self._halts(side):
            self._serve(side)
            if self.alive and side.connection.to_server.held and not self._halts(side):
                side.connection.to_server.release()

    def _receive(self, now: Millis, side: NodeSide, frame: memoryview) -> None:
        try:
            answer = self.node.receive(now, side.channel, frame)
        except RequestRefusedError as refusal:
            self.world.trace.add(self.host.name, f"refuses {side.connection.identity}: {refusal}")
            self._let_go(side)
            return
        self._send(side, side.channel.served(frame[1], answer))

    def _send(self, side: NodeSide, leaving: Sequence[Owed]) -> None:
        unsent = side.send(leaving)
        if unsent is not None:
            part, error = unsent
            self.world.trace.add(self.host.name, f"closes {side.connection.identity}: {error.strerror}")
            self.node.unreadable(part, error)
            self._let_go(side)

    def connect(self, endpoint: Endpoint, end: End) -> Connection | None:
        """Open a connection from this host. `end` is part of the node, and is called as long as this incarnation lasts.
        None if no node listens at the endpoint."""
        return self.world.network.connect(self.host.name, Inside(self, end), endpoint)

    # ---- into the node ---------------------------------------------------------------------------------------------

    def enter(self, act: Callable[..., None], *args: object) -> None:
        """Call into the node with the time as first argument, then carry out its effects. The process may die in the
        middle."""
        if not self.alive:
            return
        self.steps += 1
        node, clock = self.node, self.host.clock
        now = clock.now_ms
        try:
            if self.wall_ahead_ms != clock.wall_ahead_ms:
                self.wall_ahead_ms = clock.wall_ahead_ms
                node.wall_clock_is(now, self.wall_ahead_ms)
            act(now, *args)
            while effects := node.take_effects(now):
                for effect in effects:
                    self._carry_out(effect)
        except PowerCut:
            self.host.fell()
            return
        self._set_alarm()
        self.stepped()

    def stepped(self) -> None:
        """Called after each step of the node, or each chance for one: runs the checkers."""
        if self.host.watch is not None:
            self.host.watch(self)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply(ticket, identity, parts):
                self._fill(ticket, identity, parts)
            case Close(identity, why):
                side = self.sides.get(identity)
                self.world.trace.add(self.host.name, f"closes {identity}: {why}")
                if side is not None:
                    self._let_go(side)
            case Mute(identity, until):
                side = self.sides.get(identity)
                if side is not None:
                    side.muted_until_us = max(side.muted_until_us, self.host.clock.us_of(until))
                    self.world.agenda.at(side.muted_until_us, self._resume, side)
            case Sync() | Store():
                self._disk_work.append(effect)
                self._begin_disk_work()
            case Derive(token, mechanism, password, salt, iterations):
                done = salted(mechanism, password, salt, iterations)
                self.world.agenda.after(0, self._derived, token, mechanism, done)
            case PeerRequest():
                self.world.agenda.after(0, self._ask, effect)
            case Audited() | FetchKeys():
                pass  # no run has an audit log, or tokens
            case Commit() | Reread():
                if isinstance(effect, Commit):
                    self._unsent_commit = effect
                self.world.agenda.after(self._store_latency(), self._reach_store, effect)

    # ---- other nodes -----------------------------------------------------------------------------------------------

    def _ask(self, ask: PeerRequest) -> None:
        """Send a request to another node, over one connection for each node and line."""
        if not self.alive:
            return
        line = self._lines.get((ask.node_id, ask.line))
        endpoint = self.host.peers.get(ask.node_id)
        if line is not None and line.is_open and line.connection is not None and line.connection.endpoint != endpoint:
            self.world.network.client_closes(line.connection)
            line.closed(line.connection)
        if line is None or not line.is_open:
            line = self._lines[ask.node_id, ask.line] = PeerLine(self)
            if endpoint is not None:
                line.connection = self.world.network.connect(self.host.name, line, endpoint)
                line.begin(self.node.introduction(ask.node_id))
        if line.connection is None:
            self.enter(self.node.answered, ask.token, Unanswered(f"nobody listens where node {ask.node_id} should be"))
        else:
            line.send(ask)

    def _derived(self, token: int, mechanism: str, salted_password: bytes) -> None:
        self.enter(self.node.derived, token, mechanism, salted_password)

    def _fill(self, ticket: Ticket, identity: int, parts: Sequence[Part]) -> None:
        side = self.sides.get(identity)
        if side is None:
            return
        leaving = side.channel.answered(ticket, parts)
        if leaving is None:
            raise InvariantError(f"ticket {ticket} is answered, and connection {identity} is not owed it")
        if leaving:
            self._send(side, leaving)
        if side.frames:
            self.world.agenda.after(0, self._resume, side)

    def _let_go(self, side: NodeSide) -> None:
        """Close after what is already known to send."""
        side.channel.close()
        self.world.network.server_closes(side.connection)
        if self.sides.pop(side.connection.identity, None) is not None:
            self.node.disconnected(self.host.clock.now_ms, side.connection.identity)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        """Set the alarm as the real I/O host does: only an earlier deadline moves it."""
        deadline = self.node.deadline()
        if deadline is None:
            return
        host = self.host
        due_us = max(host.clock.us_of(deadline), self.world.clock.now_us)
        if self._alarm is not None:
            if self._alarm_us <= due_us + MS:
                return
            self._alarm.cancel()
        due_us += host.shell_rng.randrange(MS)
        self._alarm_us = due_us
        self._alarm = self.world.agenda.at(due_us, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self.paused:
            return
        second = self.world.clock.now_us // (1_000 * MS)
        self._rings = self._rings + 1 if second == self._rings_second else 1
        self._rings_second = second
        if self._rings > RINGS_A_SECOND_MAX:
            raise InvariantError(f"the node spins: {self._rings} ticks in one second")
        self.enter(self.node.tick)

    def pause(self) -> None:
        """Pause the process (a stopped process, a long swap-in); the world continues."""
        self.paused = True
        for connection in self.world.network.connections.values():
            for pipe in connection.pipes_to(self.host.name):
                pipe.hold()

    def resume(self) -> None:
        if not self.alive or not self.paused:
            return
        self.paused = False
        self.enter(self.node.tick)
        while self._unheard:
            act, args = self._unheard.popleft()
            self.enter(act, *args)
        self._begin_disk_work()
        for connection in list(self.world.network.connections.values()):
            side = self.sides.get(connection.identity)
            if side is not None:
                self._resume(side)
            elif self.alive:
                for pipe in connection.pipes_to(self.host.name):
                    pipe.release()

    # ---- the disk thread -------------------------------------------------------------------------------------------

    def _begin_disk_work(self) -> None:
        """Start the next disk work: one at a time, in order. A sync covers the writes before its start."""
        if self._disk_busy or not self._disk_work or not self.alive:
            return
        work = self._disk_work.popleft()
        self._disk_busy = work, self._marks(work)
        self.world.agenda.after(self.host.disk_latency(), self._end_disk_work)

    def _marks(self, work: Sync | Store) -> list[int]:
        if isinstance(work, Store):
            return []
        return [file.begin_sync() if isinstance(file, SimFile) else 0 for file in work.files]

    def _end_disk_work(self) -> None:
        if not self.alive or self._disk_busy is None:
            return
        if self.paused:
            self.world.agenda.after(10 * MS, self._end_disk_work)
            return
        work, marks = self._disk_busy
        try:
            failures = self._do_disk_work(work, marks)
        except PowerCut:
            self.host.fell()
            return
        self._disk_busy = None
        if isinstance(work, Sync):
            self.enter(self._synced, work.token, failures)
        self._begin_disk_work()

    def _do_disk_work(self, work: Sync | Store, marks: list[int]) -> dict[int, str]:
        """Do the work; return the system's error messages by file position in a Sync."""
        failures: dict[int, str] = {}
        if isinstance(work, Store):
            try:
                if not work.withdrawal.is_made:
                    self.host.disk.write_atomically(work.path, bytes(work.content))
            except OSError:
                self.node.not_stored(work.path)
            return failures
        for at, (file, mark) in enumerate(zip(work.files, marks, strict=True)):
            try:
                if isinstance(file, SimFile):
                    file.end_sync(mark)
                else:
                    file.sync()
            except OSError as error:
                failures[at] = error.strerror or str(error)
        return failures

    def _synced(self, now: Millis, token: int, failures: dict[int, str]) -> None:
        self.node.synced(now, token, failures)

    # ---- the metadata store ----------------------------------------------------------------------------------------

    def _store_latency(self) -> Micros:
        assert self.host.store is not None, f"{self.host.name} has no metadata store"
        return self.host.store.latency(self.host.disk_latency_max_us)

    def _reach_store(self, effect: Commit | Reread) -> None:
        """Let the call reach the store and send the result back with a delay. A process that is killed in the meantime
        never receives it."""
        store = self.host.store
        if not self.alive or store is None:
            return
        try:
            if isinstance(effect, Commit):
                self._unsent_commit = None
                outcome = store_work.commit(store, effect)
                self.world.agenda.after(self._store_latency(), self._hear_of_store, self._committed, effect, outcome)
            else:
                answer = store_work.reread(store, effect)
                self.world.agenda.after(self._store_latency(), self._hear_of_store, self._reread, effect, answer)
        except PowerCut:
            self.host.fell()

    def _hear_of_store(self, act: Callable[..., None], effect: Commit | Reread, what: object) -> None:
        if self.paused:
            self.world.agenda.after(10 * MS, self._hear_of_store, act, effect, what)
        else:
            self.enter(act, effect.token, what)

    def _committed(self, now: Millis, token: int, outcome: CommitOutcome) -> None:
        self.node.committed(now, token, outcome)

    def _reread(self, now: Millis, token: int, answer: Reading | Unread) -> None:
        self.node.reread(now, token, answer)

    def finish_disk_work(self) -> None:
        """Finish the work of the disk and store threads at a clean stop, without reporting to the node."""
        if self._unsent_commit is not None and self.host.store is not None:
            commit, self._unsent_commit = self._unsent_commit, None
            store_work.commit(self.host.store, commit)
        if self._disk_busy is not None:
            self._do_disk_work(*self._disk_busy)
            self._disk_busy = None
        while self._disk_work:
            work = self._disk_work.popleft()
            self._do_disk_work(work, self._marks(work))


class PeerLine:
    """A node's connection to another node: frames go out, and answers come back in their order. Both nodes prove
    themselves first."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._splitter = FrameSplitter()
        self.connection: Connection | None = None
        self.waiting: deque[int] = deque()
        self._introduction: Introduction | None = None
        self._unsent: list[bytes] = []

    def begin(self, introduction: Introduction | None) -> None:
        """The connection is made, or has failed."""
        if self.connection is not None and introduction is not None:
            self._introduction = introduction
            self.connection.to_server.write(introduction.begin())

    def send(self, ask: PeerRequest) -> None:
        assert self.connection is not None
        self.waiting.append(ask.token)
        if self._introduction is None or self._introduction.is_proved:
            self.connection.to_server.write(ask.frame)
        else:
            self._unsent.append(ask.frame)

    @property
    def is_open(self) -> bool:
        connection = self.connection
        return connection is not None and not connection.to_server.closed and not connection.to_client.closed

    def arrived(self, connection: Connection, piece: bytes) -> None:
        frames = list(self._splitter.feed(piece))
        if frames:
            self._life.enter(self._answered, frames)
        elif self._life.alive:
            self._life.stepped()

    def closed(self, connection: Connection) -> None:
        self._life.enter(self._lost)

    def _answered(self, now: Millis, frames: Sequence[memoryview]) -> None:
        for frame in frames:
            if self._introduction is not None:
                self._introduce(self._introduction, bytes(frame))
            else:
                self._life.node.answered(now, self.waiting.popleft(), bytes(frame))

    def _introduce(self, introduction: Introduction, answer: bytes) -> None:
        assert self.connection is not None
        more = introduction.receive(answer)
        if more:
            self.connection.to_server.write(more + b"".join(self._unsent))
            self._unsent.clear()
        if introduction.is_over:
            self._introduction = None

    def _lost(self, now: Millis) -> None:
        waiting, self.waiting = self.waiting, deque()
        for token in waiting:
            self._life.node.answered(now, token, Unanswered("the connection was lost"))


class Inside:
    """The node's end of a connection that it opened itself: received data is a call into the node like any other."""

    def __init__(self, life: Life, end: End) -> None:
        self._life = life
        self._end = end

    def arrived(self, connection: Connection, piece: bytes) -> None:
        self._life.enter(self._arrived, connection, piece)

    def closed(self, connection: Connection) -> None:
        self._life.hear(self._closed, connection)

    def _arrived(self, now: Millis, connection: Connection, piece: bytes) -> None:
        self._end.arrived(connection, piece)

    def _closed(self, now: Millis, connection: Connection) -> None:
        self._end.closed(connection)


class Host:
    """A machine of the simulated world, with one node on it. While the node is up, it listens at `endpoint`, and at
    another port for clients that authenticate (`with_login`)."""

    def __init__(
        self,
        world: World,
        name: str,
        build: "Callable[[Host, bool], NodeUnderTest]",
        *,
        clock: HostClock | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.endpoint = Endpoint(name)
        self.clock = HostClock(world.clock) if clock is None else clock
        self._streams = world.add_host(name)
        self.disk = Disk(self.stream("disk"))
        self.shell_rng = self.stream("shell")
        self.lives = 0
        self.life: Life | None = None
        self.cuts_power = False
        """Whether the end of the disk's fuse means the death of the machine, or only of the process."""
        self.watch: Callable[[Life], None] | None = None
        """Called after every step of the node: the checkers that look inside."""
        self.died: Callable[[bool], None] | None = None
        """Called when the node has died, before the disk forgets; the argument says whether the power went."""
        self.disk_latency_max_us: Micros = CALM_DISK_US
        self.peers: dict[int, Endpoint] = {}
        """Where the other nodes of the cluster are, by id."""
        self.store: FarStore | None = None
        """The path to the metadata store while clients are served; None if no node here commits."""
        self._build = build
        self._boot = 1
        self._boot_noted = 0

    def stream(self, name: str) -> random.Random:
        """Return a source of randomness for one part of the host."""
        return self.world.stream(self._streams + name)

    def disk_latency(self) -> Micros:
        return self.shell_rng.randrange(50, self.disk_latency_max_us)

    deaf_ms = 0
    """No other node takes this node's place."""

    @property
    def endpoints(self) -> list[Endpoint]:
        return [self.endpoint]

    @property
    def every_host(self) -> "list[Host]":
        return [self]

    @property
    def up(self) -> bool:
        return self.life is not None and self.life.alive

    def start(self) -> bool:
        """Start a new incarnation. False if the power failed during the start."""
        assert not self.up, "the node is up"
        self.lives += 1
        same_boot = self._boot_noted == self._boot
        life = self.life = Life(self, self._build(self, same_boot))
        self.world.trace.add("world", f"life {self.lives} of {self.name} begins, same_boot={same_boot}")
        life.alive = True
        for endpoint in (self.endpoint, with_login(self.endpoint)):
            self.world.network.listen(endpoint, self)
        try:
            life.node.start(self.clock.now_ms)
        except PowerCut:
            self.fell()
            return False
        except (OSError, StoreError) as error:
            if not self.disk.ails and not (self.store is not None and self.store.is_cut):
                raise
            self.world.trace.add(self.name, f"can't start: {error}")
            self._bury(life, power_cut=False, how="refuses to start")
            return False
        self._boot_noted = self._boot  # a start that does not end may leave what only a full recovery repairs
        life.enter(life.node.tick)
        return self.up

    def stop(self, *, power_cut: bool = False) -> None:
        """Stop cleanly; perhaps the machine loses power right after it."""
        life = self.life
        if life is None or not life.alive:
            return
        try:
            life.finish_disk_work()
            life.node.stop(self.clock.now_ms)
        except PowerCut:
            self.fell()
            return
        self._bury(life, power_cut=power_cut, how="stops")

    def kill(self, *, power_cut: bool) -> None:
        if self.life is not None and self.life.alive:
            self._bury(self.life, power_cut=power_cut, how="crashes" if power_cut else "is killed")

    def fell(self) -> None:
        """Handle the end of the disk's fuse in the middle of the node's work."""
        assert self.life is not None
        self._bury(self.life, power_cut=self.cuts_power, how="falls in mid-step")

    def _bury(self, life: Life, *, power_cut: bool, how: str) -> None:
        life.alive = False
        life.sides.clear()
        self.world.trace.add("world", f"{self.name} {how}, power_cut={power_cut}")
        self.disk.fuse = None
        if self.died is not None:
            self.died(power_cut)
        self.world.network.host_died(self.name)
        if power_cut:
            self.disk.crash()
            self._boot += 1
        else:
            self.disk.kill()

    # ---- as the network sees it: a listener ------------------------------------------------------------------------

    def arrived(self, connection: Connection, piece: bytes) -> None:
        if self.life is not None:
            self.life.arrived(connection, piece)

    def closed(self, connection: Connection) -> None:
        if self.life is not None:
            self.life.closed(connection)
