"""Calls admin APIs that confluent-kafka lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ottla.client.client import Client
from ottla.client.errors import check
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


def delete_offsets(addresses: Iterable[tuple[str, int]], group: str, partitions: Sequence[tuple[str, int]]) -> None:
    """Delete a group's committed offsets for topics that it is not subscribed to."""
    topics = [
        OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(partition) for _, partition in rows])
        for name, rows in groupby(sorted(partitions), key=lambda each: each[0])
    ]
    with Client(",".join(f"{host}:{port}" for host, port in addresses)) as client:
        answer = client.send_to_coordinator(group, OffsetDeleteRequest(group, topics))
    check(answer.error_code, f"the offsets of group {group}")
    for topic in answer.topics:
        for each in topic.partitions:
            check(each.error_code, f"the offset of group {group} in {topic.name}-{each.partition_index}")
