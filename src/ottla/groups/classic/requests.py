"""Serves the requests of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

It has the rules for each request in each state of its group, and the answers. `rebalance` has the rules for the phases
of a rebalance.

Sources: Kafka's GroupMetadataManager.java (classicGroupJoin, -Sync, -Heartbeat, -Leave); KIP-345 static members,
KIP-394 member ids first, KIP-814 skip_assignment.
"""

import uuid

from ottla.groups.classic.group import Group, GroupState, Member, Protocols
from ottla.groups.classic.rebalance import NO_MEMBER_ID, Rebalances, assigned_reply, joined_reply, member_list
from ottla.groups.classic.records import encode_group
from ottla.groups.classic.replies import join_reply, leave_reply
from ottla.groups.decision import DecisionBuilder, fits
from ottla.groups.history import Cause
from ottla.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS
from ottla.machine import Call, Entropy, Millis, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity, MemberResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_REBALANCE_TIMEOUT_SINCE = 1
_MEMBER_ID_REQUIRED_SINCE = 4
_SYNC_NAMES_PROTOCOL_SINCE = 5
_SKIP_ASSIGNMENT_SINCE = 9
_LEAVE_IN_BATCHES_SINCE = 3


class ClassicProtocol:
    """Serves members of all classic groups of a shard."""

    __slots__ = ("_entropy", "_groups", "_rebalances", "_settings")

    def __init__(self, rebalances: Rebalances, entropy: Entropy) -> None:
        self._rebalances = rebalances
        self._groups = rebalances.groups
        self._settings = rebalances.settings
        self._entropy = entropy

    # ---- JoinGroup -------------------------------------------------------------------------------------------------

    def join(self, now: Millis, ticket: Ticket, call: Call, body: JoinGroupRequest, decision: DecisionBuilder) -> None:
        """Serve a JoinGroup. A new group is stored at once, Empty, so that it survives a crash before its first
        generation."""
        error = self._refuses(body)
        group = self._groups.get(body.group_id)
        if error is ErrorCode.NONE and group is None and body.member_id != NO_MEMBER_ID:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            decision.answer(ticket, join_reply(call.version, error, body.member_id))
            return
        is_new_group = group is None
        if group is None:
            wall_ms = self._rebalances.wall.at(now)
            group = self._groups[body.group_id] = Group(body.group_id, wall_ms)
            decision.records.append(encode_group(group.group_id, group.empty_image(0, wall_ms)))
        if not self._has_room(group, body.member_id):
            assert not is_new_group
            self._rebalances.drop(group, body.member_id, decision)
            decision.answer(ticket, join_reply(call.version, ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID))
            self._rebalances.maybe_complete_join(now, group, decision)
        elif not group.supports(body.protocol_type, _protocols(body)):
            decision.answer(ticket, join_reply(call.version, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, body.member_id))
        elif body.member_id == NO_MEMBER_ID:
            self._join_unknown(now, ticket, call, body, group, decision)
        else:
            self._join_known(now, ticket, call, body, group, decision)

    def _refuses(self, body: JoinGroupRequest) -> ErrorCode:
        if not body.group_id:
            return ErrorCode.INVALID_GROUP_ID
        settings = self._settings
        if not settings.session_timeout_ms_min <= body.session_timeout_ms <= settings.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Whether the group has room for this member. During a join phase the first `group.max.size` members to join
        are accepted, so a lowered limit removes the rest."""
        size_max = self._settings.group_size_max
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            return member_id in group.joins or len(group.joins) < size_max
        return member_id in group.members or len(group.members) < size_max

    def _join_unknown(
        self, now: Millis, ticket: Ticket, call: Call, body: JoinGroupRequest, group: Group, decision: DecisionBuilder
    ) -> None:
        member_id = self._new_member_id(body.group_instance_id or call.client_id)
        if body.group_instance_id is not None:
            replaced = group.static_member(body.group_instance_id)
            if replaced is None:
                self._add(now, ticket, call, body, group, member_id, decision)
            else:
                self._replace(now, ticket, call, body, group, replaced, member_id, decision)
        elif call.version >= _MEMBER_ID_REQUIRED_SINCE:
            group.pending_members[member_id] = None
            self._rebalances.watch(now, group, member_id, body.session_timeout_ms)
            decision.answer(ticket, join_reply(call.version, ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(now, ticket, call, body, group, member_id, decision)

    def _new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.UUID(bytes=self._entropy.randbytes(16), version=4)}"

    def _add(
        self,
        now: Millis,
        ticket: Ticket,
        call: Call,
        body: JoinGroupRequest,
        group: Group,
        member_id: str,
        decision: DecisionBuilder,
    ) -> None:
        if group.is_initial_rebalance:
            group.new_member_added = True
        if not group.members:
            group.protocol_type = body.protocol_type
        member = _member(member_id, call, body)
        member.is_new = True
        group.add(member)
        group.joins[member_id] = (ticket, call.version)
        self._rebalances.note(now, group, Cause.JOINED, member, body.reason)
        self._rebalances.watch(now, group, member_id, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.rebalance_or_complete(now, group, decision)

    def _join_known(
        self, now: Millis, ticket: Ticket, call: Call, body: JoinGroupRequest, group: Group, decision: DecisionBuilder
    ) -> None:
        if body.member_id in group.pending_members:
            if body.group_instance_id is None:
                self._add(now, ticket, call, body, group, body.member_id, decision)
            else:
                decision.answer(ticket, join_reply(call.version, ErrorCode.UNKNOWN_SERVER_ERROR, body.member_id))
            return
        error = group.validate_member(body.member_id, body.group_instance_id)
        if error is not ErrorCode.NONE:
            decision.answer(ticket, join_reply(call.version, error, body.member_id))
            return
        member = group.members[body.member_id]
        unchanged = member.protocols == _protocols(body)
        stays = group.state is GroupState.COMPLETING_REBALANCE or (
            # A leader that joins again has seen a change that the members' metadata does not show.
            group.state is GroupState.STABLE and group.leader != member.member_id
        )
        if unchanged and stays:
            decision.answer(ticket, joined_reply(call.version, group, member))
        else:
            if not unchanged:
                self._rebalances.note(now, group, Cause.SUBSCRIPTION, member, body.reason)
            elif group.state is GroupState.STABLE:
                self._rebalances.note(now, group, Cause.LEADER, member, body.reason)
            self._rejoin(ticket, call, body, group, member, decision)
            self._rebalances.rebalance_or_complete(now, group, decision)

    def _rejoin(
        self,
        ticket: Ticket,
        call: Call,
        body: JoinGroupRequest,
        group: Group,
        member: Member,
        decision: DecisionBuilder,
    ) -> None:
        """Store the member's new protocols and time-outs, and park its JoinGroup. An earlier parked JoinGroup is
        answered with an error, because its client no longer waits."""
        group.speak(member, _protocols(body))
        member.rebalance_timeout_ms = _rebalance_timeout_ms(call, body)
        member.session_timeout_ms = body.session_timeout_ms
        earlier = group.joins.pop(member.member_id, None)
        if earlier is not None:
            reply = join_reply(earlier[1], ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            decision.answer(earlier[0], reply)
        group.joins[member.member_id] = (ticket, call.version)

    # ---- static members that come back -----------------------------------------------------------------------------

    def _replace(
        self,
        now: Millis,
        ticket: Ticket,
        call: Call,
        body: JoinGroupRequest,
        group: Group,
        replaced: Member,
        member_id: str,
        decision: DecisionBuilder,
    ) -> None:
        """A static member is back under a new member id: the old one is fenced, the new one inherits its place.

        Where the group is Stable and keeps its protocol there is no rebalance: the assignment is inherited too.
        """
        successor = _member(member_id, call, body)
        successor.client_id, successor.client_host = replaced.client_id, replaced.client_host
        successor.assignment = replaced.assignment
        self._rebalances.note(now, group, Cause.RETURNED, successor, body.reason)
        if group.state is GroupState.STABLE and group.protocol_with(successor) == group.protocol_name:
            self._replace_without_rebalance(now, ticket, call, group, replaced, successor, decision)
            return
        self._fence(group, replaced, decision)
        group.replace(replaced, successor)
        self._rebalances.unwatch(group, replaced.member_id)
        self._rebalances.touch(now, group, successor)
        group.joins[member_id] = (ticket, call.version)
        self._rebalances.rebalance_or_complete(now, group, decision)

    def _fence(self, group: Group, member: Member, decision: DecisionBuilder) -> None:
        join = group.joins.pop(member.member_id, None)
        if join is not None:
            decision.answer(join[0], join_reply(join[1], ErrorCode.FENCED_INSTANCE_ID, member.member_id))
        sync = group.syncs.pop(member.member_id, None)
        if sync is not None:
            decision.answer(sync, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))

    def _replace_without_rebalance(
        self,
        now: Millis,
        ticket: Ticket,
        call: Call,
        group: Group,
        replaced: Member,
        successor: Member,
        decision: DecisionBuilder,
    ) -> None:
        """The record makes the successor a member (`Group.adopt`); until then it is only `arriving`."""
        record = encode_group(group.group_id, group.image_with(successor))
        if not fits([record], self._settings):
            decision.answer(ticket, join_reply(call.version, ErrorCode.UNKNOWN_SERVER_ERROR, NO_MEMBER_ID))
            return
        decision.records.append(record)
        group.arriving = successor
        self._rebalances.unwatch(group, replaced.member_id)
        self._rebalances.touch(now, group, successor)
        led = group.leader == replaced.member_id
        knows_skip = call.version >= _SKIP_ASSIGNMENT_SINCE
        # Before skip_assignment, a leader gets the old leader's id, so that it does not assign.
        leader = successor.member_id if led and knows_skip else group.leader
        members = member_list(group) if led and knows_skip else []
        for member in members:
            if member.member_id == replaced.member_id:
                member.member_id, member.metadata = successor.member_id, successor.metadata(group.protocol_name or "")
        reply = join_reply(
            call.version,
            ErrorCode.NONE,
            successor.member_id,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=leader or "",
            skip_assignment=led and knows_skip,
            members=members,
        )
        decision.answer(ticket, reply)

    # ---- SyncGroup -------------------------------------------------------------------------------------------------

    def sync(self, now: Millis, ticket: Ticket, call: Call, body: SyncGroupRequest, decision: DecisionBuilder) -> None:
        """Park the request until the leader's assignments are stored. In a Stable group the assignment is already
        available."""
        group = self._groups.get(body.group_id)
        error = _sync_error(call, body, group)
        if error is not ErrorCode.NONE or group is None:
            decision.answer(ticket, SyncGroupResponse(error_code=error))
            return
        member = group.members[body.member_id]
        self._rebalances.synced(group, body.member_id)
        if group.state is GroupState.STABLE:
            decision.answer(ticket, assigned_reply(group, member.assignment))
            return
        earlier = group.syncs.pop(body.member_id, None)
        if earlier is not None:
            decision.answer(earlier, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        group.syncs[body.member_id] = ticket
        if group.leader == body.member_id:
            stored = group.image({each.member_id: each.assignment for each in body.assignments})
            if fits([encode_group(group.group_id, stored)], self._settings):
                self._rebalances.assign(now, group, stored, decision)
            else:
                self._rebalances.fail_syncs(now, group, ErrorCode.UNKNOWN_SERVER_ERROR, decision)

    # ---- Heartbeat -------------------------------------------------------------------------------------------------

    def heartbeat(self, now: Millis, ticket: Ticket, body: HeartbeatRequest, decision: DecisionBuilder) -> None:
        decision.answer(ticket, HeartbeatResponse(error_code=self._heartbeat(now, body)))

    def _heartbeat(self, now: Millis, body: HeartbeatRequest) -> ErrorCode:
        if not body.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(body.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.validate_member(body.member_id, body.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if body.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._rebalances.touch(now, group, group.members[body.member_id])
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # ---- LeaveGroup ------------------------------------------------------------------------------------------------

    def leave(
        self, now: Millis, ticket: Ticket, call: Call, body: LeaveGroupRequest, decision: DecisionBuilder
    ) -> None:
        """Remove members. They leave themselves, or an administrator, who knows only their instance ids, removes
        them."""
        identities = body.members if call.version >= _LEAVE_IN_BATCHES_SINCE else [MemberIdentity(body.member_id)]
        if not body.group_id:
            decision.answer(ticket, leave_reply(call.version, ErrorCode.INVALID_GROUP_ID, []))
            return
        group = self._groups.get(body.group_id)
        responses: list[MemberResponse] = []
        left = False
        for identity in identities:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave_one(now, group, identity, decision)
            left = left or error is ErrorCode.NONE
            responses.append(MemberResponse(identity.member_id, identity.group_instance_id, error))
        if left and group is not None and group.state is not GroupState.EMPTY:
            self._rebalances.rebalance_or_complete(now, group, decision)
        decision.answer(ticket, leave_reply(call.version, ErrorCode.NONE, responses))

    def _leave_one(self, now: Millis, group: Group, identity: MemberIdentity, decision: DecisionBuilder) -> ErrorCode:
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            member = group.static_member(identity.group_instance_id)
            if member is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = member.member_id
        elif member_id not in group.pending_members:
            error = group.validate_member(member_id, identity.group_instance_id)
            if error is not ErrorCode.NONE:
                return error
        self._rebalances.note(now, group, Cause.LEFT, group.members.get(member_id), identity.reason)
        self._rebalances.drop(group, member_id, decision)
        return ErrorCode.NONE


def _protocols(body: JoinGroupRequest) -> Protocols:
    return tuple((each.name, each.metadata) for each in body.protocols)


def _rebalance_timeout_ms(call: Call, body: JoinGroupRequest) -> int:
    """Version 0 has one timeout for both."""
    return body.session_timeout_ms if call.version < _REBALANCE_TIMEOUT_SINCE else body.rebalance_timeout_ms


def _member(member_id: str, call: Call, body: JoinGroupRequest) -> Member:
    return Member(
        member_id,
        body.group_instance_id,
        call.client_id,
        call.client_host,
        _rebalance_timeout_ms(call, body),
        body.session_timeout_ms,
        _protocols(body),
    )


def _sync_error(call: Call, body: SyncGroupRequest, group: Group | None) -> ErrorCode:
    if call.version >= _SYNC_NAMES_PROTOCOL_SINCE and None in (body.protocol_type, body.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not body.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.validate_member(body.member_id, body.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if body.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for asked, is_ in ((body.protocol_type, group.protocol_type), (body.protocol_name, group.protocol_name)):
        if asked is not None and is_ is not None and asked != is_:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
