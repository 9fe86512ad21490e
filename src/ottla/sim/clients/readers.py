"""Implements what all simulated readers have in common: fetching from positions, checking the records, moving on.

A reader has positions of partitions, fetch sessions (KIP-227) and offset resets. A group member (`consumers`) gets its
partitions by assignment. A `Scanner` reads all of a topic repeatedly, with long pauses in which the node must not run
out of memory for unsent answers.

Promises checked here: the answer to a fetch begins at or before the position and continues without a gap (dense
topics). It never goes beyond the high watermark in the same answer. It shows what was seen and acknowledged before
(`history`).
"""

from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.sim.clients.batches import Note, ReadBatch
from ottla.sim.clients.history import TopicPartition
from ottla.sim.clients.kafka import MOVED, KafkaClient
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError

BY_TOPIC_ID_SINCE = 13
SESSIONS_SINCE = 7
EPOCHS_SINCE = 12
EARLIEST = -2
TRY_AGAIN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
SESSION_LOST = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})


class AbortedProducers:
    """Determines which records a reader of committed records skips in one answer: `listed` are its aborted
    transactions.

    Source: Kafka's CompletedFetch.java.
    """

    def __init__(self, listed: list[Any]) -> None:
        self._to_come = sorted(listed, key=_first_offset, reverse=True)
        self._aborted: set[int] = set()

    def hide(self, batch: ReadBatch) -> bool:
        """Whether the records of this batch, the next one in the answer, were aborted."""
        while self._to_come and self._to_come[-1].first_offset <= batch.last_offset:
            self._aborted.add(self._to_come.pop().producer_id)
        if batch.commits is False:
            self._aborted.discard(batch.producer_id)
        return batch.transactional and batch.producer_id in self._aborted


def _first_offset(aborted: Any) -> int:
    return aborted.first_offset


class FetchSession:
    """A fetch session with one node (KIP-227): its id, the epoch of the next request, and its partitions."""

    __slots__ = ("epoch", "id", "partitions")

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self.partitions: set[TopicPartition] = set()


