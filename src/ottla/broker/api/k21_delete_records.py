"""DeleteRecords, key 21, versions 0 to 2: move the log start of partitions up.

-1 means up to the high watermark; an offset below the log start changes nothing. Records below the new log start are
gone for readers at once, their segments at the next upkeep. Only topics that may lose old records are accepted: a topic
that is only compacted gets POLICY_VIOLATION, an internal one INVALID_TOPIC_EXCEPTION. If a partition occurs twice in a
request, its last offset counts.

Versions: 2 flexible.

Not supported: nothing; the request's timeout has no effect on one node.

Source: ReplicaManager.deleteRecords, Partition.deleteRecordsOnLeader; KIP-107.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, cut, encoded_topics, steps_of
from ottla.log.answers import OffsetOutOfRangeError, StorageError
from ottla.machine import Millis
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DELETE_RECORDS,
    versions=(0, 2),
    acl=((Operation.DELETE, ResourceType.TOPIC),),
    needs_lease=True,
)


UP_TO_HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


def handle(node: Core, request: Request) -> DeleteRecordsResponse | Parked:
    is_long = steps_of(request.body.topics) > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request, is_long), is_long=is_long)


def _answer(node: Core, request: Request, is_long: bool) -> Work:
    body: DeleteRecordsRequest = request.body
    wanted: dict[str, dict[int, int]] = {}
    for some in cut(body.topics, SLICE_STEPS):
        for topic in some:
            offsets = wanted.setdefault(topic.name, {})
            for partition in topic.partitions:
                offsets[partition.partition_index] = partition.offset
        if is_long:
            yield
    topics: list[Any] = []
    steps = 0
    for name, offsets in wanted.items():
        allowed = node.access.on_topic(request, Operation.DELETE, name)
        results: list[DeleteRecordsPartitionResult] = []
        topics.append(DeleteRecordsTopicResult(name, results))
        for index, offset in offsets.items():
            steps += 1
            low = _delete(node, request.now, name, index, offset) if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if isinstance(low, ErrorCode):
                results.append(DeleteRecordsPartitionResult(index, NO_LOW_WATERMARK, low))
            else:
                results.append(DeleteRecordsPartitionResult(index, low))
            if is_long and steps % SLICE_STEPS == 0:
                yield
        steps += 1
        if is_long and steps % SLICE_STEPS == 0:
            yield
    if is_long:
        topics = yield from encoded_topics(topics, request.version)
    return DeleteRecordsResponse(topics=topics)


def _delete(node: Core, now: Millis, topic: str, index: int, offset: int) -> int | ErrorCode:
    """The new log start, or the error."""
    partition = node.leadership.led(topic, index)
    if isinstance(partition, ErrorCode):
        return partition
    if topic in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    log = partition.log
    if log.config.compacted and not log.config.deletes:
        return ErrorCode.POLICY_VIOLATION
    target = log.high_watermark if offset == UP_TO_HIGH_WATERMARK else offset
    if target < 0:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    try:
        moved = log.delete_records_before(target)
    except OffsetOutOfRangeError:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    except (OSError, StorageError) as failed:
        node.failures.storage_failed(now, partition, str(failed))
        return ErrorCode.KAFKA_STORAGE_ERROR
    if moved:
        node.upkeep.commits.look_soon(now, partition)
        partition.wake_all_fetches()
    return log.log_start_offset
