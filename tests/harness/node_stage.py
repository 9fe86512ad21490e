"""A node without a server: clients that speak to it in frames, and time, syncs and lives that are the test's.

    stage = NodeStage(tmp_path)                  # or DiskStage(), on a simulated disk
    answer = stage.ask(CreateTopicsRequest(...))
    asked = stage.send(JoinGroupRequest(...))    # may be answered later: asked.answer
    stage.run(10_000)                            # let time pass and do everything that comes due

Each connection keeps to the rules of a `Channel`, as in the server: a request that must wait for one before it does. A
test that names no connection has the first on which nothing is under way.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ottla.broker.channel import Channel, Owed
from ottla.broker.client_identity import NODE_MECHANISM, Address, Identity, Principal
from ottla.broker.cluster import store_work
from ottla.broker.cluster.membership import Joining
from ottla.broker.cluster.metadata import Planned
from ottla.broker.config.values import BrokerSettings
from ottla.broker.effects import (
    Audited,
    Close,
    Commit,
    Derive,
    Effect,
    FetchKeys,
    Mute,
    OutcomeUnknown,
    Parked,
    Part,
    PeerRequest,
    Reply,
    Reread,
    Store,
    Sync,
)
from ottla.broker.node import Node
from ottla.broker.partitions.replicas import LocalTopic
from ottla.broker.schedule import Timed
from ottla.broker.served import SPECS
from ottla.broker.topics.new_topic import NewTopic
from ottla.log.cost import Stopwatch, counted_us
from ottla.log.files import DiskFiles, FileSystem
from ottla.metadata.memory import MemoryStore
from ottla.protocol.apis import APIS
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.records.record import Record, build_batch
from ottla.protocol.scram import salted
from ottla.sim.kernel.disk import Disk

NOW = 1_800_000_000_000
CORRELATION_ID = 7


def channel_of(
    connection: int, listener: str = "PLAINTEXT", advertised: tuple[str, int] = ("broker.example", 9092)
) -> Channel:
    return Channel(Identity(Address(connection, "127.0.0.1", listener=listener, advertised=advertised)))


def make_node(channel: Channel, node_id: int) -> Channel:
    """The channel, as if this node of the cluster had proved itself on it."""
    channel.authenticate(Principal("Node", str(node_id)), NODE_MECHANISM)
    return channel


OTHER_NODE = 2
CHANNEL = channel_of(1)
"""For tests that call `Node.receive` themselves."""


class Asked:
    """A request on its way; `answer` is there once it was answered. `answered`, also where that is nothing."""

    def __init__(self, message: Any, version: int | None) -> None:
        self.api_key: int = message.API_KEY
        self.version: int = SPECS[self.api_key].versions[1] if version is None else version
        self.frame = frame_of(message, self.version)
        self.answered = False
        self.answer: Any = None

    def take(self, parts: Sequence[Part]) -> None:
        assert not self.answered, "answered twice"
        self.answered = True
        if parts:
            self.answer = answer_of(parts, self.api_key, self.version)


class Client:
    """One connection to the node."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.muted_until: int | None = None
        self._waiting: deque[Asked] = deque()
        self._under_way: dict[int, Asked] = {}
        self._served = 0

    @property
    def idle(self) -> bool:
        return not self._under_way and not self._waiting

    def send(self, asked: Asked, node: Node, now: int) -> None:
        self._waiting.append(asked)
        self.serve(node, now)

    def serve(self, node: Node, now: int) -> None:
        """Hand in what may be served now."""
        while self._waiting and self.channel.may_serve(self._waiting[0].frame):
            asked = self._waiting.popleft()
            self._served += 1
            self._under_way[self._served] = asked
            answer = node.receive(now, self.channel, asked.frame)
            if answer is None:
                del self._under_way[self._served]
                asked.take(())
            self._take(self.channel.served(asked.api_key, answer, self._served))

    def mute(self, until: int | None) -> None:
        self.muted_until = until
        self.channel.mute(until is not None)

    def answered(self, reply: Reply) -> None:
        leaving = self.channel.answered(reply.ticket, reply.parts)
        assert leaving is not None, f"{reply.ticket} is answered, and nobody waits for it"
        self._take(leaving)

    def _take(self, leaving: Sequence[Owed]) -> None:
        for owed in leaving:
            self._under_way.pop(owed.began).take(owed.parts or ())
        self.channel.check()


