"""Produce, key 0, versions 3 to 13: append record batches to partitions.

The handler checks each partition's one batch and appends it. It answers at once (acks 0 and 1), or when the high
watermark covers the batch (acks all; also acks 1 if durability is fsync).

Versions: 5 log_start_offset in the answer, 7 zstd allowed, 8 record_errors and error_message, 9 flexible, 10 leader
hints (KIP-951), 11 and 12 KIP-890 error codes, 13 topics by id instead of by name.

A transactional batch that opens a transaction in its partition waits for the coordinator (KIP-890). Up to version 11
the coordinator is asked whether the partition was added; from version 12 on it is asked to add it.

Not supported: transactional batches in a request without a transactional id (TRANSACTIONAL_ID_AUTHORIZATION_FAILED).

This is the hottest path of the broker. `receive` reads the frame by hand if it has the common shape (flexible version,
short names). It passes every other frame to the generated codec; `tests/broker/test_produce_parsing.py` compares the
two. ARCHITECTURE.md has the measurements.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from ottla.broker.api_spec import ApiSpec, RequestSize
from ottla.broker.coordinators.verification import NOT_REACHED, Errors, Verification
from ottla.broker.effects import Close, Part
from ottla.broker.parking import ParkedWork
from ottla.broker.produce_size import refuse_too_many
from ottla.broker.requests import Parked, Refused, Request, Session
from ottla.broker.slices import SLICE_STEPS, Piece, Work, encoded_topics
from ottla.log.answers import AppendRefused, StorageFailed
from ottla.log.cost import BEYOND_USUAL
from ottla.log.producers import Guard
from ottla.log.validation import RECORDS_AT_ONCE, Known, is_looked_into, look_ahead
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
_FLEXIBLE_SINCE = 9
_ZSTD_SINCE = 7
_LEADER_HINTS_SINCE = 10
_BY_TOPIC_ID_SINCE = 13
_ABORTABLE_SINCE = 11
_ADDS_PARTITIONS_SINCE = 12
_ATTRIBUTES_LOW = 22
"""The position of the lower byte of a batch's attributes."""

INTERNAL_TOPICS_CLIENT = "__admin_client"
"""The only client id that may write to internal topics; Kafka's own admin tools use it."""

_INTERNAL_TOPICS_CLIENT = INTERNAL_TOPICS_CLIENT.encode()
_ZSTD = 4
_WITHOUT_LOG_START = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
"""Refusals without a log start offset; the others have one, as in Kafka's ReplicaManager.appendRecordsToLeader."""
_NONE = ErrorCode.NONE
_NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
_CLIENT_ID_LENGTH = struct.Struct(">h")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_COUNT = struct.Struct(">i")
_Answers: TypeAlias = dict[str | bytes, TopicProduceResponse]
_COMMON_ANSWER_HEAD = struct.Struct(">iiBB")  # size, correlation id, tags of the header, one topic
_COMMON_ANSWER_TAIL = struct.Struct(">BihqqqBBBBiB")


class PartitionAppend:
    """One partition of a produce request: where its batch goes, and the result. `is_known`: the batch needs no check
    before it is appended, or `inside` is the result of the check."""

    __slots__ = (
        "base_offset",
        "error",
        "index",
        "inside",
        "is_known",
        "log_append_time_ms",
        "log_start_offset",
        "message",
        "partition",
        "record_errors",
        "records",
        "required_offset",
        "topic",
    )

    def __init__(self, topic: str | bytes, index: int, records: memoryview | None) -> None:
        self.topic = topic
        self.index = index
        self.records = records
        self.is_known = False
        self.inside: Known | None = None
        self.partition: Partition | None = None
        self.error = _NONE
        self.message: str | None = None
        self.record_errors: tuple[tuple[int, str], ...] = ()
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.log_start_offset = -1
        self.required_offset = -1

    @property
    def committed(self) -> bool:
        return self.partition is not None and self.partition.log.high_watermark >= self.required_offset

    def refuse(self, error: ErrorCode, message: str | None = None) -> None:
        self.error = error
        self.message = message


_Parsed: TypeAlias = tuple[str | None, int, int, list[PartitionAppend], str | None]
"""Client id, acks, timeout_ms, appends and transactional id; with an id the appends are `TransactionalAppend`s."""


