"""Produce, key 0, versions 3 to 13: append record batches to partitions.

The handler checks each partition's one batch and appends it. It answers at once (acks 0 and 1), or when the high
watermark covers the batch (acks all; also acks 1 if durability is fsync).

Versions: 5 log_start_offset in the answer, 7 zstd allowed, 8 record_errors and error_message, 9 flexible, 10 leader
hints (KIP-951), 11 and 12 KIP-890 error codes, 13 topics by id instead of by name.

A transactional batch that opens a transaction in its partition waits for the coordinator (KIP-890). Up to version 11
the coordinator is asked whether the partition was added; from version 12 on it is asked to add it.

Not supported: transactional batches in a request without a transactional id (TRANSACTIONAL_ID_AUTHORIZATION_FAILED).

This is the hottest path of the broker. `receive` serves a small request that begins like an earlier one of its
connection (`broker/produce_head.py`). Other requests are read by hand if they have the common shape (flexible version,
short names; produce_frames.py), and the rest by the generated codec. docs/benchmarks.md has the measurements.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from ottla.broker.api.produce_frames import (
    ATTRIBUTES_LOW,
    BY_TOPIC_ID_SINCE,
    INTERNAL_TOPICS_CLIENT,
    Parsed,
    PartitionAppend,
    TransactionalAppend,
    answer_of_all,
    parse_common,
)
from ottla.broker.api_spec import ApiSpec, RequestSize
from ottla.broker.channel import Channel
from ottla.broker.client_identity import Identity
from ottla.broker.effects import Close, Parked, Part
from ottla.broker.observations.slowest import Awaited
from ottla.broker.parking import ParkedWork
from ottla.broker.produce_head import ProduceHead, answer_of_one, key_of
from ottla.broker.produce_size import refuse_too_many
from ottla.broker.requests import Request, RequestRefusedError
from ottla.broker.slices import SLICE_STEPS, SubRequest, Work, encoded_topics
from ottla.log.answers import AppendRefusedError, StorageError
from ottla.log.cost import BEYOND_USUAL
from ottla.log.validation import GZIPPED_AT_ONCE, PACKED_TO, RECORDS_AT_ONCE, is_looked_into, look_ahead, takes_slices
from ottla.machine import Millis, Ticket
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_response
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.records.batch import ATTRIBUTES_TRANSACTIONAL, HEADER_BYTES, RECORD_COUNT_AT, peek

if TYPE_CHECKING:
    from ottla.broker.coordinators.verification import Errors
    from ottla.broker.core import Core
    from ottla.broker.partitions.leadership import Leadership
    from ottla.broker.partitions.partition import Partition


SPEC = ApiSpec(
    key=ApiKey.PRODUCE,
    versions=(0, 13),  # from 0, as librdkafka looks there (KAFKA-18659); 0 to 2 are refused, as Kafka does
    acl=((Operation.WRITE, ResourceType.TOPIC), (Operation.WRITE, ResourceType.TRANSACTIONAL_ID)),
    size=RequestSize.READ_BY_HANDLER,
    needs_lease=True,
)

_KEY = int(SPEC.key)

SMALL_BYTES = 1 << 16
"""A request up to this size has no room for too many partitions."""
RECORD_ERRORS_MAX = 10_000
"""If a request needs more than one slice, its answer names at most this many records as the faulty ones."""
ACKS_ALL = -1
ACKS_0_FAILED = "a produce request with acks=0 failed"
_SERVED_SINCE = 3
_ZSTD_SINCE = 7
_LEADER_HINTS_SINCE = 10
_ABORTABLE_SINCE = 11
_ADDS_PARTITIONS_SINCE = 12

_ZSTD = 4
_WITHOUT_LOG_START = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
"""Refusals without a log start offset; the others have one, as in Kafka's ReplicaManager.appendRecordsToLeader."""
_NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
_CLIENT_ID_LENGTH = struct.Struct(">h")
FEW_BYTES = GZIPPED_AT_ONCE // PACKED_TO
"""A compressed batch of more bytes may be too long to be compressed with gzip in one slice."""
_COUNT = struct.Struct(">i")
_Answers: TypeAlias = dict[str | bytes, TopicProduceResponse]