class GuardedStore:
    """The metadata store as a node sees it: its own for a start and a clean stop; while it serves clients only its
    shell may touch it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.serving = False

    def __getattr__(self, name: str) -> Any:
        assert not self.serving, f"the node itself asks the metadata store for {name} while it serves clients"
        return getattr(self._store, name)


class Ended:
    """Waits for a change of the metadata."""

    def __init__(self) -> None:
        self._results: list[Any] = []
        self._error: Exception | None = None

    def change_ended(self, now: int, result: Any) -> None:
        self._results.append(result)

    def change_failed(self, now: int, error: Exception) -> None:
        self._error = error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        (result,) = self._results
        return result


class NodeStage:
    """A node in a directory. `hold_syncs` keeps fsyncs from ending, to look at what waits for them: `sync` ends one;
    `hold_commits` does the same to commits of the metadata store, and `commit` ends one.

    `faults`: exceptions that nobody expected are told to this list; without one they go on up.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        files: FileSystem | None = None,
        store: MemoryStore | None = None,
        faults: list[str] | None = None,
        joining: Joining | None = None,
        stopwatch: Stopwatch = counted_us,
        **settings: str,
    ) -> None:
        self.directory = directory
        self.stopwatch = stopwatch
        self.joining = joining
        self.files = files
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.store = MemoryStore() if store is None else store
        self.now = NOW
        self.notes: list[str] = []
        self.faults = faults
        self.entropy = random.Random(1)
        self.hold_syncs = False
        self.syncs: list[Sync] = []
        self.hold_commits = False
        self.commits: list[Commit] = []
        self.mutes: list[Mute] = []
        """Those there have been."""
        self.asks: list[PeerRequest] = []
        """Requests to other nodes, which the test answers."""
        self.fetched: list[str] = []
        """The listeners whose keys the node has asked for."""
        self.audited: list[Mapping[str, object]] = []
        """What the audit log has recorded."""
        self.clients: dict[int, Client] = {}
        self.connections = 0
        """How many there have been."""
        self.start()

    # ---- lives -----------------------------------------------------------------------------------------------------

    def start(self, *, same_boot: bool = True) -> None:
        """Begin a life of the node."""
        self.syncs.clear()
        self.commits.clear()
        self.clients.clear()
        self.guard = GuardedStore(self.store)
        self.node = Node(
            BrokerSettings.load(self.settings, {}),
            DiskFiles() if self.files is None else self.files,
            str(self.directory),
            self.guard,
            entropy=self.entropy,
            same_boot=same_boot,
            notes=self.notes.append,
            faults=self._fault,
            joining=self.joining,
            stopwatch=self.stopwatch,
        )
        self.node.start(self.now)
        self.guard.serving = True

    def _fault(self, what: str, error: Exception) -> None:
        if self.faults is None:
            raise error
        self.faults.append(what)

    def stop(self) -> None:
        """The node stops cleanly; time stands still."""
        self.guard.serving = False
        self.node.stop(self.now)

    def end(self, *, clean: bool = True) -> None:
        """The process ends: by a clean stop, or it is killed; what it wrote is still there."""
        if clean:
            self.stop()
        self.now += 1000

    def restart(self, *, clean: bool = True) -> None:
        self.end(clean=clean)
        self.start()

    # ---- requests --------------------------------------------------------------------------------------------------

    def ask(self, message: Any, version: int | None = None, connection: int | None = None) -> Any:
        """The answer to a request, which needs nothing but the node's own work."""
        asked = self.send(message, version, connection)
        if not asked.answered:
            self.run()
        assert asked.answered, f"{type(message).__name__} is not answered"
        return asked.answer

    def send(self, message: Any, version: int | None = None, connection: int | None = None) -> Asked:
        """Hand in a request; the answer may come now or later."""
        asked = Asked(message, version)
        self.hand_in(asked, connection)
        return asked

    def hand_in(self, asked: Asked, connection: int | None = None, *, of_node: bool = False) -> None:
        """Hand in a request whose frame the test may have made. `of_node`: on a connection of another node."""
        self._client(connection, of_node=of_node).send(asked, self.node, self.now)
        self.settle()
        self.check()

    def connect(self, *by: Any) -> int:
        """A new connection. `by`: the listener's name, and the address that its clients are told."""
        self.connections += 1
        self.clients[self.connections] = Client(channel_of(self.connections, *by))
        return self.connections

    def hang_up(self, connection: int) -> None:
        """The connection is lost."""
        del self.clients[connection]
        self.node.disconnected(self.now, connection)
        self.settle()
        self.check()

    def _client(self, connection: int | None, *, of_node: bool = False) -> Client:
        if connection is None:
            idle = [number for number, client in self.clients.items() if client.idle and not client.channel.closing]
            fit = [number for number in idle if self.clients[number].channel.identity.is_node == of_node]
            connection = fit[0] if fit else self.connect()
        client = self.clients[connection]
        if of_node:
            make_node(client.channel, OTHER_NODE)
        return client

    def in_slices(self, parked: Parked) -> Sequence[Part]:
        """The answer to a request that the test handed in itself, whose work goes on a slice a tick."""
        replies: list[Reply] = []
        while not replies:
            assert self.node.deadline() is not None or self.commits
            replies = [reply for reply in self.slice() if reply.ticket == parked.ticket]
        return replies[0].parts

    def slice(self) -> list[Reply]:
        """A tick, and the commits it wants; returns the answers that are there."""
        self.node.tick(self.now)
        effects = self.node.take_effects(self.now)
        for effect in effects:
            if isinstance(effect, Commit | Reread):
                self._carry_out(effect)
        if self.commits:
            self.commit()
        return [effect for effect in effects if isinstance(effect, Reply)]

    # ---- time and effects ------------------------------------------------------------------------------------------

    def run(self, ms: int = 0) -> None:
        """Let time pass and do everything that comes due."""
        until = self.now + ms
        while True:
            self.settle()
            times = [self.node.deadline(), *(client.muted_until for client in self.clients.values())]
            due = min((time for time in times if time is not None), default=None)
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            for client in self.clients.values():
                if client.muted_until is not None and client.muted_until <= self.now:
                    client.mute(None)
                    client.serve(self.node, self.now)
            self.node.tick(self.now)
        self.now = until
        self.check()

    def settle(self) -> None:
        """Carry out what the node wants now."""
        while True:
            effects = self.node.take_effects(self.now)
            for effect in effects:
                self._carry_out(effect)
            if self.syncs and not self.hold_syncs:
                self.sync()
            elif self.commits and not self.hold_commits:
                self.commit()
            elif not effects:
                break

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Reply(_, connection, _):
                if connection in self.clients:
                    self.clients[connection].answered(effect)
                    self.clients[connection].serve(self.node, self.now)
            case Close(connection, _):
                self.clients[connection].channel.close()
                self.node.disconnected(self.now, connection)
            case Sync():
                self.syncs.append(effect)
            case Store(path, content):
                self.replace_file(path, content)
            case Derive(token, mechanism, password, salt, iterations):
                self.node.derived(self.now, token, mechanism, salted(mechanism, password, salt, iterations))
            case PeerRequest():
                self.asks.append(effect)
            case FetchKeys(listener):
                self.fetched.append(listener)
            case Audited(record):
                self.audited.append(record)
            case Commit():
                self.commits.append(effect)
            case Reread():
                self.node.reread(self.now, effect.token, store_work.reread(self.store, effect))
            case Mute(connection, until):
                self.mutes.append(effect)
                if connection in self.clients:
                    self.clients[connection].mute(max(until, self.clients[connection].muted_until or until))

    def replace_file(self, path: str, content: bytes) -> None:
        """Carry out a Store."""
        try:
            self.node.files.write_atomically(path, content)
        except OSError:
            self.node.not_stored(path)

    def sync(self, failed: str | None = None) -> None:
        """The oldest fsync ends; `failed` is what the system says of each of its files."""
        sync = self.syncs.pop(0)
        failures: dict[int, str] = {}
        for at, file in enumerate(sync.files):
            try:
                file.sync()
            except OSError as error:
                failures[at] = error.strerror or str(error)
            if failed is not None:
                failures[at] = failed
        self.node.synced(self.now, sync.token, failures)

    def commit(self) -> None:
        """The commit that is under way reaches the store, and the node is told."""
        effect = self.commits.pop(0)
        self.node.committed(self.now, effect.token, store_work.commit(self.store, effect))

    def lose_commit(self, *, done: bool) -> None:
        """The commit that is under way reaches the store or does not, and nobody is told which."""
        effect = self.commits.pop(0)
        if done:
            store_work.commit(self.store, effect)
        self.node.committed(self.now, effect.token, OutcomeUnknown("the connection to the store was lost"))

    # ---- the metadata ----------------------------------------------------------------------------------------------

    def change(self, planned: Planned) -> Any:
        """What comes of this change of the metadata, made by the test."""
        ended = Ended()
        self.node.metadata.change(self.now, lambda now: planned, ended)
        self.settle()
        while self.node.replicas.behind:
            self.node.tick(self.now)
            self.settle()
        return ended.result()

    def create(
        self, name: str, partitions: int = 1, overrides: dict[str, str] | None = None, *, topic_id: bytes | None = None
    ) -> LocalTopic:
        """Make a topic."""
        self.change(self.node.topics.creating(self.now, [NewTopic(name, partitions, overrides or {}, topic_id)]))
        return self.node.replicas.by_name[name]

    def delete(self, *names: str) -> None:
        """Delete topics."""
        self.change(self.node.topics.deleting([self.node.image.topics[name] for name in names]))

    def deadline_of(self, part: Timed) -> int | None:
        """When the timers of this part of the node are due."""
        times = (entry.due() for entry in self.node.schedule._entries if entry.part is part)
        return min((time for time in times if time is not None), default=None)

    def check(self) -> None:
        """The invariants of the timers, and of the coordinators that are in use."""
        self.node.schedule.check()
        self.node.completions.check()
        self.node.coordinators.in_use.check()

    # ---- records ---------------------------------------------------------------------------------------------------

    def append(
        self, topic: str, index: int = 0, *, timestamp: int | None = None, value: bytes = b"v", **how: int
    ) -> int:
        """Append one record to this topic's partition; returns its offset."""
        partition = self.node.replicas.get(topic, index)
        assert partition is not None
        record = Record(0, self.now if timestamp is None else timestamp, b"k", value)
        batch = bytearray(build_batch([record], **how))
        return partition.append(self.now, memoryview(batch)).base_offset


