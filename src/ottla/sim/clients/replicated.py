"""Clients of a simulated cluster: producers with acks=all and readers, each of one partition, that follow its leader.

They ask the workload who leads, as real ones ask Metadata, and believe it until a node says otherwise or nothing. What
they were told goes into the `Promises`, which are checked against the logs.

A producer sends one batch at a time and sends it again until it is acknowledged, so that a record may be there twice
and never be missing.
"""

from collections.abc import Callable
from typing import Any, Protocol

from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.wire import Message
from ottla.sim.clients.batches import decode_batches, encode_batch
from ottla.sim.clients.client import Client
from ottla.sim.kernel.clock import MS, Booking
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import Broken
from ottla.sim.kernel.world import World

PATIENCE_US = 3_000 * MS
PRODUCE_VERSION, FETCH_VERSION = 13, 17


class Promises(Protocol):
    """Who remembers what clients were told of a partition."""

    def acknowledged(self, index: int, offset: int, value: bytes) -> None: ...

    def exposed(self, index: int, offset: int, epoch: int, value: bytes) -> None: ...


class LeaderClient(Client):
    """A client of whoever leads one partition. One request at a time."""

    def __init__(
        self,
        world: World,
        name: str,
        topic_id: bytes,
        index: int,
        leader: Callable[[int], Endpoint | None],
        promises: Promises,
    ) -> None:
        super().__init__(world, name, Endpoint("nowhere"))
        self.topic_id = topic_id
        self.index = index
        self.promises = promises
        self._leader = leader
        self._correlation_id = 0
        self._patience: Booking | None = None
        self._asked: tuple[int, int] | None = None

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def next_request(self) -> tuple[Message, int] | None:
        """What to ask now, and its version; None: nothing for a while."""
        raise NotImplementedError

    def answered(self, answer: Any) -> bool:
        """False: ask somebody else."""
        raise NotImplementedError

    # ---- one request after the other -------------------------------------------------------------------------------

    def go(self) -> None:
        """Find the leader, ask, and so on for ever."""
        if not self.running or self._asked is not None:
            return
        if self.connection is None:
            endpoint = self._leader(self.index)
            if endpoint is not None:
                self.bootstrap = endpoint
                self.connection = self.world.network.connect(self.name, self, endpoint)
            if self.connection is None:
                self.after(self.rng.randrange(5 * MS, 60 * MS), self.go)
                return
            self._splitter = type(self._splitter)()
        wanted = self.next_request()
        if wanted is None:
            self.after(self.rng.randrange(1 * MS, 40 * MS), self.go)
            return
        message, version = wanted
        self._correlation_id += 1
        self._asked = message.API_KEY, version
        header = RequestHeader(message.API_KEY, version, self._correlation_id, self.name)
        self.connection.to_server.write(bytes(encode_request(header, message)))
        self._patience = self.after(PATIENCE_US, self._give_up)

    def frame_arrived(self, frame: memoryview) -> None:
        assert self._asked is not None
        assert self._patience is not None
        self._patience.cancel()
        (key, version), self._asked = self._asked, None
        correlation_id, answer = decode_response(key, version, frame)
        if correlation_id != self._correlation_id:
            raise Broken(f"{self.name} waits for answer {self._correlation_id} and gets {correlation_id}")
        if not self.answered(answer):
            self.hang_up()
        else:
            self.after(self.rng.randrange(50, 3 * MS), self.go)

    def _give_up(self) -> None:
        self.hang_up(lingering=self.rng.random() < 0.5)

    def lost(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._asked = None
        self.after(self.rng.randrange(5 * MS, 60 * MS), self.go)


class AllAcksProducer(LeaderClient):
    """Numbers its records; `pending` is the batch that is not acknowledged yet. `acks` may be 1: then nothing that it
    is told is a promise."""

    def __init__(self, *args: Any, acks: int = -1) -> None:
        super().__init__(*args)
        self.acks = acks
        self.next_number = 0
        self.pending: list[bytes] = []
        self.acknowledged_count = 0
        self.winding_down = False
        self.last_error = 0

    @property
    def idle(self) -> bool:
        return not self.pending

    def next_request(self) -> tuple[Message, int] | None:
        if not self.pending:
            if self.winding_down:
                return None
            for _ in range(self.rng.randrange(1, 4)):
                self.pending.append(f"{self.name}:{self.next_number}".encode())
                self.next_number += 1
        batch = encode_batch([(b"k", value) for value in self.pending], self.world.clock.wall_ms)
        part = PartitionProduceData(self.index, batch)
        topic = TopicProduceData(topic_id=self.topic_id, partition_data=[part])
        return ProduceRequest(None, self.acks, 1_500, [topic]), PRODUCE_VERSION

    def answered(self, answer: Any) -> bool:
        part = answer.responses[0].partition_responses[0]
        self.last_error = part.error_code
        if part.error_code:
            return False
        if self.acks == -1:
            for at, value in enumerate(self.pending):
                self.promises.acknowledged(self.index, part.base_offset + at, value)
        self.acknowledged_count += len(self.pending)
        self.pending = []
        return True


class Reader(LeaderClient):
    """Reads from the beginning to the end, whoever leads, and never back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.position = 0

    def next_request(self) -> tuple[Message, int] | None:
        asked = FetchPartition(self.index, -1, self.position, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic_id=self.topic_id, partitions=[asked])
        return FetchRequest(max_wait_ms=200, min_bytes=1, max_bytes=1 << 20, topics=[topic]), FETCH_VERSION

    def answered(self, answer: Any) -> bool:
        part = answer.responses[0].partitions[0]
        if part.error_code:
            return False
        for batch in decode_batches(bytes(part.records or b"")):
            for note in batch.notes:
                if note.offset >= self.position:
                    self.promises.exposed(self.index, note.offset, batch.leader_epoch, note.value or b"")
                    self.position = note.offset + 1
        return True
