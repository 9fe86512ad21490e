"""Fetch, key 1, versions 4 to 18: read record batches, waiting for them if asked to.

The handler finds or opens the fetch session and reads each partition up to the client's isolation level. It answers
when `min_bytes` can be read, a partition has an error, or `max_wait_ms` is over. Records leave as file slices: at most
as many bytes as the request and the node's `fetch.max.bytes` allow, but at least the first batch (KIP-74).

Versions: 5 log_start_offset, 7 sessions (KIP-227), 9 leader epochs, 11 rack, 12 flexible and diverging epochs
(KIP-595), 13 topics by id, 15 the replica's state in a tag, 16 leader hints (KIP-951), 17 directory ids, 18 the
replica's high watermark.

A follower reads to the end of the log; its fetch offset reports its progress. Only a node of the cluster that has a
replica of the partition may be one. Any other client that names a replica id gets NOT_LEADER_OR_FOLLOWER or
UNKNOWN_LEADER_EPOCH if it has ClusterAction, and TOPIC_AUTHORIZATION_FAILED if not.

If replica.selector.class says so, a consumer that names its rack is referred to an in-sync replica there. Any replica
answers consumers up to its own high watermark (KIP-392). Followers that are not in sync may be throttled (KIP-73);
records held back that way satisfy no waiting fetch.

Not supported: nothing.

Sources: KafkaApis.handleFetchRequest, ReplicaManager.fetchMessages, DelayedFetch, KIP-320 for the epochs.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.fetch_reading import (
    ENDPOINTS_SINCE,
    Fetch,
    begin,
    count_throttled,
    look_at_throttle,
    read_all,
    read_one,
    stands,
)
from ottla.broker.api_spec import ApiSpec
from ottla.broker.channel import Channel
from ottla.broker.cluster.members import Member
from ottla.broker.effects import Parked, Part
from ottla.broker.fetch.answer import PARTITIONS_AT_ONCE, PartitionAnswer, encode_fetch_response, encoded_in_slices
from ottla.broker.fetch.sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchPartition, TopicKey
from ottla.broker.observations.slowest import Awaited
from ottla.broker.parking import ParkedWork
from ottla.broker.partitions.leadership import NOT_SAID
from ottla.broker.partitions.partition import LOOK_AGAIN
from ottla.broker.requests import Decoded, Request
from ottla.broker.slices import SubRequest, Work, cut
from ottla.log.answers import Isolation
from ottla.machine import Millis, Ticket
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import decode_request_header
from ottla.protocol.messages.fetch import FetchRequest, FetchTopic

if TYPE_CHECKING:
    from ottla.broker.core import Core
    from ottla.broker.partitions.partition import Partition


SPEC = ApiSpec(
    key=ApiKey.FETCH,
    versions=(4, 18),
    acl=(
        (Operation.READ, ResourceType.TOPIC),
        (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
    needs_lease=True,
    between_nodes=True,
)

_KEY = int(SPEC.key)

_SESSIONS_SINCE = 7
_BY_TOPIC_ID_SINCE = 13

_NONE = ErrorCode.NONE
_LOG_END, _TXN_COMMITTED = Isolation.LOG_END, Isolation.TXN_COMMITTED


class ParkedFetch(ParkedWork):
    """A fetch that waits for `missing` more bytes in any of its partitions."""

    __slots__ = ("fetch", "missing", "node", "watched")

    def __init__(self, node: Core, fetch: Fetch, missing: int, watched: list[Partition]) -> None:
        self.node = node
        self.fetch = fetch
        self.missing = missing
        self.watched = watched

    def grew(self, size: int) -> bool:
        self.missing -= size
        return self.missing <= 0

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        self.abandon(ticket)
        look_at_throttle(self.node, now, self.fetch)
        answers, size, _ = read_all(self.node, self.fetch)
        if size and self.missing > 0:
            self._note_held_back(now, ticket, size)
        self.node.parking.reply(ticket, finish(self.node, now, self.fetch, answers))

    def _note_held_back(self, now: Millis, ticket: Ticket, size: int) -> None:
        """The time is up, and these bytes have waited for more, unless they have just arrived."""
        request, record = self.node.parking.request_of(ticket), self.fetch.channel.record
        if request is not None and self.fetch.isolation is not _LOG_END and size < record.min_bytes:
            record.held_back += 1
            self.node.observations.waited(now, request, Awaited.MIN_BYTES)

    def ready(self, now: Millis, ticket: Ticket) -> None:
        self.at_deadline(now, ticket)

    def abandon(self, ticket: Ticket) -> None:
        for partition in self.watched:
            partition.unwatch(ticket)


class ParkedCommittedFetch(ParkedFetch):
    """The same for a reader of committed records: records hidden by an open transaction do not count until it ends."""

    __slots__ = ("forced", "hidden", "min_bytes", "stable")

    def __init__(self, node: Core, fetch: Fetch, missing: int, watched: list[Partition], min_bytes: int) -> None:
        super().__init__(node, fetch, missing, watched)
        self.min_bytes = min_bytes
        self.stable = self._stable()
        self.hidden = 0
        self.forced = False

    def _stable(self) -> int:
        return sum(partition.log.last_stable_offset for partition in self.watched)

    def grew(self, size: int) -> bool:
        if size >= LOOK_AGAIN:
            self.forced = True
            return True
        self.hidden += size
        stable = self._stable()
        if stable == self.stable:
            return False
        self.stable = stable
        size, self.hidden = self.hidden, 0
        return super().grew(size)

    def ready(self, now: Millis, ticket: Ticket) -> None:
        answers, size, hurry = read_all(self.node, self.fetch)
        if hurry or self.forced or size >= self.min_bytes:
            self.abandon(ticket)
            self.node.parking.reply(ticket, finish(self.node, now, self.fetch, answers))
        else:
            self.missing = self.min_bytes - size


def receive(
    node: Core,
    now: Millis,
    channel: Channel,
    version: int,
    correlation_id: int,
    frame: memoryview,
    decoded: Decoded = None,
) -> list[Part] | Parked | None:
    """Serve one Fetch frame; see `Node.receive`. Raises MalformedFrameError."""
    if decoded is None:
        header, position = decode_request_header(frame)
        body, _ = FetchRequest.decode(frame, position, version)
    else:
        header, body = decoded
    fetch = Fetch(channel, version, header, body, node.settings["fetch.max.bytes"])
    begin(node, now, fetch, body.rack_id)
    channel.record.fetches += 1
    if node.throttle.quotas is not None and fetch.isolation is not _LOG_END:
        fetch.max_bytes = node.throttle.fetched_max(channel, fetch.client_id, fetch.max_bytes)
    if decoded is not None and sum(len(topic.partitions) for topic in body.topics) > PARTITIONS_AT_ONCE:
        request = Request(channel, _KEY, version, correlation_id, header.client_id, now, None)
        return node.slices.begin(request, _named_in_slices(node, request, fetch, body), is_long=True)
    error = _resolve_session(node, now, fetch, body, _named(body.topics, version))
    if error is not None:
        return _refused(node, now, fetch, error)
    if len(fetch.partitions) > PARTITIONS_AT_ONCE:
        request = Request(channel, _KEY, version, correlation_id, header.client_id, now, None)
        return node.slices.begin(request, _read_in_slices(node, request, fetch, body), is_long=True)
    look_at_throttle(node, now, fetch)
    answers, size, hurry = read_all(node, fetch)
    fetch.new_since = None
    min_bytes = min(body.min_bytes, fetch.max_bytes)
    if hurry or size >= min_bytes or body.max_wait_ms <= 0 or not fetch.partitions:
        return finish(node, now, fetch, answers)
    request = Request(channel, _KEY, version, correlation_id, header.client_id, now, None)
    channel.record.waits_for(body.min_bytes, body.max_wait_ms)
    watched = _to_watch(fetch, answers)
    if fetch.isolation is _TXN_COMMITTED:
        parked: ParkedFetch = ParkedCommittedFetch(node, fetch, min_bytes - size, watched, min_bytes)
    else:
        parked = ParkedFetch(node, fetch, min_bytes - size, watched)
    return Parked(_park(request, now + body.max_wait_ms, parked))


def _to_watch(fetch: Fetch, answers: list[PartitionAnswer]) -> list[Partition]:
    """The partitions in which new records may satisfy the fetch; throttled ones may not."""
    standing = [asked.caught_up_with[0] for asked in fetch.partitions if asked.caught_up_with is not None]
    return standing + [
        answer.partition for answer in answers if answer.partition is not None and not answer.is_held_back
    ]


def _park(request: Request, deadline: Millis, parked: ParkedFetch) -> Ticket:
    node, fetch = parked.node, parked.fetch
    is_follower = fetch.isolation is _LOG_END
    ticket = node.parking.park(request, deadline, parked)
    for partition in parked.watched:
        partition.watch(ticket, to_the_end=is_follower)
    if is_follower:
        node.replication.fetch_waits.waits(request.now, fetch.replica_id, ticket, deadline)
    return ticket


# ---- more partitions than fit into one slice -----------------------------------------------------------------------


class ParkedSlicedFetch(ParkedFetch):
    """The wait of a fetch that is served in slices: afterwards they read everything once more."""

    __slots__ = ()

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        self.abandon(ticket)
        self.node.parking.answer(now, ticket, True)


def _named_in_slices(node: Core, request: Request, fetch: Fetch, body: FetchRequest) -> Work:
    asked: dict[tuple[TopicKey, int], FetchPartition] = {}
    for some in cut(body.topics, PARTITIONS_AT_ONCE):
        asked.update(_named(some, fetch.version))
        yield
    error = _resolve_session(node, request.now, fetch, body, asked)
    if error is not None:
        return _refused(node, request.now, fetch, error)
    return (yield from _read_in_slices(node, request, fetch, body))


def _read_in_slices(node: Core, request: Request, fetch: Fetch, body: FetchRequest) -> Work:
    look_at_throttle(node, request.now, fetch)
    answers, size, hurry = yield from _all_in_slices(node, fetch)
    fetch.new_since = None
    missing = min(body.min_bytes, fetch.max_bytes) - size
    if not hurry and missing > 0 and body.max_wait_ms > 0 and fetch.partitions:
        wait = partial(_wait, node, fetch, answers, missing, request.now + body.max_wait_ms)
        if (yield SubRequest(request, None, wait)):
            answers, _, _ = yield from _all_in_slices(node, fetch)
    if node.throttle.quotas is not None:
        throttle_ms = yield SubRequest(request, None, lambda piece: _charge(node, fetch, answers, piece.now))
        if throttle_ms:
            return _throttled(node, fetch, throttle_ms)
    told: list[PartitionAnswer] = []
    for first in range(0, len(answers), PARTITIONS_AT_ONCE):
        told += tell(node, request.now, fetch, answers[first : first + PARTITIONS_AT_ONCE])
        yield
    identity = 0 if fetch.fetch_session is None else fetch.fetch_session.identity
    endpoints = _endpoints(node, fetch, told) if fetch.version >= ENDPOINTS_SINCE else []
    return (yield from encoded_in_slices(fetch.version, fetch.correlation_id, identity, told, endpoints))


def _all_in_slices(node: Core, fetch: Fetch) -> Generator[None, Any, tuple[list[PartitionAnswer], int, bool]]:
    """As `read_all`."""
    answers: list[PartitionAnswer] = []
    size, hurry = 0, False
    for first in range(0, len(fetch.partitions), PARTITIONS_AT_ONCE):
        some = fetch.partitions[first : first + PARTITIONS_AT_ONCE]
        more, size, hurried = read_all(node, fetch, some, size)
        answers += more
        hurry = hurry or hurried
        yield
    return answers, size, hurry


def _wait(
    node: Core, fetch: Fetch, answers: list[PartitionAnswer], missing: int, deadline: Millis, piece: Request
) -> Parked | bool:
    """Wait, unless enough records have arrived since the partitions were read."""
    if any(asked.caught_up_with is not None and not stands(node, fetch, asked) for asked in fetch.partitions):
        return True
    for answer in answers:
        partition = answer.partition
        if partition is not None and (
            partition.log.high_watermark != answer.high_watermark or fetch.isolation is _LOG_END
        ):
            again = read_one(node, fetch, answer.asked, fetch.max_bytes, True)
            missing -= _length(again) - _length(answer)
            if missing <= 0 or again.error or again.diverging is not None:
                return True
    watched = _to_watch(fetch, answers)
    return Parked(_park(piece, deadline, ParkedSlicedFetch(node, fetch, missing, watched)))


def _length(answer: PartitionAnswer) -> int:
    return 0 if answer.records is None else answer.records.length


# ---- the answer ----------------------------------------------------------------------------------------------------


def finish(node: Core, now: Millis, fetch: Fetch, answers: list[PartitionAnswer]) -> list[Part]:
    """The parts of the answer."""
    if node.throttle.quotas is not None and (throttle_ms := _charge(node, fetch, answers, now)):
        return _throttled(node, fetch, throttle_ms)
    told = tell(node, now, fetch, answers)
    identity = 0 if fetch.fetch_session is None else fetch.fetch_session.identity
    endpoints = _endpoints(node, fetch, told) if fetch.version >= ENDPOINTS_SINCE else []
    return encode_fetch_response(fetch.version, fetch.correlation_id, _NONE, identity, told, endpoints)


def _charge(node: Core, fetch: Fetch, answers: list[PartitionAnswer], now: Millis) -> int:
    """For how long the client is throttled; a follower is not."""
    if fetch.isolation is _LOG_END:
        return 0
    return node.throttle.charge_fetch(now, fetch.channel, fetch.client_id, sum(map(_length, answers)))


def _throttled(node: Core, fetch: Fetch, throttle_ms: int) -> list[Part]:
    """The answer to a client that has used too much: nothing was read, and no session is opened (KIP-219)."""
    session, identity = fetch.fetch_session, 0
    if session is not None and fetch.incremental:
        identity = session.identity
    elif session is not None:
        node.fetch_sessions.close(session.identity)
    return encode_fetch_response(fetch.version, fetch.correlation_id, _NONE, identity, [], [], throttle_ms)


def _refused(node: Core, now: Millis, fetch: Fetch, error: ErrorCode) -> list[Part]:
    """The answer to a request for a session that there is not."""
    throttle_ms = node.throttle.charge(now, fetch.channel, fetch.client_id)
    node.observations.refused(now, fetch.channel, fetch.client_id, _KEY, error)
    return encode_fetch_response(fetch.version, fetch.correlation_id, error, 0, [], [], throttle_ms)


def tell(node: Core, now: Millis, fetch: Fetch, answers: list[PartitionAnswer]) -> list[PartitionAnswer]:
    """The client's answers for these partitions; an incremental answer leaves out those without changes."""
    if fetch.isolation is _LOG_END:
        count_throttled(node, answers)
    session = fetch.fetch_session
    if session is not None:
        told: list[PartitionAnswer] = []
        for answer in answers:
            asked, has_records = answer.asked, answer.records is not None
            news = asked.tell(
                answer.error,
                has_records,
                answer.high_watermark,
                answer.log_start_offset,
                answer.diverging is not None or answer.preferred_replica >= 0,
            )
            if news or not fetch.incremental:
                told.append(answer)
            if has_records and fetch.incremental:
                session.move_to_end(asked)
            if fetch.isolation is _LOG_END and not has_records and answer.partition is not None:
                asked.caught_up_with = answer.partition, answer.partition.partition_epoch
        answers = told
    for answer in answers:
        partition = answer.partition
        if partition is not None:
            traffic = partition.traffic
        else:
            traffic = node.metrics.traffic_asked_of(node.image.name_of(answer.asked.topic))
        traffic.fetch_requests += 1
        if answer.error:
            traffic.failed_fetch_requests += 1
            _note_error(node, now, fetch, answer)
        elif answer.records is not None and fetch.isolation is not _LOG_END:
            traffic.bytes_out += answer.records.length  # sent to clients: followers are not counted
    return answers


