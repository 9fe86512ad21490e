"""Fetch answers as parts: head bytes, file slices, and the bytes between them.

The generated encoder can only write records that are bytes in memory. This one writes the same answer around records
that stay in their files, so that the shell can send them from there. `tests/broker/test_fetch_answer.py` holds it
against the generated encoder for every version.

Layout: the FetchResponse of Kafka's FetchResponse.json, versions 4 to 18.
"""

from __future__ import annotations

import struct

from ottla.broker.effects import Part
from ottla.broker.fetch.sessions import TopicKey
from ottla.broker.partitions.partition import Partition
from ottla.log.files import FileSlice
from ottla.log.index.transactions import AbortedTransaction
from ottla.protocol.wire import write_compact_nullable_string, write_compact_string, write_string, write_uvarint

FIRST_FLEXIBLE_VERSION = 12
FIRST_VERSION_BY_TOPIC_ID = 13

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
_EPOCH_END = struct.Struct(">iqB")
_LEADER = struct.Struct(">iiB")


class PartitionAnswer:
    """What one partition of a fetch is answered. An error leaves the offsets at -1."""

    __slots__ = (
        "aborted",
        "current_leader",
        "diverging",
        "error",
        "high_watermark",
        "index",
        "last_stable_offset",
        "log_start_offset",
        "partition",
        "records",
        "topic",
    )

    def __init__(self, topic: TopicKey, index: int) -> None:
        self.topic = topic
        self.index = index
        self.error = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.aborted: list[AbortedTransaction] | None = None
        """None for a read_uncommitted consumer."""
        self.records: FileSlice | None = None
        self.current_leader: tuple[int, int] | None = None
        """(leader id, leader epoch), where the client asked the wrong one."""
        self.diverging: tuple[int, int] | None = None
        """(epoch, end offset) where the client's log and this one part ways."""
        self.partition: Partition | None = None


def encode_fetch_response(
    version: int,
    correlation_id: int,
    error: int,
    session_id: int,
    answers: list[PartitionAnswer],
    endpoint: tuple[int, str, int] | None,
) -> list[Part]:
    """The whole answer with its size in front; `endpoint` is (node id, host, port) for leader hints."""
    flexible = version >= FIRST_FLEXIBLE_VERSION
    head = bytearray()
    if flexible:
        head += _HEAD_FLEXIBLE.pack(0, correlation_id, 0, 0, error, session_id)
    elif version >= 7:
        head += _HEAD_V7.pack(0, correlation_id, 0, error, session_id)
    else:
        head += _HEAD_V4.pack(0, correlation_id, 0)
    parts: list[Part] = [head]
    current, spliced = head, 0
    topics = _by_topic(answers)
    _write_length(current, len(topics), flexible)
    for topic, partitions in topics:
        if version >= FIRST_VERSION_BY_TOPIC_ID:
            assert isinstance(topic, bytes)
            current += topic
        elif flexible:
            write_compact_string(current, str(topic))
        else:
            write_string(current, str(topic))
        _write_length(current, len(partitions), flexible)
        for answer in partitions:
            _write_partition_head(current, answer, version)
            records = answer.records
            if records is not None:
                spliced += records.length
                parts.append(records)
                current = bytearray()
                parts.append(current)
            if flexible:
                _write_partition_tags(current, answer)
        if flexible:
            current.append(0)
    if flexible:
        _write_answer_tags(current, endpoint if version >= 16 else None)
    if not current:
        parts.pop()
    size = spliced + sum(len(part) for part in parts if isinstance(part, bytearray)) - 4
    _INT32.pack_into(head, 0, size)
    return parts


def _by_topic(answers: list[PartitionAnswer]) -> list[tuple[TopicKey, list[PartitionAnswer]]]:
    """Answers grouped by topic, runs of the same topic together, in the order they were read."""
    grouped: dict[TopicKey, list[PartitionAnswer]] = {}
    for answer in answers:
        grouped.setdefault(answer.topic, []).append(answer)
    return list(grouped.items())


def _write_length(out: bytearray, length: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, length + 1)
    else:
        out += _INT32.pack(length)


def _write_partition_head(out: bytearray, answer: PartitionAnswer, version: int) -> None:
    """Everything of a partition up to the length of its records."""
    if version >= 5:
        out += _PARTITION_V5.pack(
            answer.index,
            answer.error,
            answer.high_watermark,
            answer.last_stable_offset,
            answer.log_start_offset,
        )
    else:
        out += _PARTITION_V4.pack(answer.index, answer.error, answer.high_watermark, answer.last_stable_offset)
    flexible = version >= FIRST_FLEXIBLE_VERSION
    aborted = answer.aborted
    if aborted is None:
        out += b"\x00" if flexible else b"\xff\xff\xff\xff"
    else:
        _write_length(out, len(aborted), flexible)
        for transaction in aborted:
            out += _ABORTED.pack(transaction.producer_id, transaction.first_offset)
            if flexible:
                out.append(0)
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred read replica
    length = 0 if answer.records is None else answer.records.length
    _write_length(out, length, flexible)


def _write_partition_tags(out: bytearray, answer: PartitionAnswer) -> None:
    diverging, leader = answer.diverging, answer.current_leader
    out.append((diverging is not None) + (leader is not None))
    if diverging is not None:
        out += bytes((DIVERGING_EPOCH_TAG, _EPOCH_END.size)) + _EPOCH_END.pack(*diverging, 0)
    if leader is not None:
        out += bytes((CURRENT_LEADER_TAG, _LEADER.size)) + _LEADER.pack(*leader, 0)


def _write_answer_tags(out: bytearray, endpoint: tuple[int, str, int] | None) -> None:
    if endpoint is None:
        out.append(0)
        return
    node_id, host, port = endpoint
    body = bytearray(b"\x02")
    body += _INT32.pack(node_id)
    write_compact_string(body, host)
    body += _INT32.pack(port)
    write_compact_nullable_string(body, None)
    body.append(0)
    out += bytes((1, NODE_ENDPOINTS_TAG))
    write_uvarint(out, len(body))
    out += body
