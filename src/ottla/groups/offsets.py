"""Keeps each group's committed offsets, those of open transactions, and their expiry.

Offsets are kept per group, topic and partition, and expire by KIP-211. The group, a classic one or a consumer group,
decides whether a commit is accepted.

Durable state, changed by `apply` alone: `_committed`, and `_pending`, the offsets of open transactions per producer id;
`_open` has the producers of each group. A marker ends a transaction: on commit its offsets replace those whose record
is older (KIP-447, KAFKA-5027).

Source: Kafka's OffsetMetadataManager.java, OffsetExpirationConditionImpl.java.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from ottla.groups.classic.group import Group, GroupState
from ottla.groups.classic.rebalance import Rebalances
from ottla.groups.consumer import offsets as consumer_rules
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.decision import DecisionBuilder, fits, size_of
from ottla.groups.offset_records import NO_TIMESTAMP, CommittedOffset, encode_offset
from ottla.groups.settings import GroupSettings
from ottla.machine import NO_PRODUCER_ID, Call, Millis, ShardRecord, Ticket, WallMillis, Writer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

_GROUP_ID_NOT_FOUND_SINCE = 9
_NO_RETENTION_TIME = -1
_FOREVER = 2**63 - 1
_NO_OFFSET = -1


@dataclass(slots=True)
class PreparedCommit:
    """The body of a call: a commit whose records are prepared, so that a long one costs its group little.

    `asked` has the member and the group. Answered with an ErrorCode: all records count, or none.
    """

    asked: OffsetCommitRequest
    records: list[ShardRecord] = field(default_factory=list[ShardRecord])
    places: dict[bytes, tuple[str, str, int]] = field(default_factory=dict[bytes, tuple[str, str, int]])
    """(group, topic, partition) of each record's key."""
    _size: int = 0

    def add(
        self, topics: list[OffsetCommitRequestTopic], wall_ms: WallMillis, settings: GroupSettings
    ) -> list[OffsetCommitResponseTopic]:
        """Create the records of these topics, and the answer that is sent once they are in the log."""
        records, answered = records_of(self.asked, topics, wall_ms, settings)
        if self._size <= settings.batch_size_max:  # otherwise they are refused in any case
            self._size += size_of(records)
            made = iter(records)
            self.records += records
            for topic, told in zip(topics, answered, strict=True):
                for each in told.partitions:
                    if not each.error_code:
                        self.places[next(made).key] = (self.asked.group_id, topic.name, each.partition_index)
        return answered


@dataclass(slots=True)
class TransactionalCommit:
    """The body of a call: a commit that counts when the transaction of this producer does (TxnOffsetCommit)."""

    asked: OffsetCommitRequest
    writer: Writer


_Topics = dict[str, dict[int, CommittedOffset]]


