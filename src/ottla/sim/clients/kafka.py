"""Simulates a Kafka client: requests and answers by correlation id, timeouts, reconnecting, metadata.

The client uses the generated codec of the wire protocol; subclasses (producers, consumers, admins) decide what to
request. Each client draws its protocol versions when it is created, so old and new forms of every API are in use at
once.

A request without an answer in time makes the client hang up, as real clients do. Often the node does not notice for a
while and carries out the request: that is how requests are duplicated.

With several nodes, a client `follows`: it sends requests for a leader or coordinator to the node that Metadata and
FindCoordinator name. If that node answers that it is the wrong one, the client looks it up again after a while.
"""

from collections.abc import Callable
from typing import Any

from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from ottla.protocol.wire import Message
from ottla.sim.clients.batches import CorruptError, ReadBatch, decode_batches
from ottla.sim.clients.client import Client
from ottla.sim.clients.history import TopicPartition
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.network import Connection, Endpoint
from ottla.sim.kernel.trace import InvariantError

VERSIONS: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 10),
    ApiKey.METADATA: (10, 13),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
}

PATIENCE_US = 6_000 * MS
WATCH_US = 500 * MS
ELSEWHERE_CHANCE = 0.1
"""How often a client that looks up a leader asks another node, because a process that a copy has replaced never learns
of the leader."""
NOWHERE = -1
"""Key for requests that cannot be sent, instead of a connection's identity."""
OF_GROUPS, OF_TRANSACTIONS = 0, 1
"""Kinds of coordinators, as FindCoordinator has them."""

MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Errors of a node that is not, or not now, the leader or coordinator."""

Answer = Callable[..., None]
"""Called with the decoded answer and the caller's own arguments; None if the connection was lost before the answer."""


class Pending:
    """A request without an answer yet."""

    __slots__ = ("answer", "args", "key", "until_us", "version")

    def __init__(self, key: int, version: int, until_us: Micros, answer: Answer, args: tuple[Any, ...]) -> None:
        self.key = key
        self.version = version
        self.until_us = until_us
        self.answer = answer
        self.args = args


