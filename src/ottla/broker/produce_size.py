"""Counts how many partitions a Produce request names, before it is decoded.

A Produce may be as long as `socket.request.max.bytes`, and a partition without records needs six bytes. Decoding a
hundred megabytes of them would take many seconds. Real clients' requests have some thousand partitions at most.
"""

from __future__ import annotations

from typing import Final

from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.wire import (
    SHORT_INPUT,
    read_array_length,
    read_compact_array_length,
    read_compact_nullable_records,
    read_compact_nullable_string,
    read_compact_string,
    read_nullable_records,
    read_nullable_string,
    read_string,
    skip_tags,
)

_FLEXIBLE_SINCE = 9
_BY_TOPIC_ID_SINCE = 13
PARTITIONS_MAX: Final = 20_000
"""Topics and partitions of one request, together."""


def refuse_too_many(frame: memoryview, position: int, version: int) -> None:
    """Raises MalformedFrameError if the request that begins at `position` names more than PARTITIONS_MAX."""
    try:
        _count(frame, position, version)
    except SHORT_INPUT as error:
        raise MalformedFrameError("the request is cut short") from error


def _count(frame: memoryview, position: int, version: int) -> None:
    flexible = version >= _FLEXIBLE_SINCE
    read_length = read_compact_array_length if flexible else read_array_length
    read_records = read_compact_nullable_records if flexible else read_nullable_records
    read_name = read_compact_string if flexible else read_string
    _, position = (read_compact_nullable_string if flexible else read_nullable_string)(frame, position)
    topics, position = read_length(frame, position + 6, 1)  # behind acks and timeout
    left = PARTITIONS_MAX
    for _ in range(topics):
        if version >= _BY_TOPIC_ID_SINCE:
            position += 16
        else:
            _, position = read_name(frame, position)
        partitions, position = read_length(frame, position, 1)
        left -= 1 + max(partitions, 0)
        if left < 0:
            raise MalformedFrameError(f"it names more than {PARTITIONS_MAX} topics and partitions")
        for _ in range(partitions):
            _, position = read_records(frame, position + 4)
            if flexible:
                position = skip_tags(frame, position)
        if flexible:
            position = skip_tags(frame, position)
