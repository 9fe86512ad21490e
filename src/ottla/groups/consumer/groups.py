"""Keeps all consumer groups of a shard: it dispatches requests, and applies records.

The rules are in `membership`, `offsets` and `admin`. The ids of groups of other kinds are in use. The exception is an
empty classic group: it is replaced by a consumer group of its name, and vice versa.

Source: Kafka's GroupCoordinatorShard.java, GroupMetadataManager.java.
"""

from collections.abc import Container, Iterator

from ottla.groups.consumer.admin import deletion, described
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.membership import ConsumerHeartbeat, ConsumerMembership, Conversion
from ottla.groups.consumer.records import ConsumerRecord, PassedOver, RegexRecord
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.epochs.groups import EpochGroups
from ottla.groups.epochs.heartbeats import missing
from ottla.groups.history import Cause, GroupHistory
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


class ConsumerGroups(EpochGroups[ConsumerGroup]):
    """See the module's docstring. `in_the_way` of other kinds are the groups that do not give way to one of these."""

    __slots__ = ("_metadata", "membership")

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
        history: GroupHistory,
    ) -> None:
        self._metadata = metadata
        self.membership = ConsumerMembership(
            settings, metadata, groups, in_the_way, timers, wall, entropy, conversion, history
        )
        super().__init__(ConsumerGroup, groups, other_groups, self.membership)

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
        text = missing(ConsumerGroup.TYPE, group_id, self._other_groups)
        return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, text, group_id)

    def _tombstones(self, group: ConsumerGroup) -> list[ShardRecord]:
        return deletion(group)

    # ---- deadlines -------------------------------------------------------------------------------------------------

    def expire(self, now: Millis, timer: GroupTimer, decision: DecisionBuilder) -> None:
        """Handle an expired deadline of one of these groups."""
        group_id, kind, member_id = timer
        if kind == Deadline.CONSUMER_ASSIGNMENT:
            self.membership.assignment_deadline(now, group_id, decision)
        else:
            cause = Cause.SESSION if kind == Deadline.CONSUMER_SESSION else Cause.REBALANCE_TIMEOUT
            self.membership.fence(now, group_id, member_id, cause, decision)

    # ---- durable state ---------------------------------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> None:
        match record:
            case RegexRecord(group_id, regex, resolved):
                if resolved is not None:
                    self._group(group_id).resolved[regex] = resolved
                elif group_id in self._groups:
                    self._groups[group_id].resolved.pop(regex, None)
            case PassedOver():
                pass
            case _:
                self._apply(record)
