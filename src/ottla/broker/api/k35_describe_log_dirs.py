"""DescribeLogDirs, key 35, versions 1 to 5: the data directory, and the size of each log in it.

A node has one directory. Null asks for every partition; unknown partitions are left out. The lag of a follower is the
distance from its log's end to the high watermark that the leader last reported. It is -1 before the first report, and
if the log is offline. No log is a future one, as there is one directory.

Versions: 2 flexible, 3 a top-level error code, 4 the size of the volume, 5 whether it is cordoned.

Not supported: the volume's total and usable bytes are -1 (unknown) if the file system does not report them.

Source: ReplicaManager.describeLogDirs; KIP-113, KIP-827.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, EncodedStructs, Work, cut, steps_of
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_LOG_DIRS,
    versions=(1, 5),
    acl=((Operation.DESCRIBE, ResourceType.CLUSTER),),
)


def handle(node: Core, request: Request) -> DescribeLogDirsResponse | Parked:
    asked = request.body.topics
    is_long = (len(node.replicas.by_name) if asked is None else steps_of(asked)) > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request, is_long), is_long=is_long)


def _answer(node: Core, request: Request, is_long: bool) -> Work:
    body: DescribeLogDirsRequest = request.body
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    indexes: dict[str, dict[int, None]] = {}
    if body.topics is None:
        indexes = {name: dict.fromkeys(topic.partitions) for name, topic in node.replicas.by_name.items()}
    else:
        for some in cut(body.topics, SLICE_STEPS):
            for asked in some:
                indexes.setdefault(asked.topic, {}).update(dict.fromkeys(asked.partitions))
            if is_long:
                yield
    topics: Any = EncodedStructs(request.version)
    steps = 0
    for name, wanted in indexes.items():
        partitions: Any = EncodedStructs(request.version)
        for index in wanted:
            steps += 1
            partition = node.replicas.get(name, index)
            if partition is not None:
                partitions.add((_size(partition),))
            if steps % SLICE_STEPS == 0:
                yield
        if len(partitions):
            topics.add((DescribeLogDirsTopic(name, partitions),))
    total_bytes, usable_bytes = node.files.space(node.directory)
    result = DescribeLogDirsResult(
        log_dir=node.directory, topics=topics, total_bytes=total_bytes, usable_bytes=usable_bytes
    )
    return DescribeLogDirsResponse(results=[result])


def _size(partition: Partition) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(partition.index, partition.log.size_bytes, partition.offset_lag)
