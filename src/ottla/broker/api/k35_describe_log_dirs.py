"""DescribeLogDirs, key 35, versions 1 to 5: the data directory, and the size of each log in it.

What it does: one directory per node; null asks for every partition, what is unknown is left out.

What changed per version: 2 flexible, 3 a top-level error code, 4 the size of the volume, 5 whether it is cordoned.

What is skipped: the volume's total and usable bytes are -1 (unknown) where the file system does not tell them.

Source: ReplicaManager.describeLogDirs; KIP-113, KIP-827.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> DescribeLogDirsResponse:
    body: DescribeLogDirsRequest = request.body
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if body.topics is None:
        chosen: dict[str, Iterable[Partition]] = {
            topic.name: topic.partitions.values() for topic in node.replicas.by_name.values()
        }
    else:
        indexes: dict[str, dict[int, None]] = {}
        for asked in body.topics:
            indexes.setdefault(asked.topic, {}).update(dict.fromkeys(asked.partitions))
        chosen = {name: _found(node, name, wanted) for name, wanted in indexes.items()}
    topics = [DescribeLogDirsTopic(name, [_size(partition) for partition in found]) for name, found in chosen.items()]
    total_bytes, usable_bytes = node.files.space(node.directory)
    result = DescribeLogDirsResult(
        log_dir=node.directory,
        topics=[topic for topic in topics if topic.partitions],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
    return DescribeLogDirsResponse(results=[result])


def _found(node: Node, topic: str, indexes: Iterable[int]) -> list[Partition]:
    found = (node.replicas.get(topic, index) for index in indexes)
    return [partition for partition in found if partition is not None]


def _size(partition: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(partition.index, partition.log.size_bytes)
