"""Remembers how a connection's Produce frames begin, so that those after the first need not be parsed.

As long as a producer writes to one topic, its frames with one partition differ only in the correlation id, the index of
the partition and the batch. A `Channel` keeps the rest of the last one, as bytes; the next frame is compared with it.

    api key, version, correlation id | client id .. acks, timeout, one topic, one partition | index, size, batch | 0 0 0
                                     `---------------- the head ----------------------------'           empty tags

`api/produce_frames.py` parses the frames. A head is made of one that it has parsed, in the same shape.
"""

from __future__ import annotations

from functools import cache
from struct import Struct
from typing import Final

HEAD_BYTES_MAX: Final = 512
"""A longer head (of a client id, mostly) is not kept."""
HEAD_AT: Final = 8
"""The position of the client id's length in a frame."""
_FIXED: Final = 12
"""The bytes of a head without those of the client id and of the topic."""
_INDEX_BYTES: Final = 4
_SIZE_BYTES_MAX: Final = 3
"""A longer size is left to the parser."""
_TAGS: Final = 3
"""The empty tags of the partition, of the topic and of the request."""
_CLIENT_ID_LENGTH = Struct(">h")


@cache
def _reader(size: int) -> Struct:
    """A head of `size` bytes, the index of the partition, and three bytes that begin with the size of the batch. One
    for each size up to HEAD_BYTES_MAX is kept."""
    return Struct(f">{size}siBBB")


@cache
def _writer(size: int) -> Struct:
    """An answer for one partition of a topic whose key has `size` bytes, with its length. One for each length of a
    name is kept."""
    return Struct(f">iiBB{size}sBihqqqBBBBiB")


class ProduceHead:
    """The head of a Produce frame that had the common shape, and one partition. `topic`: its name or id. `key`: the
    same as in the frame."""

    __slots__ = ("_at", "_octets", "_unpack", "acks", "key", "timeout_ms", "topic", "version")

    def __init__(self, version: int, topic: str | bytes, key: bytes, octets: bytes, acks: int, timeout_ms: int) -> None:
        self.version = version
        self.topic = topic
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.key = key
        self._octets = octets
        self._at = HEAD_AT + len(octets)
        self._unpack = _reader(len(octets)).unpack_from

    @classmethod
    def of(cls, frame: memoryview, version: int, topic: str | bytes, acks: int, timeout_ms: int) -> ProduceHead | None:
        """The head of a frame of the common shape that names one partition, of this topic; None if it is too long."""
        key = key_of(topic)
        client_id_bytes: int = _CLIENT_ID_LENGTH.unpack_from(frame, HEAD_AT)[0]
        size = max(client_id_bytes, 0) + _FIXED + len(key)
        if size > HEAD_BYTES_MAX:
            return None
        return cls(version, topic, key, bytes(frame[HEAD_AT : HEAD_AT + size]), acks, timeout_ms)

    def partition_in(self, frame: memoryview) -> tuple[int, memoryview] | None:
        """The index and the batch of a frame of the same version that begins with this head and has the common shape;
        None for any other frame."""
        at, end = self._at + _INDEX_BYTES + 1, len(frame) - _TAGS
        if end < at + _SIZE_BYTES_MAX:
            return None
        octets, index, size, middle, high = self._unpack(frame, HEAD_AT)
        if octets != self._octets:
            return None
        if size >= 0x80:  # an unsigned varint of two or three bytes
            size, at = size & 0x7F | middle << 7, at + 1
            if middle >= 0x80:
                size, at = size & 0x3FFF | high << 14, at + 1
                if high >= 0x80:
                    return None
        if size != end - at + 1 or frame[end] or frame[end + 1] or frame[end + 2]:
            return None
        return index, frame[at:end]


def key_of(topic: str | bytes) -> bytes:
    """The topic in a frame: its id, or its name as a compact string."""
    if isinstance(topic, bytes):
        return topic
    name = topic.encode()
    length = len(name) + 1
    return (bytes((length,)) if length < 0x80 else bytes(((length & 0x7F) | 0x80, length >> 7))) + name


def answer_of_one(
    key: bytes,
    correlation_id: int,
    index: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    throttle_ms: int,
) -> bytes:
    """The answer to one partition whose batch was appended: the generated encoder would write the same bytes."""
    writer = _writer(len(key))
    return writer.pack(
        writer.size - 4,
        correlation_id,
        0,  # tags of the header
        2,  # one topic
        key,
        2,  # one partition
        index,
        0,  # no error
        base_offset,
        log_append_time_ms,
        log_start_offset,
        1,  # no record errors
        0,  # no message
        0,  # tags of the partition
        0,  # tags of the topic
        throttle_ms,
        0,  # tags of the answer
    )
