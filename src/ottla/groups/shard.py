"""Coordinates the groups whose records are in one partition of `__consumer_offsets`.

It dispatches requests, deadlines and records.

`decide` and `expire` return the records that should become durable, and `apply` applies them. No decision is made on a
state whose records are still outstanding: `expire` stops at the first deadline that produces records.

Invariants (`check`): those of each group and of the offsets. Every phase of a rebalance has an end, and every member
has a session or a parked request. Tests also show that replay of the log gives the same durable state.

Source: Kafka's GroupCoordinatorShard.java.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import assert_never

from ottla.groups.admin import delete_groups, describe, list_groups
from ottla.groups.classic.group import Group, GroupState
from ottla.groups.classic.rebalance import Rebalances
from ottla.groups.classic.records import GroupRecord, StoredGroup, encode_group
from ottla.groups.classic.requests import ClassicProtocol
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.groups import ConsumerGroups
from ottla.groups.consumer.membership import ConsumerHeartbeat
from ottla.groups.consumer.records import ConsumerRecord, PassedOver
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.deleted_topics import DeletedTopicsSweep
from ottla.groups.epochs.heartbeats import JOIN_EPOCH
from ottla.groups.epochs.records import EpochRecord
from ottla.groups.history import GroupHistory
from ottla.groups.metadata_view import NO_METADATA, MetadataView
from ottla.groups.migration import Migration, MigrationRefusedError
from ottla.groups.mixed import ClassicMembers
from ottla.groups.offset_records import NO_TIMESTAMP, CommittedOffset, OffsetRecord, decode_committed
from ottla.groups.offsets import Offsets, PreparedCommit, SeeOffsets, TransactionalCommit
from ottla.groups.records import OfConsumerGroup, OfShareGroup, Unknown, decode
from ottla.groups.refusals import refuse, refuse_other_kind
from ottla.groups.settings import GroupSettings
from ottla.groups.share.groups import ShareGroups
from ottla.machine import (
    NO_PRODUCER_ID,
    AppliedBatch,
    AppliedRecord,
    Call,
    Decision,
    Entropy,
    Millis,
    ShardRecord,
    Ticket,
    WallClock,
)
from ottla.machine.timers import Timers
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import OffsetCommitRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest

_EXPIRE: GroupTimer = ("", Deadline.EXPIRE, "")
_DELETED_TOPICS: GroupTimer = ("", Deadline.DELETED_TOPICS, "")

_OFFSETS_PER_STEP = 5_000
"""Offsets that a sweep checks in one step, some milliseconds of work, before other requests run."""
_TOMBSTONES_PER_STEP = 500
"""Offsets that a sweep deletes in one step; each needs a record."""
_PAUSE_MS = 1


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """The body of a call from the node itself: delete what groups committed in these topics. It is not answered."""

    names: tuple[str, ...]


def _silent(note: str) -> None:
    """Discard a note."""


class _AnyOf:
    """Whether an id is that of a group of any of these kinds."""

    __slots__ = ("_kinds",)

    def __init__(self, kinds: list[Container[str]]) -> None:
        self._kinds = kinds

    def __contains__(self, group_id: object) -> bool:
        return any(str(group_id) in kind for kind in self._kinds)


class _InUse:
    """Whether an id is that of a classic group that does not give way to a group of another kind."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Mapping[str, Group]) -> None:
        self._groups = groups

    def __contains__(self, group_id: object) -> bool:
        group = self._groups.get(str(group_id))
        return group is not None and not (group.state is GroupState.EMPTY and not group.pending_members)


