"""Builds Fetch answers of parts: head bytes, file slices, and the bytes between them.

The generated encoder can only write records that are bytes in memory. This one writes the same answer around records
that stay in their files, so that the I/O host can send them from there. `tests/broker/test_fetch_answer.py` compares it
with the generated encoder for every version.

Layout: the FetchResponse of Kafka's FetchResponse.json, versions 4 to 18.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any, cast

from ottla.broker.cluster.members import Member
from ottla.broker.effects import Part
from ottla.broker.fetch.sessions import FetchPartition, TopicKey
from ottla.broker.partitions.partition import Partition
from ottla.log.files import FileSlice
from ottla.log.index.transactions import AbortedTransaction
from ottla.protocol.wire import write_compact_nullable_string, write_compact_string, write_string, write_uvarint

_LOG_START_OFFSET_SINCE = 5
_SESSIONS_SINCE = 7
_PREFERRED_REPLICA_SINCE = 11
_FLEXIBLE_SINCE = 12
_BY_TOPIC_ID_SINCE = 13
_ENDPOINTS_SINCE = 16

PARTITIONS_AT_ONCE = 1_000
"""How many are named, read, reported or encoded in a slice, each in some microseconds."""

DIVERGING_EPOCH_TAG = 0
CURRENT_LEADER_TAG = 1
NODE_ENDPOINTS_TAG = 0

_HEAD_FLEXIBLE = struct.Struct(">iiBihi")  # size, correlation id, tags, throttle time, error, session id
_HEAD_V7 = struct.Struct(">iiihi")
_HEAD_V4 = struct.Struct(">iii")
_PARTITION_V5 = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_INT32 = struct.Struct(">i")
_ABORTED = struct.Struct(">qq")
_ALONE = struct.Struct(">BihqqqBi")
_ALONE_TAGS = bytes(3)
"""The empty tags of the only partition, of its topic and of the answer."""
_EPOCH_END = struct.Struct(">iqB")
_LEADER = struct.Struct(">iiB")


class PartitionAnswer:
    """The answer for one partition of a fetch; `asked` is its part of the request. An error leaves the offsets at
    -1."""

    __slots__ = (
        "aborted",
        "asked",
        "current_leader",
        "diverging",
        "error",
        "high_watermark",
        "is_held_back",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "preferred_replica",
        "records",
    )

    def __init__(self, asked: FetchPartition) -> None:
        self.asked = asked
        self.error = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.aborted: list[AbortedTransaction] | None = None
        """None for a read_uncommitted consumer."""
        self.records: FileSlice | None = None
        self.current_leader: tuple[int, int] | None = None
        """(leader id, leader epoch), if the client asked the wrong node."""
        self.diverging: tuple[int, int] | None = None
        """(epoch, end offset) at which the client's log and this one diverge."""
        self.preferred_replica = -1
        """The node that a consumer shall fetch from instead."""
        self.is_held_back = False
        """There is more for a follower, which it has to wait for."""
        self.partition: Partition | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it lists no aborted transactions and has no tags."""
        return not self.aborted and self.diverging is None and self.current_leader is None


def encode_fetch_response(
    version: int,
    correlation_id: int,
    error: int,
    session_id: int,
    answers: list[PartitionAnswer],
    endpoints: Sequence[Member],
    throttle_ms: int = 0,
) -> list[Part]:
    """The whole answer with its size in front; `endpoints`: the addresses of the leaders that it names."""
    flexible = version >= _FLEXIBLE_SINCE
    if flexible and len(answers) == 1 and answers[0].is_plain and not endpoints:
        return _encoded_alone(correlation_id, error, session_id, answers[0], throttle_ms)
    head = _head(version, correlation_id, throttle_ms, error, session_id)
    parts: list[Part] = [head]
    current, spliced = head, 0
    topics = _by_topic(answers)
    _write_length(current, len(topics), flexible)
    for topic, partitions in topics:
        _write_topic_head(current, topic, len(partitions), version)
        current, more = _write_partitions(parts, current, partitions, version)
        spliced += more
        if flexible:
            current.append(0)
    _end(parts, current, spliced, version, endpoints)
    return parts


def _encoded_alone(
    correlation_id: int, error: int, session_id: int, answer: PartitionAnswer, throttle_ms: int
) -> list[Part]:
    """The whole answer for one partition, if it `is_plain` and the version is flexible: most fetches have this one."""
    topic, records = answer.asked.topic, answer.records
    head = bytearray(_HEAD_FLEXIBLE.pack(0, correlation_id, 0, throttle_ms, error, session_id))
    head.append(2)  # one topic
    if isinstance(topic, bytes):
        head += topic
    else:
        write_compact_string(head, topic)
    head += _ALONE.pack(
        2,  # one partition
        answer.asked.index,
        answer.error,
        answer.high_watermark,
        answer.last_stable_offset,
        answer.log_start_offset,
        0 if answer.aborted is None else 1,
        answer.preferred_replica,
    )
    length = 0 if records is None else records.length
    write_uvarint(head, length + 1)
    _INT32.pack_into(head, 0, len(head) + length + len(_ALONE_TAGS) - 4)
    if records is None:
        head += _ALONE_TAGS
        return [head]
    return [head, records, _ALONE_TAGS]


def encoded_in_slices(
    version: int,
    correlation_id: int,
    session_id: int,
    answers: list[PartitionAnswer],
    endpoints: Sequence[Member],
) -> Generator[None, Any, list[Part]]:
    """Like `encode_fetch_response`, for an answer without an error or a throttle time, some partitions at a time."""
    current = _head(version, correlation_id, 0, 0, session_id)
    parts: list[Part] = [current]
    spliced = steps = 0
    topics = _by_topic(answers)
    _write_length(current, len(topics), version >= _FLEXIBLE_SINCE)
    for topic, partitions in topics:
        _write_topic_head(current, topic, len(partitions), version)
        for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
            some = partitions[first : first + PARTITIONS_AT_ONCE]
            current, more = _write_partitions(parts, current, some, version)
            spliced += more
            steps += len(some)
            if steps >= PARTITIONS_AT_ONCE:
                steps = 0
                yield
        if version >= _FLEXIBLE_SINCE:
            current.append(0)
    _end(parts, current, spliced, version, endpoints)
    return parts


def _head(version: int, correlation_id: int, throttle_ms: int, error: int, session_id: int) -> bytearray:
    if version >= _FLEXIBLE_SINCE:
        return bytearray(_HEAD_FLEXIBLE.pack(0, correlation_id, 0, throttle_ms, error, session_id))
    if version >= _SESSIONS_SINCE:
        return bytearray(_HEAD_V7.pack(0, correlation_id, throttle_ms, error, session_id))
    return bytearray(_HEAD_V4.pack(0, correlation_id, throttle_ms))


def _write_topic_head(out: bytearray, topic: TopicKey, partitions: int, version: int) -> None:
    if version >= _BY_TOPIC_ID_SINCE:
        assert isinstance(topic, bytes)
        out += topic
    elif version >= _FLEXIBLE_SINCE:
        write_compact_string(out, str(topic))
    else:
        write_string(out, str(topic))
    _write_length(out, partitions, version >= _FLEXIBLE_SINCE)


def _write_partitions(
    parts: list[Part], current: bytearray, partitions: list[PartitionAnswer], version: int
) -> tuple[bytearray, int]:
    """Write behind `current`, the last of the parts. Returns the new last part, and the number of record bytes."""
    spliced = 0
    for answer in partitions:
        _write_partition_head(current, answer, version)
        records = answer.records
        if records is not None:
            spliced += records.length
            parts.append(records)
            current = bytearray()
            parts.append(current)
        if version >= _FLEXIBLE_SINCE:
            _write_partition_tags(current, answer)
    return current, spliced


def _end(parts: list[Part], current: bytearray, spliced: int, version: int, endpoints: Sequence[Member]) -> None:
    if version >= _ENDPOINTS_SINCE and endpoints:
        _write_endpoints(current, endpoints)
    elif version >= _FLEXIBLE_SINCE:
        current.append(0)
    if not current:
        parts.pop()
    size = spliced - 4
    for part in parts:
        if type(part) is bytearray:
            size += len(part)
    _INT32.pack_into(cast(bytearray, parts[0]), 0, size)


def _by_topic(answers: list[PartitionAnswer]) -> list[tuple[TopicKey, list[PartitionAnswer]]]:
    """Answers grouped by topic, runs of the same topic together, in the order they were read."""
    grouped: dict[TopicKey, list[PartitionAnswer]] = {}
    for answer in answers:
        grouped.setdefault(answer.asked.topic, []).append(answer)
    return list(grouped.items())


def _write_length(out: bytearray, length: int, flexible: bool) -> None:
    if not flexible:
        out += _INT32.pack(length)
    elif length < 0x7F:
        out.append(length + 1)
    else:
        write_uvarint(out, length + 1)


def _write_partition_head(out: bytearray, answer: PartitionAnswer, version: int) -> None:
    """Everything of a partition up to the length of its records."""
    if version >= _LOG_START_OFFSET_SINCE:
        out += _PARTITION_V5.pack(
            answer.asked.index,
            answer.error,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
        )
    else:
        out += _PARTITION_V4.pack(answer.asked.index, answer.error, answer.high_watermark, answer.last_stable_offset)
    flexible = version >= _FLEXIBLE_SINCE
    aborted = answer.aborted
    if aborted is None:
        out += b"\x00" if flexible else b"\xff\xff\xff\xff"
    else:
        _write_length(out, len(aborted), flexible)
        for transaction in aborted:
            out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
            if flexible:
                out.append(0)
    if version >= _PREFERRED_REPLICA_SINCE:
        out += _INT32.pack(answer.preferred_replica)
    length = 0 if answer.records is None else answer.records.length
    _write_length(out, length, flexible)


def _write_partition_tags(out: bytearray, answer: PartitionAnswer) -> None:
    diverging, leader = answer.diverging, answer.current_leader
    out.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        out += bytes((DIVERGING_EPOCH_TAG, _EPOCH_END.size)) + _EPOCH_END.pack(*diverging, 0)
    if leader is not None:
        out += bytes((CURRENT_LEADER_TAG, _LEADER.size)) + _LEADER.pack(*leader, 0)


def _write_endpoints(out: bytearray, endpoints: Sequence[Member]) -> None:
    """The tags of the answer with the addresses of some nodes."""
    body = bytearray()
    write_uvarint(body, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        body += _INT32.pack(node_id)
        write_compact_string(body, host)
        body += _INT32.pack(port)
        write_compact_nullable_string(body, rack)
        body.append(0)
    out += bytes((1, NODE_ENDPOINTS_TAG))
    write_uvarint(out, len(body))
    out += body
