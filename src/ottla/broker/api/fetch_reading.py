"""Reads the partitions of a Fetch in turn, each as far as the sender may see.

A consumer reads committed records, from the leader or, since version 11, from any replica. A follower reads to the end
of the leader's log, and its fetch offset reports its progress. A follower that is not in sync may be throttled
(KIP-73). A consumer may be sent to a replica near it (KIP-392).

Sources: ReplicaManager.readFromLog, Partition.scala, KIP-320, KIP-392, KIP-595.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.channel import Channel
from ottla.broker.config.broker_table import RACK_AWARE_SELECTOR
from ottla.broker.fetch.answer import PartitionAnswer
from ottla.broker.fetch.nearest import nearest
from ottla.broker.fetch.sessions import FetchPartition, FetchSession
from ottla.broker.partitions.leadership import NOT_SAID
from ottla.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from ottla.log.answers import Isolation, OffsetOutOfRangeError
from ottla.log.checking import damage_in_first
from ottla.log.files import FileSlice
from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader
from ottla.protocol.messages.fetch import FetchRequest

if TYPE_CHECKING:
    from ottla.broker.core import Core
    from ottla.broker.partitions.partition import Partition

_OF_ANY_REPLICA_SINCE = 11
ENDPOINTS_SINCE = 16
"""From this version on, a client that asked another node gets the leader and its address (KIP-951); the field is
older."""

_LOG_END = Isolation.LOG_END
_LED_ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Fetch:
    """One fetch: the requested partitions and their session."""

    __slots__ = (
        "broker_epoch",
        "channel",
        "client_id",
        "correlation_id",
        "fetch_session",
        "identity",
        "incremental",
        "is_denied",
        "is_held_back",
        "isolation",
        "max_bytes",
        "new_since",
        "of_any_replica",
        "partitions",
        "rack",
        "replica_id",
        "version",
    )

    def __init__(
        self, channel: Channel, version: int, header: RequestHeader, body: FetchRequest, bytes_max: int
    ) -> None:
        self.new_since: Millis | None = None
        """When a follower has reported its progress, until that is noted."""
        self.channel = channel
        self.identity = channel.identity
        self.client_id = header.client_id
        self.version = version
        self.correlation_id = header.correlation_id
        self.isolation = Isolation.TXN_COMMITTED if body.isolation_level == 1 else Isolation.HIGH_WATERMARK
        self.max_bytes = min(body.max_bytes, bytes_max)
        self.replica_id = body.replica_id
        self.broker_epoch = -1
        if body.replica_state is not None:
            self.replica_id = body.replica_state.replica_id
            self.broker_epoch = body.replica_state.replica_epoch
        self.of_any_replica = self.replica_id < 0 and version >= _OF_ANY_REPLICA_SINCE
        self.rack = ""
        """The rack of a consumer that would like to fetch nearby."""
        self.is_denied = False
        """It has a replica id, and its client may not do what only nodes do."""
        self.is_held_back = False
        """A follower's answer has no room for replicas that are throttled and not in sync."""
        self.partitions: list[FetchPartition] = []
        self.fetch_session: FetchSession | None = None
        self.incremental = False


def read_all(
    node: Core, fetch: Fetch, partitions: list[FetchPartition] | None = None, size: int = 0
) -> tuple[list[PartitionAnswer], int, bool]:
    """Read every partition in turn. Returns the answers, the bytes in them, and whether the fetch must be answered at
    once.

    With `partitions` only these are read, for an answer that has `size` bytes already, which are counted. A follower
    that has everything, of a partition that has not changed since, gets no answer for it: of a cluster's many
    partitions few change.
    """
    answers: list[PartitionAnswer] = []
    left = fetch.max_bytes - size
    hurry = False
    for asked in fetch.partitions if partitions is None else partitions:
        if asked.caught_up_with is not None and stands(node, fetch, asked):
            continue
        answer = read_one(node, fetch, asked, left, size == 0)
        answers.append(answer)
        if answer.records is not None:
            size += answer.records.length
            left -= answer.records.length
        if answer.error or answer.diverging is not None or answer.preferred_replica >= 0:
            hurry = True
    return answers, size, hurry


