"""Simulates producers: idempotent ones that retry, plain ones with acks=1 or all, careless ones with acks=0.

Every record has a number of its own within its producer and partition, so the audit at the end can detect loss,
duplication and reordering. Retries follow Kafka's producer. With idempotence, up to five requests are in flight. A
failed batch and those after it are sent again in their order once no batch of the partition is in flight. Without
idempotence, one request is in flight: order is kept, and a retry may only cause duplicates.

Source: Kafka's Sender.java and TransactionManager.java; KIP-98, KIP-360.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.sim.clients.batches import encode_batch
from ottla.sim.clients.history import Content
from ottla.sim.clients.kafka import MOVED, KafkaClient
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError

IN_FLIGHT_MAX = 5
BY_TOPIC_ID_SINCE = 13
RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
SEQUENCE_LOST = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class BatchInFlight:
    """One unacknowledged batch. It gets its sequence when it is first sent under a producer id."""

    __slots__ = ("at", "base_sequence", "in_flight", "notes", "turn")

    def __init__(self, notes: list[Content]) -> None:
        self.notes = notes
        self.base_sequence = -1
        self.turn = 0
        """Index of the batch in its lane."""
        self.in_flight = False
        self.at: Endpoint | None = None
        """The node to which it was last sent."""


class Lane:
    """One partition of one producer: batches in the order in which they must arrive.

    `producer_id` is the producer's, until the partition has lost records written under it. Then only this lane takes a
    new id (`renew`), because batches in other partitions may have been written under the old one.
    """

    __slots__ = (
        "index",
        "losses_known",
        "next_number",
        "next_sequence",
        "numbered",
        "parcels",
        "pause_until_us",
        "producer_epoch",
        "producer_id",
        "renew",
        "topic",
    )

    def __init__(self, topic: str, index: int) -> None:
        self.topic = topic
        self.index = index
        self.parcels: deque[BatchInFlight] = deque()
        self.next_number = 0
        self.next_sequence = 0
        self.numbered = 0
        """Number of batches with a sequence."""
        self.pause_until_us: Micros = 0
        self.producer_id = -1
        self.producer_epoch = -1
        self.renew = False
        self.losses_known = 0

    def take_identity(self, producer_id: int, producer_epoch: int, losses: int) -> None:
        """Number all waiting batches again, under this id."""
        self.producer_id, self.producer_epoch, self.losses_known = producer_id, producer_epoch, losses
        self.renew = False
        self.next_sequence = 0
        for parcel in self.parcels:
            parcel.base_sequence = -1

    def number(self, parcel: BatchInFlight) -> None:
        """Give the parcel its sequence, if it has none yet."""
        if parcel.base_sequence < 0:
            parcel.base_sequence, parcel.turn = self.next_sequence, self.numbered
            self.next_sequence += len(parcel.notes)
            self.numbered += 1

    def in_flight(self) -> bool:
        return any(parcel.in_flight for parcel in self.parcels)

    def to_send(self, now_us: Micros) -> BatchInFlight | None:
        """Return the next batch that may be sent: none after it is in flight, so that order is kept."""
        if now_us < self.pause_until_us or self.renew:
            return None
        found: BatchInFlight | None = None
        for parcel in reversed(self.parcels):
            if parcel.in_flight:
                break
            found = parcel
        if found is None or found is self.parcels[0]:
            return found
        return None if self._broken_before(found) or self._too_far(found) else found

    def _too_far(self, parcel: BatchInFlight) -> bool:
        """Whether the log, after appending this one, would no longer recognise the first unacknowledged batch if it
        came again. A log remembers a producer's last five (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
        first = self.parcels[0]
        return parcel.base_sequence < 0 <= first.base_sequence and self.numbered - first.turn >= IN_FLIGHT_MAX

    def _broken_before(self, parcel: BatchInFlight) -> bool:
        """Whether a batch before this one failed and waits: the later ones in flight must come back first."""
        for other in self.parcels:
            if other is parcel:
                return False
            if not other.in_flight:
                return True
        return False