class Reader(KafkaClient):
    """Fetches `positions`. Subclasses fill them and define `read`. `committed_only`: the isolation level."""

    committed_only = False
    hurries = False

    def __init__(self, workload: WorkloadView, name: str, topics: tuple[str, ...]) -> None:
        super().__init__(workload, name, topics)
        self.positions: dict[TopicPartition, int] = {}
        self.gap_us: Micros = self.rng.choice((20, 60, 150)) * MS
        self.max_wait_ms = self.rng.choice((0, 50, 200))
        self.max_bytes = self.rng.choice((600, 8_000, 1 << 20))
        self.uses_sessions = self.versions[ApiKey.FETCH] >= SESSIONS_SINCE and self.rng.random() < 0.6
        self.fetching = False
        self.uses_epochs = self.versions[ApiKey.FETCH] >= EPOCHS_SINCE and self.rng.random() < 0.5
        self.epochs: dict[TopicPartition, tuple[int, int]] = {}
        """The position after the last batch that was read, and that batch's leader epoch (KIP-320)."""
        self._sessions: dict[Endpoint | None, FetchSession] = {}
        """By the node they are with."""

    # ---- for subclasses --------------------------------------------------------------------------------------------

    def read(self, where: TopicPartition, note: Note, batch: ReadBatch) -> None:
        """Called for each record that was read."""

    def passed_over(self, where: TopicPartition, batch: ReadBatch) -> None:
        """Called for a batch of an aborted transaction, whose records do not count."""

    def reset_to(self, where: TopicPartition, offset: int) -> None:
        """Continue at `offset`, because the log starts there."""
        if where in self.positions:
            self.positions[where] = offset

    def may_fetch(self) -> bool:
        return True

    def hurry(self) -> None:
        """Read in large pieces from now on, because the run is ending."""
        self.hurries = True
        self.gap_us = 20 * MS
        self.max_bytes = 1 << 20

    # ---- fetching --------------------------------------------------------------------------------------------------

    def gone(self) -> None:
        self.fetching = False
        self._sessions.clear()

    def _of_one_leader(self, partitions: list[TopicPartition]) -> tuple[Endpoint | None, list[TopicPartition]]:
        """Return a node, and those of these partitions that it leads: all of them if there is one node."""
        if not self.follows or not partitions:
            return None, partitions
        leader = self.leader(self.rng.choice(partitions))
        return leader, [where for where in partitions if self.leader(where) == leader]

    def fetch(self) -> None:
        """Fetch once from one node, for all positions that it leads; repeats by itself until there are none."""
        if self.fetching or self.connection is None or not self.may_fetch():
            return
        wanted = [where for where in self.positions if self.positions[where] >= 0 and where[0] in self.known]
        unknown = [where for where in self.positions if self.positions[where] < 0 and where[0] in self.known]
        if unknown:
            self._list_earliest(unknown)
        if not wanted:
            return
        self.fetching = True
        leader, led = self._of_one_leader(wanted)
        asked = {where: self.positions[where] for where in led}
        session = self._sessions.setdefault(leader, FetchSession())
        request = self._fetch_request(asked, session)
        self.request(ApiKey.FETCH, request, self._fetched, asked, session, request.max_bytes, at=leader)

    def _fetch_request(self, asked: dict[TopicPartition, int], session: FetchSession) -> FetchRequest:
        by_id = self.versions[ApiKey.FETCH] >= BY_TOPIC_ID_SINCE
        topics: dict[str, FetchTopic] = {}
        for (topic, index), position in asked.items():
            entry = topics.get(topic)
            if entry is None:
                entry = topics[topic] = FetchTopic(partitions=[])
                if by_id:
                    entry.topic_id = self.known[topic].topic_id
                else:
                    entry.topic = topic
            entry.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=self._leader_epoch((topic, index)),
                    fetch_offset=position,
                    last_fetched_epoch=self._last_epoch((topic, index), position),
                    partition_max_bytes=self.max_bytes,
                )
            )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=self.max_wait_ms,
            min_bytes=1,
            max_bytes=self.max_bytes * 2,
            isolation_level=self.committed_only,
            session_id=session.id,
            session_epoch=session.epoch if self.uses_sessions else -1,
            topics=list(topics.values()),
        )
        if session.id:
            request.forgotten_topics_data = self._forgotten(session, asked, by_id)
        session.partitions = set(asked)
        return request

    def _leader_epoch(self, where: TopicPartition) -> int:
        partitions = self.known[where[0]].partitions
        return partitions[where[1]].leader_epoch if self.uses_epochs and where[1] < len(partitions) else -1

    def _last_epoch(self, where: TopicPartition, position: int) -> int:
        behind, epoch = self.epochs.get(where, (-1, -1))
        return epoch if self.uses_epochs and behind == position else -1

    def _forgotten(self, session: FetchSession, asked: dict[TopicPartition, int], by_id: bool) -> list[ForgottenTopic]:
        forgotten: list[ForgottenTopic] = []
        for topic, index in sorted(session.partitions - asked.keys()):
            if topic in self.known:
                entry = ForgottenTopic(partitions=[index])
                if by_id:
                    entry.topic_id = self.known[topic].topic_id
                else:
                    entry.topic = topic
                forgotten.append(entry)
        return forgotten

    def _fetched(self, message: Any, asked: dict[TopicPartition, int], session: FetchSession, max_bytes: int) -> None:
        if message is None:
            return
        self.fetching = False
        sizes = [len(part.records) for topic in message.responses for part in topic.partitions if part.records]
        if sum(sizes) > max_bytes and len(sizes) > 1:  # the first batch is returned whatever its size
            raise InvariantError(f"{self.name}: Fetch asks for {max_bytes} bytes and gets {sizes}")
        if message.error_code in SESSION_LOST:
            session.__init__()
        elif message.error_code:
            raise InvariantError(f"{self.name}: Fetch answers {message.error_code}")
        else:
            self._follow_session(message, session)
            by_id = self.versions[ApiKey.FETCH] >= BY_TOPIC_ID_SINCE
            for topic in message.responses:
                name = self.topic_name(topic, by_id, "topic")
                for part in topic.partitions:
                    self._take((name, part.partition_index), part, asked)
        self.after(self.rng.randrange(1, 2 * self.gap_us), self.fetch)

    def _follow_session(self, message: Any, session: FetchSession) -> None:
        if not self.uses_sessions:
            return
        if message.session_id == 0:
            session.__init__()
        else:
            if session.id and message.session_id != session.id:
                raise InvariantError(f"{self.name}: fetch session {session.id} answers as {message.session_id}")
            session.id = message.session_id
            session.epoch += 1

    def _take(self, where: TopicPartition, part: Any, asked: dict[TopicPartition, int]) -> None:
        if where not in asked:
            raise InvariantError(f"{self.name}: Fetch answers for {where}, which was not asked for")
        code = part.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(where, asked[where])
            return
        if code:
            if code not in TRY_AGAIN:
                raise InvariantError(f"{self.name}: Fetch of {where} answers {code}")
            if code in STALE_METADATA:
                self.after(100 * MS, self._refresh_again)
            elif code in MOVED:
                self.look_again()
            return
        if part.diverging_epoch is not None:
            self._diverged(where, part.diverging_epoch)
            return
        if not part.log_start_offset <= part.last_stable_offset <= part.high_watermark and part.log_start_offset >= 0:
            raise InvariantError(
                f"{self.name}: {where} states log start {part.log_start_offset}, last stable offset "
                f"{part.last_stable_offset}, high watermark {part.high_watermark}"
            )
        if self.positions.get(where) == asked[where] and part.records is not None:
            self._take_records(where, part, asked[where])

    def _take_records(self, where: TopicPartition, part: Any, position: int) -> None:
        dense = self.history.is_dense(where[0])
        expected: int | None = None
        aborted, bound = AbortedProducers([]), part.high_watermark
        if self.committed_only:
            aborted, bound = AbortedProducers(part.aborted_transactions), part.last_stable_offset
        for batch in self.batches_of(part) or ():
            if batch.last_offset >= bound:
                raise InvariantError(f"{self.name}: {where} shows {batch.last_offset} beyond {bound}")
            if expected is None and (batch.last_offset < position or (dense and batch.base_offset > position)):
                raise InvariantError(
                    f"{self.name}: {where} gives {batch.base_offset}..{batch.last_offset} at {position}"
                )
            if expected is not None and (batch.base_offset < expected or (dense and batch.base_offset > expected)):
                raise InvariantError(f"{self.name}: {where} goes from {expected} on to {batch.base_offset}")
            expected = batch.last_offset + 1
            self.history.see(self.name, where, batch)
            if aborted.hide(batch):
                self.passed_over(where, batch)
            else:
                for note in batch.notes:
                    if note.offset >= position:
                        self.read(where, note, batch)
            self.positions[where] = expected
            self.epochs[where] = (expected, batch.leader_epoch)

    def _diverged(self, where: TopicPartition, diverging: Any) -> None:
        """Handle a log that diverges from the records read. That is legal only if power cuts may lose records, and for
        a replica that is now a follower."""
        if self.follows:
            self.look_again()
            return
        if not self.history.losses:
            raise InvariantError(
                f"{self.name}: {where} ends epoch {diverging.epoch} at {diverging.end_offset}, more was read"
            )
        self.world.trace.add(self.name, f"{where[0]}-{where[1]} diverges at {diverging.end_offset}")
        self.epochs.pop(where, None)
        self.positions[where] = min(self.positions.get(where, 0), diverging.end_offset)

    def _out_of_range(self, where: TopicPartition, position: int) -> None:
        """Handle an offset out of range. That is legal if records may have been deleted or lost with the power, and for
        a replica that is now a follower and lags (KIP-392)."""
        if self.follows:
            self.look_again()
            return
        if self.history.is_dense(where[0]):
            raise InvariantError(f"{self.name}: {where} has nothing at {position}")
        self.positions[where] = -1

    # ---- where a log starts ----------------------------------------------------------------------------------------

    def _list_earliest(self, partitions: list[TopicPartition]) -> None:
        topics: dict[str, ListOffsetsTopic] = {}
        leader, led = self._of_one_leader(partitions)
        for topic, index in led:
            entry = topics.setdefault(topic, ListOffsetsTopic(topic, []))
            entry.partitions.append(ListOffsetsPartition(index, -1, EARLIEST))
        request = ListOffsetsRequest(replica_id=-1, topics=list(topics.values()), timeout_ms=1_000)
        self.request(ApiKey.LIST_OFFSETS, request, self._listed, at=leader)

    def _listed(self, message: Any) -> None:
        if message is None:
            return
        for topic in message.topics:
            for part in topic.partitions:
                where = (topic.name, part.partition_index)
                if part.error_code == 0 and self.positions.get(where, 0) < 0:
                    self.reset_to(where, part.offset)
                elif part.error_code and part.error_code not in TRY_AGAIN:
                    raise InvariantError(f"{self.name}: ListOffsets of {where} answers {part.error_code}")
                elif part.error_code in MOVED:
                    self.look_again()
        self.after(self.gap_us, self.fetch)