class GroupShard:
    """A `machine.Shard`. See the module's docstring."""

    TOPIC = CONSUMER_OFFSETS_TOPIC

    def __init__(
        self,
        settings: GroupSettings,
        entropy: Entropy,
        notes: Callable[[str], None] = _silent,
        metadata: MetadataView = NO_METADATA,
        wall: WallClock | None = None,
        history: GroupHistory | None = None,
    ) -> None:
        history = GroupHistory() if history is None else history
        self._wall = wall = wall if wall is not None else WallClock()
        self._settings = settings
        self._notes = notes
        self._timers: Timers[GroupTimer] = Timers()
        self._groups: dict[str, Group] = {}
        self._rebalances = Rebalances(settings, self._groups, self._timers, wall, history)
        self._classic = ClassicProtocol(self._rebalances, entropy)
        self._consumer_groups: dict[str, ConsumerGroup] = {}
        self._migration = Migration(settings, metadata, self._timers, wall)
        self._offsets = Offsets(self._rebalances, self._consumer_groups)
        beside_share = _AnyOf([self._groups, self._consumer_groups])
        self._share = ShareGroups(settings, metadata, beside_share, self._timers, wall, history)
        self._beside_classic = _AnyOf([self._consumer_groups, self._share])
        self._consumer = ConsumerGroups(
            settings,
            metadata,
            self._consumer_groups,
            _AnyOf([self._groups, self._share]),
            _AnyOf([_InUse(self._groups), self._share]),
            self._timers,
            wall,
            entropy,
            self._migration,
            history,
        )
        self._classic_members = ClassicMembers(
            settings, self._consumer.membership, self._migration, self._timers, entropy
        )
        self._to_expire: deque[str] = deque()
        self._deleted_topics = DeletedTopicsSweep()
        self._unknown_types: set[int] = set()
        self._is_loading = True
        self._known_keys: dict[bytes, tuple[str, str, int]] = {}
        """Keys of offsets that need not be decoded. During replay these are the earlier ones, because the same keys
        repeat. Between a long commit's decision and its application they are those of the commit."""

    @staticmethod
    def refuse(call: Call, error: ErrorCode) -> object:
        """The answer if no shard is available."""
        return refuse(call, error)

    @staticmethod
    def topics_deleted(names: tuple[str, ...]) -> Call | None:
        """The call for every shard when topics are deleted."""
        return Call(-1, 0, "", "", TopicsDeleted(names))

    def batch_size_is(self, size_max: int) -> None:
        """The log accepts batches of up to `size_max` bytes from now on."""
        self._settings.batch_size_max = size_max

    # ---- requests --------------------------------------------------------------------------------------------------

    def decide(self, now: Millis, ticket: Ticket, call: Call) -> Decision:
        decision = DecisionBuilder()
        if (self._share or self._consumer) and self._is_for_another_kind(call):
            decision.answer(ticket, refuse_other_kind(call))
            return decision.build()
        match call.body:
            case JoinGroupRequest() | SyncGroupRequest() | HeartbeatRequest() | LeaveGroupRequest() as body:
                self._serve_classic(now, ticket, call, body, decision)
            case OffsetCommitRequest() as body:
                self._offsets.commit(now, ticket, call, body, decision)
            case PreparedCommit() as body:
                self._offsets.commit_prepared(now, ticket, call, body, decision)
                self._known_keys = body.places if decision.records else {}
            case TransactionalCommit() as body:
                self._offsets.commit_in_transaction(now, ticket, body, decision)
            case OffsetFetchRequest() as body:
                self._offsets.fetch(ticket, body, decision)
            case SeeOffsets() as body:
                decision.answer(ticket, self._offsets.seen(body))
            case ConsumerHeartbeat() as body:
                self._consumer_heartbeat(now, ticket, call, body, decision)
            case (
                ConsumerGroupDescribeRequest() | DescribeGroupsRequest() | ListGroupsRequest() | DeleteGroupsRequest()
            ) as body:
                self._serve_admin(ticket, call, body, decision)
            case OffsetDeleteRequest() as body:
                self._offsets.delete(ticket, body, decision)
            case TopicsDeleted(names):
                self._deleted_topics.add(names)
                self._timers.set(_DELETED_TOPICS, now)
                self._share.topics_deleted(frozenset(names), decision)
            case other:
                if not self._share.decide(now, ticket, call, decision):
                    raise AssertionError(f"no coordinator of groups answers {type(other).__name__}")
        return decision.build()

    def _serve_admin(
        self,
        ticket: Ticket,
        call: Call,
        body: ConsumerGroupDescribeRequest | DescribeGroupsRequest | ListGroupsRequest | DeleteGroupsRequest,
        decision: DecisionBuilder,
    ) -> None:
        """List, describe or delete groups."""
        match body:
            case ConsumerGroupDescribeRequest():
                self._consumer.describe(ticket, body, decision)
            case DescribeGroupsRequest():
                describe(ticket, call, body, self._groups, self._beside_classic, decision)
            case ListGroupsRequest():
                list_groups(ticket, body, self._groups, self._consumer, self._share, decision)
            case DeleteGroupsRequest():
                delete_groups(
                    ticket, body, self._groups, self._offsets, self._consumer, self._share, self._settings, decision
                )

    def _is_for_another_kind(self, call: Call) -> bool:
        """Whether a request of the classic protocol names a group that does not serve it."""
        match call.body:
            case (
                JoinGroupRequest(group_id=group_id)
                | HeartbeatRequest(group_id=group_id)
                | SyncGroupRequest(group_id=group_id)
                | LeaveGroupRequest(group_id=group_id)
                | OffsetCommitRequest(group_id=group_id)
                | PreparedCommit(asked=OffsetCommitRequest(group_id=group_id))
                | TransactionalCommit(asked=OffsetCommitRequest(group_id=group_id))
                | OffsetDeleteRequest(group_id=group_id)
            ):
                return group_id in self._share
            case _:
                return False

    def _serve_classic(
        self,
        now: Millis,
        ticket: Ticket,
        call: Call,
        body: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest,
        decision: DecisionBuilder,
    ) -> None:
        """A consumer group that has members serves the classic protocol too."""
        group = self._consumer.of(body.group_id)
        if group is not None and not group.members:
            group = None
        match body:
            case JoinGroupRequest() if group is not None:
                self._classic_members.join(now, ticket, call, body, group, decision)
            case JoinGroupRequest():
                self._join_classic(now, ticket, call, body, decision)
            case SyncGroupRequest() if group is not None:
                self._classic_members.sync(now, ticket, body, group, decision)
            case SyncGroupRequest():
                self._classic.sync(now, ticket, call, body, decision)
            case HeartbeatRequest() if group is not None:
                self._classic_members.heartbeat(now, ticket, body, group, decision)
            case HeartbeatRequest():
                self._classic.heartbeat(now, ticket, body, decision)
            case LeaveGroupRequest() if group is not None:
                self._classic_members.leave(now, ticket, call, body, group, decision)
            case LeaveGroupRequest():
                self._classic.leave(now, ticket, call, body, decision)

    # ---- groups that give way to one of another kind ---------------------------------------------------------------

    def _join_classic(
        self, now: Millis, ticket: Ticket, call: Call, body: JoinGroupRequest, decision: DecisionBuilder
    ) -> None:
        """An empty consumer group becomes a classic one, with its offsets."""
        consumer = self._consumer.of(body.group_id)
        self._classic.join(now, ticket, call, body, decision)
        if consumer is not None and body.group_id in self._groups:
            decision.records[:0] = self._consumer.deletion(body.group_id) or []

    def _consumer_heartbeat(
        self, now: Millis, ticket: Ticket, call: Call, body: ConsumerHeartbeat, decision: DecisionBuilder
    ) -> None:
        """A classic group becomes a consumer group, with its offsets and members, when such a member joins."""
        group_id = body.request.group_id
        classic = self._groups.get(group_id)
        if classic is None or body.request.member_epoch != JOIN_EPOCH:
            self._consumer.heartbeat(now, ticket, call, body, decision)
            return
        if not classic.members:
            self._consumer.heartbeat(now, ticket, call, body, decision)
            if decision.records:
                decision.records.insert(0, encode_group(group_id, None))
            return
        try:
            upgraded = self._migration.upgraded(classic)
        except MigrationRefusedError as refused:
            answer = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=str(refused))
            decision.answer(ticket, answer)
            return
        self._consumer.heartbeat(now, ticket, call, replace(body, upgraded=upgraded.group), decision)
        if decision.records:
            decision.records[:0] = upgraded.records
            self._migration.take_over(now, classic, decision)

    def abandon(self, ticket: Ticket) -> None:
        """Do nothing: a member with a parked JoinGroup or SyncGroup stays a member until its session or the phase ends.
        It may reconnect with its member id."""

    # ---- deadlines -------------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        return self._timers.deadline()

    def expire(self, now: Millis) -> Decision:
        """Handle expired deadlines, up to the first one with records: these must be applied before the next."""
        decision = DecisionBuilder()
        while not decision.records:
            timer = self._timers.pop(now)
            if timer is None:
                break
            group_id, kind, member_id = timer
            if kind == Deadline.EXPIRE:
                self._expire_offsets(now, decision)
            elif kind == Deadline.DELETED_TOPICS:
                self._delete_offsets_of_deleted_topics(now, decision)
            elif kind == Deadline.JOIN:
                self._rebalances.join_deadline(now, self._groups[group_id], decision)
            elif kind == Deadline.SHARE_SESSION:
                self._share.session_deadline(now, group_id, member_id, decision)
            elif kind == Deadline.CLASSIC_REBALANCE:
                if (group := self._groups.get(group_id)) is not None and group.state is GroupState.STABLE:
                    self._rebalances.prepare(now, group, decision)
            elif kind >= Deadline.CONSUMER_SESSION:
                self._consumer.expire(now, timer, decision)
            elif kind == Deadline.SYNC:
                self._rebalances.sync_deadline(now, self._groups[group_id], decision)
            else:
                self._rebalances.session_deadline(now, self._groups[group_id], member_id, decision)
        return decision.build()

    def _expire_offsets(self, now: Millis, decision: DecisionBuilder) -> None:
        """Sweep over all groups for expired offsets, in steps. A group without members is deleted with its last
        offset."""
        if not self._to_expire:
            self._to_expire.extend(self._groups)
            self._to_expire.extend(self._consumer.ids())
        left, room, wall_ms = _OFFSETS_PER_STEP, _TOMBSTONES_PER_STEP, self._wall.at(now)
        while self._to_expire and left > 0:
            group_id = self._to_expire.popleft()
            group = self._consumer.of(group_id) or self._groups.get(group_id)
            if group is not None:
                left -= 1 + self._offsets.count(group_id)
                records, is_left_empty = self._offsets.expired(wall_ms, group, room)
                decision.records += records
                room -= len(records)
                if not room:
                    self._to_expire.appendleft(group_id)
                    break
                if not is_left_empty:
                    continue
                if isinstance(group, ConsumerGroup):
                    decision.records += self._consumer.deletion(group_id) or []
                elif group.state is GroupState.EMPTY and not group.pending_members:
                    decision.records.append(encode_group(group_id, None))
        later = _PAUSE_MS if self._to_expire else self._settings.offsets_retention_check_interval_ms
        self._timers.set(_EXPIRE, now + later)

    def _delete_offsets_of_deleted_topics(self, now: Millis, decision: DecisionBuilder) -> None:
        """Sweep over all groups for their offsets in deleted topics, in steps."""
        looks, records = _OFFSETS_PER_STEP, list[ShardRecord]()
        while looks > 0 and (group_id := self._next_to_sweep()) is not None:
            topics = self._offsets.topics_of(group_id)
            looks -= 1 + len(topics)
            for topic in topics:
                if topic in self._deleted_topics.topics:
                    records += self._offsets.delete_topic(group_id, topic, _TOMBSTONES_PER_STEP - len(records))
            if len(records) >= _TOMBSTONES_PER_STEP:
                self._deleted_topics.look_again(group_id)
                break
        decision.records += records
        if self._deleted_topics:
            self._timers.set(_DELETED_TOPICS, now + _PAUSE_MS)

    def _next_to_sweep(self) -> str | None:
        return self._deleted_topics.next_group(chain(self._groups, self._consumer.ids()))

    # ---- durable state ---------------------------------------------------------------------------------------------

    def apply(self, now: Millis, batch: AppliedBatch) -> None:
        producer_id = batch.producer_id if batch.transactional else NO_PRODUCER_ID
        for each in batch.records:
            try:
                self._apply_one(each, producer_id)
            except MalformedFrameError as error:
                self._notes(f"{self.TOPIC}: the record at offset {each.offset} does not parse and is skipped: {error}")
        if self._known_keys and not self._is_loading:
            self._known_keys = {}

    def _apply_one(self, each: AppliedRecord, producer_id: int) -> None:
        key, value = each.key or b"", each.value
        if isinstance(each.meaning, OffsetRecord):
            group_id, topic, partition, committed = each.meaning
            if committed is not None:
                committed = committed._replace(record_offset=each.offset)
            self._apply_offset(group_id, topic, partition, committed, producer_id)
            return
        where = self._known_keys.get(key)
        if where is not None:
            committed = None if value is None else decode_committed(value, each.offset)
            self._apply_offset(*where, committed, producer_id)
            return
        read = decode(key, value, each.offset)
        match read:
            case OffsetRecord(group_id, topic, partition, committed):
                if self._is_loading:
                    self._known_keys[key] = (group_id, topic, partition)
                self._apply_offset(group_id, topic, partition, committed, producer_id)
            case GroupRecord(group_id, stored):
                self._apply_group(group_id, stored)
            case OfShareGroup(record):
                self._share.apply(record)
            case OfConsumerGroup(record):
                self._consumer.apply(record)
                self._settle_kind(record)
            case Unknown(record_type):
                self._pass_over(record_type)
            case _:
                assert_never(read)

    def _apply_offset(
        self, group_id: str, topic: str, partition: int, committed: CommittedOffset | None, producer_id: int
    ) -> None:
        if committed is not None and group_id not in self._groups and group_id not in self._consumer:
            self._groups[group_id] = Group(group_id, NO_TIMESTAMP)
        self._offsets.apply(group_id, topic, partition, committed, producer_id)

    def _apply_group(self, group_id: str, stored: StoredGroup | None) -> None:
        """A record of a classic group; None deletes it."""
        if stored is None:
            self._remove(group_id)
            return
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, stored.state_timestamp_ms)
        group.adopt(stored)

    def _remove(self, group_id: str) -> None:
        group = self._groups.pop(group_id, None)
        if group is not None:
            self._rebalances.forget(group)

    def _settle_kind(self, record: ConsumerRecord) -> None:
        """Keep a group of committed offsets alone as a simple classic group, and only while it is no consumer group.
        Compaction may put a consumer group's first record behind its offsets."""
        if isinstance(record, PassedOver):
            return
        group_id = record.group_id
        group = self._groups.get(group_id)
        if group_id in self._consumer:
            if group is not None and group.stored is None and not group.members:
                self._remove(group_id)
        elif group is None and isinstance(record, EpochRecord) and self._offsets.knows(group_id):
            self._groups[group_id] = Group(group_id, NO_TIMESTAMP)

    def _pass_over(self, record_type: int) -> None:
        if record_type not in self._unknown_types:
            self._unknown_types.add(record_type)
            self._notes(f"{self.TOPIC}: records of type {record_type} are unknown and are skipped")

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        for group_id in self._offsets.apply_marker(producer_id, committed):
            if group_id not in self._groups and group_id not in self._consumer:
                self._groups[group_id] = Group(group_id, NO_TIMESTAMP)

    def loaded(self, now: Millis) -> Decision:
        """Restart the sessions of all members after replay. A group above a lowered `group.max.size` rebalances to
        shrink."""
        self._is_loading = False
        self._known_keys.clear()
        decision = DecisionBuilder()
        for group in self._groups.values():
            for member in group.members.values():
                self._rebalances.touch(now, group, member)
            if len(group.members) > self._settings.group_size_max:
                self._rebalances.prepare(now, group, decision)
        self._consumer.loaded(now)
        self._share.loaded(now)
        self._timers.set(_EXPIRE, now + self._settings.offsets_retention_check_interval_ms)
        return decision.build()

    # ---- for metrics -----------------------------------------------------------------------------------------------

    @property
    def share(self) -> ShareGroups:
        return self._share

    @property
    def consumer(self) -> ConsumerGroups:
        return self._consumer

    def states(self) -> list[tuple[str, str]]:
        """(protocol, state) of each group that is no share group, in Kafka's words."""
        classic = [("classic", group.state.value) for group in self._groups.values()]
        return classic + [("consumer", group.state) for group in self._consumer]

    def positions(self) -> Iterator[tuple[str, str, int, int]]:
        """(group, topic, partition, committed offset) of all groups."""
        return self._offsets.positions()

    # ---- for tests and the simulator -------------------------------------------------------------------------------

    def image(self) -> object:
        """The durable state as plain values; two shards that applied the same log have equal images."""
        stored = {group_id: group.stored for group_id, group in self._groups.items()}
        return stored, self._offsets.image(), self._share.image(), self._consumer.image()

    def owners(self) -> dict[str, tuple[int, str, dict[str, bytes]]]:
        """For each Stable group: its generation, its leader, and the assignment of each member."""
        return {
            group.group_id: (
                group.generation,
                group.leader or "",
                {m.member_id: m.assignment for m in group.members.values()},
            )
            for group in self._groups.values()
            if group.state is GroupState.STABLE
        }

    def check(self) -> None:
        self.check_durable()
        self._timers.check()
        for group in self._groups.values():
            self._rebalances.check(group)
        self._share.check()
        self._consumer.check()

    def check_durable(self) -> None:
        """The part of `check` that holds before `loaded` too, when no session runs yet."""
        self._offsets.check()
        self._share.check_durable()
        self._consumer.check_durable()
        for group_id, group in self._groups.items():
            assert group.group_id == group_id, group_id
            group.check()
