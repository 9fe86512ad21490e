"""ListOffsets, key 2, versions 1 to 11: offsets by time, and the ends of partitions.

The handler finds one of these offsets:
- latest (-1): the high watermark, or the last stable offset for read_committed;
- earliest (-2);
- the record with the greatest timestamp (-3);
- earliest local (-4): the earliest, as nothing is tiered;
- latest tiered (-5) and earliest pending upload (-6): both -1, as nothing is tiered;
- the first record at or after a time.

An offset that is not readable yet is not returned. Just after a start, while the high watermark has not reached the
leader epoch's beginning, the answer is OFFSET_NOT_AVAILABLE; otherwise -1.

Versions: 2 isolation level, 4 leader epochs, 5 OFFSET_NOT_AVAILABLE (before: LEADER_NOT_AVAILABLE), 6 flexible, 7 -3, 8
-4, 9 -5, 10 a timeout for tiered storage (without effect here), 11 -6.

A follower (a node of the cluster that gives its replica id) gets the beginning and end of the log itself. Other clients
with a replica id get the same as consumers. The debugging replica id (-2) asks any replica, leader or not, about its
whole log. For the end of a log that does not lead, it gets the leader epoch of the last record; Kafka returns that of
the partition. Operators compare the replicas of a partition without a leader that way.

Source: KafkaApis.handleListOffsetRequest, ReplicaManager.fetchOffset, Partition.fetchOffsetForTimestamp; KIP-320,
KIP-734, KIP-405.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, encoded_topics, steps_of
from ottla.log.answers import TimestampOffset
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.LIST_OFFSETS,
    versions=(1, 11),
    acl=((Operation.DESCRIBE, ResourceType.TOPIC),),
    needs_lease=True,
)


SEARCHES_AT_ONCE = 1
"""How many partitions' logs may be searched in one slice, by time or for the newest record: each may unpack a batch."""

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_ASKED_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_OFFSET_NOT_AVAILABLE_SINCE = 5
DEBUGGING: Final = -2
"""The replica id of clients that inspect a replica (ListOffsetsRequest.DEBUGGING_REPLICA_ID)."""
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


def handle(node: Core, request: Request) -> ListOffsetsResponse | Parked:
    topics = request.body.topics
    searches = sum(_searches(asked) for topic in topics for asked in topic.partitions)
    is_long = searches > SEARCHES_AT_ONCE or steps_of(topics) > SLICE_STEPS
    return node.slices.begin(request, _answers(node, request, is_long), is_long=is_long)


def _searches(asked: ListOffsetsPartition) -> bool:
    """Whether a batch may have to be unpacked for the answer."""
    return asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP


def _answers(node: Core, request: Request, is_long: bool) -> Work:
    body: ListOffsetsRequest = request.body
    times = Counter((topic.name, asked.partition_index) for topic in body.topics for asked in topic.partitions)
    topics: dict[str, dict[int, ListOffsetsPartitionResponse]] = {}
    steps = 0
    for topic in body.topics:
        allowed = node.access.on_topic(request, Operation.DESCRIBE, topic.name)
        answers = topics.setdefault(topic.name, {})
        for asked in topic.partitions:
            if not allowed:
                error: ListOffsetsPartitionResponse | ErrorCode = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif times[topic.name, asked.partition_index] > 1:
                error = ErrorCode.INVALID_REQUEST
            else:
                error = _answer(node, request, topic.name, asked)
            if isinstance(error, ErrorCode):
                error = ListOffsetsPartitionResponse(asked.partition_index, error)
            answers[asked.partition_index] = error
            steps += SLICE_STEPS if _searches(asked) else 1
            if steps >= SLICE_STEPS and is_long:
                steps = 0
                yield
        steps += 1
        if steps >= SLICE_STEPS and is_long:
            steps = 0
            yield
    found: list[Any] = [
        ListOffsetsTopicResponse(name, list(answers.values())) for name, answers in topics.items() if answers
    ]
    if is_long:
        found = yield from encoded_topics(found, request.version)
    return ListOffsetsResponse(topics=found)


def _answer(
    node: Core, request: Request, topic: str, asked: ListOffsetsPartition
) -> ListOffsetsPartitionResponse | ErrorCode:
    if asked.timestamp < 0 and request.version < _ASKED_SINCE.get(asked.timestamp, 1 << 15):
        return ErrorCode.UNSUPPORTED_VERSION
    if request.body.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    of_any_replica = request.body.replica_id == DEBUGGING
    partition = node.leadership.led(
        topic, asked.partition_index, asked.current_leader_epoch, of_any_replica=of_any_replica
    )
    if isinstance(partition, ErrorCode):
        return partition
    try:
        if request.body.replica_id >= 0 and node.peers.trusts(request.identity, request.client_id):
            found = _find_for_follower(partition, asked.timestamp)
        elif of_any_replica and asked.timestamp == LATEST and not partition.leads:
            epoch, end = partition.sound_end
            found = TimestampOffset(-1, end, epoch)
        else:
            log = partition.log
            committed = log.last_stable_offset if request.body.isolation_level == READ_COMMITTED else log.high_watermark
            found = _find(partition, asked.timestamp, log.log_end_offset if of_any_replica else committed)
    except OSError as error:
        node.failures.read_failed(partition, error)
        return ErrorCode.KAFKA_STORAGE_ERROR
    if found is ErrorCode.OFFSET_NOT_AVAILABLE and request.version < _OFFSET_NOT_AVAILABLE_SINCE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    if isinstance(found, ErrorCode):
        return found
    if found is None:
        return ListOffsetsPartitionResponse(asked.partition_index)
    return ListOffsetsPartitionResponse(
        asked.partition_index, timestamp=found.timestamp, offset=found.offset, leader_epoch=found.leader_epoch
    )


def _find_for_follower(partition: Partition, timestamp: int) -> TimestampOffset | ErrorCode:
    """The end or the beginning of the log: followers ask for nothing else."""
    match timestamp:
        case -1:
            return TimestampOffset(-1, partition.log.log_end_offset, partition.leader_epoch)
        case -2 | -4:
            return partition.log.earliest()
        case _:
            return ErrorCode.INVALID_REQUEST


def _find(partition: Partition, timestamp: int, readable: int) -> TimestampOffset | ErrorCode | None:
    """The record for this time below the offset `readable`; None if there is none. Raises OSError."""
    log = partition.log
    match timestamp:
        case -2 | -4:
            return log.earliest()
        case -5 | -6:
            return None
        case -1:
            if _lagging(partition, readable):
                return ErrorCode.OFFSET_NOT_AVAILABLE
            return TimestampOffset(-1, readable, partition.leader_epoch)
        case -3:
            found = log.max_timestamp()
        case _:
            found = log.offset_for_timestamp(timestamp)
    if found is not None and found.offset < readable:
        return found
    return ErrorCode.OFFSET_NOT_AVAILABLE if _lagging(partition, readable) else None


def _lagging(partition: Partition, readable: int) -> bool:
    """Whether the high watermark has not reached the current epoch's beginning: then the readable part may be too
    short."""
    log = partition.log
    if log.log_end_offset in (readable, log.high_watermark):
        return False
    entries = log.epochs.entries
    return bool(entries) and log.high_watermark < entries[-1][1]