def stands(node: Core, fetch: Fetch, asked: FetchPartition) -> bool:
    """Whether this partition has nothing to report, and the follower is still caught up."""
    assert asked.caught_up_with is not None
    partition, _ = asked.caught_up_with
    followers = partition.followers
    if (
        followers is not None
        and not node.leadership.is_in_doubt(partition.topic_name, partition.index)
        and node.leadership.holds(partition)
        and asked.has_nothing_new()
        and (
            fetch.new_since is None
            or followers.fetched_again(fetch.new_since, fetch.replica_id, asked.fetch_offset, fetch.broker_epoch)
        )
    ):
        return True
    asked.caught_up_with = None
    return False


def read_one(node: Core, fetch: Fetch, asked: FetchPartition, left: int, first: bool) -> PartitionAnswer:
    """Read one partition, at most `left` bytes, or one whole batch if it is the `first` to give any."""
    answer = PartitionAnswer(asked)
    partition = _find(node, fetch, asked, answer)
    if partition is None:
        return answer
    log = partition.log
    if fetch.rack and partition.followers is not None:
        listener = fetch.identity.address.listener
        near = nearest(partition.followers, node.image.nodes, listener, fetch.rack, asked.fetch_offset)
        if near is not None:
            answer.preferred_replica = near
            return _without_records(answer, partition)
    if fetch.replica_id >= 0 and not _is_follower(fetch, partition):
        knows_epoch = asked.current_leader_epoch != NOT_SAID
        answer.error = ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER
        return answer
    if fetch.new_since is not None and _counts_on_more(fetch, asked, partition):
        answer.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return answer
    if asked.last_fetched_epoch >= 0 and asked.fetch_offset >= log.log_start_offset:
        diverging = _diverging(partition, asked)
        if isinstance(diverging, ErrorCode):
            answer.error = diverging
            return answer
        if diverging is not None:
            answer.diverging = diverging
            return _without_records(answer, partition)
    try:
        room = asked.max_bytes if asked.max_bytes < left else left
        if fetch.is_held_back and _is_throttled(node, fetch, partition):
            room, first, answer.is_held_back = 0, False, True
        result = log.read(asked.fetch_offset, room if room > 0 else 0, fetch.isolation, first)
        is_damaged = fetch.replica_id >= 0 and _is_damaged(node, fetch, asked, partition, result.slice)
    except OffsetOutOfRangeError:
        answer.error = ErrorCode.OFFSET_OUT_OF_RANGE
        return answer
    except OSError as failed:
        node.failures.read_failed(partition, failed)
        answer.error = getattr(failed, "error_code", ErrorCode.KAFKA_STORAGE_ERROR)
        return answer
    if is_damaged:
        answer.error = ErrorCode.CORRUPT_MESSAGE
        return answer
    answer.partition = partition
    if fetch.new_since is not None:
        at, of_follower = asked.fetch_offset, (fetch.replica_id, fetch.broker_epoch)
        end = result.log_end_offset
        node.replication.fetched(fetch.new_since, partition, *of_follower, at, asked.log_start_offset, end)
    answer.high_watermark = result.high_watermark if fetch.new_since is None else log.high_watermark
    answer.last_stable_offset = result.last_stable_offset
    answer.log_start_offset = result.log_start_offset
    answer.aborted = result.aborted
    answer.records = result.slice
    return answer


def _is_damaged(
    node: Core, fetch: Fetch, asked: FetchPartition, partition: Partition, batches: FileSlice | None
) -> bool:
    """Whether the first batch for a follower is damaged. Checked only if the follower requests it again: followers
    check the batches that they get, and refuse damage without an error. Raises OSError."""
    if batches is None:
        return False
    offset = asked.fetch_offset
    if partition.sent_to.get(fetch.replica_id) != offset:
        partition.sent_to[fetch.replica_id] = offset
        return False
    damage = damage_in_first(batches, offset)
    if damage is not None:
        node.failures.found_damage(partition, damage)
    return damage is not None


