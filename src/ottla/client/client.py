"""Speaks to a whole cluster: metadata, routing to leaders and coordinators, raw fetch and produce, list offsets.

It knows the leader of each partition from the latest metadata, and refreshes the metadata when a broker reports a
different leader. It decodes no records: `fetch_raw` returns the bytes of whole batches, `produce_raw` accepts them.

Invariants: one connection per broker. A request is repeated only if the broker rejected it with a retriable code for a
wrong leader or coordinator, never after a lost answer.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from ottla.client.connection import Connection
from ottla.client.errors import BrokerError, ClientError, ConnectionClosedError, TimedOutError, check
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.wire import Buffer, Message

if TYPE_CHECKING:
    from ottla.client.sasl import Login

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
GROUP = 0

_RETRIED = {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
T = TypeVar("T")
TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of fetching one partition. `records` are whole batches and may begin before the requested offset."""

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] = ()
    """With isolation level 1: (producer_id, first_offset) of the aborted transactions among `records`."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Where a batch was appended. `log_append_time_ms` is -1 on a topic with create time."""

    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the metadata describes it; `leaders` is by partition index, -1 for a partition without a leader."""

    name: str
    topic_id: bytes
    leaders: tuple[int, ...]
    is_internal: bool


class Client:
    """A blocking client: `with Client("localhost:9092") as client: client.fetch_raw("clicks", 0, 0)`.

    `bootstrap` is "host:port[,host:port ...]". Every method raises ClientError or a subclass; an error code from the
    broker raises BrokerError. `timeout_s` bounds every wait for an answer, and the retries of a rejected request.
    `connect` makes the connections: the class `Connection`, or a subclass that restricts it. Raises ValueError if
    `bootstrap` names no address.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str | None = "ottla",
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
        connect: Callable[..., Connection] = Connection,
    ) -> None:
        self._bootstrap = [_address(part) for part in bootstrap.split(",") if part.strip()]
        if not self._bootstrap:
            raise ValueError("no bootstrap address was given")
        self._options: dict[str, Any] = {"client_id": client_id, "timeout_s": timeout_s, "tls": tls, "login": login}
        self._timeout_s = timeout_s
        self._make_connection = connect
        self._connections: dict[tuple[str, int], Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._answered: dict[str, Any] = {}
        """The topics of metadata answers, by name; there may be many, and few are used."""
        self._topics: dict[str, Topic] = {}
        """Those of them that were used."""
        self.refused_private: set[tuple[int, int, int]] = set()
        """(node id, API key, version) of Ottla's own requests at which a node has closed the connection
        (`private_requests`)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # ---- connections -----------------------------------------------------------------------------------------------

    def any_broker(self) -> Connection:
        """A connection to the first known broker that can be reached."""
        failure: ClientError | None = None
        for address in [*self._bootstrap, *self._brokers.values()]:
            try:
                return self._connect(address)
            except ConnectionClosedError as error:
                failure = error
        assert failure is not None
        raise failure

    def broker(self, node_id: int) -> Connection:
        """A connection to this node. Raises ClientError if the cluster has no such node, or it can't be reached."""
        if node_id not in self._brokers:
            self.metadata([])
        if node_id not in self._brokers:
            raise ClientError(f"The cluster has no broker {node_id}.")
        return self._connect(self._brokers[node_id])

    def broker_ids(self) -> list[int]:
        """The brokers in the latest metadata."""
        return sorted(self._brokers)

    def leader(self, topic: str, partition: int) -> Connection:
        """A connection to the leader of a partition.

        Raises BrokerError, with LEADER_NOT_AVAILABLE if the partition has no leader now; `repeat` retries that
        error.
        """
        known = self.known_topic(topic)
        if not 0 <= partition < len(known.leaders):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        if known.leaders[partition] < 0:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return self.broker(known.leaders[partition])

    def coordinator(self, key: str, key_type: int = GROUP) -> Connection:
        """A connection to the coordinator of a group (or of a transactional id)."""

        def find() -> Connection:
            answer = self.any_broker().send(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))
            (found,) = answer.coordinators
            check(found.error_code, f"the coordinator of {key}", found.error_message)
            return self._connect((found.host, found.port))

        return self.repeat(find)

    def _connect(self, address: tuple[str, int]) -> Connection:
        known = self._connections.get(address)
        if known is None or known.is_closed:
            self._connections[address] = self._make_connection(*address, **self._options)
        return self._connections[address]

    # ---- requests --------------------------------------------------------------------------------------------------

    def send(self, message: Message, version: int | None = None) -> Any:
        """Send a request to any broker, and wait for the answer."""
        return self._on(self.any_broker, message, version)

    def send_to_coordinator(self, key: str, message: Message, version: int | None = None, key_type: int = GROUP) -> Any:
        """Send a request to the coordinator of a group (or of a transactional id), and wait for the answer."""
        return self._on(lambda: self.coordinator(key, key_type), message, version)

    def _on(self, place: Callable[[], Connection], message: Message, version: int | None = None) -> Any:
        connection = place()
        try:
            return connection.send(message, version)
        except ClientError:
            self.drop(connection)
            raise

    def drop(self, connection: Connection) -> None:
        """Close a connection that failed, or whose pending answers are no longer needed; the next use opens a new
        one."""
        connection.close()
        self._connections = {a: c for a, c in self._connections.items() if c is not connection}

    def repeat(self, ask: Callable[[], T]) -> T:
        """Retry a request, with new metadata, while a broker rejects it for a wrong or missing leader or coordinator,
        and while time is left. Raises BrokerError."""
        until = time.monotonic() + self._timeout_s
        pause_s = 0.01
        while True:
            try:
                return ask()
            except BrokerError as error:
                if error.code not in _RETRIED or time.monotonic() + pause_s > until:
                    raise
            self.forget_topics()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.5)

    # ---- topics ----------------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> Any:
        """The MetadataResponse for some topics, or for all; stores the brokers in it."""
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        answer = self.send(MetadataRequest(wanted, create))
        self.know_brokers(answer)
        found = {topic.name: topic for topic in answer.topics if topic.error_code == 0}
        self._topics = {name: topic for name, topic in self._topics.items() if name not in found}
        self._answered |= found
        return answer

    def know_brokers(self, answer: Any) -> None:
        """Store the brokers of a MetadataResponse, which another client may have received."""
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}

    def topic(self, name: str) -> Topic:
        """A topic with its leaders, from new metadata. Raises BrokerError."""
        answer = self.metadata([name])
        check(answer.topics[0].error_code, f"topic {name}")
        return self.known_topic(name)

    def known_topic(self, name: str) -> Topic:
        """A topic from the stored metadata, or from new metadata if it is not stored. Raises BrokerError."""
        known = self._topics.get(name)
        if known is not None:
            return known
        if name not in self._answered:
            return self.topic(name)
        self._topics[name] = known = _topic(self._answered[name])
        return known

    def forget_topics(self) -> None:
        """Drop the stored leaders, so that the next use requests new metadata."""
        self._answered.clear()
        self._topics.clear()

    def topics(self) -> list[Topic]:
        """Every topic, including internal ones, by name."""
        self.forget_topics()
        self.metadata(None)
        return [self.known_topic(name) for name in sorted(self._answered)]

    # ---- records ---------------------------------------------------------------------------------------------------

    def produce_raw(
        self, topic: str, partition: int, batch: Buffer, *, acks: int = -1, timeout_ms: int = 30_000
    ) -> Produced | None:
        """Append one encoded record batch; None with acks=0. Raises BrokerError."""

        def ask() -> Produced | None:
            connection = self.leader(topic, partition)
            known = self.known_topic(topic)
            entry = TopicProduceData(topic, known.topic_id, [PartitionProduceData(partition, batch)])
            request = ProduceRequest(None, acks, timeout_ms, [entry])
            if acks == 0:
                connection.post(request, answered=False)
                return None
            (place,) = self._on(lambda: connection, request).responses
            (part,) = place.partition_responses
            check(part.error_code, f"produce to {topic}-{partition}", part.error_message)
            return Produced(part.base_offset, part.log_append_time_ms, part.log_start_offset)

        return self.repeat(ask)

    def fetch_raw(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        isolation_level: int = 0,
    ) -> Fetched:
        """Whole batches from `offset` on, fetched without a fetch session. No bytes: there is no batch from there on.
        Raises BrokerError, and TimedOutError if a quota lets nothing through for that long."""
        until = time.monotonic() + self._timeout_s

        def ask() -> Fetched:
            connection = self.leader(topic, partition)
            part = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
            request = FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation_level=isolation_level,
                topics=[FetchTopic(topic, self.known_topic(topic).topic_id, [part])],
            )
            answer = self._on(lambda: connection, request)
            while not (answer.error_code or answer.responses):  # throttled: the broker delays the next answer (KIP-219)
                if time.monotonic() >= until:
                    raise TimedOutError(f"A quota throttles fetches from {topic}-{partition}: no record came in time.")
                answer = self._on(lambda: connection, request)
            check(answer.error_code, f"fetch from {topic}-{partition}")
            (place,) = answer.responses
            (got,) = place.partitions
            check(got.error_code, f"fetch from {topic}-{partition} at {offset}")
            return Fetched(
                bytes(got.records or b""),
                got.high_watermark,
                got.last_stable_offset,
                got.log_start_offset,
                tuple((each.producer_id, each.first_offset) for each in got.aborted_transactions or ()),
            )

        return self.repeat(ask)

    def list_offsets(
        self, topic: str, partitions: Iterable[int], timestamp: int = LATEST, *, isolation_level: int = 0
    ) -> dict[int, int]:
        """The offset per partition for a time in ms, or EARLIEST, LATEST, MAX_TIMESTAMP; -1 if no record is that
        late."""
        wanted = dict.fromkeys(((topic, partition) for partition in partitions), timestamp)
        found = self.list_offsets_of(wanted, isolation_level=isolation_level)
        return {partition: found[topic, partition] for _, partition in wanted}

    def list_offsets_of(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, int]:
        """The same for many topics, each (topic, partition) with its own time; one request per leader."""

        def ask() -> dict[TopicPartition, int]:
            by_leader: dict[Connection, dict[str, list[ListOffsetsPartition]]] = {}
            for (topic, partition), timestamp in wanted.items():
                topics = by_leader.setdefault(self.leader(topic, partition), {})
                topics.setdefault(topic, []).append(ListOffsetsPartition(partition, timestamp=timestamp))
            found: dict[TopicPartition, int] = {}
            for leader, topics in by_leader.items():
                rows = [ListOffsetsTopic(topic, partitions) for topic, partitions in topics.items()]
                request = ListOffsetsRequest(-1, isolation_level, rows, int(self._timeout_s * 1000))
                for place in self._on(lambda leader=leader: leader, request).topics:
                    for part in place.partitions:
                        check(part.error_code, f"offset of {place.name}-{part.partition_index}")
                        found[place.name, part.partition_index] = part.offset
            return {place: found[place] for place in wanted}

        return self.repeat(ask)


def _topic(described: Any) -> Topic:
    """A topic of a metadata answer."""
    leaders = {part.partition_index: part.leader_id for part in described.partitions}
    by_index = tuple(leaders.get(index, -1) for index in range(len(leaders)))
    return Topic(described.name, bytes(described.topic_id), by_index, described.is_internal)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f"{text!r} is no address of the form host:port")
    return host.strip("[]"), int(port)
