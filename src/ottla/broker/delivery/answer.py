"""Builds ShareFetch answers of parts: head bytes, file slices, and the bytes between them.

The generated encoder can only write records that are bytes in memory; this one leaves them in their files.
`tests/share/test_share_answer.py` compares the two. Records are never null: librdkafka refuses that.

Layout: ShareFetchResponse.json, versions 1 and 2, which are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

from ottla.broker.cluster.members import Member
from ottla.broker.delivery.sessions import TopicIdPartition
from ottla.broker.effects import Part
from ottla.log.files import FileSlice
from ottla.protocol.wire import write_compact_nullable_string, write_compact_string, write_uvarint

Acquired: TypeAlias = tuple[int, int, int]
"""First offset, last offset, delivery count."""

_NO_HINT = (0, 0)
"""As Kafka: the message has no other defaults."""
_NO_LEADER = (-1, -1)

_HEAD = struct.Struct(">iiBih")  # size, correlation id, tags, throttle time, error
_INT32 = struct.Struct(">i")
_PARTITION = struct.Struct(">ih")
_ERROR = struct.Struct(">h")
_LEADER = struct.Struct(">iiB")
_ACQUIRED = struct.Struct(">qqhB")


class ShareAnswer:
    """The answer for one partition of a share fetch."""

    __slots__ = (
        "acknowledge_error",
        "acknowledge_message",
        "acquired",
        "current_leader",
        "error",
        "place",
        "records",
        "size",
    )

    def __init__(self, place: TopicIdPartition) -> None:
        self.place = place
        self.error = 0
        self.acknowledge_error: int | None = None
        """None: nothing was acknowledged."""
        self.acknowledge_message: str | None = None
        self.current_leader: tuple[int, int] | None = None
        """Set if the leader is known, for clients that asked another node."""
        self.records: list[FileSlice | bytes] = []
        self.size = 0
        self.acquired: list[Acquired] = []

    @property
    def leader(self) -> tuple[int, int]:
        """The leader's id and epoch for the answer. If a partition has an error and no leader is known, both are -1: a
        client may take node 0 for a hint."""
        if self.current_leader is None:
            return _NO_LEADER if self.error or self.acknowledge_error else _NO_HINT
        return self.current_leader


def encode_share_fetch_response(
    correlation_id: int,
    error: int,
    message: str | None,
    lock_timeout_ms: int,
    answers: list[ShareAnswer],
    endpoints: Sequence[Member],
    throttle_ms: int = 0,
) -> list[Part]:
    """The whole answer with its size in front; `endpoints`: the addresses of the leaders that it names."""
    head = bytearray(_HEAD.pack(0, correlation_id, 0, throttle_ms, error))
    write_compact_nullable_string(head, message)
    head += _INT32.pack(lock_timeout_ms)
    parts: list[Part] = [head]
    current, spliced = head, 0
    topics: dict[bytes, list[ShareAnswer]] = {}
    for answer in answers:
        topics.setdefault(answer.place[0], []).append(answer)
    write_uvarint(current, len(topics) + 1)
    for topic_id, partitions in topics.items():
        current += topic_id
        write_uvarint(current, len(partitions) + 1)
        for answer in partitions:
            _write_partition_head(current, answer)
            if answer.records:
                spliced += answer.size
                parts += answer.records
                current = bytearray()
                parts.append(current)
            _write_acquired(current, answer.acquired)
        current.append(0)
    _write_endpoints(current, endpoints)
    size = spliced + sum(len(part) for part in parts if isinstance(part, bytearray)) - 4  # bytearrays are not records
    _INT32.pack_into(head, 0, size)
    return parts


def _write_partition_head(out: bytearray, answer: ShareAnswer) -> None:
    """Everything of a partition up to the length of its records."""
    out += _PARTITION.pack(answer.place[1], answer.error)
    out.append(0)  # no message
    out += _ERROR.pack(answer.acknowledge_error or 0)
    write_compact_nullable_string(out, answer.acknowledge_message)
    out += _LEADER.pack(*answer.leader, 0)
    write_uvarint(out, answer.size + 1)


def _write_acquired(out: bytearray, acquired: list[Acquired]) -> None:
    write_uvarint(out, len(acquired) + 1)
    for first, last, count in acquired:
        out += _ACQUIRED.pack(first, last, count, 0)
    out.append(0)


def _write_endpoints(out: bytearray, endpoints: Sequence[Member]) -> None:
    write_uvarint(out, len(endpoints) + 1)
    for node_id, host, port, rack in endpoints:
        out += _INT32.pack(node_id)
        write_compact_string(out, host)
        out += _INT32.pack(port)
        write_compact_nullable_string(out, rack)
        out.append(0)
    out.append(0)
