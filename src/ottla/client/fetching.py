"""Fetches many partitions from one leader: the request is sent first and the answer taken later, so that work continues
meanwhile.

It uses no fetch sessions (KIP-227): each request names its partitions. It decodes no records; the records of an answer
are views into the received frame. KIP-98 (aborted transactions), KIP-516 (topic ids).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.client.client import Client, TopicPartition
from ottla.client.connection import Connection, Posted
from ottla.client.errors import check
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from ottla.protocol.wire import Buffer


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """A partition to fetch: from which offset, and how many bytes at most."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """The result for a partition. `error_code` is Kafka's, 0 for none. `records` may begin before the requested offset,
    and its last batch may be truncated. `aborted`: (producer_id, first_offset) under isolation level 1."""

    error_code: int
    records: Buffer
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Fetching:
    """A fetch request in flight."""

    connection: Connection
    posted: Posted
    names: dict[bytes, str]

    def take(self) -> dict[TopicPartition, FetchedPart]:
        """Wait for the answer; returns it by topic and partition. Raises ClientError."""
        answer = self.connection.take(self.posted)
        check(answer.error_code, f"a fetch from {self.connection.address}")
        found: dict[TopicPartition, FetchedPart] = {}
        for place in answer.responses:
            topic = self.names.get(bytes(place.topic_id)) or place.topic  # answers name topics by name up to version 12
            for part in place.partitions:
                found[topic, part.partition_index] = _part(part)
        return found


def post_fetch(
    client: Client,
    leader: Connection,
    wanted: Sequence[PartitionFetch],
    *,
    max_bytes: int,
    min_bytes: int = 1,
    max_wait_ms: int = 500,
    isolation_level: int = 0,
) -> Fetching:
    """Send one leader a fetch request for partitions that it leads. Raises ClientError.

    The first partition with records returns at least one whole batch, whatever the limits; later partitions get the
    room that is left.
    """
    rows: dict[str, list[FetchPartition]] = {}
    for each in wanted:
        row = FetchPartition(each.partition, fetch_offset=each.offset, partition_max_bytes=each.max_bytes)
        rows.setdefault(each.topic, []).append(row)
    ids = {topic: client.known_topic(topic).topic_id for topic in rows}
    topics = [FetchTopic(topic, ids[topic], partitions) for topic, partitions in rows.items()]
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=topics,
    )
    names = {topic_id: topic for topic, topic_id in ids.items() if any(topic_id)}
    return Fetching(leader, leader.post(request), names)


def _part(part: PartitionData) -> FetchedPart:
    aborted = tuple((each.producer_id, each.first_offset) for each in part.aborted_transactions or ())
    return FetchedPart(
        part.error_code,
        part.records if part.records is not None else b"",
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        aborted,
    )
