"""Converts groups with members to the other kind: a classic group becomes a consumer group, and back.

The first member of the new protocol that joins a classic group of consumers converts it to a consumer group. Its
classic members stay and keep their partitions. Their next heartbeat tells them to join again. When the last member of
the new protocol leaves, the group becomes a classic group again, which rebalances. `group.consumer.migration.policy`
sets which of these conversions are allowed.

Sources: Kafka's GroupMetadataManager.java (convertToConsumerGroup, convertToClassicGroup), ConsumerGroup.java
(fromClassicGroup), ClassicGroup.java (fromConsumerGroup); KIP-848.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from struct import pack, unpack_from

from ottla.groups.classic.group import CONSUMER_PROTOCOL_TYPE, Group, Member
from ottla.groups.classic.records import encode_group
from ottla.groups.classic.replies import join_reply
from ottla.groups.consumer.admin import deletion
from ottla.groups.consumer.group import (
    ClassicMembership,
    ConsumerGroup,
    ConsumerMember,
    Target,
    TopicIdPartition,
    subscribed,
)
from ottla.groups.consumer.membership import sessions_of
from ottla.groups.consumer.records import ConsumerRecord, by_topic, encode
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import DecisionBuilder
from ottla.groups.epochs.records import CurrentRecord, EpochRecord, MemberRecord, TargetEpochRecord, TargetRecord
from ottla.groups.metadata_view import MetadataView, topics_hash, topics_of
from ottla.groups.settings import GroupSettings
from ottla.machine import Millis, ShardRecord, WallClock
from ottla.machine.timers import Timers
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.protocol.messages.sync_group import SyncGroupResponse

_VERSION_BYTES = 2
_VERSION_MAX = 3
_ASSIGNORS_OF_CLIENTS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors whose other data in an assignment may be dropped (librdkafka's sticky ones add some): no client needs
it."""


