"""Serves heartbeats of share groups: members join, stay, change their subscription, and leave.

It has the rules of heartbeats, their answers, the resulting records, the times of new assignments, and the expiry of
sessions. `assignor` makes the assignments.

A member joins with its first heartbeat and gets its assignment in the answer. Later answers contain the assignment only
if it changed, or if the member sent its full state again. Other members learn of a change from their own next
heartbeat.

A join produces a new assignment at once. Any other change produces one when the last assignment is at least
`share.assignment.interval.ms` old. Members whose connection was lost get no partitions. So a dead worker's partitions
are read again after one heartbeat interval and not only after its session.

Source: Kafka's GroupMetadataManager.java (shareGroupHeartbeat, shareGroupLeave, shareGroupFenceMember); KIP-932,
KIP-1263.
"""

from collections.abc import Container
from dataclasses import dataclass, replace

from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.epochs.heartbeats import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatRefusedError,
    Sessions,
    check_names,
    fenced,
    full,
    in_one_batch,
    known,
    unknown_member,
)
from ottla.groups.epochs.records import CurrentRecord, EpochRecord, MemberRecord, member_gone, targets_made
from ottla.groups.history import Cause, GroupHistory
from ottla.groups.metadata_view import MetadataView, topics_hash, topics_of
from ottla.groups.settings import GroupSettings
from ottla.groups.share.assignor import assign
from ottla.groups.share.group import Assignment, Share, ShareGroup, ShareMember
from ottla.groups.share.records import ShareRecord, SharesRecord, encode
from ottla.machine import Call, Millis, Ticket, WallClock
from ottla.machine.timers import Timers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_group_heartbeat import (
    Assignment as AssignmentMessage,
)
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The body of a call from the node itself: the connection of this member was lost. It is not answered."""

    group_id: str
    member_id: str


class ShareMembership:
    """Serves the members of all share groups of a shard."""

    __slots__ = ("_history", "_metadata", "_sessions", "_settings", "_wall", "groups", "other_groups")

    def __init__(
        self,
        settings: GroupSettings,
        metadata: MetadataView,
        groups: dict[str, ShareGroup],
        other_groups: Container[str],
        timers: Timers[GroupTimer],
        wall: WallClock,
        history: GroupHistory,
    ) -> None:
        self._history = history
        self._wall = wall
        self._settings = settings
        self._metadata = metadata
        self._sessions = Sessions(timers, Deadline.SHARE_SESSION)
        self.groups = groups
        self.other_groups = other_groups
        """Groups of another kind, whose ids are in use."""

    # ---- ShareGroupHeartbeat ---------------------------------------------------------------------------------------

    def heartbeat(
        self, now: Millis, ticket: Ticket, call: Call, body: ShareGroupHeartbeatRequest, decision: DecisionBuilder
    ) -> None:
        try:
            _check(body)
            if body.member_epoch == LEAVE_EPOCH:
                answer, records = self._leave(now, body)
            else:
                answer, records = self._stay(now, call, body)
            decision.records += in_one_batch(body.group_id, [encode(record) for record in records], self._settings)
        except HeartbeatRefusedError as refused:
            answer = ShareGroupHeartbeatResponse(error_code=refused.error, error_message=refused.message)
        decision.answer(ticket, answer)

    def _leave(
        self, now: Millis, body: ShareGroupHeartbeatRequest
    ) -> tuple[ShareGroupHeartbeatResponse, list[ShareRecord]]:
        group = self._known(body.group_id)
        member = group.members.get(body.member_id)
        if member is None:
            raise unknown_member(body.group_id, body.member_id)
        self._note(now, group, Cause.LEFT, member)
        self._sessions.end(group.group_id, body.member_id)
        answer = ShareGroupHeartbeatResponse(member_id=body.member_id, member_epoch=LEAVE_EPOCH)
        return answer, self._removal(group, member)

    def _stay(
        self, now: Millis, call: Call, body: ShareGroupHeartbeatRequest
    ) -> tuple[ShareGroupHeartbeatResponse, list[ShareRecord]]:
        config = self._metadata.share_group_config(body.group_id)
        joins = body.member_epoch == JOIN_EPOCH
        group = self._known_or_new(body.group_id) if joins else self._known(body.group_id)
        before = group.members.get(body.member_id)
        if before is None and len(group.members) >= config.members_max:
            raise full(ShareGroup.TYPE, config.members_max)
        if before is None and not joins:
            raise unknown_member(body.group_id, body.member_id)
        if before is not None:
            _check_epoch(before, body.member_epoch)
        records: list[ShareRecord] = []
        member = _told(before or ShareMember(body.member_id), call, body)
        if member != before:
            records.append(MemberRecord(group.group_id, member.member_id, member))
        came_back = group.absent.pop(member.member_id, "") is None
        epoch, assigned = self._assign(now, group, member, joins, came_back, records)
        if (member.member_epoch, member.assigned) != (epoch, assigned):
            placed = replace(member, member_epoch=epoch, previous_member_epoch=member.member_epoch, assigned=assigned)
            records.append(CurrentRecord(group.group_id, member.member_id, placed))
        shares = self._unknown_shares(group, member)
        if shares:
            records.append(SharesRecord(group.group_id, group.shares.added(shares)))
        self._sessions.begin(group.group_id, member.member_id, now + config.session_timeout_ms)
        answer = ShareGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=epoch, heartbeat_interval_ms=config.heartbeat_interval_ms
        )
        # A member that sends the previous epoch has not received the answer with the present one.
        unheard = before is None or body.member_epoch != before.member_epoch
        if unheard or body.subscribed_topic_names is not None or member.assigned != assigned:
            answer.assignment = AssignmentMessage(
                [TopicPartitions(topic_id, list(partitions)) for topic_id, partitions in assigned]
            )
        return answer, records

    def _known(self, group_id: str) -> ShareGroup:
        return known(self.groups, ShareGroup.TYPE, group_id, self.other_groups)

    def _known_or_new(self, group_id: str) -> ShareGroup:
        if group_id in self.groups or group_id in self.other_groups:
            return self._known(group_id)
        return ShareGroup(group_id)

    # ---- assignments -----------------------------------------------------------------------------------------------

    def _assign(
        self,
        now: Millis,
        group: ShareGroup,
        member: ShareMember,
        joins: bool,
        came_back: bool,
        records: list[ShareRecord],
    ) -> tuple[int, Assignment]:
        """The member's new epoch and assignment; the resulting records are added to `records`."""
        before = group.members.get(member.member_id)
        resubscribes = before is None or before.topics != member.topics
        topics = topics_of(self._metadata, group.subscribed_with(member))
        metadata_hash = topics_hash(topics)
        epoch = group.epoch
        if resubscribes or came_back or metadata_hash != group.metadata_hash:
            epoch += 1
            self._note_change(now, group, member, came_back)
            records.append(EpochRecord(group.group_id, epoch, metadata_hash))
        interval_ms = self._metadata.share_group_config(group.group_id).assignment_interval_ms
        # By the wall clock, for the record's sake; one that was set back must not keep an assignment waiting.
        wall_ms = self._wall.at(now)
        is_due = joins or resubscribes or not 0 <= wall_ms - group.assigned_at_ms < interval_ms
        if epoch == group.assignment_epoch or not is_due:
            return group.assignment_epoch, group.targets.get(member.member_id, ())
        members = {**group.members, member.member_id: member}
        present = {member_id: each.topics for member_id, each in members.items() if member_id not in group.absent}
        targets = assign(present, topics, group.targets)
        records += targets_made(group, targets, epoch, wall_ms)
        return epoch, targets[member.member_id]

    def _unknown_shares(self, group: ShareGroup, member: ShareMember) -> list[Share]:
        """Share partitions that the group newly subscribes to."""
        shares: list[Share] = []
        for name, (topic_id, partitions) in topics_of(self._metadata, group.subscribed_with(member)).items():
            has = group.shares.known(topic_id)
            if len(has) < partitions:
                shares.append(Share(topic_id, name, tuple(index for index in range(partitions) if index not in has)))
        return shares

    # ---- members that go -------------------------------------------------------------------------------------------

    def session_deadline(self, now: Millis, group_id: str, member_id: str, decision: DecisionBuilder) -> None:
        """Remove a member whose session expired."""
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is not None and member is not None:
            self._note(now, group, Cause.SESSION, member)
            decision.records += [encode(record) for record in self._removal(group, member)]

    def connection_lost(self, now: Millis, group_id: str, member_id: str, decision: DecisionBuilder) -> None:
        """Reassign this member's partitions to the other members, unless it returns before their next heartbeats."""
        group = self.groups.get(group_id)
        if group is None or member_id not in group.members or member_id in group.absent:
            return
        group.absent[member_id] = None
        self._note(now, group, Cause.DISCONNECTED, group.members[member_id])
        if len(group.absent) < len(group.members):
            decision.records.append(encode(EpochRecord(group_id, group.epoch + 1, group.metadata_hash)))

    def _removal(self, group: ShareGroup, member: ShareMember) -> list[ShareRecord]:
        topics = topics_of(self._metadata, group.subscribed_with(None, left=member.member_id))
        return [
            *member_gone(group.group_id, member.member_id),
            EpochRecord(group.group_id, group.epoch + 1, topics_hash(topics)),
        ]

    # ---- why a group changed ---------------------------------------------------------------------------------------

    def _note(self, now: Millis, group: ShareGroup, cause: Cause, member: ShareMember | None) -> None:
        """Remember why the group changes; `member` None: no member is the cause."""
        self._history.note(self._wall.at(now), group.group_id, group.epoch, cause, member)

    def _note_change(self, now: Millis, group: ShareGroup, member: ShareMember, came_back: bool) -> None:
        """Remember why a heartbeat begins a new epoch."""
        before = group.members.get(member.member_id)
        if before is None:
            self._note(now, group, Cause.JOINED, member)
        elif before.topics != member.topics:
            self._note(now, group, Cause.SUBSCRIPTION, member)
        elif came_back:
            self._note(now, group, Cause.RECONNECTED, member)
        else:
            self._note(now, group, Cause.PARTITIONS, None)

    # ---- loading and unloading -------------------------------------------------------------------------------------

    def loaded(self, now: Millis, group: ShareGroup) -> None:
        """Restart the sessions of all members."""
        timeout_ms = self._metadata.share_group_config(group.group_id).session_timeout_ms
        for member_id in group.members:
            self._sessions.begin(group.group_id, member_id, now + timeout_ms)

    def forget(self, group: ShareGroup) -> None:
        """Forget a group that no longer exists."""
        for member_id in group.members:
            self._sessions.end(group.group_id, member_id)

    def check(self, group: ShareGroup) -> None:
        group.check()
        self._sessions.check(group)


def _check(body: ShareGroupHeartbeatRequest) -> None:
    """Check the required fields of a heartbeat. Raises HeartbeatRefusedError."""
    check_names(("MemberId", body.member_id), ("GroupId", body.group_id), ("RackId", body.rack_id))
    if body.member_epoch == JOIN_EPOCH and not body.subscribed_topic_names:
        raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if body.member_epoch < LEAVE_EPOCH:
        raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """The present epoch, the one before (its answer may have been lost), or 0 to begin again. Raises
    HeartbeatRefusedError."""
    if epoch not in (member.member_epoch, member.previous_member_epoch, JOIN_EPOCH):
        raise fenced(ShareGroup.TYPE, member, epoch)


def _told(member: ShareMember, call: Call, body: ShareGroupHeartbeatRequest) -> ShareMember:
    """The member with the fields of its heartbeat; null means unchanged."""
    names = body.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if body.rack_id is None else body.rack_id,
        client_id=call.client_id,
        client_host=call.client_host,
        topics=member.topics if names is None else tuple(sorted(set(names))),
    )
