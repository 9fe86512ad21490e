"""Joins a share group (KIP-932) and acquires no more records than the caller asks for, which librdkafka's consumer
cannot do.

It handles membership, share sessions, acknowledgements and the renewal of locks (KIP-1222). A fetched record counts as
delivered, so each `poll` says how many records it wants. Version 2 of ShareFetch obeys that limit (KIP-1206); an older
broker may return a whole batch. The caller of `poll` acknowledges the records.

A thread sends heartbeats over connections of its own and renews the locks of acquired records, so that a person may
take any time over a record.

Invariants: one request at a time over the reading connections. Acquired records are kept by (topic id, partition,
offset), and dropped with their session: the broker releases them then.

Sources: KIP-932, KIP-1206, KIP-1222; Kafka's ShareConsumeRequestManager.java, ShareSessionHandler.java.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self, TypeAlias

from ottla.client.client import Client
from ottla.client.connection import Connection
from ottla.client.errors import BadResponseError, BrokerError, ClientError, check
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_acknowledge as said
from ottla.protocol.messages import share_fetch as asked
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.compression import READER_BYTES_MAX
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import Record, decode_records
from ottla.protocol.wire import Message

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
"""Acknowledgement types, as in requests."""

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = (1 << 31) - 1
RECORD_LIMIT: Final = 1
"""share_acquire_mode: at most as many records as requested (KIP-1206)."""

FETCH_BYTES_MAX: Final = 50 << 20
LOOK_S: Final = 0.25
"""How often the thread checks whether a heartbeat or a renewal is due."""

JOIN_S: Final = 30.0
JOIN_AGAIN_S: Final = 0.1
MOVED_S: Final = 0.1
"""The pause before looking up a partition again whose leader has moved."""

_JOIN_AGAIN = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
_SESSION_LOST = {ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH}
_MOVED = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

TopicIdPartition: TypeAlias = tuple[bytes, int]
"""Topic id and partition index."""


class Delivered(NamedTuple):
    """A record that this member has acquired. `timestamp_type`: 0 create time, 1 log append time."""

    topic: str
    place: TopicIdPartition
    record: Record
    timestamp_type: int
    delivery_count: int


class _Session:
    """The share session with one node."""

    __slots__ = ("epoch", "places")

    def __init__(self) -> None:
        self.epoch = 0
        self.places: set[TopicIdPartition] = set()

    def advance(self) -> None:
        self.epoch = self.epoch + 1 if self.epoch < EPOCH_MAX else 1


class ShareMember:
    """A member of a share group: `with ShareMember(connect, "jobs", ["orders"]) as member: member.poll(10)`.

    `connect` returns a new Client; the member opens two and closes them. The constructor joins the group. Every method
    raises ClientError. After a failure other than BrokerError, the caller may poll again: the member opens a new
    session.
    """

    def __init__(self, connect: Callable[[], Client], group: str, topics: Sequence[str]) -> None:
        self.group, self.topics = group, list(topics)
        self._member_id = str(uuid.uuid4())
        self._reading, self._beating = connect(), connect()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._epoch = JOIN_EPOCH
        self._interval_s = 5.0
        self._assigned: frozenset[TopicIdPartition] = frozenset()
        self._failure: BrokerError | None = None
        self._names: dict[bytes, str] = {}
        self._sessions: dict[int, _Session] = {}
        self._turn = 0
        self._held: dict[TopicIdPartition, dict[int, int]] = {}
        """Offset to the node that returned the record, by partition."""
        self._renew_at = 0.0
        self._renews_every_s = 10.0
        try:
            self._join()
        except BaseException:
            self._close_clients()
            raise
        self._thread = threading.Thread(target=self._keep, name=f"member of {group}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group; acquired records become available to other members at once. Raises nothing."""
        self._stopped.set()
        self._thread.join()
        with self._lock, suppress(ClientError):
            for node_id, session in self._sessions.items():
                if session.epoch:
                    farewell = said.ShareAcknowledgeRequest(self.group, self._member_id, FINAL_EPOCH)
                    self._reading.broker(node_id).send(farewell)
        with suppress(ClientError):
            farewell = ShareGroupHeartbeatRequest(self.group, self._member_id, LEAVE_EPOCH)
            self._beating.send_to_coordinator(self.group, farewell)
        self._close_clients()

    def _close_clients(self) -> None:
        self._reading.close()
        self._beating.close()

    # ---- records ---------------------------------------------------------------------------------------------------

    def poll(self, max_records: int, max_wait_ms: int = 500) -> list[Delivered]:
        """At most `max_records` records, all from one node; an empty list if none arrived in time."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            nodes = self._nodes()
            if nodes:
                self._turn += 1
                node_id = sorted(nodes)[self._turn % len(nodes)]
                return self._fetch(node_id, nodes[node_id], max_records, max_wait_ms // len(nodes))
        self._stopped.wait(min(max_wait_ms / 1000, LOOK_S))
        return []

    def acknowledge(self, records: Iterable[Delivered], kind: int) -> list[tuple[Delivered, BrokerError]]:
        """Acknowledge records as ACCEPT, RELEASE or REJECT. Returns the records that were rejected because their lock
        had expired; the broker delivers them again."""
        by_place: dict[TopicIdPartition, list[Delivered]] = {}
        for each in records:
            by_place.setdefault(each.place, []).append(each)
        refused: list[tuple[Delivered, BrokerError]] = []
        with self._lock:
            offsets = {place: [each.record.offset for each in given] for place, given in by_place.items()}
            for place, error in self._say(offsets, kind).items():
                refused += [(each, error) for each in by_place[place]]
        return refused

    def _nodes(self) -> dict[int, set[TopicIdPartition]]:
        """The assigned partitions, by the node that leads them."""
        leaders: dict[TopicIdPartition, int] = {}
        for name in self.topics:
            with suppress(BrokerError):
                topic = self._reading.known_topic(name)
                self._names[topic.topic_id] = name
                leaders.update({(topic.topic_id, index): leader for index, leader in enumerate(topic.leaders)})
        nodes: dict[int, set[TopicIdPartition]] = {}
        for place in self._assigned:
            leader = leaders.get(place, -1)
            if leader >= 0:
                nodes.setdefault(leader, set()).add(place)
            else:
                self._reading.forget_topics()  # deleted, grown or moved: the next poll looks it up
        return nodes

    def _fetch(
        self, node_id: int, places: set[TopicIdPartition], max_records: int, max_wait_ms: int
    ) -> list[Delivered]:
        session = self._sessions.setdefault(node_id, _Session())
        request = asked.ShareFetchRequest(
            self.group,
            self._member_id,
            session.epoch,
            max_wait_ms,
            1,
            FETCH_BYTES_MAX,
            max_records,
            max_records,
            topics=[
                asked.FetchTopic(topic_id, [asked.FetchPartition(index) for index in indexes])
                for topic_id, indexes in _by_topic(places - session.places)
            ],
            forgotten_topics_data=[
                asked.ForgottenTopic(topic_id, indexes) for topic_id, indexes in _by_topic(session.places - places)
            ],
        )
        answer = self._ask(node_id, request)
        if answer is None:
            return []
        session.places = places
        now = time.monotonic()
        self._renews_every_s = max(answer.acquisition_lock_timeout_ms / 3000, LOOK_S)
        if not any(self._held.values()):
            self._renew_at = now + self._renews_every_s
        got: list[Delivered] = []
        gaps: dict[TopicIdPartition, list[int]] = {}
        for topic in answer.responses:
            for part in topic.partitions:
                place = bytes(topic.topic_id), part.partition_index
                if part.error_code in _MOVED:
                    self._reading.forget_topics()
                    session.places = session.places - {place}
                    self._stopped.wait(MOVED_S)
                    continue
                check(part.error_code, f"{self._names[place[0]]}-{place[1]}")
                acquired = _acquired(part)
                self._held.setdefault(place, {}).update(dict.fromkeys(acquired, node_id))
                got += self._delivered(place, part, acquired)
                if acquired:
                    gaps[place] = list(acquired)
        if gaps:
            self._say(gaps, GAP)
        return got

    def _delivered(
        self, place: TopicIdPartition, part: asked.PartitionData, acquired: dict[int, int]
    ) -> list[Delivered]:
        """The acquired records of a partition; leaves in `acquired` the offsets that have no record."""
        got: list[Delivered] = []
        name = self._names[place[0]]
        records = part.records if acquired and part.records is not None else b""
        try:
            for header, position in iter_batches(records):
                if header.is_control:
                    continue
                for record in decode_records(records, position, max_bytes=READER_BYTES_MAX):
                    count = acquired.pop(record.offset, None)
                    if count is not None:
                        got.append(Delivered(name, place, record, header.timestamp_type, count))
        except CorruptRecordsError as error:
            if not acquired:
                return got  # an unreadable batch that this member has not acquired
            raise BadResponseError(
                f"{name}-{place[1]} can't be read from offset {min(acquired)} on: {error}."
            ) from error
        return got

    def _ask(self, node_id: int, request: Message) -> Any:
        """The node's answer in this session; None if the session was lost, and with it the acquired records."""
        connection: Connection | None = None
        try:
            connection = self._reading.broker(node_id)
            if request.API_KEY == asked.ShareFetchRequest.API_KEY and connection.version_of(request.API_KEY) >= 2:
                request.share_acquire_mode = RECORD_LIMIT  # type: ignore[attr-defined]
            answer = connection.send(request)
        except ClientError:
            if connection is not None:
                self._reading.drop(connection)
            self._reading.forget_topics()  # the node may be dead, and other nodes lead its partitions
            self._lose(node_id)
            raise
        if answer.error_code in _SESSION_LOST:
            self._lose(node_id)
            return None
        check(answer.error_code, f"share group {self.group}", answer.error_message)
        self._sessions[node_id].advance()
        return answer

    def _lose(self, node_id: int) -> None:
        self._sessions.pop(node_id, None)
        self._held = {
            place: {offset: holder for offset, holder in held.items() if holder != node_id}
            for place, held in self._held.items()
        }

    def _say(self, offsets: dict[TopicIdPartition, list[int]], kind: int) -> dict[TopicIdPartition, BrokerError]:
        """Send acknowledgements, and drop records that are no longer acquired; returns the partitions with an error."""
        refused: dict[TopicIdPartition, BrokerError] = {}
        by_node: dict[int, dict[TopicIdPartition, list[int]]] = {}
        for place, given in offsets.items():
            for offset in given:
                held = self._held.get(place, {})
                node_id = held.get(offset) if kind == RENEW else held.pop(offset, None)
                if node_id is None:
                    refused[place] = BrokerError(ErrorCode.INVALID_RECORD_STATE, f"offset {offset}")
                else:
                    by_node.setdefault(node_id, {}).setdefault(place, []).append(offset)
        for node_id, places in by_node.items():
            topics: dict[bytes, list[said.AcknowledgePartition]] = {}
            for (topic_id, index), given in places.items():
                batches = [said.AcknowledgementBatch(first, last, [kind]) for first, last in _runs(given)]
                topics.setdefault(topic_id, []).append(said.AcknowledgePartition(index, batches))
            if kind == RENEW and self._reading.broker(node_id).version_of(said.ShareAcknowledgeRequest.API_KEY) < 2:
                continue
            epoch = self._sessions[node_id].epoch
            request = said.ShareAcknowledgeRequest(
                self.group,
                self._member_id,
                epoch,
                kind == RENEW,
                [said.AcknowledgeTopic(topic_id, parts) for topic_id, parts in topics.items()],
            )
            answer = self._ask(node_id, request)
            if answer is None:
                refused.update({place: BrokerError(ErrorCode.SHARE_SESSION_NOT_FOUND, self.group) for place in places})
                continue
            for topic in answer.responses:
                for part in topic.partitions:
                    if part.error_code:
                        place = (bytes(topic.topic_id), part.partition_index)
                        where = f"{self._names[place[0]]}-{place[1]}"
                        refused[place] = BrokerError(part.error_code, where, part.error_message)
        return refused

    # ---- heartbeats and renewals -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Send heartbeats and renew locks until the member is closed."""
        beat_at = time.monotonic() + self._interval_s
        while not self._stopped.wait(LOOK_S):
            try:
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + self._interval_s
                    self._beat()
                if time.monotonic() >= self._renew_at:
                    self._renew()
            except BrokerError as error:
                if not error.retriable:
                    self._failure = error
                    return
            except ClientError:
                pass  # no broker answers: the next heartbeat retries, or `poll` raises

    def _join(self) -> None:
        """Send the first heartbeat; retries while the group's coordinator is being created or loaded."""
        until = time.monotonic() + JOIN_S
        while True:
            try:
                return self._beat()
            except BrokerError as error:
                if not error.retriable or time.monotonic() > until:
                    raise
            time.sleep(JOIN_AGAIN_S)

    def _beat(self) -> None:
        joins = self._epoch == JOIN_EPOCH
        request = ShareGroupHeartbeatRequest(
            self.group, self._member_id, self._epoch, None, self.topics if joins else None
        )
        answer = self._beating.send_to_coordinator(self.group, request)
        if answer.error_code in _JOIN_AGAIN and not joins:
            self._epoch = JOIN_EPOCH
            self._beat()
            return
        check(answer.error_code, f"share group {self.group}", answer.error_message)
        self._epoch = answer.member_epoch
        self._interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            self._assigned = frozenset(
                (bytes(each.topic_id), index)
                for each in answer.assignment.topic_partitions
                for index in each.partitions
            )

    def _renew(self) -> None:
        """Renew the locks of acquired records. If the group or broker has no renewals, they expire, and `acknowledge`
        reports it."""
        with self._lock:
            self._renew_at = time.monotonic() + self._renews_every_s
            held = {place: sorted(offsets) for place, offsets in self._held.items() if offsets}
            with suppress(ClientError):
                self._say(held, RENEW)


def _acquired(part: asked.PartitionData) -> dict[int, int]:
    """The delivery count of each acquired offset."""
    return {
        offset: run.delivery_count
        for run in part.acquired_records
        for offset in range(run.first_offset, run.last_offset + 1)
    }


def _by_topic(places: Iterable[TopicIdPartition]) -> list[tuple[bytes, list[int]]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(places):
        topics.setdefault(topic_id, []).append(index)
    return list(topics.items())


def _runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """The first and last offset of each run of consecutive offsets."""
    runs: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if runs and runs[-1][1] == offset - 1:
            runs[-1] = (runs[-1][0], offset)
        else:
            runs.append((offset, offset))
    return runs