class LaneClient(KafkaClient):
    """A client that sends parcels to the leaders of their lanes."""

    lanes: list[Lane]

    def to_send(self) -> list[tuple[Lane, BatchInFlight]]:
        """Return the batches to send now to one node: one batch for each of some lanes that it leads."""
        now_us = self.world.clock.now_us
        chosen = [(lane, parcel) for lane in self.lanes if (parcel := lane.to_send(now_us)) is not None]
        chosen = [each for each in chosen if not self._overtakes(*each)]
        if self.follows and chosen:
            leader = self.leader_of(chosen[0][0])
            chosen = [each for each in chosen if self.leader_of(each[0]) == leader]
        return chosen

    def _overtakes(self, lane: Lane, parcel: BatchInFlight) -> bool:
        """Whether the first batch of the lane's producer id may be refused and this one accepted. A leader that does
        not know the id accepts any first batch, and then refuses an earlier one (KAFKA-14359). So in a cluster no batch
        may come before the first is acknowledged: a node that refuses the first may lead when the next arrives."""
        first = lane.parcels[0]
        return parcel is not first and first.base_sequence == 0 and (self.follows or first.at != self.leader_of(lane))

    def leader_of(self, lane: Lane) -> Endpoint | None:
        """Return the endpoint of the leader of a lane's partition; None if it is unknown."""
        return self.leader((lane.topic, lane.index))

    def pause_lane(self, lane: Lane, code: int, resume: Callable[[], None]) -> None:
        """After a batch of this lane was refused, send nothing there for a while."""
        lane.pause_until_us = self.world.clock.now_us + self.rng.randrange(20 * MS, 200 * MS)
        self.after(lane.pause_until_us - self.world.clock.now_us, resume)
        if code in MOVED:
            self.look_again()