class ParkedProduce(ParkedWork):
    """A produce request that waits for the high watermark of some of its partitions."""

    __slots__ = ("appends", "node", "waits_for")

    def awaits(self, request: Request) -> Awaited | None:
        by_fsync = any(append.partition is not None and append.partition.followers is None for append in self.appends)
        return Awaited.DISK if by_fsync else Awaited.REPLICAS

    def __init__(self, node: Core, appends: list[PartitionAppend], waits_for: dict[Partition, int]) -> None:
        self.node = node
        self.appends = appends
        self.waits_for = waits_for
        """The high watermark that each partition must reach."""

    def committed(self, now: Millis, ticket: Ticket, partition: Partition) -> None:
        self.waits_for.pop(partition, None)
        if not partition.keeps_enough_copies:
            for append in self.appends:
                if append.partition is partition:
                    append.refuse(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                    append.base_offset = -1
        if not self.waits_for:
            self.answer(now, ticket)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        """The deadline has passed: appended batches stay, and the producer retries."""
        leadership = self.node.leadership
        for append in self.appends:
            partition = append.partition
            if partition is not None and partition in self.waits_for:
                if partition.log.failed:
                    append.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
                elif leadership.led(append.topic, append.index) is not partition:
                    append.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                else:
                    append.refuse(ErrorCode.REQUEST_TIMED_OUT)
                append.base_offset = -1
        self.answer(now, ticket)

    def lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        """It is unknown whether the records stay. The request's other partitions are answered as at the deadline."""
        if self.waits_for.pop(partition, None) is not None:
            for append in self.appends:
                if append.partition is partition:
                    append.refuse(error)
                    append.base_offset = -1
        self.at_deadline(now, ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Nothing to undo: the records stay, and the partition drops the ticket when it is due."""

    def answer(self, now: Millis, ticket: Ticket) -> None:
        parking = self.node.parking
        request = parking.request_of(ticket)
        if request is not None:
            note_errors(self.node, now, request.channel, request.client_id, self.appends)
            parking.answer(now, ticket, response_of(self.node, request.identity, request.version, self.appends))


class ParkedSlice(ParkedProduce):
    """A slice of a produce request that waits for its commit; the request resumes after it."""

    __slots__ = ("piece",)

    def __init__(
        self, node: Core, piece: SubRequest, appends: list[PartitionAppend], waits_for: dict[Partition, int]
    ) -> None:
        super().__init__(node, appends, waits_for)
        self.piece = piece

    def abandon(self, ticket: Ticket) -> None:
        self.piece.take_answer(None)

    def answer(self, now: Millis, ticket: Ticket) -> None:
        self.node.parking.answer(now, ticket, None)


class SlicedProduce:
    """A produce request with more partitions than one slice handles, or whose batches are more expensive to check.

    If the topic requires it, the records of a large batch are checked before, also a slice a tick. Partitions get their
    batches in the request's order, a slice a tick, even if the client disconnects: it would not learn how far this
    went. If the partitions of a slice hold their appends back, the slice waits for its commit before the next one.
    Otherwise a log that is cut back meanwhile might confuse other records with these.
    """

    __slots__ = ("_acks", "_appends", "_deadline", "_done", "_errors_left", "_node")

    def __init__(self, node: Core, acks: int, deadline: Millis, appends: list[PartitionAppend], done: int) -> None:
        self._node = node
        self._acks = acks
        self._deadline = deadline
        self._appends = appends
        self._done = done
        self._errors_left = RECORD_ERRORS_MAX

    def begin(self, request: Request) -> Parked:
        for append in self._appends[self._done :]:
            if append.records is not None:  # the frame's memory belongs to the I/O host again
                append.records = memoryview(bytearray(append.records))
        parked = self._node.slices.begin(request, self._work(request), is_long=False, outlives=True)
        return Parked(parked.ticket, goes_on=True)

    def _work(self, request: Request) -> Work:
        node, appends = self._node, self._appends
        if self._done:
            yield SubRequest(request, None, partial(self._end_slice, 0))
        while self._done < len(appends):
            yield from self._look_ahead(request)
            yield SubRequest(request, None, self._append, is_light=not self._done)
        note_errors(node, request.now, request.channel, request.client_id, appends)
        if self._acks == 0:
            if any(append.error for append in appends):
                node.outbox.add(Close(request.identity.address.connection_id, ACKS_0_FAILED))
            return []
        topics: _Answers = {}
        leaders: list[int] = []
        for first in range(0, len(appends), SLICE_STEPS):
            if first:
                yield
            leaders += _add_answers(node.leadership, topics, appends[first : first + SLICE_STEPS])
        response = _response(node, request.identity, request.version, topics, leaders)
        response.responses = yield from encoded_topics(response.responses, request.version, "partition_responses")
        return response

    def _look_ahead(self, request: Request) -> Work:
        """Check the next batch, if that takes long."""
        append = self._appends[self._done]
        partition = _looked_into(self._node, request.now, request.identity, append)
        append.is_known = True
        if partition is not None:
            assert append.records is not None
            yield  # the first slice of it belongs to the next tick
            append.inside = yield from look_ahead(append.records, partition.log.config)

    def _append(self, piece: Request) -> Parked | None:
        begin = self._done
        self._done, _ = append_some(
            self._node, piece.now, piece.identity, piece.version, piece.client_id, self._acks, self._appends, begin
        )
        return self._end_slice(begin, piece)

    def _end_slice(self, begin: int, piece: Request) -> Parked | None:
        some = self._appends[begin : self._done]
        for append in some:
            append.records = append.inside = None  # an unpacked batch is many times its size
            append.record_errors = append.record_errors[: self._errors_left]
            self._errors_left -= len(append.record_errors)
        waits_for = uncommitted(some, self._acks) if self._acks else None
        if not waits_for:
            return None
        parked = ParkedSlice(self._node, cast(SubRequest, piece), some, waits_for)
        return park(self._node, piece, self._deadline, parked)


def receive(
    node: Core, now: Millis, channel: Channel, version: int, correlation_id: int, frame: memoryview
) -> list[Part] | Parked | None:
    """Serve one Produce frame; see `Node.receive`. Raises MalformedFrameError, RequestRefusedError.

    Here is the short way of a batch that is neither compressed nor large, for a request that begins like an earlier one
    of its connection. Nothing has happened when another request is passed to `_receive_any`.
    """
    head = channel.produce_head
    if head is None or head.version != version or (named := head.partition_in(frame)) is None:
        return _receive_any(node, now, channel, version, correlation_id, frame)
    index, batch = named
    topic = head.topic
    if (
        not HEADER_BYTES <= len(batch) <= GZIPPED_AT_ONCE
        or batch[ATTRIBUTES_LOW]
        or _COUNT.unpack_from(batch, RECORD_COUNT_AT)[0] > RECORDS_AT_ONCE
        or (node.access.authorizer is not None and not node.access.may_write(channel.identity, topic))
        or isinstance(partition := node.leadership.led(topic, index), ErrorCode)
        or (partition.holding and not partition.has_enough_replicas)
    ):
        parsed = None, head.acks, head.timeout_ms, [PartitionAppend(topic, index, batch)], None
        return _receive_any(node, now, channel, version, correlation_id, frame, parsed)
    try:
        appended = partition.append(now, batch)
    except (AppendRefusedError, StorageError) as error:
        append = PartitionAppend(topic, index, batch)
        _not_appended(node, append, partition, error)
        return _answer(node, now, channel, version, correlation_id, frame, [append])
    if partition.holding:
        append = PartitionAppend(topic, index, batch)
        append.appended(partition, appended)
        return _answer_one(node, now, channel, version, correlation_id, frame, head.acks, head.timeout_ms, append)
    base_offset, _, log_append_time_ms, _ = appended
    throttle_ms = 0 if node.throttle.quotas is None else _charge(node, now, channel, frame)
    start = partition.log.offsets.log_start_offset
    return [answer_of_one(head.key, correlation_id, index, base_offset, log_append_time_ms, start, throttle_ms)]


def _receive_any(
    node: Core,
    now: Millis,
    channel: Channel,
    version: int,
    correlation_id: int,
    frame: memoryview,
    known: Parsed | None = None,
) -> list[Part] | Parked | None:
    """Serve any Produce frame. `known`: its content, if its head was compared with that of an earlier one."""
    identity = channel.identity
    parsed = known or parse_common(frame, version)
    client_id, acks, timeout_ms, appends, transactional_id = parsed or _parse_by_the_codec(frame, version)
    if not -1 <= acks <= 1:
        _refuse_all(appends, ErrorCode.INVALID_REQUIRED_ACKS)
    if transactional_id is not None:
        opening = _opening(node, now, identity, version, transactional_id, cast(list[TransactionalAppend], appends))
        if opening and not _verified_here(node, now, version, transactional_id, opening):
            _charge_unanswered(node, now, channel, frame, acks)
            request = _request_of(channel, version, correlation_id, now, frame)
            deadline = now + max(timeout_ms, 0)
            return VerifiedProduce(node, acks, deadline, appends, transactional_id, opening).begin(request)
    holding, done = False, len(appends)
    if done == 1:
        append = appends[0]
        if _looked_into(node, now, identity, append) is not None:
            done = 0
        elif not append.error:
            append_one(node, now, identity, version, client_id, acks, append)
            if acks and not append.error and parsed is not None:
                if known is None and transactional_id is None:
                    _expect_more(channel, version, frame, acks, timeout_ms, append)
                return _answer_one(node, now, channel, version, correlation_id, frame, acks, timeout_ms, append)
            holding = append.partition is not None and append.partition.holding
    else:
        done, holding = append_some(node, now, identity, version, client_id, acks, appends, 0)
    if done < len(appends):
        _charge_unanswered(node, now, channel, frame, acks)
        request = _request_of(channel, version, correlation_id, now, frame)
        return SlicedProduce(node, acks, now + max(timeout_ms, 0), appends, done).begin(request)
    if acks == 0:
        if any(append.error for append in appends):
            note_errors(node, now, channel, frame, appends)
            raise RequestRefusedError(ACKS_0_FAILED)
        if node.throttle.quotas is not None:
            _charge(node, now, channel, frame)
        return None
    if holding and (waits_for := uncommitted(appends, acks)):
        request = _request_of(channel, version, correlation_id, now, frame)
        return _await_commit(node, now, request, timeout_ms, appends, waits_for)
    if parsed is not None and not any([append.error for append in appends]):
        throttle_ms = _charge(node, now, channel, frame)
        return [answer_of_all(correlation_id, appends, throttle_ms)]
    return _answer(node, now, channel, version, correlation_id, frame, appends)


def _expect_more(
    channel: Channel, version: int, frame: memoryview, acks: int, timeout_ms: int, append: PartitionAppend
) -> None:
    """The next request of this connection may begin as this one did, if it is the second one to its topic."""
    topic, partition = append.topic, append.partition
    if channel.produced_to != topic:
        channel.produced_to = topic
    elif partition is not None and partition.topic_name not in INTERNAL_TOPICS:
        channel.produce_head = ProduceHead.of(frame, version, topic, acks, timeout_ms)


def _answer_one(
    node: Core,
    now: Millis,
    channel: Channel,
    version: int,
    correlation_id: int,
    frame: memoryview,
    acks: int,
    timeout_ms: int,
    append: PartitionAppend,
) -> list[Part] | Parked:
    """Answer a request of the common shape whose one batch was appended, at once or when it is committed."""
    if append.partition is not None and append.partition.holding and (waits_for := uncommitted([append], acks)):
        request = _request_of(channel, version, correlation_id, now, frame)
        return _await_commit(node, now, request, timeout_ms, [append], waits_for)
    answer = answer_of_one(
        key_of(append.topic),
        correlation_id,
        append.index,
        append.base_offset,
        append.log_append_time_ms,
        append.log_start_offset,
        _charge(node, now, channel, frame),
    )
    return [answer]


def _await_commit(
    node: Core,
    now: Millis,
    request: Request,
    timeout_ms: int,
    appends: list[PartitionAppend],
    waits_for: dict[Partition, int],
) -> Parked:
    """Charge this request now, and answer it when all that it waits for is committed."""
    node.throttle.charge_appended(now, request)
    return park(node, request, now + max(timeout_ms, 0), ParkedProduce(node, appends, waits_for))


def _answer(
    node: Core,
    now: Millis,
    channel: Channel,
    version: int,
    correlation_id: int,
    frame: memoryview,
    appends: list[PartitionAppend],
) -> list[Part]:
    """The answer to a request that waits for nothing."""
    response = response_of(node, channel.identity, version, appends)
    response.throttle_time_ms = _charge(node, now, channel, frame)
    note_errors(node, now, channel, frame, appends)
    return [encode_response(RequestHeader(_KEY, version, correlation_id, None), response)]


def _request_of(channel: Channel, version: int, correlation_id: int, now: Millis, frame: memoryview) -> Request:
    """The request in this frame, which is charged when it is answered."""
    return Request(channel, _KEY, version, correlation_id, _client_id_of(frame), now, None, produced=len(frame))


def _charge(node: Core, now: Millis, channel: Channel, frame: memoryview) -> int:
    """For how long the client that sent this frame is throttled."""
    return node.throttle.charge(now, channel, _client_id_of(frame), produced=len(frame))


def _charge_unanswered(node: Core, now: Millis, channel: Channel, frame: memoryview, acks: int) -> None:
    """Charge the client for a request that waits for something and gets no answer; others are charged when they are
    answered."""
    if acks == 0:
        _charge(node, now, channel, frame)


def _client_id_of(frame: memoryview) -> str:
    """The client id in a frame's header, which was decoded as UTF-8 before; '' if there is none."""
    length: int = _CLIENT_ID_LENGTH.unpack_from(frame, 8)[0]
    return str(frame[10 : 10 + max(length, 0)], "utf-8")


def _parse_by_the_codec(frame: memoryview, version: int) -> Parsed:
    """The result of `parse_common`, for every version and shape."""
    if version < _SERVED_SINCE:
        raise RequestRefusedError(f"Produce version {version} is not served")
    header, position = decode_request_header(frame)
    if len(frame) > SMALL_BYTES:
        refuse_too_many(frame, position, version)
    body, _ = ProduceRequest.decode(frame, position, version)
    by_id = version >= BY_TOPIC_ID_SINCE
    kind = PartitionAppend if body.transactional_id is None else TransactionalAppend
    appends = [
        kind(topic.topic_id if by_id else topic.name, part.index, cast(memoryview | None, part.records))
        for topic in body.topic_data
        for part in topic.partition_data
    ]
    return header.client_id, body.acks, body.timeout_ms, appends, body.transactional_id


# ---- transactions --------------------------------------------------------------------------------------------------


def _opening(
    node: Core, now: Millis, identity: Identity, version: int, transactional_id: str, appends: list[TransactionalAppend]
) -> list[TransactionalAppend]:
    """The appends that open a transaction in their partition: each has its guard from now on."""
    transactional = [append for append in appends if append.is_transactional]
    if not transactional:
        return []
    if not node.access.allows(identity, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        _refuse_all(cast(list[PartitionAppend], appends), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return []
    opening: list[TransactionalAppend] = []
    second_version = version >= _ADDS_PARTITIONS_SINCE
    for append in transactional:
        if not node.access.may_write(identity, append.topic):
            append.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            continue
        partition = node.leadership.led(append.topic, append.index)
        if append.error or isinstance(partition, ErrorCode):
            continue
        assert append.records is not None
        try:
            append.guard = partition.guard_for(now, append.records, second_version=second_version)
        except AppendRefusedError as refused:
            append.refuse(refused.error_code, refused.sentence)
        else:
            append.leader_epoch = partition.leader_epoch
            if append.guard is not None:
                opening.append(append)
    return opening if opening and node.coordinators.verifier.asks(second_version=second_version) else []


def _refusal_of(error: ErrorCode, version: int) -> tuple[ErrorCode, str | None]:
    """The producer's error for an error of the coordinator."""
    from ottla.broker.coordinators.verification import NOT_REACHED

    second_version = version >= _ADDS_PARTITIONS_SINCE
    if error in NOT_REACHED or (error is ErrorCode.CONCURRENT_TRANSACTIONS and not second_version):
        sentence = f"Unable to verify the partition has been added to the transaction. Underlying error: {error.name}"
        return ErrorCode.NOT_ENOUGH_REPLICAS, sentence
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH, None
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction"
    return error, None


def _asked_of(node: Core, opening: list[TransactionalAppend]) -> tuple[tuple[int, int], list[tuple[str, int]]]:
    """The transaction's producer id and epoch, and the partitions of the appends in order."""
    header = peek(cast(memoryview, opening[0].records))
    places = [(node.image.name_of(append.topic) or "", append.index) for append in opening]
    return (header.producer_id, header.producer_epoch), places


def _refuse_those_of(
    errors: Errors, places: list[tuple[str, int]], opening: list[TransactionalAppend], version: int
) -> None:
    for place, append in zip(places, opening, strict=True):
        if errors[place]:
            append.refuse(*_refusal_of(errors[place], version))


def _verified_here(
    node: Core, now: Millis, version: int, transactional_id: str, opening: list[TransactionalAppend]
) -> bool:
    """Whether this node is the coordinator and has said which of the appends are in the transaction.

    Then nothing can happen between its answer and the append.
    """
    producer, places = _asked_of(node, opening)
    adds = version >= _ADDS_PARTITIONS_SINCE
    errors = node.coordinators.verifier.verify_here(now, transactional_id, producer, dict.fromkeys(places), adds=adds)
    if errors is None:
        return False
    _refuse_those_of(errors, places, opening, version)
    return True


class VerifiedProduce(SlicedProduce):
    """A produce request that opens transactions: nothing of it is appended before the coordinator has answered."""

    __slots__ = ("_opening", "_transactional_id")

    def __init__(
        self,
        node: Core,
        acks: int,
        deadline: Millis,
        appends: list[PartitionAppend],
        transactional_id: str,
        opening: list[TransactionalAppend],
    ) -> None:
        super().__init__(node, acks, deadline, appends, 0)
        self._transactional_id = transactional_id
        self._opening = opening

    def _work(self, request: Request) -> Work:
        from ottla.broker.coordinators.verification import Verification  # most nodes serve no transactions

        producer, places = _asked_of(self._node, self._opening)
        adds = request.version >= _ADDS_PARTITIONS_SINCE
        question = Verification(
            self._node.coordinators.verifier, self._transactional_id, producer, dict.fromkeys(places), adds=adds
        )
        errors: Errors = yield SubRequest(request, None, question.begin, is_light=True)
        _refuse_those_of(errors, places, self._opening, request.version)
        return (yield from super()._work(request))


def _looked_into(node: Core, now: Millis, identity: Identity, append: PartitionAppend) -> Partition | None:
    """The partition, if its configs require a check of the batch that is too long for one slice."""
    records = append.records
    if records is None or len(records) < HEADER_BYTES or append.is_known or append.error:
        return None
    has_many = _COUNT.unpack_from(records, RECORD_COUNT_AT)[0] > RECORDS_AT_ONCE
    if not has_many and len(records) <= (FEW_BYTES if records[ATTRIBUTES_LOW] & 7 else GZIPPED_AT_ONCE):
        return None
    if node.access.authorizer is not None and not node.access.may_write(identity, append.topic):
        return None
    partition = node.leadership.led(append.topic, append.index)
    if isinstance(partition, ErrorCode):
        return None
    config = partition.log.config
    if not (has_many or config.compression_type == "gzip") or not takes_slices(records, config):
        return None
    return partition if is_looked_into(records, config, partition.log.wall.at(now)) else None


def append_some(
    node: Core,
    now: Millis,
    identity: Identity,
    version: int,
    client_id: str | None,
    acks: int,
    appends: list[PartitionAppend],
    begin: int,
) -> tuple[int, bool]:
    """Append from `begin` on, as many as fit into a slice. Returns where the rest begins, and whether some are held
    back."""
    holding = False
    cost = BEYOND_USUAL
    time_slice = node.environment.time_slice()
    end = begin + SLICE_STEPS + cost.steps
    for at in range(begin, len(appends)):
        if at + cost.steps >= end or (at > begin and time_slice.is_over):
            return at, holding
        append = appends[at]
        if _looked_into(node, now, identity, append) is not None:
            return at, holding
        if not append.error:
            append_one(node, now, identity, version, client_id, acks, append)
            if append.partition is not None and append.partition.holding:
                holding = True
    return len(appends), holding


def append_one(
    node: Core, now: Millis, identity: Identity, version: int, client_id: str | None, acks: int, append: PartitionAppend
) -> None:
    """Find the partition and append its batch, or record the error in `append`."""
    if node.access.authorizer is not None and not node.access.may_write(identity, append.topic):
        append.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return
    partition = node.leadership.led(append.topic, append.index)
    if isinstance(partition, ErrorCode):
        _not_led(node, append, partition)
        return
    if partition.topic_name in INTERNAL_TOPICS and client_id != INTERNAL_TOPICS_CLIENT:
        append.refuse(ErrorCode.INVALID_TOPIC_EXCEPTION, f"The topic {partition.topic_name} is internal.")
        return
    records = append.records
    if acks == ACKS_ALL and partition.holding and not partition.has_enough_replicas:
        partition.log.not_written(records or memoryview(b""))
        append.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        append.log_start_offset = partition.log.log_start_offset
        return
    if records is None or not len(records):
        append.refuse(ErrorCode.INVALID_RECORD, "A produce request needs one record batch for each partition.")
        return
    transactional: TransactionalAppend | None = None
    if len(records) > ATTRIBUTES_LOW:
        attributes = records[ATTRIBUTES_LOW]
        if attributes & ATTRIBUTES_TRANSACTIONAL:
            if not isinstance(append, TransactionalAppend):
                append.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                return
            transactional = append
        if attributes & 7 == _ZSTD and version < _ZSTD_SINCE:
            append.refuse(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer.")
            return
    try:
        if transactional is None or not node.coordinators.verifier.asks(
            second_version=version >= _ADDS_PARTITIONS_SINCE
        ):
            appended = partition.append(now, records, inside=append.inside)
        elif transactional.leader_epoch != partition.leader_epoch:
            append.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # elsewhere its transaction may have ended meanwhile
            return
        else:
            appended = partition.append_transactional(now, records, transactional.guard, append.inside)
    except (AppendRefusedError, StorageError) as error:
        _not_appended(node, append, partition, error)
    else:
        append.appended(partition, appended)


def _not_led(node: Core, append: PartitionAppend, error: ErrorCode) -> None:
    """This node does not lead the partition, or its log is closed."""
    append.refuse(error)
    if error is ErrorCode.KAFKA_STORAGE_ERROR:
        node.metrics.produce_failed(node.image.name_of(append.topic))


def _not_appended(
    node: Core, append: PartitionAppend, partition: Partition, error: AppendRefusedError | StorageError
) -> None:
    """The log has refused the batch, or could not write it."""
    if isinstance(error, AppendRefusedError):
        append.refuse(error.error_code, error.sentence)
        append.record_errors = error.record_errors
        if error.error_code not in _WITHOUT_LOG_START:
            append.log_start_offset = partition.log.log_start_offset
    else:
        if append.records is not None:
            partition.log.not_written(append.records)
        append.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    node.metrics.produce_failed(partition.topic_name)


def response_of(node: Core, identity: Identity, version: int, appends: list[PartitionAppend]) -> ProduceResponse:
    """The wire answer, partitions grouped by topic in the order of the request."""
    topics: _Answers = {}
    leaders = _add_answers(node.leadership, topics, appends)
    return _response(node, identity, version, topics, leaders)


def _add_answers(leadership: Leadership, topics: _Answers, appends: list[PartitionAppend]) -> list[int]:
    """Add the answers for these partitions to the topics. Returns the leaders that the answers name."""
    leaders: list[int] = []
    for append in appends:
        topic = topics.get(append.topic)
        if topic is None:
            topic = topics[append.topic] = TopicProduceResponse(partition_responses=[])
            if isinstance(append.topic, bytes):
                topic.topic_id = append.topic
            else:
                topic.name = append.topic
        answer = PartitionProduceResponse(
            index=append.index,
            error_code=append.error,
            base_offset=append.base_offset,
            log_append_time_ms=append.log_append_time_ms,
            log_start_offset=append.log_start_offset,
            record_errors=[BatchIndexAndErrorMessage(*each) for each in append.record_errors]
            if append.record_errors
            else [],
            error_message=append.message,
        )
        leader = leadership.leader_of(append.topic, append.index) if append.error == _NOT_LEADER else None
        if leader is not None:
            answer.current_leader = LeaderIdAndEpoch(*leader)
            leaders.append(leader[0])
        topic.partition_responses.append(answer)
    return leaders


def _response(node: Core, identity: Identity, version: int, topics: _Answers, leaders: list[int]) -> ProduceResponse:
    response = ProduceResponse(responses=list(topics.values()))
    if leaders and version >= _LEADER_HINTS_SINCE:
        response.node_endpoints = [NodeEndpoint(*each) for each in node.members.of(identity.address, leaders)]
    return response


def note_errors(
    node: Core, now: Millis, channel: Channel, sender: memoryview | str, appends: list[PartitionAppend]
) -> None:
    """Remember the errors of these partitions. `sender`: the client id, or the frame in which it is."""
    noted: set[int] = set()
    for append in appends:
        if append.error and append.error not in noted:
            noted.add(append.error)
            client_id = sender if isinstance(sender, str) else _client_id_of(sender)
            topic = append.topic if isinstance(append.topic, str) else node.image.name_of(append.topic)
            node.observations.refused(now, channel, client_id, _KEY, append.error, topic or "", append.message)


def _refuse_all(appends: list[PartitionAppend], error: ErrorCode) -> None:
    for append in appends:
        append.refuse(error)


def uncommitted(appends: list[PartitionAppend], acks: int) -> dict[Partition, int]:
    """The partitions whose high watermark does not cover these appends yet, and the offset it must reach. With acks=1
    no append waits for other replicas."""
    waits_for: dict[Partition, int] = {}
    for append in appends:
        partition = append.partition
        if partition is not None and not append.committed and (acks == ACKS_ALL or partition.followers is None):
            waits_for[partition] = max(append.required_offset, waits_for.get(partition, 0))
    return waits_for


def park(node: Core, request: Request, deadline: Millis, parked: ParkedProduce) -> Parked:
    """Wait for the commit of all that `parked` names."""
    for append in parked.appends:
        append.records = None  # the frame's memory belongs to the I/O host again
    ticket = node.parking.park(request, deadline, parked)
    for partition, required_offset in parked.waits_for.items():
        partition.wait_for_commit(required_offset, ticket)
    return Parked(ticket)
