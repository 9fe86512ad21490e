"""AlterReplicaLogDirs, key 34, versions 1 to 2: move replicas of this node to another of its directories.

A node has one directory. So a replica may only be moved to where it is; any other directory gets LOG_DIR_NOT_FOUND. If
a partition occurs twice in a request, the last one counts.

Versions: 2 flexible.

Not supported: more than one directory.

Source: ReplicaManager.alterReplicaLogDirs; KIP-113.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_topics, steps_of
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
)


def handle(node: Core, request: Request) -> AlterReplicaLogDirsResponse | Parked:
    body: AlterReplicaLogDirsRequest = request.body
    is_long = sum(1 + steps_of(directory.topics) for directory in body.dirs) > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request, is_long), is_long=is_long)


def _answer(node: Core, request: Request, is_long: bool) -> Work:
    body: AlterReplicaLogDirsRequest = request.body
    allowed = node.access.on_cluster(request, Operation.ALTER)
    errors: dict[str, dict[int, ErrorCode]] = {}
    steps = 0
    for directory in body.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                error = _error(node, directory.path, topic.name, index)
                errors.setdefault(topic.name, {})[index] = error if allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                steps += 1
                if steps % SLICE_STEPS == 0:
                    yield
    results: Any = [
        AlterReplicaLogDirTopicResult(
            name, [AlterReplicaLogDirPartitionResult(index, error) for index, error in of_topic.items()]
        )
        for name, of_topic in errors.items()
    ]
    if is_long:
        results = yield from encoded_topics(results, request.version)
    return AlterReplicaLogDirsResponse(results=results)


def _error(node: Core, path: str, name: str, index: int) -> ErrorCode:
    if path != node.directory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    partition = node.replicas.get(name, index)
    if partition is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR if partition.log.unopened else ErrorCode.NONE
    topic = node.image.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.REPLICA_NOT_AVAILABLE