@dataclass(frozen=True, slots=True)
class SeeOffsets:
    """The body of a call: show a group's committed offsets to the sender of an OffsetFetch. Answered with
    OffsetsSeen."""

    group_id: str
    member_id: str | None
    member_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetsSeen:
    """A group's committed offsets, and those that each open transaction may commit for it."""

    committed: _Topics
    pending: list[_Topics]
    error: ErrorCode = ErrorCode.NONE

    def partitions(
        self, topic: OffsetFetchRequestTopics, indexes: Sequence[int], require_stable: bool
    ) -> list[OffsetFetchResponsePartitions]:
        """The answer for some partitions of the topic with this id."""
        at, name = self.committed.get(topic.name, {}), topic.name
        answered: list[OffsetFetchResponsePartitions] = []
        for index in indexes:
            found = at.get(index)
            if require_stable and any(index in pending.get(name, {}) for pending in self.pending):
                answered.append(_no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            elif found is None or not found.is_of(topic.topic_id):
                answered.append(_no_offset(index, ErrorCode.NONE))
            else:
                answered.append(OffsetFetchResponsePartitions(index, found.offset, found.leader_epoch, found.metadata))
        return answered


class Offsets:
    """The offsets of all groups of a shard."""

    __slots__ = ("_committed", "_consumer", "_groups", "_open", "_pending", "_rebalances", "_settings")

    def __init__(self, rebalances: Rebalances, consumer: Mapping[str, ConsumerGroup]) -> None:
        self._rebalances = rebalances
        self._consumer = consumer
        self._groups = rebalances.groups
        self._settings = rebalances.settings
        self._committed: dict[str, _Topics] = {}
        self._pending: dict[int, dict[str, _Topics]] = {}
        self._open: dict[str, dict[int, None]] = {}

    def knows(self, group_id: str) -> bool:
        """Whether the group has committed anything, or may do so with a transaction that is open."""
        return group_id in self._committed or group_id in self._open

    def count(self, group_id: str) -> int:
        """How many offsets the group has committed."""
        return sum(len(partitions) for partitions in self._committed.get(group_id, {}).values())

    # ---- OffsetCommit ----------------------------------------------------------------------------------------------

    def commit(
        self, now: Millis, ticket: Ticket, call: Call, body: OffsetCommitRequest, decision: DecisionBuilder
    ) -> None:
        """Commit offsets. The caller has checked that the topics exist and have names and ids."""
        error = self._commit_error(call, body)
        if error is not ErrorCode.NONE:
            decision.answer(ticket, commit_error(body, error))
            return
        records, topics = records_of(body, body.topics, self._rebalances.wall.at(now), self._settings)
        if not fits(records, self._settings):
            decision.answer(ticket, commit_error(body, ErrorCode.UNKNOWN_SERVER_ERROR))
            return
        self._take(now, body, records, decision)
        decision.answer(ticket, OffsetCommitResponse(topics=topics))

    def commit_prepared(
        self, now: Millis, ticket: Ticket, call: Call, prepared: PreparedCommit, decision: DecisionBuilder
    ) -> None:
        error = self._commit_error(call, prepared.asked)
        if error is ErrorCode.NONE and not fits(prepared.records, self._settings):
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if error is ErrorCode.NONE:
            self._take(now, prepared.asked, prepared.records, decision)
        decision.answer(ticket, error)

    def _commit_error(self, call: Call, body: OffsetCommitRequest) -> ErrorCode:
        consumer = self._consumer.get(body.group_id)
        if consumer is None:
            return _commit_error(call, body, self._groups.get(body.group_id))
        places = ((topic.topic_id, each.partition_index) for topic in body.topics for each in topic.partitions)
        epoch = body.generation_id_or_member_epoch
        return consumer_rules.commit_error(consumer, call.version, body.member_id, epoch, places)

    def commit_in_transaction(
        self, now: Millis, ticket: Ticket, commit: TransactionalCommit, decision: DecisionBuilder
    ) -> None:
        """Commit offsets in a transaction. They become visible when the transaction ends; until then a fetch of stable
        offsets has to wait."""
        asked = commit.asked
        error = self._transactional_error(asked)
        records, topics = records_of(asked, asked.topics, self._rebalances.wall.at(now), self._settings)
        if error is ErrorCode.NONE and not fits(records, self._settings):
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        if error is not ErrorCode.NONE:
            decision.answer(ticket, commit_error(asked, error))
            return
        decision.records += records
        decision.writer = commit.writer
        decision.answer(ticket, OffsetCommitResponse(topics=topics))

    def _transactional_error(self, body: OffsetCommitRequest) -> ErrorCode:
        """The error of a transactional commit. A producer that names no member, as old clients do, is trusted."""
        consumer = self._consumer.get(body.group_id)
        epoch = body.generation_id_or_member_epoch
        if consumer is None:
            return _transactional_error(body, self._groups.get(body.group_id))
        if epoch < 0 and not body.member_id and body.group_instance_id is None:
            return ErrorCode.NONE
        places = ((topic.topic_id, each.partition_index) for topic in body.topics for each in topic.partitions)
        error = consumer_rules.commit_error(consumer, consumer_rules.MEMBER_EPOCHS_SINCE, body.member_id, epoch, places)
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error

    def _take(
        self,
        now: Millis,
        body: OffsetCommitRequest,
        records: list[ShardRecord],
        decision: DecisionBuilder,
    ) -> None:
        group = self._groups.get(body.group_id)
        if group is not None and body.member_id in group.members:
            self._rebalances.touch(now, group, group.members[body.member_id])
        decision.records += records

    # ---- OffsetFetch -----------------------------------------------------------------------------------------------

    def fetch(self, ticket: Ticket, body: OffsetFetchRequest, decision: DecisionBuilder) -> None:
        """A partition without an offset answers -1; topics null asks for all that have one.

        An id in the request is the topic's present one, and offsets of a deleted topic of the same name are ignored.
        With null, the ids in the answer are those of the commits, and each id is a topic of its own.
        """
        groups = [self._fetch_group(group, body.require_stable) for group in body.groups]
        decision.answer(ticket, OffsetFetchResponse(groups=groups))

    def _fetch_group(self, asked: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        error = self._fetch_error(asked)
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(asked.group_id, error_code=error)
        committed = self._committed.get(asked.group_id, {})
        seen = OffsetsSeen(committed, self._pending_of(asked.group_id))
        wanted = asked.topics
        if wanted is None:
            wanted = _all_topics(committed)
        topics: list[OffsetFetchResponseTopics] = []
        for topic in wanted:
            partitions = seen.partitions(topic, topic.partition_indexes, require_stable)
            topics.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
        return OffsetFetchResponseGroup(asked.group_id, topics)

    def _fetch_error(self, asked: OffsetFetchRequestGroup | SeeOffsets) -> ErrorCode:
        """The error if the group refuses to show its offsets to this member."""
        consumer = self._consumer.get(asked.group_id)
        if consumer is None:
            return ErrorCode.NONE
        return consumer_rules.fetch_error(consumer, asked.member_id, asked.member_epoch)

    def seen(self, asked: SeeOffsets) -> OffsetsSeen:
        """A snapshot of the group's committed offsets: later commits do not change it."""
        error = self._fetch_error(asked)
        if error is not ErrorCode.NONE:
            return OffsetsSeen({}, [], error)
        return OffsetsSeen(
            _copy(self._committed.get(asked.group_id, {})), [_copy(each) for each in self._pending_of(asked.group_id)]
        )

    # ---- OffsetDelete ----------------------------------------------------------------------------------------------

    def delete(self, ticket: Ticket, body: OffsetDeleteRequest, decision: DecisionBuilder) -> None:
        """Refused per topic as long as a consumer of the group subscribes to it."""
        group = self._consumer.get(body.group_id) or self._groups.get(body.group_id)
        error = _delete_error(body, group)
        if error is not ErrorCode.NONE or group is None:
            decision.answer(ticket, OffsetDeleteResponse(error_code=error))
            return
        topics: list[OffsetDeleteResponseTopic] = []
        for topic in body.topics:
            subscribed = group.is_subscribed_to(topic.name)
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
            indexes = [each.partition_index for each in topic.partitions]
            if not subscribed:
                decision.records += self._tombstones(body.group_id, topic.name, indexes)
            partitions = [OffsetDeleteResponsePartition(index, error) for index in indexes]
            topics.append(OffsetDeleteResponseTopic(topic.name, partitions))
        decision.answer(ticket, OffsetDeleteResponse(topics=topics))

    def _tombstones(self, group_id: str, topic: str, indexes: list[int]) -> list[ShardRecord]:
        committed = self._committed.get(group_id, {}).get(topic, {})
        return [
            encode_offset(group_id, topic, index, None)
            for index in indexes
            if index in committed or self._has_pending(group_id, topic, index)
        ]

    def delete_all(self, group_id: str) -> list[ShardRecord]:
        """Tombstones for every offset of the group, also those that an open transaction may still commit."""
        partitions = {(topic, index): None for topic, at in self._committed.get(group_id, {}).items() for index in at}
        for pending in self._pending_of(group_id):
            for topic, at in pending.items():
                partitions.update({(topic, index): None for index in at})
        return [encode_offset(group_id, topic, index, None) for topic, index in partitions]

    def topics_of(self, group_id: str) -> dict[str, None]:
        """The topics in which the group committed anything, or may do so with a transaction that is open."""
        topics = dict.fromkeys(self._committed.get(group_id, {}))
        for pending in self._pending_of(group_id):
            topics.update(dict.fromkeys(pending))
        return topics

    def delete_topic(self, group_id: str, topic: str, records_max: int) -> list[ShardRecord]:
        """Tombstones for the group's offsets in a deleted topic, or for the first of them."""
        partitions = dict.fromkeys(self._committed.get(group_id, {}).get(topic, {}))
        for pending in self._pending_of(group_id):
            partitions.update(dict.fromkeys(pending.get(topic, {})))
        return [encode_offset(group_id, topic, index, None) for index in islice(partitions, records_max)]

    # ---- expiry ----------------------------------------------------------------------------------------------------

    def expired(
        self, wall_ms: WallMillis, group: Group | ConsumerGroup, records_max: int
    ) -> tuple[list[ShardRecord], bool]:
        """Tombstones for the expired offsets, or for the first of them, and whether nothing of the group is left."""
        topics = self._committed.get(group.group_id, {})
        if topics and isinstance(group, Group) and not _may_expire(group):
            return [], False
        records: list[ShardRecord] = []
        left = self.has_open_transaction(group.group_id)
        for topic, partitions in topics.items():
            subscribed = group.is_subscribed_to(topic)
            for index, committed in partitions.items():
                stays = subscribed or not self._is_expired(wall_ms, group, committed)
                if stays or self._has_pending(group.group_id, topic, index):
                    left = True
                else:
                    records.append(encode_offset(group.group_id, topic, index, None))
                    if len(records) == records_max:
                        return records, False
        return records, not left

    def _is_expired(self, wall_ms: WallMillis, group: Group | ConsumerGroup, committed: CommittedOffset) -> bool:
        if committed.expire_timestamp_ms != NO_TIMESTAMP:
            return wall_ms >= committed.expire_timestamp_ms
        since = committed.commit_timestamp_ms
        if isinstance(group, Group) and group.protocol_type is not None and group.state is GroupState.EMPTY:
            # A group that had members keeps its offsets for the retention time after the last one left.
            since = since if group.state_timestamp_ms == NO_TIMESTAMP else group.state_timestamp_ms
        return wall_ms - since >= self._settings.offsets_retention_ms

    # ---- transactions ----------------------------------------------------------------------------------------------

    def _pending_of(self, group_id: str) -> list[_Topics]:
        """The offsets that each open transaction would commit for the group."""
        return [self._pending[producer_id][group_id] for producer_id in self._open.get(group_id, ())]

    def _has_pending(self, group_id: str, topic: str, index: int) -> bool:
        return any(index in pending.get(topic, {}) for pending in self._pending_of(group_id))

    def has_open_transaction(self, group_id: str) -> bool:
        return group_id in self._open

    # ---- durable state ---------------------------------------------------------------------------------------------

    def apply(
        self, group_id: str, topic: str, partition: int, committed: CommittedOffset | None, producer_id: int
    ) -> None:
        """Apply a record. Without a producer id it counts at once, otherwise when the transaction's marker comes. None
        deletes."""
        if committed is None:
            _take(self._committed, group_id, topic, partition)
            for open_producer_id in list(self._open.get(group_id, ())):
                pending = self._pending[open_producer_id]
                _take(pending, group_id, topic, partition)
                if group_id not in pending:
                    self._close(group_id, open_producer_id)
        elif producer_id == NO_PRODUCER_ID:
            _put(self._committed, group_id, topic, partition, committed)
        else:
            _put(self._pending.setdefault(producer_id, {}), group_id, topic, partition, committed)
            self._open.setdefault(group_id, {})[producer_id] = None

    def apply_marker(self, producer_id: int, committed: bool) -> list[str]:
        """End a transaction; returns the groups it committed offsets of."""
        ended = self._pending.get(producer_id, {})
        for group_id in list(ended):
            self._close(group_id, producer_id)
        self._pending.pop(producer_id, None)
        if not committed:
            return []
        for group_id, topic, partition, offset in _walk(ended):
            known = self._committed.get(group_id, {}).get(topic, {}).get(partition)
            if known is None or offset.record_offset > known.record_offset:
                _put(self._committed, group_id, topic, partition, offset)
        return list(ended)

    def _close(self, group_id: str, producer_id: int) -> None:
        """Remove the group from the transaction of this producer."""
        producers = self._open[group_id]
        del producers[producer_id]
        if not producers:
            del self._open[group_id]
        if not self._pending[producer_id]:
            del self._pending[producer_id]

    def positions(self) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, partition, offset) of everything committed."""
        for group_id, topic, partition, committed in _walk(self._committed):
            yield group_id, topic, partition, committed.offset

    def image(self) -> tuple[object, object]:
        """The durable state, to compare with a replayed one."""
        return self._committed, self._pending

    def check(self) -> None:
        named = (*self._committed, *self._open)
        missing = [group_id for group_id in named if group_id not in self._groups and group_id not in self._consumer]
        assert not missing, f"offsets of groups that do not exist: {missing}"
        found = {(group_id, producer_id) for producer_id, pending in self._pending.items() for group_id in pending}
        known = {(group_id, producer_id) for group_id, producers in self._open.items() for producer_id in producers}
        assert found == known, f"open transactions: {found} and {known}"
        for offsets in (self._committed, *self._pending.values()):
            assert all(topics and all(topics.values()) for topics in offsets.values()), "an empty map was left behind"
        for _, topic, partition, committed in _walk(self._committed):
            assert committed.record_offset >= 0, f"{topic}-{partition}: committed without a record"


def _put(offsets: dict[str, _Topics], group_id: str, topic: str, partition: int, committed: CommittedOffset) -> None:
    offsets.setdefault(group_id, {}).setdefault(topic, {})[partition] = committed


def _take(offsets: dict[str, _Topics], group_id: str, topic: str, partition: int) -> None:
    topics = offsets.get(group_id, {})
    partitions = topics.get(topic, {})
    if partitions.pop(partition, None) is not None and not partitions:
        del topics[topic]
        if not topics:
            del offsets[group_id]


def _walk(offsets: dict[str, _Topics]) -> Iterator[tuple[str, str, int, CommittedOffset]]:
    for group_id, topics in offsets.items():
        for topic, partitions in topics.items():
            for partition, committed in partitions.items():
                yield group_id, topic, partition, committed


def _copy(topics: _Topics) -> _Topics:
    return {topic: dict(partitions) for topic, partitions in topics.items()}


def _all_topics(committed: _Topics) -> list[OffsetFetchRequestTopics]:
    lives: dict[tuple[str, bytes], list[int]] = {}
    for name, partitions in committed.items():
        for index, offset in partitions.items():
            lives.setdefault((name, offset.topic_id), []).append(index)
    return [OffsetFetchRequestTopics(name, topic_id, indexes) for (name, topic_id), indexes in lives.items()]


def records_of(
    body: OffsetCommitRequest,
    topics: Iterable[OffsetCommitRequestTopic],
    wall_ms: WallMillis,
    settings: GroupSettings,
) -> tuple[list[ShardRecord], list[OffsetCommitResponseTopic]]:
    """The records of a commit to some of its topics, and what is answered once they are in the log."""
    records: list[ShardRecord] = []
    answered: list[OffsetCommitResponseTopic] = []
    for topic in topics:
        partitions: list[OffsetCommitResponsePartition] = []
        for each in topic.partitions:
            too_large = _java_length(each.committed_metadata or "") > settings.offset_metadata_size_max
            error = ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE
            partitions.append(OffsetCommitResponsePartition(each.partition_index, error))
            if not too_large:
                committed = _committed_offset(wall_ms, body, topic.topic_id, each)
                records.append(encode_offset(body.group_id, topic.name, each.partition_index, committed))
        answered.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, partitions))
    return records, answered


def _commit_error(call: Call, body: OffsetCommitRequest, group: Group | None) -> ErrorCode:
    """Whether the group accepts this commit. A commit without a generation comes from no member, and needs a group
    without members."""
    generation = body.generation_id_or_member_epoch
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        known = call.version >= _GROUP_ID_NOT_FOUND_SINCE
        return ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation < 0 and not body.member_id and body.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(body.member_id, body.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _transactional_error(body: OffsetCommitRequest, group: Group | None) -> ErrorCode:
    """Whether the group accepts this commit. A producer that names no member, as old clients do, is trusted."""
    generation = body.generation_id_or_member_epoch
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and (group.state is GroupState.EMPTY or (not body.member_id and body.group_instance_id is None)):
        return ErrorCode.NONE
    error = group.validate_member(body.member_id, body.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def commit_error(body: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                    for each in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def _committed_offset(
    wall_ms: WallMillis, body: OffsetCommitRequest, topic_id: bytes, each: OffsetCommitRequestPartition
) -> CommittedOffset:
    keeps = body.retention_time_ms
    return CommittedOffset(
        offset=each.committed_offset,
        leader_epoch=each.committed_leader_epoch,
        metadata=each.committed_metadata or "",
        commit_timestamp_ms=wall_ms,
        expire_timestamp_ms=NO_TIMESTAMP if keeps == _NO_RETENTION_TIME else min(wall_ms + keeps, _FOREVER),
        topic_id=topic_id,
    )


def _delete_error(body: OffsetDeleteRequest, group: Group | ConsumerGroup | None) -> ErrorCode:
    if not body.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if isinstance(group, Group) and group.state is not GroupState.EMPTY and not group.is_consumer_group:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE


def _may_expire(group: Group) -> bool:
    """Whether offsets of the group may expire. If it has members, their subscriptions must be known, because only
    offsets of other topics may expire."""
    if group.protocol_type is None or group.state is GroupState.EMPTY:
        return True
    return group.state is GroupState.STABLE and group.is_consumer_group and group.subscribed_topics() is not None


def _no_offset(index: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(index, _NO_OFFSET, -1, "", error)


def _java_length(text: str) -> int:
    """The length Kafka measures: UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2
