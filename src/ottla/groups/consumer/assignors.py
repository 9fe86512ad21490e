"""Assigns partitions to the members of consumer groups: `uniform`, the default, and `range`.

An assignor gets the members, their subscriptions, the topics' partitions, and the members' previous targets. Every
subscribed partition is assigned to exactly one of its subscribers.

    range    members by instance id and then by member id; per topic contiguous ranges, the first ones get one more
    uniform  each keeps its previous target up to its share, and the rest goes to members below theirs; balance first

If subscriptions differ, `uniform` gives each partition to its least loaded subscriber. Then it moves partitions from
members with more to members with fewer as long as that improves the balance.

Sources: Kafka's RangeAssignor.java, UniformHomogeneousAssignmentBuilder.java and its heterogeneous sister.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ottla.groups.consumer.group import Target, TopicIdPartition

Partitions: TypeAlias = Mapping[bytes, int]
"""The number of partitions of each topic, by its id."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member in the form for an assignor. `topics` are ids in ascending order; `before` is its previous target."""

    instance_id: str | None
    topics: tuple[bytes, ...]
    before: Target = ()


Members: TypeAlias = Mapping[str, Subscriber]


def assign_ranges(members: Members, partitions: Partitions) -> dict[str, Target]:
    """The `range` assignment of each member: the same partition of every topic to the same member, if possible."""
    # Static members come first, so that dynamic members that join or leave move few of their partitions.
    order = sorted(members, key=lambda each: (members[each].instance_id is None, members[each].instance_id or each))
    subscribers: dict[bytes, list[str]] = {}
    for member_id in order:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    targets: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in members}
    for topic_id, readers in sorted(subscribers.items()):
        least, more = divmod(partitions[topic_id], len(readers))
        first = 0
        for rank, member_id in enumerate(readers):
            end = first + least + (rank < more)
            targets[member_id] += [(topic_id, index) for index in range(first, end)]
            first = end
    return {member_id: tuple(target) for member_id, target in targets.items()}


def assign_uniformly(members: Members, partitions: Partitions) -> dict[str, Target]:
    """The `uniform` assignment of each member: as even as possible, and then as close to the previous one as
    possible."""
    if len({member.topics for member in members.values()}) == 1:
        return _assign_alike(members, partitions)
    return _Balance(members, partitions).targets()


ASSIGNORS: Final[dict[str, Callable[[Members, Partitions], dict[str, Target]]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}


# ---- uniform, all subscribe to the same ----------------------------------------------------------------------------


def _assign_alike(members: Members, partitions: Partitions) -> dict[str, Target]:
    topics = next(iter(members.values())).topics
    places = [(topic_id, index) for topic_id in topics for index in range(partitions[topic_id])]
    least, more = divmod(len(places), len(members))
    left = dict.fromkeys(places)
    kept: dict[str, list[TopicIdPartition]] = {}
    for member_id, member in members.items():
        kept[member_id] = [place for place in member.before if place in left]
        for place in kept[member_id]:
            del left[place]
    # The members that keep the most partitions get the larger shares, so that as few partitions as possible move.
    ranked = sorted(members, key=lambda member_id: -len(kept[member_id]))
    quota = {member_id: least + (rank < more) for rank, member_id in enumerate(ranked)}
    for member_id, had in kept.items():
        left.update(dict.fromkeys(had[quota[member_id] :]))
        del had[quota[member_id] :]
    free = iter(sorted(left))
    for member_id, had in kept.items():
        had += [next(free) for _ in range(quota[member_id] - len(had))]
    return {member_id: tuple(sorted(had)) for member_id, had in kept.items()}


# ---- uniform, subscriptions differ ---------------------------------------------------------------------------------

_ROUNDS_MAX: Final = 16
"""Maximum number of passes; each about halves the imbalance."""


class _Balance:
    """Partitions and their owners while an assignment is being made."""

    def __init__(self, members: Members, partitions: Partitions) -> None:
        self._members = members
        self._partitions = partitions
        self._order = {member_id: at for at, member_id in enumerate(members)}
        self._readers: dict[bytes, list[str]] = {}
        for member_id, member in members.items():
            for topic_id in member.topics:
                self._readers.setdefault(topic_id, []).append(member_id)
        # Topics with most partitions for each reader come first, those with few readers before others.
        self._topics = sorted(
            self._readers,
            key=lambda topic_id: (
                -partitions[topic_id] / len(self._readers[topic_id]),
                len(self._readers[topic_id]),
                topic_id,
            ),
        )
        self._owners: dict[TopicIdPartition, str] = {}
        self._loads = dict.fromkeys(members, 0)

    def targets(self) -> dict[str, Target]:
        self._keep()
        for topic_id in self._topics:
            for index in range(self._partitions[topic_id]):
                if (topic_id, index) not in self._owners:
                    self._give((topic_id, index), self._least_loaded(topic_id))
        for _ in range(_ROUNDS_MAX):
            if not self._even_out():
                break
        targets: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in self._members}
        for place, member_id in sorted(self._owners.items()):
            targets[member_id].append(place)
        return {member_id: tuple(target) for member_id, target in targets.items()}

    def _keep(self) -> None:
        for member_id, member in self._members.items():
            topics = set(member.topics)
            for place in member.before:
                if place[0] in topics and place[1] < self._partitions[place[0]] and place not in self._owners:
                    self._give(place, member_id)

    def _give(self, place: TopicIdPartition, member_id: str) -> None:
        before = self._owners.get(place)
        if before is not None:
            self._loads[before] -= 1
        self._owners[place] = member_id
        self._loads[member_id] += 1

    def _least_loaded(self, topic_id: bytes) -> str:
        return min(self._readers[topic_id], key=lambda member_id: (self._loads[member_id], self._order[member_id]))

    def _even_out(self) -> bool:
        """Move partitions that improve the balance, topic by topic. Returns whether any moved."""
        moved = False
        for topic_id in self._topics:
            for index in range(self._partitions[topic_id]):
                owner, least = self._owners[topic_id, index], self._least_loaded(topic_id)
                if self._loads[owner] > self._loads[least] + 1:
                    self._give((topic_id, index), least)
                    moved = True
        return moved