def _without_records(answer: PartitionAnswer, partition: Partition) -> PartitionAnswer:
    """The answer with only the beginning and end of the log."""
    log = partition.log
    answer.high_watermark = log.high_watermark
    answer.last_stable_offset = log.last_stable_offset
    answer.log_start_offset = log.log_start_offset
    return answer


def _is_throttled(node: Core, fetch: Fetch, partition: Partition) -> bool:
    """Whether the follower has to wait for this partition: only a follower that is not in sync does."""
    followers = partition.followers
    in_sync = followers is not None and fetch.replica_id in followers.isr
    return not in_sync and node.replication.leader_throttle.lists(partition.topic_name, partition.index)


def _is_follower(fetch: Fetch, partition: Partition) -> bool:
    followers = partition.followers
    return fetch.isolation is _LOG_END and followers is not None and fetch.replica_id in followers.followers


def _counts_on_more(fetch: Fetch, asked: FetchPartition, partition: Partition) -> bool:
    followers = partition.followers
    assert followers is not None
    return followers.counts_on_more(fetch.replica_id, asked.fetch_offset, fetch.broker_epoch)


def _find(node: Core, fetch: Fetch, asked: FetchPartition, answer: PartitionAnswer) -> Partition | None:
    """The partition, or None with the error in `answer`."""
    if node.access.authorizer is not None and fetch.isolation is not _LOG_END and _is_denied(node, fetch, asked):
        answer.error, answer.aborted = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
        return None
    partition = node.leadership.led(
        asked.topic,
        asked.index,
        asked.current_leader_epoch,
        of_any_replica=fetch.of_any_replica,
        by_follower=fetch.isolation is _LOG_END,
    )
    if not isinstance(partition, ErrorCode):
        return partition
    answer.error = partition
    if partition in _LED_ELSEWHERE and fetch.version >= ENDPOINTS_SINCE:
        answer.current_leader = node.leadership.leader_of(asked.topic, asked.index)
    elif partition in _UNKNOWN:
        answer.aborted = []
    return None


def _is_denied(node: Core, fetch: Fetch, asked: FetchPartition) -> bool:
    """Whether the client may not read this topic. With a replica id, that depends on the whole cluster."""
    if fetch.replica_id < 0:
        return not node.access.may_read(fetch.identity, asked.topic)
    return fetch.is_denied and node.image.name_of(asked.topic) is not None


def _diverging(partition: Partition, asked: FetchPartition) -> tuple[int, int] | ErrorCode | None:
    """The (epoch, end offset) at which this log and the client's diverge (KIP-595), or None while they agree."""
    epoch, end_offset = partition.log.end_offset_for(asked.last_fetched_epoch)
    if epoch < 0 or end_offset < 0:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return epoch, end_offset
    return None


def begin(node: Core, now: Millis, fetch: Fetch, rack: str) -> None:
    """Classify the sender: a node of the cluster with a replica id reads to the log's end; other clients see
    `read_one`.

    A consumer that names its rack may be sent to a replica there.
    """
    if fetch.replica_id >= 0:
        if node.peers.trusts(fetch.identity, fetch.client_id):
            fetch.isolation = _LOG_END
            fetch.new_since = now
        elif not node.access.allows(fetch.identity, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            fetch.is_denied = True
    elif rack and node.settings["replica.selector.class"] == RACK_AWARE_SELECTOR:
        fetch.rack = rack


def look_at_throttle(node: Core, now: Millis, fetch: Fetch) -> None:
    """Before partitions are read: check whether they are for a follower that is throttled now."""
    if fetch.isolation is _LOG_END:
        fetch.is_held_back = node.replication.leader_throttle.waits_ms(now) > 0


def count_throttled(node: Core, answers: list[PartitionAnswer]) -> None:
    """All that these answers send of replicas that are throttled counts, also to those that are in sync."""
    throttle = node.replication.leader_throttle
    if throttle.is_on:
        for answer in answers:
            partition = answer.partition
            if answer.records is None or partition is None:
                continue
            if throttle.lists(partition.topic_name, partition.index):
                throttle.took(answer.records.length)