class Producer(LaneClient):
    """A producer for one topic. `acks` 1, -1 or 0; `table`: a few keys over and over, with tombstones."""

    def __init__(
        self,
        workload: WorkloadView,
        name: str,
        topic: str,
        *,
        acks: int = -1,
        idempotent: bool = False,
        table: bool = False,
        gap_us: Micros = 60 * MS,
        payload_max: int = 120,
    ) -> None:
        super().__init__(workload, name, (topic,))
        self.topic = topic
        self.acks = acks
        self.idempotent = idempotent
        self.table = table
        self.gap_us = gap_us
        self.payload_max = payload_max
        self.gzip = self.rng.random() < 0.2
        self.has_id = False
        self.forgotten: set[int] = set()
        """Partitions that once had forgotten this producer's batches."""
        self.makes = True
        self.acknowledged = 0
        self._requests = 0
        rule = workload.rules[topic]
        self.lanes = [Lane(topic, index) for index in range(rule.partitions)]
        self.after(self.rng.randrange(200 * MS), self.connect)
        self.after(self.rng.randrange(300 * MS), self._make)

    @property
    def idle(self) -> bool:
        """Whether all batches are acknowledged."""
        return not any(lane.parcels for lane in self.lanes)

    # ---- making records --------------------------------------------------------------------------------------------

    def _make(self) -> None:
        if not self.makes:
            return
        lane = self.rng.choice(self.lanes)
        if len(lane.parcels) < 20:
            count = 1 if self.rng.random() < 0.5 else self.rng.randrange(1, 12)
            lane.parcels.append(BatchInFlight([self._note(lane) for _ in range(count)]))
            self._pump()
        self.after(self.rng.randrange(1, 2 * self.gap_us), self._make)

    def _note(self, lane: Lane) -> Content:
        number = lane.next_number
        lane.next_number += 1
        label = f"{self.name}:{lane.index}:{number}:".encode()
        if not self.table:
            return label, label + b"." * self.rng.randrange(self.payload_max)
        key = f"{self.name}:{lane.index}:key-{self.rng.randrange(8)}".encode()
        return key, None if self.rng.random() < 0.05 else label + b"." * self.rng.randrange(self.payload_max)

    # ---- sending ---------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        if self.idempotent and not self.has_id:
            self._initialise(self.lanes)
        else:
            self._pump()

    def gone(self) -> None:
        self._requests = 0
        for lane in self.lanes:
            for parcel in lane.parcels:
                parcel.in_flight = False

    def _initialise(self, lanes: list[Lane]) -> None:
        self.request(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None), self._initialised, lanes)

    def _initialised(self, message: Any, lanes: list[Lane]) -> None:
        if message is None:
            return
        if message.error_code:
            if message.error_code not in RETRIABLE:
                raise InvariantError(f"{self.name}: InitProducerId answers {message.error_code}")
            self.after(200 * MS, self._initialise, lanes)
            return
        self.workload.check_new_producer_id(message.producer_id)
        self.has_id = True
        for lane in lanes:
            if not lane.in_flight():
                lane.take_identity(message.producer_id, message.producer_epoch, self.history.losses)
        self._pump()

    def _pump(self) -> None:
        """Send batches that may be sent: one of each of some lanes per request."""
        if self.connection is None or self.topic not in self.known or (self.idempotent and not self.has_id):
            return
        for lane in self.lanes:
            if lane.renew and not lane.in_flight():
                self.world.trace.add(self.name, f"takes a new producer id for {lane.topic}-{lane.index}")
                self._initialise([lane])
                break
        while self._requests < (IN_FLIGHT_MAX if self.idempotent else 1):
            chosen = self.to_send()
            if not chosen:
                break
            if len(chosen) > 1 and self.rng.random() < 0.3:
                chosen = chosen[:1]
            self._send(chosen)

    def _send(self, chosen: list[tuple[Lane, BatchInFlight]]) -> None:
        by_id = self.versions[ApiKey.PRODUCE] >= BY_TOPIC_ID_SINCE
        parts = [PartitionProduceData(lane.index, self._encode(lane, parcel)) for lane, parcel in chosen]
        topic = TopicProduceData(**self.topic_key(self.topic, by_id), partition_data=parts)
        message = ProduceRequest(acks=self.acks, timeout_ms=3_000, topic_data=[topic])
        leader = self.leader_of(chosen[0][0])
        if self.acks == 0:
            for lane, parcel in chosen:
                lane.parcels.remove(parcel)
            self.tell(ApiKey.PRODUCE, message, at=leader)
            return
        self._requests += 1
        for _, parcel in chosen:
            parcel.in_flight, parcel.at = True, leader
        self.request(ApiKey.PRODUCE, message, self._produced, chosen, at=leader)

    def _encode(self, lane: Lane, parcel: BatchInFlight) -> bytes:
        if not self.idempotent:
            return encode_batch(parcel.notes, self.world.clock.wall_ms, gzip=self.gzip)
        lane.number(parcel)
        return encode_batch(
            parcel.notes,
            self.world.clock.wall_ms,
            producer_id=lane.producer_id,
            producer_epoch=lane.producer_epoch,
            base_sequence=parcel.base_sequence,
            gzip=self.gzip,
        )

    # ---- answers ---------------------------------------------------------------------------------------------------

    def _produced(self, message: Any, sent: list[tuple[Lane, BatchInFlight]]) -> None:
        if message is None:
            return
        self._requests -= 1
        answers = {part.index: part for topic in message.responses for part in topic.partition_responses}
        for lane, parcel in sent:
            answer = answers.get(lane.index)
            if answer is None:
                raise InvariantError(f"{self.name}: Produce does not answer for partition {lane.index}")
            parcel.in_flight = False
            if answer.error_code == ErrorCode.NONE:
                self._acknowledged(lane, parcel, answer.base_offset)
            else:
                self._refused(lane, parcel, answer)
        self._pump()

    def _acknowledged(self, lane: Lane, parcel: BatchInFlight, base_offset: int) -> None:
        lane.parcels.remove(parcel)
        self.acknowledged += len(parcel.notes)
        where = (lane.topic, lane.index)
        self.history.acknowledge(self.name, where, base_offset, parcel.notes)
        last = base_offset + len(parcel.notes) - 1
        self.world.trace.add(self.name, f"{lane.topic}-{lane.index} acknowledged {base_offset}..{last}")

    def _refused(self, lane: Lane, parcel: BatchInFlight, answer: Any) -> None:
        code = answer.error_code
        self.world.trace.add(self.name, f"{lane.topic}-{lane.index} refused: {code} {answer.error_message}")
        self.pause_lane(lane, code, self._pump)
        if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            self.refresh()
        if code in RETRIABLE:
            return
        if code in SEQUENCE_LOST and self.idempotent:
            if lane.parcels[0] is not parcel:
                return  # the one before it failed; both go again
            if self.history.losses > lane.losses_known or self.workload.may_forget(lane.topic):
                self.forgotten.add(lane.index)
                lane.renew = True
                return
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self.idempotent:
            lane.parcels.remove(parcel)
            return
        raise InvariantError(f"{self.name}: Produce to {lane.topic}-{lane.index} answers {code} {answer.error_message}")
