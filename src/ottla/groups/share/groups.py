"""Keeps all share groups of a shard: it dispatches requests, and applies records.

The rules are in `membership` and `admin`. The ids of classic groups are in use: a request for a share group of such a
name gets GROUP_ID_NOT_FOUND, and vice versa.

Source: Kafka's GroupCoordinatorShard.java, GroupMetadataManager.java.
"""

from collections.abc import Container, Iterable

from ottla.groups.deadlines import GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.epochs.groups import EpochGroups
from ottla.groups.history import GroupHistory
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
)
from ottla.groups.share.group import NO_SHARES, ShareGroup
from ottla.groups.share.membership import ConnectionLost, ShareMembership
from ottla.groups.share.records import ShareRecord, SharesRecord, encode
from ottla.machine import Call, Millis, ShardRecord, Ticket, WallClock
from ottla.machine.timers import Timers
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


class ShareGroups(EpochGroups[ShareGroup]):
    """See the module's docstring."""

    __slots__ = ("_membership", "_metadata")

    def __init__(
        self,
        settings: GroupSettings,
        metadata: MetadataView,
        other_groups: Container[str],
        timers: Timers[GroupTimer],
        wall: WallClock,
        history: GroupHistory,
    ) -> None:
        groups: dict[str, ShareGroup] = {}
        self._metadata = metadata
        self._membership = ShareMembership(settings, metadata, groups, other_groups, timers, wall, history)
        super().__init__(ShareGroup, groups, other_groups, self._membership)

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
                self._membership.connection_lost(now, group_id, member_id, decision)
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

    def _tombstones(self, group: ShareGroup) -> list[ShardRecord]:
        return deletion(group)

    def session_deadline(self, now: Millis, group_id: str, member_id: str, decision: DecisionBuilder) -> None:
        self._membership.session_deadline(now, group_id, member_id, decision)

    # ---- durable state ---------------------------------------------------------------------------------------------

    def apply(self, record: ShareRecord) -> None:
        if not isinstance(record, SharesRecord):
            self._apply(record)
        elif record.shares is not None:
            self._group(record.group_id).shares = record.shares
        elif record.group_id in self._groups:
            self._groups[record.group_id].shares = NO_SHARES
