"""Reads frames of the common shape of a produce request by hand, and holds the partitions of a request.

The common shape is a flexible version, short names and no tags. The generated codec reads everything else;
`tests/broker/test_produce_parsing.py` compares the two.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

from ottla.broker.produce_head import key_of
from ottla.log.producers import VerificationGuard
from ottla.log.validation import Known
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import ATTRIBUTES_TRANSACTIONAL
from ottla.protocol.wire import write_uvarint

if TYPE_CHECKING:
    from ottla.broker.partitions.partition import Partition
    from ottla.log.answers import Appended

INTERNAL_TOPICS_CLIENT = "__admin_client"
"""The only client id that may write to internal topics; Kafka's own admin tools use it."""
ATTRIBUTES_LOW = 22
"""The position of the lower byte of a batch's attributes."""


_CLIENT_ID_LENGTH = struct.Struct(">h")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_ANSWER_HEAD = struct.Struct(">iiB")  # size, correlation id, tags of the header
_ANSWERED = struct.Struct(">ihqqqBBB")
_ANSWER_END = struct.Struct(">iB")  # throttle time, tags of the answer
FLEXIBLE_SINCE = 9
BY_TOPIC_ID_SINCE = 13
_INTERNAL_TOPICS_CLIENT = INTERNAL_TOPICS_CLIENT.encode()
_NONE = ErrorCode.NONE


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

    def appended(self, partition: Partition, appended: Appended) -> None:
        """The batch is in the log of this partition."""
        self.partition = partition
        self.base_offset, last_offset, self.log_append_time_ms, _ = appended
        self.log_start_offset = partition.log.offsets.log_start_offset
        self.required_offset = last_offset + 1


Parsed: TypeAlias = tuple[str | None, int, int, list[PartitionAppend], str | None]
"""Client id, acks, timeout_ms, appends and transactional id; with an id the appends are `TransactionalAppend`s."""


class TransactionalAppend(PartitionAppend):
    """One partition of a produce request with a transactional id. `guard`: needed by a batch that opens a transaction;
    None if it is open. `leader_epoch`: the epoch in which this node led the partition at that check."""

    __slots__ = ("guard", "leader_epoch")

    def __init__(self, topic: str | bytes, index: int, records: memoryview | None) -> None:
        super().__init__(topic, index, records)
        self.guard: VerificationGuard | None = None
        self.leader_epoch = -1

    @property
    def is_transactional(self) -> bool:
        """Whether its batch belongs to the transaction."""
        records = self.records
        return (
            records is not None
            and len(records) > ATTRIBUTES_LOW
            and bool(records[ATTRIBUTES_LOW] & ATTRIBUTES_TRANSACTIONAL)
        )


class _UncommonError(Exception):
    """The frame has a shape that the hand-written reader leaves to the codec."""


def parse_common(frame: memoryview, version: int) -> Parsed | None:
    """Client id, acks, timeout_ms, appends and transactional id of a flexible request; None: use the codec.

    Of client ids only INTERNAL_TOPICS_CLIENT is distinguished. Counts and names of more than one length byte, tagged
    fields and anything malformed are left to the codec.
    """
    if version < FLEXIBLE_SINCE:
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
        appends = _parse_topics(frame, position + 6, version >= BY_TOPIC_ID_SINCE, kind)
    except (_UncommonError, IndexError, struct.error, UnicodeDecodeError):
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
                more = frame[position]
                if more < 0x80:
                    size, position = size & 0x7F | more << 7, position + 1
                else:
                    size, position = _long_size(frame, size, position)
            end = position + size - 1
            if size == 0 or frame[end]:  # null records; tags of the partition
                raise _UncommonError
            appends.append(kind(topic, index, frame[position:end]))
            position = end + 1
        if frame[position]:  # tags of the topic
            raise _UncommonError
    if frame[position + 1]:  # tags of the request
        raise _UncommonError
    return appends


def _short_length(byte: int) -> int:
    """A compact length that has one byte and is not null."""
    if not 0 < byte < 0x80:
        raise _UncommonError
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
    raise _UncommonError


def answer_of_all(correlation_id: int, appends: list[PartitionAppend], throttle_ms: int) -> bytearray:
    """The answer if all of these were appended: the generated encoder would write the same bytes."""
    topics: dict[str | bytes, list[bytes]] = {}
    for append in appends:
        partition = _ANSWERED.pack(
            append.index,
            0,  # no error
            append.base_offset,
            append.log_append_time_ms,
            append.log_start_offset,
            1,  # no record errors
            0,  # no message
            0,  # tags of the partition
        )
        topics.setdefault(append.topic, []).append(partition)
    answer = bytearray(_ANSWER_HEAD.pack(0, correlation_id, 0))
    write_uvarint(answer, len(topics) + 1)
    for topic, partitions in topics.items():
        answer += key_of(topic)
        write_uvarint(answer, len(partitions) + 1)
        answer += b"".join(partitions)
        answer.append(0)  # tags of the topic
    answer += _ANSWER_END.pack(throttle_ms, 0)
    _INDEX.pack_into(answer, 0, len(answer) - 4)
    return answer
