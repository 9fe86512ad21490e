"""Keeps all consumer groups of a shard: it dispatches requests, and applies records.

The rules are in `membership`, `offsets` and `admin`. The ids of groups of other kinds are in use. The exception is an
empty classic group: it is replaced by a consumer group of its name, and vice versa.

Source: Kafka's GroupCoordinatorShard.java, GroupMetadataManager.java.
"""

from collections.abc import Container, Iterator
from typing import assert_never

from ottla.groups.consumer.admin import deletion, described, listed
from ottla.groups.consumer.group import ConsumerGroup, Resolved, Target
from ottla.groups.consumer.membership import ConsumerHeartbeat, ConsumerMembership, Conversion
from ottla.groups.consumer.records import (
    ConsumerRecord,
    CurrentRecord,
    EpochRecord,
    MemberRecord,
    PassedOver,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.metadata_view import MetadataView
from ottla.groups.settings import GroupSettings
from ottla.machine import Call, Entropy, Millis, ShardRecord, Ticket, WallClock
from ottla.machine.timers import Timers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from ottla.protocol.messages.list_groups import ListedGroup


class ConsumerGroups:
    """See the module's docstring. `in_the_way` of other kinds are the groups that do not give way to one of these."""

    __slots__ = ("_groups", "_metadata", "_other_groups", "membership")

    def __init__(
        self,
        settings: GroupSettings,
        metadata: MetadataView,
        groups: dict[str, ConsumerGroup],
        other_groups: Container[str],
        in_the_way: Container[str],
        timers: Timers[GroupTimer],
        wall: WallClock,
        entropy: Entropy,
        conversion: Conversion,
    ) -> None:
        self._metadata = metadata
        self._other_groups = other_groups
        self._groups = groups
        self.membership = ConsumerMembership(settings, metadata, groups, in_the_way, timers, wall, entropy, conversion)

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(self._groups.values())

    def of(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def ids(self) -> Iterator[str]:
        return iter(self._groups)

    def members(self) -> int:
        """The number of members that send heartbeats here."""
        return sum(len(group.members) for group in self._groups.values())

    # ---- requests --------------------------------------------------------------------------------------------------

    def heartbeat(
        self, now: Millis, ticket: Ticket, call: Call, body: ConsumerHeartbeat, decision: DecisionBuilder
    ) -> None:
        self.membership.heartbeat(now, ticket, call, body, decision)

    def describe(self, ticket: Ticket, body: ConsumerGroupDescribeRequest, decision: DecisionBuilder) -> None:
        answer = ConsumerGroupDescribeResponse(groups=[self._described(group_id) for group_id in body.group_ids])
        decision.answer(ticket, answer)

    def _described(self, group_id: str) -> DescribedGroup:
        group = self._groups.get(group_id)
        if group is not None:
            return described(group, self.membership.assignor(group), self._metadata)
        text = f"Group {group_id} not found."
        if group_id in self._other_groups:
            text = f"Group {group_id} is not a consumer group."
        return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id)

    def listed(self) -> Iterator[ListedGroup]:
        for group in self._groups.values():
            yield listed(group)

    def deletion(self, group_id: str) -> list[ShardRecord] | None:
        """The records that delete this group; None if it has members."""
        group = self._groups[group_id]
        return None if group.members else deletion(group)

    # ---- deadlines -------------------------------------------------------------------------------------------------

    def expire(self, now: Millis, timer: GroupTimer, decision: DecisionBuilder) -> None:
        """Handle an expired deadline of one of these groups."""
        group_id, kind, member_id = timer
        if kind == Deadline.CONSUMER_ASSIGNMENT:
            self.membership.assignment_deadline(now, group_id, decision)
        else:
            self.membership.fence(now, group_id, member_id, decision)

    def loaded(self, now: Millis) -> None:
        for group in self._groups.values():
            self.membership.loaded(now, group)

    # ---- durable state ---------------------------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> None:
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
            case CurrentRecord(group_id, member_id, member):
                if member is not None:
                    self._group(group_id).put_current(member)
                elif group_id in self._groups:
                    self._groups[group_id].drop_current(member_id)
            case RegexRecord(group_id, regex, resolved):
                self._set_resolved(group_id, regex, resolved)
            case PassedOver():
                pass
            case _:
                assert_never(record)

    def _set_epoch(self, group_id: str, epoch: int | None, metadata_hash: int) -> None:
        """Set the epoch of a group; None removes the group."""
        if epoch is not None:
            group = self._group(group_id)
            group.epoch, group.metadata_hash = epoch, metadata_hash
        elif (group := self._groups.pop(group_id, None)) is not None:
            self.membership.forget(group)

    def _set_target(self, group_id: str, member_id: str, target: Target | None) -> None:
        """Set the target assignment of a member; None removes it."""
        if target is not None:
            self._group(group_id).targets[member_id] = target
        elif group_id in self._groups:
            self._groups[group_id].targets.pop(member_id, None)

    def _set_resolved(self, group_id: str, regex: str, resolved: Resolved | None) -> None:
        """Set the topics that a regular expression matches; None removes it."""
        if resolved is not None:
            self._group(group_id).resolved[regex] = resolved
        elif group_id in self._groups:
            self._groups[group_id].resolved.pop(regex, None)

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ConsumerGroup(group_id)
        return group

    # ---- for metrics, tests and the simulator ----------------------------------------------------------------------

    def image(self) -> object:
        return {group_id: group.image() for group_id, group in self._groups.items()}

    def check(self) -> None:
        for group in self._groups.values():
            self.membership.check(group)

    def check_durable(self) -> None:
        for group_id, group in self._groups.items():
            assert group.group_id == group_id, group_id
            assert group_id not in self._other_groups, f"{group_id} is a group of two kinds"
            group.check()