class TransactionalAppend(PartitionAppend):
    """One partition of a produce request with a transactional id. `guard`: needed by a batch that opens a transaction;
    None if it is open. `leader_epoch`: the epoch in which this node led the partition at that check."""

    __slots__ = ("guard", "leader_epoch")

    def __init__(self, topic: str | bytes, index: int, records: memoryview | None) -> None:
        super().__init__(topic, index, records)
        self.guard: Guard | None = None
        self.leader_epoch = -1

    @property
    def is_transactional(self) -> bool:
        """Whether its batch belongs to the transaction."""
        records = self.records
        return (
            records is not None
            and len(records) > _ATTRIBUTES_LOW
            and bool(records[_ATTRIBUTES_LOW] & ATTRIBUTES_TRANSACTIONAL)
        )


class ParkedProduce(ParkedWork):
    """A produce request that waits for the high watermark of some of its partitions."""

    __slots__ = ("appends", "node", "waits_for")

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

    def lost(self, now: Millis, ticket: Ticket) -> None:
        """It is unknown whether the records stay. The request's other partitions are answered as at the deadline."""
        self.at_deadline(now, ticket)

    def abandon(self, ticket: Ticket) -> None:
        """Nothing to undo: the records stay, and the partition drops the ticket when it is due."""

    def answer(self, now: Millis, ticket: Ticket) -> None:
        parking = self.node.parking
        request = parking.request_of(ticket)
        if request is not None:
            parking.answer(now, ticket, response_of(self.node, request.session, request.version, self.appends))


