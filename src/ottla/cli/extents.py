"""Finds the log start and end of partitions, their size on disk and their eligible leaders, for commands that show
topics.

It uses ListOffsets, DescribeLogDirs and DescribeTopicPartitions (two of which confluent-kafka lacks). Facts that a
partition or cluster does not provide stay unknown, for example those of an offline partition or behind SASL. They do
not affect other partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.connection import REQUEST_TIMEOUT_S, own_clients
from ottla.cli.output import CommandError
from ottla.cli.resets import Partition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


class Extent(NamedTuple):
    """The first offset, the one after the last, and bytes on the leader's disk; None if unknown."""

    earliest: int | None
    latest: int | None
    size: int | None


def extents(admin: AdminClient, given: dict[str, Any], leaders: dict[Partition, int | None]) -> dict[Partition, Extent]:
    """The extents by topic and partition, for these partitions with the node ids of their leaders."""
    from confluent_kafka.admin import OffsetSpec

    led = [place for place, leader in leaders.items() if leader is not None]
    earliest, latest = (known_offsets(admin, spec, led) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
    sizes = known_sizes(given, leaders)
    return {place: Extent(earliest.get(place), latest.get(place), sizes.get(place)) for place in leaders}


def known_offsets(admin: AdminClient, spec: Any, places: Iterable[Partition]) -> dict[Partition, int]:
    from confluent_kafka import KafkaException, TopicPartition

    asked = {TopicPartition(*place): spec for place in places}
    found: dict[Partition, int] = {}
    for place, future in (admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S) if asked else {}).items():
        try:
            found[place.topic, place.partition] = future.result(REQUEST_TIMEOUT_S).offset
        except KafkaException:
            continue
    return found


def known_sizes(given: dict[str, Any], leaders: dict[Partition, int | None]) -> dict[Partition, int]:
    from ottla.client import ClientError
    from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

    found: dict[Partition, int] = {}
    try:
        with own_clients(given)() as client:
            for node_id in sorted({leader for leader in leaders.values() if leader is not None}):
                topics: dict[str, list[int]] = {}
                for (name, partition), leader in leaders.items():
                    if leader == node_id:
                        topics.setdefault(name, []).append(partition)
                rows = [DescribableLogDirTopic(name, partitions) for name, partitions in topics.items()]
                for directory in client.broker(node_id).send(DescribeLogDirsRequest(rows)).results:
                    for topic in directory.topics:
                        for part in topic.partitions:
                            if not part.is_future_key:
                                found[topic.name, part.partition_index] = part.partition_size
    except (ClientError, CommandError):
        pass
    return found


def known_eligible(given: dict[str, Any], topics: list[str]) -> dict[Partition, list[int]]:
    """The nodes that may lead a partition without being in sync (KIP-966), if the cluster provides them."""
    from ottla.client import ClientError
    from ottla.protocol.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest,
        RequestCursor,
        TopicRequest,
    )

    found: dict[Partition, list[int]] = {}
    cursor: RequestCursor | None = None
    try:
        with own_clients(given)() as client:
            while topics:
                asked = DescribeTopicPartitionsRequest([TopicRequest(name) for name in topics], cursor=cursor)
                answer = client.send(asked)
                for topic in answer.topics:
                    for part in topic.partitions:
                        found[topic.name or "", part.partition_index] = list(part.eligible_leader_replicas or ())
                if answer.next_cursor is None:
                    break
                cursor = RequestCursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)
                topics = [name for name in topics if name >= cursor.topic_name]
    except (ClientError, CommandError):
        pass
    return found