class MigrationRefusedError(Exception):
    """Raised when a group keeps its kind; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Upgraded:
    """The result of converting a classic group: the new group, and the records of the conversion."""

    group: ConsumerGroup
    records: list[ShardRecord]


class Migration:
    """Converts the groups of a shard."""

    __slots__ = ("_metadata", "_sessions", "_settings", "_timers", "_wall")

    def __init__(
        self, settings: GroupSettings, metadata: MetadataView, timers: Timers[GroupTimer], wall: WallClock
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._timers = timers
        self._sessions = sessions_of(timers)
        self._wall = wall

    # ---- to a consumer group ---------------------------------------------------------------------------------------

    def upgraded(self, group: Group) -> Upgraded:
        """The consumer group that this group becomes when a member of the new protocol joins. Raises
        MigrationRefusedError."""
        config = self._metadata.consumer_group_config(group.group_id)
        named = f"Cannot upgrade classic group {group.group_id} to consumer group because"
        if config.migration_policy not in ("upgrade", "bidirectional"):
            raise MigrationRefusedError(f"{named} online upgrade is disabled.")
        if not group.is_consumer_group:
            raise MigrationRefusedError(f"{named} the group does not use the consumer embedded protocol.")
        if len(group.members) > config.members_max:
            raise MigrationRefusedError(f"{named} the group size exceeds the consumer group maximum size.")
        made = ConsumerGroup(group.group_id)
        made.epoch = made.assignment_epoch = group.generation
        try:
            for each in group.members.values():
                member = self._member(each, group.generation, group.protocol_name, made)
                made.put_member(member)
                made.put_current(member)
                made.targets[member.member_id] = tuple(member.assigned)
        except MalformedFrameError as error:
            raise MigrationRefusedError(f"{named} the embedded consumer protocol is malformed.") from error
        topics = topics_of(self._metadata, subscribed(made.members, {}))
        made.metadata_hash = topics_hash(topics)
        return Upgraded(made, [encode_group(group.group_id, None), *map(encode, _records(made))])

    def _member(self, each: Member, generation: int, made_by: str | None, made: ConsumerGroup) -> ConsumerMember:
        said = subscription_of(each.protocols)
        assigned: dict[TopicIdPartition, int] = {}
        if each.assignment:
            read, _ = ConsumerProtocolAssignment.decode(each.assignment, _VERSION_BYTES, _version(each.assignment))
            if read.user_data and made_by not in _ASSIGNORS_OF_CLIENTS:
                raise MigrationRefusedError(
                    f"Cannot upgrade classic group {made.group_id} to consumer group because an unsupported custom "
                    "assignor is in use. Please refer to the documentation or switch to a default assignor before "
                    "re-attempting the upgrade."
                )
            places = self.places((part.topic, part.partitions) for part in read.assigned_partitions)
            assigned = {place: max(generation, 0) for place in places if made.owner_of(place) is None}
        return ConsumerMember(
            each.member_id,
            each.group_instance_id,
            said.rack_id or None,
            each.client_id,
            each.client_host,
            tuple(sorted(set(said.topics))),
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            classic=ClassicMembership(each.session_timeout_ms, each.protocols),
            member_epoch=generation,
            previous_member_epoch=generation,
            assigned=assigned,
        )

    def places(self, named: Iterable[tuple[str, list[int]]]) -> Target:
        """Partitions by their topics' ids, those that exist."""
        found: set[TopicIdPartition] = set()
        for name, indexes in named:
            topic = self._metadata.topic(name)
            if topic is not None:
                found.update((topic[0], index) for index in indexes if 0 <= index < topic[1])
        return tuple(sorted(found))

    def take_over(self, now: Millis, group: Group, decision: DecisionBuilder) -> None:
        """Answer the parked requests of the classic group, so that these members join again. Sessions continue in the
        consumer group."""
        for member_id, (ticket, version) in group.joins.items():
            decision.answer(ticket, join_reply(version, ErrorCode.REBALANCE_IN_PROGRESS, member_id))
        for ticket in group.syncs.values():
            decision.answer(ticket, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        group.joins.clear()
        group.syncs.clear()
        for member in group.members.values():
            self._sessions.begin(group.group_id, member.member_id, now + member.session_timeout_ms)

    # ---- to a classic group ----------------------------------------------------------------------------------------

    def downgraded(self, now: Millis, group: ConsumerGroup, leaving: Container[str]) -> list[ShardRecord] | None:
        """The records that convert this to a classic group when these members leave; None if it stays a consumer group.

        Also sets the members' sessions, and the deadline of the rebalance.
        """
        left = [member for member in group.members.values() if member.member_id not in leaving]
        policy = self._metadata.consumer_group_config(group.group_id).migration_policy
        if policy not in ("downgrade", "bidirectional") or not 0 < len(left) <= self._settings.group_size_max:
            return None
        made = Group(group.group_id, self._wall.at(now))
        made.protocol_type, made.generation = CONSUMER_PROTOCOL_TYPE, group.epoch
        for member in left:
            if member.classic is None:
                return None
            made.add(_classic_member(member, member.classic))
        if not made.speaks_one_protocol():
            return None
        made.protocol_name = made.select_protocol()
        # The current partitions and not the targets: a member that joins before the owners have joined again must not
        # get partitions that they still own.
        assignments = {
            member.member_id: self.assignment(
                sorted({*member.assigned, *member.revoking}), _version(made.members[member.member_id].protocols[0][1])
            )
            for member in left
        }
        for member in group.members.values():
            self._sessions.end(group.group_id, member.member_id)
        for member in made.members.values():
            self._timers.set((group.group_id, Deadline.SESSION, member.member_id), now + member.session_timeout_ms)
        self._timers.set((group.group_id, Deadline.CLASSIC_REBALANCE, ""), now)
        return [*deletion(group), encode_group(group.group_id, made.image(assignments))]

    def assignment(self, target: Iterable[TopicIdPartition], version: int) -> bytes:
        """An assignment in the format of the classic protocol."""
        parts = ((self._metadata.topic_name(topic_id), indexes) for topic_id, indexes in by_topic(target).items())
        out = bytearray(pack(">h", version))
        message = ConsumerProtocolAssignment([TopicPartition(name, some) for name, some in parts if name is not None])
        message.encode(out, version)
        return bytes(out)


def subscription_of(protocols: Iterable[tuple[str, bytes]]) -> ConsumerProtocolSubscription:
    """The subscription and the owned partitions of a member of the classic protocol. They are the same in all its
    protocols. Raises MalformedFrameError."""
    metadata = next(iter(protocols))[1]
    return ConsumerProtocolSubscription.decode(metadata, _VERSION_BYTES, _version(metadata))[0]


def _version(metadata: bytes) -> int:
    """The version of a member's metadata; later versions begin with the fields of the last known one. Raises
    MalformedFrameError."""
    if len(metadata) < _VERSION_BYTES:
        raise MalformedFrameError("a member's metadata is cut short")
    version: int = unpack_from(">h", metadata)[0]
    return max(0, min(version, _VERSION_MAX))


def version_of(protocols: Iterable[tuple[str, bytes]]) -> int:
    """The version that a member's metadata is in."""
    return _version(next(iter(protocols))[1])


def _classic_member(member: ConsumerMember, classic: ClassicMembership) -> Member:
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        classic.session_timeout_ms,
        classic.protocols,
    )


def _records(made: ConsumerGroup) -> list[ConsumerRecord]:
    group_id, members = made.group_id, made.members.values()
    records: list[ConsumerRecord] = [MemberRecord(group_id, each.member_id, each) for each in members]
    records.append(EpochRecord(group_id, made.epoch, made.metadata_hash))
    records += [TargetRecord(group_id, each.member_id, made.targets[each.member_id]) for each in members]
    records.append(TargetEpochRecord(group_id, made.assignment_epoch))
    records += [CurrentRecord(group_id, each.member_id, each) for each in members]
    return records