class ParkedSlice(ParkedProduce):
    """A slice of a produce request that waits for its commit; the request resumes after it."""

    __slots__ = ("piece",)

    def __init__(
        self, node: Core, piece: Piece, appends: list[PartitionAppend], waits_for: dict[Partition, int]
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
            yield Piece(request, None, partial(self._end_slice, 0))
        while self._done < len(appends):
            yield from self._look_ahead(request)
            yield Piece(request, None, self._append, is_light=not self._done)
        if self._acks == 0:
            if any(append.error for append in appends):
                node.outbox.add(Close(request.session.address.identity, ACKS_0_FAILED))
            return []
        topics: _Answers = {}
        leaders: list[int] = []
        for first in range(0, len(appends), SLICE_STEPS):
            if first:
                yield
            leaders += _add_answers(node.leadership, topics, appends[first : first + SLICE_STEPS])
        response = _response(node, request.session, request.version, topics, leaders)
        response.responses = yield from encoded_topics(response.responses, request.version, "partition_responses")
        return response

    def _look_ahead(self, request: Request) -> Work:
        """Check the next batch, if that takes long."""
        append = self._appends[self._done]
        partition = _looked_into(self._node, request.now, request.session, append)
        append.is_known = True
        if partition is not None:
            assert append.records is not None
            yield  # the first slice of it belongs to the next tick
            append.inside = yield from look_ahead(append.records, partition.log.config)

    def _append(self, piece: Request) -> Parked | None:
        begin = self._done
        self._done, _ = append_some(
            self._node, piece.now, piece.session, piece.version, piece.client_id, self._acks, self._appends, begin
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
        parked = ParkedSlice(self._node, cast(Piece, piece), some, waits_for)
        return park(self._node, piece, self._deadline, parked)


def receive(
    node: Core, now: Millis, session: Session, version: int, correlation_id: int, frame: memoryview
) -> list[Part] | Parked | None:
    """Serve one Produce frame; see `Node.receive`. Raises MalformedFrame, Refused."""
    client_id, acks, timeout_ms, appends, transactional_id = parse_common(frame, version) or _parse_by_the_codec(
        frame, version
    )
    if not -1 <= acks <= 1:
        _refuse_all(appends, ErrorCode.INVALID_REQUIRED_ACKS)
    if transactional_id is not None:
        opening = _opening(node, now, session, version, transactional_id, cast(list[TransactionalAppend], appends))
        if opening and not _verified_here(node, now, version, transactional_id, opening):
            if acks == 0:
                _charge(node, now, session, frame)
            request = _request_of(session, version, correlation_id, now, frame)
            deadline = now + max(timeout_ms, 0)
            return VerifiedProduce(node, acks, deadline, appends, transactional_id, opening).begin(request)
    holding, done = False, len(appends)
    if done == 1:
        append = appends[0]
        if _looked_into(node, now, session, append) is not None:
            done = 0
        elif not append.error:
            append_one(node, now, session, version, client_id, acks, append)
            holding = append.partition is not None and append.partition.holding
            if acks and not holding and not append.error and version >= _FLEXIBLE_SINCE:
                throttle_ms = 0 if node.throttle.quotas is None else _charge(node, now, session, frame)
                return [_common_answer(correlation_id, append, throttle_ms)]
    else:
        done, holding = append_some(node, now, session, version, client_id, acks, appends, 0)
    if done < len(appends):
        if acks == 0:
            _charge(node, now, session, frame)
        request = _request_of(session, version, correlation_id, now, frame)
        return SlicedProduce(node, acks, now + max(timeout_ms, 0), appends, done).begin(request)
    if acks == 0:
        if any(append.error for append in appends):
            raise Refused(ACKS_0_FAILED)
        if node.throttle.quotas is not None:
            _charge(node, now, session, frame)
        return None
    if holding:
        waits_for = uncommitted(appends, acks)
        if waits_for:
            request = _request_of(session, version, correlation_id, now, frame)
            node.throttle.charge_appended(now, request)
            return park(node, request, now + max(timeout_ms, 0), ParkedProduce(node, appends, waits_for))
    header = RequestHeader(_KEY, version, correlation_id, client_id)
    response = response_of(node, session, version, appends)
    response.throttle_time_ms = _charge(node, now, session, frame)
    return [encode_response(header, response)]


def _request_of(session: Session, version: int, correlation_id: int, now: Millis, frame: memoryview) -> Request:
    """The request in this frame, which is charged when it is answered."""
    return Request(session, _KEY, version, correlation_id, _client_id_of(frame), now, None, produced=len(frame))


def _charge(node: Core, now: Millis, session: Session, frame: memoryview) -> int:
    """For how long the client that sent this frame is throttled."""
    return node.throttle.charge(now, session, _client_id_of(frame), produced=len(frame))


def _client_id_of(frame: memoryview) -> str:
    """The client id in a frame's header, which was decoded as UTF-8 before; '' if there is none."""
    length: int = _CLIENT_ID_LENGTH.unpack_from(frame, 8)[0]
    return str(frame[10 : 10 + max(length, 0)], "utf-8")


def _parse_by_the_codec(frame: memoryview, version: int) -> _Parsed:
    """The result of `parse_common`, for every version and shape."""
    if version < _SERVED_SINCE:
        raise Refused(f"Produce version {version} is not served")
    header, position = decode_request_header(frame)
    if len(frame) > SMALL_BYTES:
        refuse_too_many(frame, position, version)
    body, _ = ProduceRequest.decode(frame, position, version)
    by_id = version >= _BY_TOPIC_ID_SINCE
    kind = PartitionAppend if body.transactional_id is None else TransactionalAppend
    appends = [
        kind(topic.topic_id if by_id else topic.name, part.index, cast(memoryview | None, part.records))
        for topic in body.topic_data
        for part in topic.partition_data
    ]
    return header.client_id, body.acks, body.timeout_ms, appends, body.transactional_id


# ---- transactions --------------------------------------------------------------------------------------------------


def _opening(
    node: Core, now: Millis, session: Session, version: int, transactional_id: str, appends: list[TransactionalAppend]
) -> list[TransactionalAppend]:
    """The appends that open a transaction in their partition: each has its guard from now on."""
    transactional = [append for append in appends if append.is_transactional]
    if not transactional:
        return []
    if not node.access.allows(session, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        _refuse_all(cast(list[PartitionAppend], appends), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return []
    opening: list[TransactionalAppend] = []
    second_version = version >= _ADDS_PARTITIONS_SINCE
    for append in transactional:
        if not _may_write(node, session, append.topic):
            append.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            continue
        partition = node.leadership.led(append.topic, append.index)
        if append.error or isinstance(partition, ErrorCode):
            continue
        assert append.records is not None
        try:
            append.guard = partition.guard_for(now, append.records, second_version=second_version)
        except AppendRefused as refused:
            append.refuse(refused.error_code, refused.sentence)
        else:
            append.leader_epoch = partition.leader_epoch
            if append.guard is not None:
                opening.append(append)
    return opening if opening and node.coordinators.verifier.asks(second_version) else []


def _may_write(node: Core, session: Session, topic: str | bytes) -> bool:
    """Whether the client may write to a topic; to a missing one it may, as that has no effect."""
    name = None if node.access.authorizer is None else node.image.name_of(topic)
    return name is None or node.access.allows(session, Operation.WRITE, ResourceType.TOPIC, name)


def _refusal_of(error: ErrorCode, version: int) -> tuple[ErrorCode, str | None]:
    """The producer's error for an error of the coordinator."""
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
        producer, places = _asked_of(self._node, self._opening)
        verifier, adds = self._node.coordinators.verifier, request.version >= _ADDS_PARTITIONS_SINCE
        question = Verification(verifier, self._transactional_id, producer, dict.fromkeys(places), adds=adds)
        errors: Errors = yield Piece(request, None, question.begin, is_light=True)
        _refuse_those_of(errors, places, self._opening, request.version)
        return (yield from super()._work(request))


def _looked_into(node: Core, now: Millis, session: Session, append: PartitionAppend) -> Partition | None:
    """The partition, if its configs require a check of the batch that is too long for one slice."""
    records = append.records
    if records is None or len(records) < HEADER_BYTES or append.is_known or append.error:
        return None
    if _COUNT.unpack_from(records, RECORD_COUNT_AT)[0] <= RECORDS_AT_ONCE:
        return None
    if node.access.authorizer is not None and not _may_write(node, session, append.topic):
        return None
    partition = node.leadership.led(append.topic, append.index)
    if isinstance(partition, ErrorCode):
        return None
    return partition if is_looked_into(records, partition.log.config, partition.log.wall.at(now)) else None


def append_some(
    node: Core,
    now: Millis,
    session: Session,
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
        if _looked_into(node, now, session, append) is not None:
            return at, holding
        if not append.error:
            append_one(node, now, session, version, client_id, acks, append)
            if append.partition is not None and append.partition.holding:
                holding = True
    return len(appends), holding


def append_one(
    node: Core, now: Millis, session: Session, version: int, client_id: str | None, acks: int, append: PartitionAppend
) -> None:
    """Find the partition and append its batch, or record the error in `append`."""
    if node.access.authorizer is not None and not _may_write(node, session, append.topic):
        append.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return
    partition = node.leadership.led(append.topic, append.index)
    if isinstance(partition, ErrorCode):
        append.refuse(partition)
        if partition is ErrorCode.KAFKA_STORAGE_ERROR:
            node.metrics.produce_failed(node.image.name_of(append.topic))
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
    if len(records) > _ATTRIBUTES_LOW:
        attributes = records[_ATTRIBUTES_LOW]
        if attributes & ATTRIBUTES_TRANSACTIONAL:
            if not isinstance(append, TransactionalAppend):
                append.refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                return
            transactional = append
        if attributes & 7 == _ZSTD and version < _ZSTD_SINCE:
            append.refuse(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer.")
            return
    try:
        if transactional is None or not node.coordinators.verifier.asks(version >= _ADDS_PARTITIONS_SINCE):
            appended = partition.append(now, records, inside=append.inside)
        elif transactional.leader_epoch != partition.leader_epoch:
            append.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # elsewhere its transaction may have ended meanwhile
            return
        else:
            appended = partition.append_transactional(now, records, transactional.guard, append.inside)
    except AppendRefused as refused:
        append.refuse(refused.error_code, refused.sentence)
        append.record_errors = refused.record_errors
        if refused.error_code not in _WITHOUT_LOG_START:
            append.log_start_offset = partition.log.log_start_offset
        node.metrics.produce_failed(partition.topic_name)
        return
    except StorageFailed:
        partition.log.not_written(records)
        append.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
        node.metrics.produce_failed(partition.topic_name)
        return
    append.partition = partition
    append.base_offset = appended.base_offset
    append.log_append_time_ms = appended.log_append_time_ms
    append.log_start_offset = partition.log.log_start_offset
    append.required_offset = appended.last_offset + 1


def response_of(node: Core, session: Session, version: int, appends: list[PartitionAppend]) -> ProduceResponse:
    """The wire answer, partitions grouped by topic in the order of the request."""
    topics: _Answers = {}
    leaders = _add_answers(node.leadership, topics, appends)
    return _response(node, session, version, topics, leaders)


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


def _response(node: Core, session: Session, version: int, topics: _Answers, leaders: list[int]) -> ProduceResponse:
    response = ProduceResponse(responses=list(topics.values()))
    if leaders and version >= _LEADER_HINTS_SINCE:
        response.node_endpoints = [NodeEndpoint(*each) for each in node.members.of(session.address, leaders)]
    return response


class _Uncommon(Exception):
    """The frame has a shape that the hand-written reader leaves to the codec."""


def parse_common(frame: memoryview, version: int) -> _Parsed | None:
    """Client id, acks, timeout_ms, appends and transactional id of a flexible request; None: use the codec.

    Of client ids only INTERNAL_TOPICS_CLIENT is distinguished. Counts and names of more than one length byte, tagged
    fields and anything malformed are left to the codec.
    """
    if version < _FLEXIBLE_SINCE:
        return None
    try:
        client_id_length: int = _CLIENT_ID_LENGTH.unpack_from(frame, 8)[0]
        position = 10 + max(client_id_length, 0)
        client_id = bytes(frame[10:position])
        if frame[position] or not client_id.isascii():  # tags of the header
            return None
        position += 2
        transactional_id: str | None = None
        kind = PartitionAppend
        if frame[position - 1]:
            end = position + _short_length(frame[position - 1])
            transactional_id = str(frame[position:end], "utf-8")
            kind = TransactionalAppend
            position = end
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
        appends = _parse_topics(frame, position + 6, version >= _BY_TOPIC_ID_SINCE, kind)
    except (_Uncommon, IndexError, struct.error, UnicodeDecodeError):
        return None
    internal = INTERNAL_TOPICS_CLIENT if client_id == _INTERNAL_TOPICS_CLIENT else None
    return internal, acks, timeout_ms, appends, transactional_id


def _parse_topics(frame: memoryview, position: int, by_id: bool, kind: type[PartitionAppend]) -> list[PartitionAppend]:
    appends: list[PartitionAppend] = []
    for _ in range(_short_length(frame[position])):
        position += 1
        if by_id:
            topic: str | bytes = bytes(frame[position : position + 16])
            position += 16
        else:
            end = position + 1 + _short_length(frame[position])
            topic = str(frame[position + 1 : end], "utf-8")
            position = end
        partitions = _short_length(frame[position])
        position += 1
        for _ in range(partitions):
            index: int = _INDEX.unpack_from(frame, position)[0]
            size = frame[position + 4]
            position += 5
            if size >= 0x80:
                size, position = _long_size(frame, size, position)
            end = position + size - 1
            if size == 0 or frame[end]:  # null records; tags of the partition
                raise _Uncommon
            appends.append(kind(topic, index, frame[position:end]))
            position = end + 1
        if frame[position]:  # tags of the topic
            raise _Uncommon
    if frame[position + 1]:  # tags of the request
        raise _Uncommon
    return appends


def _short_length(byte: int) -> int:
    """A compact length that has one byte and is not null."""
    if not 0 < byte < 0x80:
        raise _Uncommon
    return byte - 1


def _long_size(frame: memoryview, size: int, position: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte is `size`: the number and its end."""
    size &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = frame[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, position
    raise _Uncommon


def _common_answer(correlation_id: int, append: PartitionAppend, throttle_ms: int) -> bytes:
    """The answer to one partition that went well: the generated encoder would write the same bytes."""
    topic = append.topic
    if isinstance(topic, str):
        name = topic.encode()
        length = len(name) + 1
        key = (bytes((length,)) if length < 0x80 else bytes(((length & 0x7F) | 0x80, length >> 7))) + name
    else:
        key = topic
    tail = _COMMON_ANSWER_TAIL.pack(
        2,
        append.index,
        _NONE,
        append.base_offset,
        append.log_append_time_ms,
        append.log_start_offset,
        1,  # no record errors
        0,  # no message
        0,  # tags of the partition
        0,  # tags of the topic
        throttle_ms,
        0,  # tags of the answer
    )
    return _COMMON_ANSWER_HEAD.pack(6 + len(key) + len(tail), correlation_id, 0, 2) + key + tail


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
