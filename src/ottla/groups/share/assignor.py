"""Assigns share groups' partitions by the `simple` assignor.

The inputs are the members, their subscriptions and their previous assignments.

Several members may read a partition at once. With more members than partitions they must, so that every member has
work. Balance comes first, stickiness second:
- Every partition has the same number of readers: one, or as many as give each member at least one partition.
- Members differ by one partition at most.
- A member keeps its previous partitions as far as that allows.

Members that all subscribe to the same topics share all their partitions at once. Otherwise each topic is shared among
its own subscribers, and the next topic begins with the members that have least.

Source: KIP-932 (simple assignor); Kafka's SimpleHomogeneousAssignmentBuilder.java and its heterogeneous sister.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from ottla.groups.share.group import Assignment

TopicIdPartition: TypeAlias = tuple[bytes, int]
"""Topic id and partition."""


def assign(
    subscriptions: Mapping[str, Sequence[str]],
    topics: Mapping[str, tuple[bytes, int]],
    before: Mapping[str, Assignment],
) -> dict[str, Assignment]:
    """The assignment of each member.

    `subscriptions`: names by member id; `topics`: id and number of partitions of those that exist; `before`: what
    members have.
    """
    had = {member_id: _places(before.get(member_id, ())) for member_id in subscriptions}
    result: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in subscriptions}
    wanted = {tuple(sorted(name for name in names if name in topics)) for names in subscriptions.values()}
    if len(wanted) == 1:
        pools = [(list(subscriptions), sorted(_of_topics(wanted.pop(), topics)))]
    else:
        pools = [
            ([member_id for member_id, names in subscriptions.items() if name in names], _of_topics((name,), topics))
            for name in sorted(topics)
        ]
    for members, places in pools:
        if members and places:
            members.sort(key=lambda member_id: len(result[member_id]))
            for member_id, taken in _share(members, places, had).items():
                result[member_id] |= taken
    return {member_id: _assignment(places) for member_id, places in result.items()}


def _of_topics(names: Sequence[str], topics: Mapping[str, tuple[bytes, int]]) -> list[TopicIdPartition]:
    return [(topics[name][0], index) for name in names for index in range(topics[name][1])]


def _places(assignment: Assignment) -> set[TopicIdPartition]:
    return {(topic_id, index) for topic_id, indexes in assignment for index in indexes}


def _assignment(places: set[TopicIdPartition]) -> Assignment:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(places):
        topics.setdefault(topic_id, []).append(index)
    return tuple((topic_id, tuple(indexes)) for topic_id, indexes in topics.items())


def _share(
    members: list[str], places: list[TopicIdPartition], had: Mapping[str, set[TopicIdPartition]]
) -> dict[str, set[TopicIdPartition]]:
    """Share one pool of partitions among members that all may read all of it."""
    readers_each = -(-len(members) // len(places))
    least, more = divmod(readers_each * len(places), len(members))
    kept = {member_id: [place for place in places if place in had[member_id]] for member_id in members}
    # The members that keep the most keep the largest shares; ties follow the order of `members`.
    ranked = sorted(members, key=lambda member_id: -len(kept[member_id]))
    room = {member_id: least + (rank < more) for rank, member_id in enumerate(ranked)}
    readers = dict.fromkeys(places, 0)
    taken: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for member_id in sorted(members, key=lambda member_id: len(kept[member_id])):
        for place in sorted(kept[member_id], key=lambda place: readers[place]):
            if room[member_id] and readers[place] < readers_each:
                taken[member_id].add(place)
                room[member_id] -= 1
                readers[place] += 1
    _fill(members, places, readers_each, readers, room, taken)
    return taken


def _fill(
    members: list[str],
    places: list[TopicIdPartition],
    readers_each: int,
    readers: dict[TopicIdPartition, int],
    room: dict[str, int],
    taken: dict[str, set[TopicIdPartition]],
) -> None:
    """Give every partition the readers it lacks: those with most room first."""
    order = {member_id: at for at, member_id in enumerate(members)}
    free = [(-count, order[member_id], member_id) for member_id, count in room.items() if count]
    heapify(free)
    for place in sorted(places, key=lambda place: readers[place]):
        passed: list[tuple[int, int, str]] = []
        while readers[place] < readers_each and free:
            entry = heappop(free)
            count, at, member_id = entry
            if place in taken[member_id]:
                passed.append(entry)
                continue
            taken[member_id].add(place)
            readers[place] += 1
            if count + 1:
                heappush(free, (count + 1, at, member_id))
        for entry in passed:
            heappush(free, entry)
        while readers[place] < readers_each and free:
            # All with room read it already: one of them takes over what a stranger to this place has.
            count, at, member_id = heappop(free)
            _swap(member_id, place, members, taken)
            readers[place] += 1
            if count + 1:
                heappush(free, (count + 1, at, member_id))


def _swap(member_id: str, place: TopicIdPartition, members: list[str], taken: dict[str, set[TopicIdPartition]]) -> None:
    """Let `member_id`, which has room and reads `place`, swap: another member gives it another partition and reads this
    one."""
    own = taken[member_id]
    for other in members:
        if place not in taken[other]:
            given = min(taken[other] - own, default=None)
            if given is not None:
                taken[other].remove(given)
                taken[other].add(place)
                own.add(given)
                return
    raise AssertionError("the numbers of readers and of free places do not match")
