"""Simulates clients of a cluster: producers and readers of one partition each, committers of one group each.

They use one node's knowledge of the leaders, as real clients use Metadata, until a node refuses or does not answer.
Each sends one request at a time. Results go to the `Promises` of the topic, which are checked against the logs.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.wire import Message
from ottla.sim.clients.batches import CorruptError, decode_batches, encode_batch
from ottla.sim.clients.client import Client
from ottla.sim.kernel.clock import MS, Booking, Micros
from ottla.sim.kernel.network import Connection, Endpoint
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.kernel.world import World

PATIENCE_US = 3_000 * MS
PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, INIT_PRODUCER_ID_VERSION = 13, 17, 10, 5
LATEST = -1
ASKS_FOR_THE_END = 0.1
"""How often a reader asks for the end offset instead of reading."""

TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and the index of a partition."""
Question: TypeAlias = tuple[Message, int, Callable[[Any], bool]]
"""(request, its version, handler of the answer). If the handler returns False, the client looks for another node."""


class Promises(Protocol):
    """Records the answers that clients received about a topic, by partition."""

    liars: set[int]

    def acknowledged(self, index: int, offset: int, value: bytes) -> None: ...

    def exposed(self, index: int, offset: int, epoch: int, value: bytes) -> None: ...

    def acknowledged_end(self, index: int) -> int:
        """Return the end of the records acknowledged with acks=all so far."""
        ...


class ClusterView(Protocol):
    """A cluster, as its clients see it."""

    @property
    def world(self) -> World: ...

    @property
    def checker(self) -> Promises: ...

    def believed_leader(self, place: TopicPartition) -> Endpoint | None:
        """Return the leader of this partition as some node knows it; None if it does not know one yet."""
        ...

    def believed_replica(self, place: TopicPartition) -> Endpoint | None:
        """Return a replica of this partition as some node knows it."""
        ...

    def was_moved_away(self, place: TopicPartition, endpoint: Endpoint) -> bool:
        """Whether the node at this endpoint is no replica of this partition (any more)."""
        ...

    def topic_id(self, name: str) -> bytes | None: ...


