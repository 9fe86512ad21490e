"""Makes a consumer group's new target assignment when it is due, and the records of it.

The first assignment of a group that had no members is made at once. Later ones are made
`group.consumer.assignment.interval.ms` after the previous one, plus a millisecond for each member. So a crowd of new
members is assigned in a few steps. Partitions that are not assigned yet wait for a deadline, not for the next
heartbeat.

Source: Kafka's TargetAssignmentBuilder.java, GroupMetadataManager.java (updateTargetAssignment); KIP-848.
"""

from collections.abc import Mapping

from ottla.groups.consumer.assignors import ASSIGNORS, Subscriber
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember, Resolved, Target, subscribed, subscription
from ottla.groups.consumer.records import ConsumerRecord
from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.epochs.records import targets_made
from ottla.groups.metadata_view import MetadataView, topics_of
from ottla.machine import Millis, WallClock
from ottla.machine.timers import Timers


class Assignments:
    """Makes the target assignments of all consumer groups of a shard."""

    __slots__ = ("_made_at", "_metadata", "_timers", "_wall")

    def __init__(self, metadata: MetadataView, timers: Timers[GroupTimer], wall: WallClock) -> None:
        self._metadata = metadata
        self._timers = timers
        self._wall = wall
        self._made_at: dict[str, Millis] = {}
        """Soft: when the last assignment of a group was made."""

    def is_due(self, now: Millis, group: ConsumerGroup, members: int) -> bool:
        """Whether a new assignment may be made now; if not, a deadline is set for it."""
        return not group.members or self.plan(now, group, members) <= now

    def plan(self, now: Millis, group: ConsumerGroup, members: int) -> Millis:
        """Set the deadline of the next assignment, which is returned; it is never before `now`."""
        made_at = self._made_at.get(group.group_id)
        due = now
        if made_at is not None:
            interval_ms = self._metadata.consumer_group_config(group.group_id).assignment_interval_ms
            due = max(now, made_at + (max(interval_ms, members) if interval_ms else 0))
        self._timers.set((group.group_id, Deadline.CONSUMER_ASSIGNMENT, ""), due)
        return due

    def make(
        self,
        now: Millis,
        group: ConsumerGroup,
        members: Mapping[str, ConsumerMember],
        resolved: Mapping[str, Resolved],
        epoch: int,
    ) -> tuple[dict[str, Target], list[ConsumerRecord]]:
        """Make the targets of these members, in this epoch of the group, and the records of the changes."""
        topics = topics_of(self._metadata, subscribed(members, resolved))
        ids = {name: topic_id for name, (topic_id, _) in topics.items()}
        known: dict[tuple[tuple[str, ...], str], tuple[bytes, ...]] = {}
        subscribers: dict[str, Subscriber] = {}
        for member_id, member in members.items():
            wanted = known.get((member.topics, member.regex))
            if wanted is None:
                wanted = tuple(sorted(ids[name] for name in subscription(member, resolved) if name in ids))
                known[member.topics, member.regex] = wanted
            subscribers[member_id] = Subscriber(member.instance_id, wanted, group.targets.get(member_id, ()))
        assignor = ASSIGNORS[self.assignor(group.group_id, members)]
        targets = assignor(subscribers, dict(topics.values())) if subscribers else {}
        records: list[ConsumerRecord] = [*targets_made(group, targets, epoch, self._wall.at(now))]
        self._made_at[group.group_id] = now
        self._timers.cancel((group.group_id, Deadline.CONSUMER_ASSIGNMENT, ""))
        return targets, records

    def assignor(self, group_id: str, members: Mapping[str, ConsumerMember]) -> str:
        """The assignor that most members ask for, or the first of `group.consumer.assignors` if no member asks for
        one."""
        served = self._metadata.consumer_group_config(group_id).assignors
        votes: dict[str, int] = {}
        for member in members.values():
            if member.assignor in served:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return max(votes, key=votes.__getitem__) if votes else served[0]

    def changed_at(self, group_id: str) -> Millis | None:
        """When the group's last assignment was made, since this shard was loaded."""
        return self._made_at.get(group_id)

    def forget(self, group_id: str) -> None:
        """Forget a group that no longer exists."""
        self._made_at.pop(group_id, None)
        self._timers.cancel((group_id, Deadline.CONSUMER_ASSIGNMENT, ""))