class Scanner(Reader):
    """Reads a whole topic again and again, sometimes without receiving the answers that it requested."""

    def __init__(self, workload: WorkloadView, name: str, topic: str) -> None:
        super().__init__(workload, name, (topic,))
        self.topic = topic
        self.running_scan = True
        self.after(self.rng.randrange(500 * MS), self.connect)
        self.after(2_000 * MS, self._dawdle)
        self.after(4_000 * MS, self._from_the_start)

    def ready(self) -> None:
        for part in self.known[self.topic].partitions:
            self.positions.setdefault((self.topic, part.partition_index), -1)
        self.fetch()

    def _from_the_start(self) -> None:
        if self.running_scan:
            for where in self.positions:
                self.positions[where] = -1
            self.fetch()
            self.after(self.rng.randrange(2_000 * MS, 6_000 * MS), self._from_the_start)

    def _dawdle(self) -> None:
        """Receive nothing from the connection for a while: a slow reader."""
        if self.running_scan and self.connection is not None:
            self.connection.to_client.hold()
            self.after(self.rng.randrange(2_000 * MS), self._hurry, self.connection.identity)
        if self.running_scan:
            self.after(self.rng.randrange(8_000 * MS), self._dawdle)

    def _hurry(self, identity: int) -> None:
        if self.connection is not None and self.connection.identity == identity:
            self.connection.to_client.release()
