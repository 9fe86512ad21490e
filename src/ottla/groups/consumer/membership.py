"""Heartbeats of consumer groups: members join, stay, change their subscription, and leave.

It has the rules of heartbeats, their answers, the resulting records, and the expiry of sessions. `assignment` makes the
targets, and `reconciliation` moves a member to its target.

A member joins with epoch 0 and receives its epoch and its partitions. It continues with the epoch that it received, and
reports the partitions that it owns when they change. A member that receives FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER_ID
gives up all partitions and joins again. It leaves with -1. A static member that intends to return leaves with -2, and
the next member that joins with its instance id gets its place.

Source: Kafka's GroupMetadataManager.java (consumerGroupHeartbeat, consumerGroupLeave, consumerGroupFenceMember),
GroupCoordinatorService.java (required fields of a request); KIP-848.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ottla.expressions import InvalidExpressionError, matching
from ottla.groups.consumer.assignment import Assignments
from ottla.groups.consumer.group import (
    STATIC_LEAVE_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Owned,
    Resolved,
    TopicIdPartition,
    subscribed,
    subscription,
)
from ottla.groups.consumer.pace import UNSETTLED_MS, interval_ms
from ottla.groups.consumer.reconciliation import PlacesNamed, reconciled
from ottla.groups.consumer.records import ConsumerRecord, RegexRecord, by_topic, encode
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder, fits
from ottla.groups.epochs.heartbeats import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatRefusedError,
    Sessions,
    TooLargeError,
    check_names,
    fenced,
    full,
    in_one_batch,
    known,
    unknown_member,
)
from ottla.groups.epochs.records import (
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    TargetEpochRecord,
    TargetRecord,
    member_gone,
)
from ottla.groups.history import Cause, GroupHistory
from ottla.groups.metadata_view import ConsumerGroupConfig, MetadataView, topics_hash, topics_of
from ottla.groups.settings import GroupSettings
from ottla.machine import Call, Entropy, Millis, ShardRecord, Ticket, WallClock
from ottla.machine.timers import Timers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ResponseTopicPartitions,
)
from ottla.protocol.uuids import uuid_text

TOLD_AGAIN_MS: Final = 1_000
"""Milliseconds after which a member that does not confirm its partitions receives them again."""
_FIRST_EPOCH: Final = 1
_MATCHED_AGAIN_MS: Final = 1_000
"""Milliseconds at least between two matches of an expression against new topics."""
_MEMBER_MAKES_ITS_ID_SINCE: Final = 1


def _sees_all(name: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """The body of a call: a heartbeat, and which topics its sender may see."""

    request: ConsumerGroupHeartbeatRequest
    sees: Callable[[str], bool] = _sees_all
    upgraded: ConsumerGroup | None = None
    """The consumer group that replaces the classic group of this name when the sender joins."""


def sessions_of(timers: Timers[GroupTimer]) -> Sessions:
    """The sessions of members of consumer groups, and their other deadlines."""
    return Sessions(
        timers,
        Deadline.CONSUMER_SESSION,
        Deadline.CONSUMER_REVOCATION,
        Deadline.CONSUMER_JOIN,
        Deadline.CONSUMER_SYNC,
    )


class Conversion(Protocol):
    """Converts a consumer group to a classic group."""

    def downgraded(self, now: Millis, group: ConsumerGroup, leaving: Container[str]) -> list[ShardRecord] | None:
        """The records of the conversion when these members leave; None if it stays a consumer group."""
        ...


class ConsumerMembership:
    """Serves the members of all consumer groups of a shard."""

    __slots__ = (
        "_assignments",
        "_conversion",
        "_entropy",
        "_history",
        "_matched",
        "_metadata",
        "_settings",
        "_timers",
        "_wall",
        "groups",
        "in_the_way",
        "sessions",
    )

    def __init__(
        self,
        settings: GroupSettings,
        metadata: MetadataView,
        groups: dict[str, ConsumerGroup],
        in_the_way: Container[str],
        timers: Timers[GroupTimer],
        wall: WallClock,
        entropy: Entropy,
        conversion: Conversion,
        history: GroupHistory,
    ) -> None:
        self._settings = settings
        self._history = history
        self._metadata = metadata
        self._timers = timers
        self._entropy = entropy
        self._conversion = conversion
        self._wall = wall
        self.sessions = sessions_of(timers)
        self._assignments = Assignments(metadata, timers, wall)
        self._matched: dict[tuple[str, str], tuple[object, Millis]] = {}
        """Soft: the view of the topics, and the time, of the last match of a group's expression."""
        self.groups = groups
        self.in_the_way = in_the_way
        """Groups of another kind whose ids are in use."""

    # ---- ConsumerGroupHeartbeat ------------------------------------------------------------------------------------

    def heartbeat(
        self, now: Millis, ticket: Ticket, call: Call, heard: ConsumerHeartbeat, decision: DecisionBuilder
    ) -> None:
        body = heard.request
        try:
            _check(call, body, self._metadata.consumer_group_config(body.group_id))
            if body.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                answer, encoded = self._leave(now, body)
            else:
                answer, records = self._stay(now, call, heard)
                encoded = [encode(record) for record in records]
            decision.records += in_one_batch(body.group_id, encoded, self._settings)
        except HeartbeatRefusedError as refused:
            if isinstance(refused, TooLargeError) and body.group_id in self.groups:
                self.groups[body.group_id].topics_version = None
            answer = ConsumerGroupHeartbeatResponse(error_code=refused.error, error_message=refused.message)
        decision.answer(ticket, answer)

    def _leave(
        self, now: Millis, body: ConsumerGroupHeartbeatRequest
    ) -> tuple[ConsumerGroupHeartbeatResponse, list[ShardRecord]]:
        group = self._known(body.group_id)
        member = self._member(group, body)
        answer = ConsumerGroupHeartbeatResponse(member_id=body.member_id, member_epoch=body.member_epoch)
        if body.instance_id is None or body.member_epoch == LEAVE_EPOCH:
            self.note(now, group, Cause.LEFT, member)
            return answer, self.removal(now, group, [member])
        # Its session continues: the member's place is kept until the session ends.
        self._timers.cancel((group.group_id, Deadline.CONSUMER_REVOCATION, member.member_id))
        gone = replace(member, state=MemberState.STABLE, member_epoch=STATIC_LEAVE_EPOCH, revoking={})
        return answer, [encode(CurrentRecord(group.group_id, member.member_id, gone))]

    def _stay(
        self, now: Millis, call: Call, heard: ConsumerHeartbeat
    ) -> tuple[ConsumerGroupHeartbeatResponse, list[ConsumerRecord]]:
        body = heard.request
        config = self._metadata.consumer_group_config(body.group_id)
        joins = body.member_epoch == JOIN_EPOCH
        group = heard.upgraded or (self._known_or_new(body.group_id) if joins else self._known(body.group_id))
        if self.is_full(group, body.member_id):
            raise full(ConsumerGroup.TYPE, config.members_max)
        records: list[ConsumerRecord] = []
        owned = None if body.topic_partitions is None else PlacesNamed(body.topic_partitions)
        found, replaced = self._join(group, body, records) if joins else (self._member(group, body), None)
        if found is not None:
            _check_epoch(found, body.member_epoch, owned)
        before = found or ConsumerMember(body.member_id or uuid_text(self._entropy.randbytes(16)))
        member = _told(before, call, body)
        resubscribed = (member.topics, member.regex) != (before.topics, before.regex)
        if found is None or not member.described_as(before):
            records.append(MemberRecord(group.group_id, member.member_id, member))
        members = {**group.members, member.member_id: member}
        if replaced is not None:
            del members[replaced]
        resolved, expressions = self._resolved(now, group, before, member, members, heard.sees)
        if resolved is not group.resolved:
            records += expressions
            resubscribed = True
        member = self.move(now, group, member, members, resolved, resubscribed, owned, records)
        self.note_change(now, group, member, found, replaced, resubscribed, records)
        if before.classic is not None:
            self._unwatch(group, member.member_id)
        self.sessions.begin(group.group_id, member.member_id, now + config.session_timeout_ms)
        answer = ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._interval_ms(now, group, member, config, records),
        )
        is_full = body.rebalance_timeout_ms != -1 and owned is not None and not (
            body.subscribed_topic_names is None and body.subscribed_topic_regex is None
        )  # fmt: skip
        asks = joins or is_full or member.assigned != before.assigned
        if self._is_to_be_told(now, group, member, owned, asks=asks):
            answer.assignment = _assignment(member.assigned)
        return answer, records

    def _is_to_be_told(
        self,
        now: Millis,
        group: ConsumerGroup,
        member: ConsumerMember,
        owned: Iterable[TopicIdPartition] | None,
        *,
        asks: bool,
    ) -> bool:
        """Whether the answer contains the member's partitions. It does if the member `asks`, or if they have changed.
        It also does if the member has not confirmed them for a while, because that answer may have been lost.
        librdkafka gives up on answers that take longer than the heartbeat interval, and does not ask for all partitions
        again."""
        told, member_id = group.told, member.member_id
        if owned is not None and set(owned) == member.assigned.keys():
            told[member_id] = None
            return asks
        told_at = told.setdefault(member_id, now)
        if not asks and (told_at is None or now < told_at + TOLD_AGAIN_MS):
            return False
        told[member_id] = now
        return True

    def move(
        self,
        now: Millis,
        group: ConsumerGroup,
        member: ConsumerMember,
        members: dict[str, ConsumerMember],
        resolved: Mapping[str, Resolved],
        resubscribed: bool,
        owned: Iterable[TopicIdPartition] | None,
        records: list[ConsumerRecord],
    ) -> ConsumerMember:
        """Move the member towards its target. The resulting records of the member and the group are added to
        `records`."""
        group_id, member_id = group.group_id, member.member_id
        epoch = self._epoch(group, members, resolved, resubscribed, records)
        assignment_epoch, target = group.assignment_epoch, group.targets.get(member_id, ())
        for record in records:
            if isinstance(record, TargetRecord) and record.member_id == member_id:
                target = record.target or ()
        if epoch > assignment_epoch and self._assignments.is_due(now, group, len(members)):
            targets, made = self._assignments.make(now, group, members, resolved, epoch)
            records += made
            assignment_epoch, target = epoch, targets[member_id]
        if not resubscribed and member.is_reconciled_to(assignment_epoch):
            return member
        topics = topics_of(self._metadata, list(subscription(member, resolved)))
        read = {topic_id: None for topic_id, _ in topics.values()}
        moved = reconciled(member, assignment_epoch, target, group.owner_of, read, owned, resubscribed=resubscribed)
        if not moved.owns_what(member):
            records.append(CurrentRecord(group_id, member_id, moved))
            self._watch_revocation(now, group, moved)
        return moved

    def _resolved(
        self,
        now: Millis,
        group: ConsumerGroup,
        before: ConsumerMember,
        member: ConsumerMember,
        members: Mapping[str, ConsumerMember],
        sees: Callable[[str], bool],
    ) -> tuple[Mapping[str, Resolved], list[ConsumerRecord]]:
        """The topics that the group's expressions now match, and the records of changes.

        A member's own expression is matched when it is new, when topics have changed, and periodically, because the
        sender's permissions may have changed too. Raises HeartbeatRefusedError.
        """
        resolved, records = dict(group.resolved), list[ConsumerRecord]()
        if before.regex and before.regex != member.regex and not _is_used(before.regex, members):
            if resolved.pop(before.regex, None) is not None:
                records.append(RegexRecord(group.group_id, before.regex, None))
            self._matched.pop((group.group_id, before.regex), None)
        if member.regex and self._is_stale(now, group, member.regex):
            names = self._metadata.topic_names()
            try:
                topics = matching(member.regex, filter(sees, names))
            except InvalidExpressionError as invalid:
                raise HeartbeatRefusedError(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{member.regex}` is not a valid regular expression: {invalid}.",
                ) from None
            self._matched[group.group_id, member.regex] = (self._metadata.topics_version, now)
            known = resolved.get(member.regex)
            if known is None or known.topics != topics:
                found = Resolved(topics, group.epoch, self._wall.at(now))
                resolved[member.regex] = found
                records.append(RegexRecord(group.group_id, member.regex, found))
        return (resolved, records) if records else (group.resolved, records)

    def _is_stale(self, now: Millis, group: ConsumerGroup, regex: str) -> bool:
        version, at = self._matched.get((group.group_id, regex), (None, 0))
        if regex not in group.resolved or version is None:
            return True
        if version != self._metadata.topics_version:
            # A millisecond for each name: matching costs far less than the other work.
            return now >= at + max(_MATCHED_AGAIN_MS, len(self._metadata.topic_names()))
        return now >= at + self._metadata.consumer_group_config(group.group_id).regex_refresh_interval_ms

    def _epoch(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        resolved: Mapping[str, Resolved],
        resubscribed: bool,
        records: list[ConsumerRecord],
    ) -> int:
        """The group's epoch after this heartbeat: a new one if members, subscriptions or topics have changed."""
        version = self._metadata.topics_version
        bumps = resubscribed or group.group_id not in self.groups
        if not bumps and group.topics_version == version:
            return group.epoch
        group.topics_version = version
        metadata_hash = topics_hash(topics_of(self._metadata, subscribed(members, resolved)))
        if not bumps and metadata_hash == group.metadata_hash:
            return group.epoch
        records.append(EpochRecord(group.group_id, group.epoch + 1, metadata_hash))
        return group.epoch + 1

    def _interval_ms(
        self,
        now: Millis,
        group: ConsumerGroup,
        member: ConsumerMember,
        config: ConsumerGroupConfig,
        records: list[ConsumerRecord],
    ) -> Millis:
        epoch, assignment_epoch = group.epoch, group.assignment_epoch
        for record in records:
            if isinstance(record, EpochRecord):
                epoch = record.epoch or 0
            elif isinstance(record, TargetEpochRecord):
                assignment_epoch = record.epoch or 0
        changed_at = self._assignments.changed_at(group.group_id)
        is_young = changed_at is not None and now < changed_at + UNSETTLED_MS
        moving = is_young or epoch > assignment_epoch or not member.is_reconciled_to(assignment_epoch)
        return interval_ms(self._metadata.heartbeating(), config.heartbeat_interval_ms, moving=moving)

    # ---- groups and members that a heartbeat names -----------------------------------------------------------------

    def _known(self, group_id: str) -> ConsumerGroup:
        return known(self.groups, ConsumerGroup.TYPE, group_id, self.in_the_way)

    def _known_or_new(self, group_id: str) -> ConsumerGroup:
        """A new group begins as if epoch 1 had an empty assignment (KAFKA-20268)."""
        if group_id in self.groups or group_id in self.in_the_way:
            return self._known(group_id)
        group = ConsumerGroup(group_id)
        group.epoch = group.assignment_epoch = _FIRST_EPOCH
        return group

    def _member(self, group: ConsumerGroup, body: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
        """The member that sent a heartbeat or leaves. Raises HeartbeatRefusedError."""
        if body.instance_id is None:
            member = group.members.get(body.member_id)
            if member is None:
                raise unknown_member(body.group_id, body.member_id)
            return member
        member = group.static_member(body.instance_id)
        if member is None:
            raise HeartbeatRefusedError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {body.instance_id} is unknown.")
        if member.member_id != body.member_id:
            raise HeartbeatRefusedError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {body.member_id} with instance id {body.instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        return member

    def _join(
        self, group: ConsumerGroup, body: ConsumerGroupHeartbeatRequest, records: list[ConsumerRecord]
    ) -> tuple[ConsumerMember | None, str | None]:
        """The member that joins, None if this id is unknown, and the id of the static member that it replaces. Raises
        Refused."""
        holder = group.static_member(body.instance_id)
        if holder is None or holder.member_id == body.member_id:
            return group.members.get(body.member_id), None
        if holder.member_epoch != STATIC_LEAVE_EPOCH and holder.classic is None:
            raise HeartbeatRefusedError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {body.member_id} with instance id {body.instance_id} cannot join the group because the "
                f"instance id is owned by {holder.member_id} member.",
            )
        return self.succeed(group, holder, body.member_id, records), holder.member_id

    def succeed(
        self, group: ConsumerGroup, holder: ConsumerMember, member_id: str, records: list[ConsumerRecord]
    ) -> ConsumerMember:
        """The member that replaces a static member, under another id. The records of the change are added to
        `records`."""
        successor = replace(holder, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        records += member_gone(group.group_id, holder.member_id)
        records += [
            MemberRecord(group.group_id, successor.member_id, successor),
            TargetRecord(group.group_id, successor.member_id, group.targets.get(holder.member_id, ())),
            CurrentRecord(group.group_id, successor.member_id, successor),
        ]
        self._unwatch(group, holder.member_id)
        return successor

    # ---- members that go -------------------------------------------------------------------------------------------

    def removal(self, now: Millis, group: ConsumerGroup, leaving: list[ConsumerMember]) -> list[ShardRecord]:
        """The records that end memberships. A group left empty is assigned to at once (KAFKA-20442), one left to
        members of the classic protocol may become theirs."""
        group_id = group.group_id
        gone = {member.member_id for member in leaving}
        converted = self._conversion.downgraded(now, group, gone)
        if converted is not None:
            return converted
        left = {member_id: each for member_id, each in group.members.items() if member_id not in gone}
        records: list[ConsumerRecord] = []
        for member in leaving:
            self._unwatch(group, member.member_id)
            records += member_gone(group_id, member.member_id)
        for regex in dict.fromkeys(member.regex for member in leaving):
            if regex and not _is_used(regex, left):
                records.append(RegexRecord(group_id, regex, None))
        metadata_hash = topics_hash(topics_of(self._metadata, subscribed(left, group.resolved)))
        records.append(EpochRecord(group_id, group.epoch + 1, metadata_hash))
        if left:
            self._assignments.plan(now, group, len(left))
        else:
            records.append(TargetEpochRecord(group_id, group.epoch + 1, group.assigned_at_ms))
        return [encode(record) for record in records]

    def fence(self, now: Millis, group_id: str, member_id: str, cause: Cause, decision: DecisionBuilder) -> None:
        """Remove a member whose session expired, or that kept partitions beyond the rebalance timeout."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is not None and member is not None:
            self.note(now, group, cause, member)
            decision.records += self.removal(now, group, [member])

    def assignment_deadline(self, now: Millis, group_id: str, decision: DecisionBuilder) -> None:
        """Make a new target assignment, because the group has changed since the last one."""
        group = self.groups.get(group_id)
        if group is not None and group.members and group.epoch > group.assignment_epoch:
            _, records = self._assignments.make(now, group, group.members, group.resolved, group.epoch)
            encoded = [encode(record) for record in records]
            if fits(encoded, self._settings):
                decision.records += encoded
            else:
                self._assignments.plan(now, group, len(group.members))

    def is_full(self, group: ConsumerGroup, member_id: str) -> bool:
        """Whether the group has no room for this member."""
        size_max = self._metadata.consumer_group_config(group.group_id).members_max
        return member_id not in group.members and len(group.members) >= size_max

    # ---- why a group changed ---------------------------------------------------------------------------------------

    def note(
        self, now: Millis, group: ConsumerGroup, cause: Cause, member: ConsumerMember | None, reason: str | None = None
    ) -> None:
        """Remember why the group changes; `member` None: no member is the cause."""
        self._history.note(self._wall.at(now), group.group_id, group.epoch, cause, member, reason)

    def note_change(
        self,
        now: Millis,
        group: ConsumerGroup,
        member: ConsumerMember,
        found: ConsumerMember | None,
        replaced: str | None,
        resubscribed: bool,
        records: list[ConsumerRecord],
        reason: str | None = None,
    ) -> None:
        """Remember why these records of a member's heartbeat or JoinGroup change the group, if they do. `found`: the
        member before."""
        if replaced is not None:
            self.note(now, group, Cause.RETURNED, member, reason)
        elif found is None:
            self.note(now, group, Cause.JOINED, member, reason)
        elif resubscribed:
            self.note(now, group, Cause.SUBSCRIPTION, member, reason)
        elif any(isinstance(record, EpochRecord) for record in records):
            self.note(now, group, Cause.PARTITIONS, None)

    # ---- watches ---------------------------------------------------------------------------------------------------

    def _watch_revocation(self, now: Millis, group: ConsumerGroup, member: ConsumerMember) -> None:
        timer = (group.group_id, Deadline.CONSUMER_REVOCATION, member.member_id)
        if member.state is MemberState.UNREVOKED and member.classic is None:
            self._timers.set(timer, now + member.rebalance_timeout_ms)
        else:
            self._timers.cancel(timer)

    def loaded(self, now: Millis, group: ConsumerGroup) -> None:
        """Restart the sessions and revocations of all members, and plan an assignment if the last one is outdated."""
        usual_ms = self._metadata.consumer_group_config(group.group_id).session_timeout_ms
        for member in group.members.values():
            timeout_ms = usual_ms if member.classic is None else member.classic.session_timeout_ms
            self.sessions.begin(group.group_id, member.member_id, now + timeout_ms)
            self._watch_revocation(now, group, member)
        if group.members and group.epoch > group.assignment_epoch:
            self._timers.set((group.group_id, Deadline.CONSUMER_ASSIGNMENT, ""), now)

    def _unwatch(self, group: ConsumerGroup, member_id: str) -> None:
        group.told.pop(member_id, None)
        self.sessions.end(group.group_id, member_id)

    def forget(self, group: ConsumerGroup) -> None:
        """Forget a group that no longer exists."""
        self._assignments.forget(group.group_id)
        for regex in group.resolved:
            self._matched.pop((group.group_id, regex), None)
        for member_id in group.members:
            self._unwatch(group, member_id)

    def assignor(self, group: ConsumerGroup) -> str:
        """The assignor of the group's next assignment."""
        return self._assignments.assignor(group.group_id, group.members)

    def check(self, group: ConsumerGroup) -> None:
        group.check()
        self.sessions.check(group)
        for member_id, member in group.members.items():
            if member.state is MemberState.UNREVOKED and member.classic is None:
                timer = (group.group_id, Deadline.CONSUMER_REVOCATION, member_id)
                assert timer in self._timers, f"{group.group_id}: {member_id} may keep its partitions for ever"
        if group.members and group.epoch > group.assignment_epoch:
            timer = (group.group_id, Deadline.CONSUMER_ASSIGNMENT, "")
            assert timer in self._timers, f"{group.group_id}: nobody makes the next assignment"


def _is_used(regex: str, members: Mapping[str, ConsumerMember]) -> bool:
    return any(member.regex == regex for member in members.values())


def _assignment(assigned: Owned) -> Assignment:
    parts = by_topic(assigned).items()
    return Assignment([ResponseTopicPartitions(topic_id, indexes) for topic_id, indexes in parts])


# ---- what a heartbeat must say -------------------------------------------------------------------------------------


def _check(call: Call, body: ConsumerGroupHeartbeatRequest, config: ConsumerGroupConfig) -> None:
    """Raises HeartbeatRefusedError."""
    needs_id = call.version >= _MEMBER_MAKES_ITS_ID_SINCE or body.member_epoch > 0 or body.member_epoch == LEAVE_EPOCH
    if needs_id:
        check_names(("MemberId", body.member_id))
    check_names(("GroupId", body.group_id), ("InstanceId", body.instance_id), ("RackId", body.rack_id))
    if body.member_epoch == JOIN_EPOCH:
        _check_join(body)
    elif body.member_epoch == STATIC_LEAVE_EPOCH and body.instance_id is None:
        raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    elif body.member_epoch < STATIC_LEAVE_EPOCH:
        raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")
    if body.server_assignor is not None and body.server_assignor not in config.assignors:
        raise HeartbeatRefusedError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(config.assignors)}.",
        )


def _check_join(body: ConsumerGroupHeartbeatRequest) -> None:
    if body.rebalance_timeout_ms == -1:
        raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if body.topic_partitions is None or body.topic_partitions:
        raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        raise HeartbeatRefusedError(
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def _check_epoch(member: ConsumerMember, epoch: int, owned: Iterable[TopicIdPartition] | None) -> None:
    """Check a heartbeat's epoch. Accept the present one, and 0, with which the member begins again (KAFKA-19233). Also
    accept the epoch before if the member owns no more than it was given, because the answer with the present one may
    have been lost. Raises HeartbeatRefusedError."""
    if epoch in (member.member_epoch, JOIN_EPOCH):
        return
    lost_answer = epoch == member.previous_member_epoch and owned is not None
    if epoch > member.member_epoch or not (lost_answer and all(place in member.assigned for place in owned or ())):
        raise fenced(ConsumerGroup.TYPE, member, epoch)


def _told(member: ConsumerMember, call: Call, body: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    """The member with the fields of its heartbeat; null means unchanged."""
    names = body.subscribed_topic_names
    regex = body.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if body.instance_id is None else body.instance_id,
        rack_id=member.rack_id if body.rack_id is None else body.rack_id,
        client_id=call.client_id,
        client_host=call.client_host,
        topics=member.topics if names is None else tuple(sorted(set(names))),
        regex=member.regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms
        if body.rebalance_timeout_ms == -1
        else body.rebalance_timeout_ms,
        assignor=member.assignor if body.server_assignor is None else body.server_assignor,
        classic=None,
    )