def _note_error(node: Core, now: Millis, fetch: Fetch, answer: PartitionAnswer) -> None:
    topic = answer.asked.topic
    name = topic if isinstance(topic, str) else node.image.name_of(topic)
    node.observations.refused(now, fetch.channel, fetch.client_id, _KEY, answer.error, name or "")


def _endpoints(node: Core, fetch: Fetch, told: list[PartitionAnswer]) -> list[Member]:
    """The addresses of the partitions' leaders, for a client that used an old epoch, or asked the wrong node."""
    leaders = [answer.current_leader[0] for answer in told if answer.current_leader is not None]
    return node.members.of(fetch.identity.address, leaders) if leaders else []


# ---- sessions ------------------------------------------------------------------------------------------------------


def _named(topics: list[FetchTopic], version: int) -> dict[tuple[TopicKey, int], FetchPartition]:
    """The requested partitions; if a partition is named twice, the last one counts."""
    asked: dict[tuple[TopicKey, int], FetchPartition] = {}
    for topic in topics:
        key = topic.topic_id if version >= _BY_TOPIC_ID_SINCE else topic.topic
        for part in topic.partitions:
            asked[(key, part.partition)] = FetchPartition(
                key,
                part.partition,
                part.fetch_offset,
                part.partition_max_bytes,
                max(part.current_leader_epoch, NOT_SAID),
                part.last_fetched_epoch,
                part.log_start_offset,
            )
    return asked


