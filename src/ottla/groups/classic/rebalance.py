"""Brings a classic group from one generation to the next, and sets the deadlines of its phases.

It has the two phases of a rebalance, with the members that each waits for and the time limits. `requests` decodes the
requests and calls this module.

Deadlines, all keyed by group: the end of the join phase (`JOIN`), the end of the sync phase (`SYNC`), and per member or
pending member the end of its session (`SESSION`).

Sources: Kafka's GroupMetadataManager.java (prepareRebalance, completeClassicGroupJoin, expirePendingSync ...); KIP-134
for the initial delay, KIP-62 for the rebalance timeout.
"""

from typing import Final

from ottla.groups.classic.group import Group, GroupState, Member
from ottla.groups.classic.records import StoredGroup, encode_group
from ottla.groups.classic.replies import join_reply
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.history import Cause, GroupHistory
from ottla.groups.settings import GroupSettings
from ottla.machine import Millis, WallClock
from ottla.machine.timers import Timers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.sync_group import SyncGroupResponse

NO_MEMBER_ID: Final = ""


class Rebalances:
    """The rebalances of all groups of a shard."""

    __slots__ = ("_timers", "groups", "history", "settings", "wall")

    def __init__(
        self,
        settings: GroupSettings,
        groups: dict[str, Group],
        timers: Timers[GroupTimer],
        wall: WallClock,
        history: GroupHistory,
    ) -> None:
        self.settings = settings
        self.history = history
        self.wall = wall
        self.groups = groups
        self._timers = timers

    # ---- sessions --------------------------------------------------------------------------------------------------

    def touch(self, now: Millis, group: Group, member: Member) -> None:
        """Restart the member's session."""
        self.watch(now, group, member.member_id, member.session_timeout_ms)

    def watch(self, now: Millis, group: Group, member_id: str, timeout_ms: int) -> None:
        self._timers.set((group.group_id, Deadline.SESSION, member_id), now + timeout_ms)

    def unwatch(self, group: Group, member_id: str) -> None:
        self._timers.cancel((group.group_id, Deadline.SESSION, member_id))

    def drop(self, group: Group, member_id: str, decision: DecisionBuilder) -> None:
        """Remove a member or a pending one from the group; its parked requests are answered UNKNOWN_MEMBER_ID."""
        self.unwatch(group, member_id)
        join = group.joins.pop(member_id, None)
        if join is not None:
            decision.answer(join[0], join_reply(join[1], ErrorCode.UNKNOWN_MEMBER_ID, NO_MEMBER_ID))
        sync = group.syncs.pop(member_id, None)
        if sync is not None:
            decision.answer(sync, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member_id)

    def note(self, now: Millis, group: Group, cause: Cause, member: Member | None, reason: str | None = None) -> None:
        """Remember why the group changes; nothing if `member` is None."""
        if member is not None:
            self.history.note(self.wall.at(now), group.group_id, group.generation, cause, member, reason)

    def forget(self, group: Group) -> None:
        """Cancel all deadlines of a group that no longer exists."""
        self._timers.cancel((group.group_id, Deadline.JOIN, ""))
        self._timers.cancel((group.group_id, Deadline.SYNC, ""))
        for member_id in (*group.members, *group.pending_members):
            self._timers.cancel((group.group_id, Deadline.SESSION, member_id))

    # ---- the join phase --------------------------------------------------------------------------------------------

    def rebalance_or_complete(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """Begin a rebalance after a change. If one is in its join phase already, check whether all members have
        joined."""
        if group.can_rebalance():
            self.prepare(now, group, decision)
        else:
            self.maybe_complete_join(now, group, decision)

    def maybe_complete_join(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """The first rebalance of a group always waits for its delay."""
        gathering = group.state is GroupState.PREPARING_REBALANCE and not group.is_initial_rebalance
        if gathering and group.all_joined():
            self.complete_join(now, group, decision)

    def prepare(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """Begin to gather the members of the next generation."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._interrupt_syncs(now, group, decision)
        group.pending_syncs.clear()
        self._timers.cancel((group.group_id, Deadline.SYNC, ""))
        first = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE, self.wall.at(now))
        if first:
            delay_ms = self.settings.initial_rebalance_delay_ms
            group.is_initial_rebalance, group.new_member_added = True, False
            group.initial_delay_ms = delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._timers.set((group.group_id, Deadline.JOIN, ""), now + delay_ms)
        elif group.all_joined():
            self.complete_join(now, group, decision)
        else:
            self._timers.set((group.group_id, Deadline.JOIN, ""), now + group.rebalance_timeout_ms())

    def _interrupt_syncs(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        for member in group.members.values():
            member.assignment = b""
        for member_id, ticket in group.syncs.items():
            decision.answer(ticket, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            self.touch(now, group, group.members[member_id])
        group.syncs.clear()

    def join_deadline(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """End the join phase, unless it is the first one and a new member joined during it."""
        assert group.state is GroupState.PREPARING_REBALANCE, group.group_id
        if group.is_initial_rebalance and group.new_member_added and group.initial_remaining_ms:
            group.new_member_added = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, group.initial_remaining_ms)
            group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
            group.initial_delay_ms = delay_ms
            self._timers.set((group.group_id, Deadline.JOIN, ""), now + delay_ms)
        else:
            self.complete_join(now, group, decision)

    def complete_join(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """Complete the join phase: the members that joined form the next generation. Without any, the group is Empty.

        Dynamic members that did not join are removed. Static members stay until their session ends. If only static
        members are left and none of them joined, the join phase starts again.
        """
        self._timers.cancel((group.group_id, Deadline.JOIN, ""))
        for member in list(group.members.values()):
            if member.group_instance_id is None and member.member_id not in group.joins:
                self.note(now, group, Cause.REBALANCE_TIMEOUT, member)
                self.drop(group, member.member_id, decision)
        if group.members and not group.elect_joined_leader():
            self._timers.set((group.group_id, Deadline.JOIN, ""), now + group.rebalance_timeout_ms())
        elif group.members:
            self._begin_generation(now, group, decision)
        else:
            empty = group.empty_image(group.generation + 1, self.wall.at(now))
            decision.records.append(encode_group(group.group_id, empty))

    def _begin_generation(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        group.begin_generation(self.wall.at(now))
        for member in group.members.values():
            join = group.joins.pop(member.member_id, None)
            if join is not None:
                decision.answer(join[0], joined_reply(join[1], group, member))
            member.is_new = False
            group.pending_syncs[member.member_id] = None
            self.touch(now, group, member)
        self._timers.set((group.group_id, Deadline.SYNC, ""), now + group.rebalance_timeout_ms())

    # ---- the sync phase --------------------------------------------------------------------------------------------

    def synced(self, group: Group, member_id: str) -> None:
        """Note that the member has asked for its assignment."""
        group.pending_syncs.pop(member_id, None)
        if not group.pending_syncs:
            self._timers.cancel((group.group_id, Deadline.SYNC, ""))

    def sync_deadline(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """Remove members that joined but never asked for their assignment."""
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) and group.pending_syncs:
            for member_id in list(group.pending_syncs):
                self.note(now, group, Cause.REBALANCE_TIMEOUT, group.members.get(member_id))
                self.drop(group, member_id, decision)
            self.prepare(now, group, decision)

    def assign(self, now: Millis, group: Group, stored: StoredGroup, decision: DecisionBuilder) -> None:
        """Store the leader's assignments in `stored`. Each waiting member gets its own once the record is committed."""
        decision.records.append(encode_group(group.group_id, stored))
        for each in stored.members:
            ticket = group.syncs.pop(each.member_id, None)
            if ticket is not None:
                decision.answer(ticket, assigned_reply(group, each.assignment))
                self.touch(now, group, group.members[each.member_id])

    def fail_syncs(self, now: Millis, group: Group, error: ErrorCode, decision: DecisionBuilder) -> None:
        """The assignments can't be stored. Each waiting member gets the error, and the group rebalances again."""
        for member_id, ticket in group.syncs.items():
            decision.answer(ticket, SyncGroupResponse(error_code=error))
            self.touch(now, group, group.members[member_id])
        group.syncs.clear()
        self.prepare(now, group, decision)

    # ---- sessions that end -----------------------------------------------------------------------------------------

    def session_deadline(self, now: Millis, group: Group, member_id: str, decision: DecisionBuilder) -> None:
        """Remove a member whose session has expired. A member with a parked request stays, unless it is new: a new one
        may be gone."""
        if member_id in group.pending_members:
            self.drop(group, member_id, decision)
            self._complete_after_loss(now, group, decision)
            return
        member = group.members.get(member_id)
        if member is None:
            return
        waits = member_id in group.joins or member_id in group.syncs
        if member.is_new or not waits:
            self.note(now, group, Cause.SESSION, member)
            self.drop(group, member_id, decision)
            if group.state is GroupState.PREPARING_REBALANCE:
                self._complete_after_loss(now, group, decision)
            else:
                self.prepare(now, group, decision)

    def _complete_after_loss(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """Unlike a new arrival, a loss may end even the first join phase early."""
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined():
            self.complete_join(now, group, decision)

    def check(self, group: Group) -> None:
        """Check for leaks: a phase without a deadline, or a member without a session."""
        group_id = group.group_id
        if group.state is GroupState.PREPARING_REBALANCE:
            assert (group_id, Deadline.JOIN, "") in self._timers, f"{group_id}: its join phase has no end"
        elif group.state is GroupState.COMPLETING_REBALANCE:
            assert (group_id, Deadline.SYNC, "") in self._timers or not group.pending_syncs, (
                f"{group_id}: no end of sync"
            )
        for member_id in (*group.members, *group.pending_members):
            waits = member_id in group.joins or member_id in group.syncs
            watched = (group_id, Deadline.SESSION, member_id) in self._timers
            assert watched or waits, f"{group_id}: nobody watches member {member_id}"


def member_list(group: Group) -> list[JoinGroupResponseMember]:
    """The members and metadata that the leader needs for the assignment."""
    assert group.protocol_name is not None
    return [
        JoinGroupResponseMember(member.member_id, member.group_instance_id, member.metadata(group.protocol_name))
        for member in group.members.values()
    ]


def joined_reply(version: int, group: Group, member: Member) -> JoinGroupResponse:
    """The current generation; the leader also gets all members."""
    leads = group.leader == member.member_id
    return join_reply(
        version,
        ErrorCode.NONE,
        member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        members=member_list(group) if leads else [],
    )


def assigned_reply(group: Group, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )
