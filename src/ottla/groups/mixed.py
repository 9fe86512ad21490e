"""Serves members that speak the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

In a consumer group, a member's generation is its epoch. A JoinGroup reports the member's subscription and owned
partitions, and there is no leader. A SyncGroup returns the member's part of the target. A heartbeat tells the member to
join again when its assignment changes.

Source: Kafka's GroupMetadataManager.java (classicGroupJoinToConsumerGroup, classicGroupSyncToConsumerGroup,
classicGroupHeartbeatToConsumerGroup, classicGroupLeaveToConsumerGroup); KIP-848.
"""

import uuid
from dataclasses import replace

from ottla.groups.classic.group import CONSUMER_PROTOCOL_TYPE
from ottla.groups.classic.replies import join_reply, leave_reply
from ottla.groups.consumer.group import ClassicMembership, ConsumerGroup, ConsumerMember, MemberState
from ottla.groups.consumer.membership import ConsumerMembership
from ottla.groups.consumer.records import ConsumerRecord, encode
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder, fits
from ottla.groups.epochs.records import MemberRecord
from ottla.groups.history import Cause
from ottla.groups.migration import Migration, subscription_of, version_of
from ottla.groups.settings import GroupSettings
from ottla.machine import Call, Entropy, Millis, Ticket
from ottla.machine.timers import Timers
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_MEMBER_ID_REQUIRED_SINCE = 4
_LEAVE_IN_BATCHES_SINCE = 3


class _RefusedError(Exception):
    def __init__(self, error: ErrorCode, member_id: str = "") -> None:
        self.error = error
        self.member_id = member_id