def _resolve_session(
    node: Core, now: Millis, fetch: Fetch, body: FetchRequest, asked: dict[tuple[TopicKey, int], FetchPartition]
) -> ErrorCode | None:
    """Set the partitions to read; opens, resumes or closes the session as in KIP-227."""
    by_id = fetch.version >= _BY_TOPIC_ID_SINCE
    sessions, epoch = node.fetch_sessions, body.session_epoch
    if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if body.session_id:
            sessions.close(body.session_id)
        if epoch == INITIAL_EPOCH and fetch.version >= _SESSIONS_SINCE:
            fetch.fetch_session = sessions.open(now, fetch.identity.address.connection_id, asked)
        fetch.partitions = list(asked.values())
        return None
    session = sessions.resume(now, fetch.identity.address.connection_id, body.session_id, epoch, by_id, len(asked))
    if isinstance(session, ErrorCode):
        return session
    forgotten = [
        (topic.topic_id if by_id else topic.topic, index)
        for topic in body.forgotten_topics_data
        for index in topic.partitions
    ]
    sessions.update(session, list(asked.values()), forgotten)
    fetch.partitions = list(session.partitions.values())
    if session.partitions:
        fetch.fetch_session, fetch.incremental = session, True
    else:
        sessions.close(session.identity)
    return None