class KafkaClient(Client):
    """See the module. `connected` is final here: subclasses begin in `ready`, when metadata is known."""

    def __init__(self, workload: WorkloadView, name: str, topics: tuple[str, ...] = ()) -> None:
        super().__init__(workload.world, name, workload.bootstraps[0])
        self.workload = workload
        self.follows = len(workload.bootstraps) > 1
        self.history = workload.history
        self.topics = topics
        self.known: dict[str, MetadataResponseTopic] = {}
        self.nodes: dict[int, Endpoint] = {}
        """Endpoint of each node, to the client's knowledge."""
        self.coordinators: dict[tuple[int, str], Endpoint] = {}
        """Of groups and of transactional ids."""
        self.versions = {key: self._choose_version(*bounds) for key, bounds in VERSIONS.items()}
        self._correlation_id = self.rng.randrange(1 << 20)
        self._pending: dict[int, dict[int, Pending]] = {}
        """By connection, in the order of sending."""
        self._watched: set[int] = set()
        self._looks_again = False

    def _choose_version(self, lowest: int, highest: int) -> int:
        return highest if self.rng.random() < 0.5 else self.rng.randrange(lowest, highest + 1)

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Called when the client is connected and knows every requested topic."""

    def gone(self) -> None:
        """Called when the connection is lost, after every pending answer was called with None. The client reconnects by
        itself."""

    # ---- requests --------------------------------------------------------------------------------------------------

    def request(
        self,
        key: int,
        message: Message,
        answer: Answer,
        *args: Any,
        at: Endpoint | None = None,
        patience_us: Micros = PATIENCE_US,
    ) -> None:
        """Send a request; `answer` is called exactly once. `at`: the required node; None: any node, or an unknown
        one."""
        if self.connection is None:
            answer(None, *args)
            return
        connection = self.to_node(at)
        version = self.versions[key]
        self._correlation_id += 1
        identity = NOWHERE if connection is None else connection.identity
        if identity not in self._watched:
            self._watched.add(identity)
            self.after(WATCH_US, self._watch, identity)
        until_us = self.world.clock.now_us + patience_us
        pending = Pending(key, version, until_us, answer, args)
        self._pending.setdefault(identity, {})[self._correlation_id] = pending
        if connection is None:
            self.after(self.rng.randrange(1, 2 * MS), self._refused_by_host, self.connection)
        else:
            frame = encode_request(RequestHeader(key, version, self._correlation_id, self.name), message)
            connection.to_server.write(bytes(frame))

    def tell(self, key: int, message: Message, *, at: Endpoint | None = None) -> None:
        """Send a request that has no answer (acks=0)."""
        connection = self.to_node(at)
        if connection is not None:
            self._correlation_id += 1
            header = RequestHeader(key, self.versions[key], self._correlation_id, self.name)
            connection.to_server.write(bytes(encode_request(header, message)))

    def to_node(self, at: Endpoint | None) -> Connection | None:
        """Return the connection to this node; None if no node listens there."""
        return self.connection if at is None or not self.follows else self.connection_to(at)

    def _refused_by_host(self, first: Connection) -> None:
        """Hang up after a connection was refused."""
        if self.connection is first:
            self.hang_up(lingering=self.rng.random() < 0.5)

    def frame_arrived(self, connection: Connection, frame: memoryview) -> None:
        waiting = self._pending.get(connection.identity, {})
        expected = next(iter(waiting), None)
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != expected:
            raise InvariantError(f"{self.name} waits for answer {expected} and gets {correlation_id}")
        pending = waiting.pop(correlation_id)
        _, message = decode_response(pending.key, pending.version, frame)
        pending.answer(message, *pending.args)

    def _watch(self, identity: int) -> None:
        """Check regularly whether the oldest request of a connection has waited too long."""
        waiting = self._pending.get(identity)
        if waiting is None:
            return
        oldest = next(iter(waiting.values()), None)
        if oldest is None:
            self._watched.discard(identity)
        elif oldest.until_us <= self.world.clock.now_us:
            self.world.trace.add(self.name, f"gives up waiting for {APIS[oldest.key].name}")
            self.hang_up(lingering=self.rng.random() < 0.7)
        else:
            self.after(WATCH_US, self._watch, identity)

    def lost(self) -> None:
        pending, self._pending = self._pending, {}
        self._watched.clear()
        self.coordinators.clear()
        for each in [each for waiting in pending.values() for each in waiting.values()]:
            each.answer(None, *each.args)
        self.gone()
        self.after(self.rng.randrange(10 * MS, 300 * MS), self.connect)

    # ---- leaders and coordinators ----------------------------------------------------------------------------------

    def connect(self) -> None:
        if self.follows and self.connection is None:
            self.bootstrap = self.choose_node()
        super().connect()

    def choose_node(self) -> Endpoint:
        """Return the node for the next main connection, if there are several."""
        return self.rng.choice(self.workload.bootstraps)

    def leader(self, where: TopicPartition) -> Endpoint | None:
        """Return the endpoint of this partition's leader; None if it is unknown."""
        topic = self.known.get(where[0])
        if topic is None or where[1] >= len(topic.partitions):
            return None
        return self.nodes.get(topic.partitions[where[1]].leader_id)

    def look_again(self) -> None:
        """Look up leaders and coordinators again, soon, because a node was not the right one."""
        if self.follows and not self._looks_again:
            self._looks_again = True
            self.after(self.rng.randrange(10 * MS, 150 * MS), self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        if self.history.disks_lie and self.rng.random() < ELSEWHERE_CHANCE:
            self.hang_up()
        else:
            self._refresh_again()

    def miss_coordinator(self, kind: int, key: str) -> None:
        """Handle the answer that the coordinator of this group or transactional id has moved."""
        if self.follows:
            self.coordinators.pop((kind, key), None)
            self.look_again()

    def note_coordinator(self, kind: int, key: str, message: Any) -> int:
        """Store FindCoordinator's answer; return its error."""
        found = message.coordinators[0] if message.coordinators else message
        if not found.error_code:
            self.coordinators[kind, key] = Endpoint(found.host, found.port)
        return int(found.error_code)

    def batches_of(self, part: Any) -> list[ReadBatch] | None:
        """Return the batches of a partition of a fetch answer; None if a disk that lies has damaged one."""
        try:
            return decode_batches(bytes(part.records))
        except CorruptError:
            if not self.history.disks_lie:
                raise
            self.look_again()
            return None

    # ---- metadata --------------------------------------------------------------------------------------------------

    def connected(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        if not self.topics:
            self.ready()
            return
        wanted = [MetadataRequestTopic(name=name) for name in self.topics]
        self.request(ApiKey.METADATA, MetadataRequest(topics=wanted, allow_auto_topic_creation=False), self._learnt)

    def _learnt(self, message: Any) -> None:
        if message is None:
            return
        self.nodes = {node.node_id: Endpoint(node.host, node.port) for node in message.brokers}
        for topic in message.topics:
            if topic.error_code == 0:
                self.known[topic.name] = topic
                topic.partitions.sort(key=_index_of)
            elif not self.follows:  # another node may not have learned of it yet
                self.known.pop(topic.name, None)
        if all(name in self.known for name in self.topics):
            self.ready()
        else:
            self.after(self.rng.randrange(50 * MS, 300 * MS), self._refresh_again)

    def _refresh_again(self) -> None:
        if self.connection is not None:
            self.refresh()

    def topic_key(self, topic: str, by_id: bool) -> dict[str, Any]:
        """The field that names a topic, by name or by id, as keyword arguments."""
        return {"topic_id": self.known[topic].topic_id} if by_id else {"name": topic}

    def topic_name(self, item: Any, by_id: bool, field: str = "name") -> str:
        """The name of the topic that an answer speaks of."""
        if not by_id:
            return getattr(item, field)
        for name, topic in self.known.items():
            if topic.topic_id == item.topic_id:
                return name
        raise InvariantError(f"{self.name} is told of a topic it did not ask for: {item.topic_id.hex()}")


def find_coordinator(kind: int, key: str) -> FindCoordinatorRequest:
    """Return a request for the coordinator of this group or transactional id, in any version."""
    return FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])


def _index_of(partition: Any) -> int:
    return partition.partition_index