class LeaderClient(Client):
    """A client of one partition's leader. One request at a time."""

    def __init__(self, cluster: ClusterView, name: str, place: TopicPartition) -> None:
        super().__init__(cluster.world, name, Endpoint("nowhere"))
        self.cluster = cluster
        self.place = place
        self.winding_down = False
        """Whether to start no new work."""
        self.last_error = 0
        self.pace_us: Micros = 3 * MS
        """Maximum pause between an answer and the next request."""
        self._correlation_id = 0
        self._patience: Booking | None = None
        self._booked: Booking | None = None
        self._asked: tuple[int, int, Callable[[Any], bool]] | None = None

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def next_request(self) -> Question | None:
        """Return the next request; None to send nothing for a while."""
        raise NotImplementedError

    @property
    def idle(self) -> bool:
        """Whether no work is left."""
        return True

    def endpoint(self) -> Endpoint | None:
        """Return the endpoint to connect to; None while it is unknown."""
        return self.cluster.believed_leader(self.place)

    # ---- one request after the other -------------------------------------------------------------------------------

    def go(self) -> None:
        """Find the leader and send requests, until the client stops."""
        if not self.running or self._asked is not None:
            return
        if self.connection is None:
            endpoint = self.endpoint()
            if endpoint is not None:
                self.bootstrap = endpoint
                self.connection = self.open(endpoint)
            if self.connection is None:
                self._go_later(5 * MS, 60 * MS)
                return
        wanted = self.next_request()
        if wanted is None:
            self._go_later(1 * MS, 40 * MS)
            return
        message, version, told = wanted
        self._correlation_id += 1
        header = RequestHeader(message.API_KEY, version, self._correlation_id, self.name)
        if isinstance(message, ProduceRequest) and message.acks == 0:
            self.connection.to_server.write(bytes(encode_request(header, message)))
            self._go_later(50, 4 * self.pace_us)
            return
        self._asked = message.API_KEY, version, told
        self.connection.to_server.write(bytes(encode_request(header, message)))
        self._patience = self.after(PATIENCE_US, self._give_up)

    def _go_later(self, at_least_us: Micros, at_most_us: Micros) -> None:
        if self._booked is not None:
            self._booked.cancel()
        self._booked = self.after(self.rng.randrange(at_least_us, at_most_us), self.go)

    def frame_arrived(self, connection: Connection, frame: memoryview) -> None:
        assert self._asked is not None
        assert self._patience is not None
        self._patience.cancel()
        (key, version, told), self._asked = self._asked, None
        correlation_id, answer = decode_response(key, version, frame)
        if correlation_id != self._correlation_id:
            raise InvariantError(f"{self.name} waits for answer {self._correlation_id} and gets {correlation_id}")
        if not told(answer):
            self.hang_up()
        else:
            self._go_later(50, self.pace_us)

    def _give_up(self) -> None:
        self.hang_up(lingering=self.rng.random() < 0.5)

    def lost(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._asked = None
        self._go_later(5 * MS, 60 * MS)


class ReplicatedProducer(LeaderClient):
    """Numbers its records; `pending` is the unacknowledged batch, which is sent again until it is acknowledged.

    Only acknowledgements with acks=all (-1) are promises. If `idempotent`, no record may be in the log twice. With
    acks=1, a leader that lost records may refuse the next ones; the producer then starts again under another id.
    """

    def __init__(
        self, cluster: ClusterView, name: str, place: TopicPartition, *, acks: int = -1, idempotent: bool = False
    ) -> None:
        super().__init__(cluster, name, place)
        self.acks = acks
        self.idempotent = idempotent
        self.next_number = 0
        self.pending: list[bytes] = []
        self.acknowledged_count = 0
        self.producer = (-1, -1)
        """Id and epoch."""
        self.sequence = 0

    @property
    def idle(self) -> bool:
        return not self.pending

    def next_request(self) -> Question | None:
        topic_id = self.cluster.topic_id(self.place[0])
        if topic_id is None or (self.winding_down and not self.pending):
            return None
        if self.idempotent and self.producer[0] < 0:
            return InitProducerIdRequest(transactional_id=None), INIT_PRODUCER_ID_VERSION, self._initialised
        if not self.pending:
            for _ in range(self.rng.randrange(1, 4)):
                self.pending.append(f"{self.name}:{self.next_number}".encode())
                self.next_number += 1
        records = [(b"k", value) for value in self.pending]
        producer_id, epoch = self.producer
        sequence = self.sequence if self.idempotent else -1
        batch = encode_batch(
            records, self.world.clock.wall_ms, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
        )
        part = PartitionProduceData(self.place[1], batch)
        topic = TopicProduceData(topic_id=topic_id, partition_data=[part])
        if self.acks == 0:
            self.pending = []
        return ProduceRequest(None, self.acks, 1_500, [topic]), PRODUCE_VERSION, self._produced

    def _initialised(self, answer: Any) -> bool:
        self.last_error = answer.error_code
        if answer.error_code == ErrorCode.NONE:
            self.producer, self.sequence = (answer.producer_id, answer.producer_epoch), 0
        return not answer.error_code

    def _produced(self, answer: Any) -> bool:
        part = answer.responses[0].partition_responses[0]
        self.last_error = part.error_code
        if part.error_code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            if self.acks == -1 and not self.cluster.checker.liars:
                raise InvariantError(
                    f"11: {self.name}: the leader of {self.place} has lost {self.producer}: {part.error_code}"
                )
            self.producer = (-1, -1)
        if part.error_code:
            return False
        if self.acks == -1:
            for at, value in enumerate(self.pending):
                self.cluster.checker.acknowledged(self.place[1], part.base_offset + at, value)
        self.acknowledged_count += len(self.pending)
        self.sequence += len(self.pending)
        self.pending = []
        return True


class LogReader(LeaderClient):
    """Reads from the beginning to the end, from whichever node leads, and never goes back. Sometimes it asks for the
    end offset."""

    def __init__(self, cluster: ClusterView, name: str, place: TopicPartition) -> None:
        super().__init__(cluster, name, place)
        self.position = 0
        self._end_min = 0
        """End of the records acknowledged or read before the request for the end offset."""

    def next_request(self) -> Question | None:
        topic_id = self.cluster.topic_id(self.place[0])
        if topic_id is None:
            return None
        if self._asks_for_the_end():
            self._end_min = max(self.position, self.cluster.checker.acknowledged_end(self.place[1]))
            where = ListOffsetsTopic(self.place[0], [ListOffsetsPartition(self.place[1], -1, LATEST)])
            return ListOffsetsRequest(topics=[where]), LIST_OFFSETS_VERSION, self._ended
        asked = FetchPartition(self.place[1], -1, self.position, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic_id=topic_id, partitions=[asked])
        return FetchRequest(max_wait_ms=200, min_bytes=1, max_bytes=1 << 20, topics=[topic]), FETCH_VERSION, self._read

    def _asks_for_the_end(self) -> bool:
        return self.rng.random() < ASKS_FOR_THE_END

    def _ended(self, answer: Any) -> bool:
        """Check that acknowledged or read records are before the end: every leader has to know them (KIP-207).

        A leader whose replica has been moved away may not have learned of that yet. Its successor does not wait for
        it, as in Kafka.
        """
        part = answer.topics[0].partitions[0]
        self.last_error = part.error_code
        if part.error_code:
            return False
        if part.offset < self._end_min and not self.cluster.was_moved_away(self.place, self.bootstrap):
            raise InvariantError(
                f"{self.name}: {self.place} ends at {part.offset}, and {self._end_min - 1} was there before"
            )
        return True

    def _read(self, answer: Any) -> bool:
        part = answer.responses[0].partitions[0]
        self.last_error = part.error_code
        if part.error_code:
            return False
        try:
            batches = decode_batches(bytes(part.records or b""))
        except CorruptError:
            if not self.cluster.checker.liars:
                raise
            return False
        for batch in batches:
            for note in batch.notes:
                if note.offset >= self.position:
                    self.cluster.checker.exposed(self.place[1], note.offset, batch.leader_epoch, note.value or b"")
            self.position = max(self.position, batch.last_offset + 1)
        return True


class NearbyReader(LogReader):
    """The same at any replica, leader or follower: each serves what it knows to be committed (KIP-392)."""

    def endpoint(self) -> Endpoint | None:
        return self.cluster.believed_replica(self.place)

    def _asks_for_the_end(self) -> bool:
        return False  # only the leader knows it