class ClassicMembers:
    """Serves members of the classic protocol in the consumer groups of a shard."""

    __slots__ = ("_entropy", "_membership", "_migration", "_settings", "_timers")

    def __init__(
        self,
        settings: GroupSettings,
        membership: ConsumerMembership,
        migration: Migration,
        timers: Timers[GroupTimer],
        entropy: Entropy,
    ) -> None:
        self._settings = settings
        self._membership = membership
        self._migration = migration
        self._timers = timers
        self._entropy = entropy

    # ---- JoinGroup -------------------------------------------------------------------------------------------------

    def join(
        self,
        now: Millis,
        ticket: Ticket,
        call: Call,
        body: JoinGroupRequest,
        group: ConsumerGroup,
        decision: DecisionBuilder,
    ) -> None:
        try:
            answer, records = self._join(now, call, body, group)
        except _RefusedError as refused:
            decision.answer(ticket, join_reply(call.version, refused.error, refused.member_id or body.member_id))
            return
        encoded = [encode(record) for record in records]
        if fits(encoded, self._settings):
            decision.records += encoded
            decision.answer(ticket, answer)
        else:
            decision.answer(ticket, join_reply(call.version, ErrorCode.UNKNOWN_SERVER_ERROR, body.member_id))

    def _join(
        self, now: Millis, call: Call, body: JoinGroupRequest, group: ConsumerGroup
    ) -> tuple[JoinGroupResponse, list[ConsumerRecord]]:
        self._check_join(body, group)
        is_unknown = not body.member_id
        member_id = body.member_id or str(uuid.UUID(bytes=self._entropy.randbytes(16), version=4))
        if is_unknown and body.group_instance_id is None and call.version >= _MEMBER_ID_REQUIRED_SINCE:
            raise _RefusedError(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        said = _said(body)
        records: list[ConsumerRecord] = []
        known, replaced = self._known(body, group, member_id, records)
        before = known or ConsumerMember(member_id)
        member = replace(
            before,
            instance_id=body.group_instance_id if body.group_instance_id is not None else before.instance_id,
            rack_id=said.rack_id or before.rack_id,
            client_id=call.client_id,
            client_host=call.client_host,
            topics=tuple(sorted(set(said.topics))),
            regex="",
            rebalance_timeout_ms=body.session_timeout_ms if call.version == 0 else body.rebalance_timeout_ms,
            classic=ClassicMembership(
                body.session_timeout_ms, tuple((each.name, each.metadata) for each in body.protocols)
            ),
        )
        resubscribed = (member.topics, member.regex) != (before.topics, before.regex)
        if known is None or not member.described_as(before):
            records.append(MemberRecord(group.group_id, member_id, member))
        members = {**group.members, member_id: member}
        if replaced is not None:
            del members[replaced]
        owned = list(self._migration.places((part.topic, part.partitions) for part in said.owned_partitions))
        moved = self._membership.move(now, group, member, members, group.resolved, resubscribed, owned, records)
        self._membership.note_change(now, group, moved, known, replaced, resubscribed, records, body.reason)
        self._timers.cancel((group.group_id, Deadline.CONSUMER_JOIN, member_id))
        self._membership.sessions.begin(group.group_id, member_id, now + body.session_timeout_ms)
        self._timers.set((group.group_id, Deadline.CONSUMER_SYNC, member_id), now + member.rebalance_timeout_ms)
        answer = join_reply(
            call.version,
            ErrorCode.NONE,
            member_id,
            generation=moved.member_epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=body.protocols[0].name,
        )
        return answer, records

    def _check_join(self, body: JoinGroupRequest, group: ConsumerGroup) -> None:
        """Check that the group accepts this member of the classic protocol. Raises _RefusedError."""
        settings = self._settings
        if not settings.session_timeout_ms_min <= body.session_timeout_ms <= settings.session_timeout_ms_max:
            raise _RefusedError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if self._membership.is_full(group, body.member_id):
            raise _RefusedError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        spoken = [{name for name, _ in each.classic.protocols} for each in group.members.values() if each.classic]
        shared = any(all(offered.name in names for names in spoken) for offered in body.protocols)
        if body.protocol_type != CONSUMER_PROTOCOL_TYPE or not shared:
            raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _known(
        self, body: JoinGroupRequest, group: ConsumerGroup, member_id: str, records: list[ConsumerRecord]
    ) -> tuple[ConsumerMember | None, str | None]:
        """The member that joins, and the id of the static member that it replaces. Raises _RefusedError."""
        if body.group_instance_id is None:
            return group.members.get(member_id), None
        holder = group.static_member(body.group_instance_id)
        if not body.member_id:
            if holder is None:
                return None, None
            return self._membership.succeed(group, holder, member_id, records), holder.member_id
        if holder is None:
            raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
        if holder.member_id != body.member_id:
            raise _RefusedError(ErrorCode.FENCED_INSTANCE_ID)
        return holder, None

    # ---- SyncGroup -------------------------------------------------------------------------------------------------

    def sync(
        self, now: Millis, ticket: Ticket, body: SyncGroupRequest, group: ConsumerGroup, decision: DecisionBuilder
    ) -> None:
        try:
            member, classic = _validated(group, body.member_id, body.group_instance_id, body.generation_id)
            if body.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or body.protocol_name not in (
                None,
                classic.protocols[0][0],
            ):
                raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if group.epoch > member.member_epoch and member.state is not MemberState.UNREVOKED:
                self._expect_join(now, group, member)
                raise _RefusedError(ErrorCode.REBALANCE_IN_PROGRESS)
        except _RefusedError as refused:
            decision.answer(ticket, SyncGroupResponse(error_code=refused.error))
            return
        self._timers.cancel((group.group_id, Deadline.CONSUMER_SYNC, member.member_id))
        self._touch(now, group, member, classic)
        assignment = self._migration.assignment(member.assigned, version_of(classic.protocols))
        decision.answer(
            ticket,
            SyncGroupResponse(
                protocol_type=body.protocol_type, protocol_name=body.protocol_name, assignment=assignment
            ),
        )

    # ---- Heartbeat -------------------------------------------------------------------------------------------------

    def heartbeat(
        self, now: Millis, ticket: Ticket, body: HeartbeatRequest, group: ConsumerGroup, decision: DecisionBuilder
    ) -> None:
        error = ErrorCode.NONE
        try:
            member, classic = _validated(group, body.member_id, body.group_instance_id, body.generation_id)
            self._touch(now, group, member, classic)
            waits = member.state is MemberState.UNRELEASED and not _is_held(group, member)
            if member.member_epoch < group.epoch or member.state is MemberState.UNREVOKED or waits:
                self._expect_join(now, group, member)
                error = ErrorCode.REBALANCE_IN_PROGRESS
        except _RefusedError as refused:
            error = refused.error
        decision.answer(ticket, HeartbeatResponse(error_code=error))

    def _touch(self, now: Millis, group: ConsumerGroup, member: ConsumerMember, classic: ClassicMembership) -> None:
        self._membership.sessions.begin(group.group_id, member.member_id, now + classic.session_timeout_ms)

    def _expect_join(self, now: Millis, group: ConsumerGroup, member: ConsumerMember) -> None:
        """Set the deadline by which a member must join again: it is removed after its rebalance timeout."""
        timer = (group.group_id, Deadline.CONSUMER_JOIN, member.member_id)
        if timer not in self._timers:
            self._timers.set(timer, now + member.rebalance_timeout_ms)

    # ---- LeaveGroup ------------------------------------------------------------------------------------------------

    def leave(
        self,
        now: Millis,
        ticket: Ticket,
        call: Call,
        body: LeaveGroupRequest,
        group: ConsumerGroup,
        decision: DecisionBuilder,
    ) -> None:
        """Remove members. Each identity is checked on its own."""
        identities = body.members if call.version >= _LEAVE_IN_BATCHES_SINCE else [MemberIdentity(body.member_id)]
        responses: list[MemberResponse] = []
        leaving: dict[str, ConsumerMember] = {}
        for identity in identities:
            error = ErrorCode.NONE
            try:
                member = _identified(group, identity)
                leaving[member.member_id] = member
                self._membership.note(now, group, Cause.LEFT, member, identity.reason)
            except _RefusedError as refused:
                error = refused.error
            responses.append(MemberResponse(identity.member_id, identity.group_instance_id, error))
        if leaving:
            decision.records += self._membership.removal(now, group, list(leaving.values()))
        decision.answer(ticket, leave_reply(call.version, ErrorCode.NONE, responses))


def _said(body: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """The member's subscription and owned partitions. Raises _RefusedError."""
    try:
        return subscription_of((each.name, each.metadata) for each in body.protocols)
    except MalformedFrameError:
        raise _RefusedError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None


def _validated(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicMembership]:
    """The member of the classic protocol that asks. Raises _RefusedError."""
    member = group.members.get(member_id)
    if instance_id is not None:
        holder = group.static_member(instance_id)
        if holder is not None and holder.member_id != member_id:
            raise _RefusedError(ErrorCode.FENCED_INSTANCE_ID)
        member = holder
    if member is None or member.classic is None:
        raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.member_epoch:
        raise _RefusedError(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def _identified(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    """Administrators may name a static member by its instance id alone. Raises _RefusedError."""
    member = group.members.get(identity.member_id)
    if identity.group_instance_id is not None:
        member = group.static_member(identity.group_instance_id)
        if member is not None and identity.member_id not in ("", member.member_id):
            raise _RefusedError(ErrorCode.FENCED_INSTANCE_ID)
    if member is None:
        raise _RefusedError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _is_held(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another member still owns a part of this member's target."""
    return any(
        group.owner_of(place) not in (None, member.member_id) for place in group.targets.get(member.member_id, ())
    )