class DiskStage(NodeStage):
    """A node on a simulated disk, whose power may be cut."""

    def __init__(
        self,
        *,
        seed: int = 1,
        make_store: Callable[[Disk], MemoryStore] = lambda disk: MemoryStore(),
        faults: list[str] | None = None,
        **settings: str,
    ) -> None:
        self.disk = Disk(random.Random(seed))
        super().__init__("/data", store=make_store(self.disk), faults=faults, **settings)

    def start(self, *, same_boot: bool = True) -> None:
        self.files = self.disk
        super().start(same_boot=same_boot)

    def end(self, *, clean: bool = True, power_cut: bool = False) -> None:
        super().end(clean=clean)
        if power_cut:
            self.disk.crash()
        else:
            self.disk.kill()

    def restart(self, *, clean: bool = True, power_cut: bool = False) -> None:
        self.end(clean=clean, power_cut=power_cut)
        self.start(same_boot=not power_cut)


def frame_of(message: Any, version: int) -> memoryview:
    """A request's frame without its length, writable as `Node.receive` wants it."""
    return memoryview(encode_request(RequestHeader(message.API_KEY, version, CORRELATION_ID, "stage"), message))[4:]


def answer_of(parts: Sequence[Part], api_key: int, version: int) -> Any:
    """The message in the parts of an answer."""
    whole = b"".join(part if isinstance(part, bytes | bytearray | memoryview) else part.read() for part in parts)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    correlation_id, message = decode_response(api_key, version, memoryview(whole)[4:])
    assert correlation_id == CORRELATION_ID
    return message


def versions_of(api_key: int) -> list[int]:
    """Every version the codec has of an API."""
    return list(range(APIS[api_key].min_version, APIS[api_key].max_version + 1))
