"""Keeps all share groups of a shard: it dispatches requests, and applies records.

The rules are in `membership` and `admin`. The ids of classic groups are in use: a request for a share group of such a
name gets GROUP_ID_NOT_FOUND, and vice versa.

Source: Kafka's GroupCoordinatorShard.java, GroupMetadataManager.java.
"""

from collections.abc import Container, Iterable, Iterator
from typing import assert_never

from ottla.groups.deadlines import GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.metadata_view import MetadataView
from ottla.groups.settings import GroupSettings
from ottla.groups.share.admin import (
    AddShares,
    AskShares,
    BeginDeletion,
    EndDeletion,
    answer_question,
    deletion,
    describe,
    listed,
)
from ottla.groups.share.group import NO_SHARES, Assignment, ShareGroup
from ottla.groups.share.membership import ConnectionLost, ShareMembership
from ottla.groups.share.records import (
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    ShareRecord,
    SharesRecord,
    TargetEpochRecord,
    TargetRecord,
    encode,
)
from ottla.machine import Call, Millis, ShardRecord, Ticket, WallClock
from ottla.machine.timers import Timers
from ottla.protocol.messages.list_groups import ListedGroup
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


class ShareGroups:
    """See the module's docstring."""

    __slots__ = ("_groups", "_membership", "_metadata", "_other_groups")

    def __init__(
        self,
        settings: GroupSettings,
        metadata: MetadataView,
        other_groups: Container[str],
        timers: Timers[GroupTimer],
        wall: WallClock,
    ) -> None:
        self._metadata = metadata
        self._other_groups = other_groups
        self._groups: dict[str, ShareGroup] = {}
        self._membership = ShareMembership(settings, metadata, self._groups, other_groups, timers, wall)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ShareGroup]:
        return iter(self._groups.values())

    def of(self, group_id: str) -> ShareGroup | None:
        return self._groups.get(group_id)

    # ---- requests --------------------------------------------------------------------------------------------------

    def decide(self, now: Millis, ticket: Ticket, call: Call, decision: DecisionBuilder) -> bool:
        """Serve a call about share groups. Returns whether it was one; the result is in `decision`."""
        match call.body:
            case ShareGroupHeartbeatRequest() as body:
                self._membership.heartbeat(now, ticket, call, body, decision)
            case ShareGroupDescribeRequest() as body:
                describe(ticket, body, self._groups, self._other_groups, self._metadata, decision)
            case AskShares() | AddShares() | BeginDeletion() | EndDeletion() as question:
                answer_question(ticket, question, self._groups, self._other_groups, decision)
            case ConnectionLost(group_id, member_id):
                self._membership.connection_lost(group_id, member_id, decision)
            case _:
                return False
        return True

    def topics_deleted(self, names: Iterable[str], decision: DecisionBuilder) -> None:
        """Forget share partitions of deleted topics; the share coordinator learns of the deletion separately."""
        for group in self._groups.values():
            gone = [topic_id for topic_id, name in group.shares.topics() if name in names]
            if gone:
                shares = group.shares.without(gone, deleting=False)
                decision.records.append(encode(SharesRecord(group.group_id, shares)))

    def listed(self) -> Iterator[ListedGroup]:
        for group in self._groups.values():
            yield listed(group)

    def deletion(self, group_id: str) -> list[ShardRecord] | None:
        """The records that delete this group; None if it has members."""
        group = self._groups[group_id]
        return None if group.members else deletion(group)

    # ---- deadlines -------------------------------------------------------------------------------------------------

    def session_deadline(self, group_id: str, member_id: str, decision: DecisionBuilder) -> None:
        self._membership.session_deadline(group_id, member_id, decision)

    def loaded(self, now: Millis) -> None:
        for group in self._groups.values():
            self._membership.watch(now, group)

    # ---- durable state ---------------------------------------------------------------------------------------------

    def apply(self, record: ShareRecord) -> None:
        match record:
            case MemberRecord(group_id, member_id, member):
                if member is not None:
                    self._group(group_id).put_member(member)
                elif group_id in self._groups:
                    self._groups[group_id].remove_member(member_id)
            case EpochRecord(group_id, epoch, metadata_hash):
                self._set_epoch(group_id, epoch, metadata_hash)
            case TargetEpochRecord(group_id, epoch, assigned_at_ms):
                if epoch is not None:
                    group = self._group(group_id)
                    group.assignment_epoch, group.assigned_at_ms = epoch, assigned_at_ms
            case TargetRecord(group_id, member_id, target):
                self._set_target(group_id, member_id, target)
            case CurrentRecord(group_id, member_id, epoch, previous_epoch, assigned):
                if epoch is not None:
                    self._group(group_id).put_current(member_id, epoch, previous_epoch, assigned)
                elif group_id in self._groups:
                    self._groups[group_id].drop_current(member_id)
            case SharesRecord(group_id, shares):
                if shares is not None:
                    self._group(group_id).shares = shares
                elif group_id in self._groups:
                    self._groups[group_id].shares = NO_SHARES
            case _:
                assert_never(record)

    def _set_epoch(self, group_id: str, epoch: int | None, metadata_hash: int) -> None:
        """Set the epoch of a group; None removes the group."""
        if epoch is not None:
            group = self._group(group_id)
            group.epoch, group.metadata_hash = epoch, metadata_hash
        elif (group := self._groups.pop(group_id, None)) is not None:
            self._membership.forget(group)

    def _set_target(self, group_id: str, member_id: str, target: Assignment | None) -> None:
        """Set the target assignment of a member; None removes it."""
        if target is not None:
            self._group(group_id).targets[member_id] = target
        elif group_id in self._groups:
            self._groups[group_id].targets.pop(member_id, None)

    def _group(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ShareGroup(group_id)
        return group

    # ---- for metrics, tests and the simulator ----------------------------------------------------------------------

    def image(self) -> object:
        return {group_id: group.image() for group_id, group in self._groups.items()}

    def check(self) -> None:
        for group in self._groups.values():
            self._membership.check(group)

    def check_durable(self) -> None:
        for group_id, group in self._groups.items():
            assert group.group_id == group_id, group_id
            assert group_id not in self._other_groups, f"{group_id} is a group of two kinds"
            group.check()
