"""Shows the last hour of a group from the topic in which coordinators keep their state: lag over time, rebalances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ottla.client.client import LATEST, TopicPartition
from ottla.client.errors import check
from ottla.console.group_history import group_history
from ottla.console.group_reading import group_of
from ottla.console.page import Context, View
from ottla.console.reading import leaders_of, offsets_at
from ottla.doctor.history import History
from ottla.doctor.snapshot import Commit, Generation, Group
from ottla.doctor.words import names
from ottla.escaping import visible
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC

HOUR_MS: Final = 3_600_000
STEPS: Final = 12
KEPT: Final = 2_000
"""Commits of a partition that are read: one every two seconds for an hour."""
PARTITIONS_MAX: Final = 200
"""The lag over time of more partitions is not computed: it takes a request per time and leader of another Kafka."""
REBALANCES_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class LagAt:
    """The group's lag at a time, in records, and in time: how long the oldest unread record had waited. None if its
    position then, or the time of that record, is unknown."""

    at_ms: int
    lag: int | None
    waited_ms: int | None


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A generation of a classic group, and the members that came and went since the previous one."""

    at_ms: int
    generation: int
    members: int
    came: str
    went: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Past(View):
    """The last hour. `lags` are oldest first, `rebalances` newest first."""

    lags: tuple[LagAt, ...]
    why_no_lags: str
    rebalances: tuple[Rebalance, ...]
    knows_rebalances: bool
    is_whole: bool
    unseen: tuple[str, ...]


def load(context: Context) -> Past:
    """The last hour of the group that the address names."""
    group, _ = group_of(context, context.need("name"))
    now = context.now_ms
    names = [CONSUMER_OFFSETS_TOPIC, *sorted({topic for topic, _ in group.committed})]
    topics = context.client.metadata(names).topics
    check(topics[0].error_code, CONSUMER_OFFSETS_TOPIC)
    unseen: list[str] = []
    history = group_history(context, group.name, now - HOUR_MS, KEPT, unseen=unseen)
    leaders = {place: leader for place, leader in leaders_of(topics).items() if place in group.committed}
    lags, why = lags_of(context, group, leaders, history, now, unseen)
    is_classic = group.type == "classic"
    return Past(
        title="The last hour",
        command=context.command("doctor", "--past", "60"),
        lags=lags,
        why_no_lags=why,
        rebalances=rebalances_of(history.generations.get(group.name, [])) if is_classic else (),
        knows_rebalances=is_classic,
        is_whole=history.is_whole,
        unseen=tuple(unseen),
    )


def lags_of(
    context: Context,
    group: Group,
    leaders: Mapping[TopicPartition, int],
    history: History,
    now: int,
    unseen: list[str],
) -> tuple[tuple[LagAt, ...], str]:
    """The lag at equal distances of time, or why it is not known."""
    places = sorted(group.committed)
    if not places:
        return (), "The group has committed nothing."
    if len(places) > PARTITIONS_MAX:
        return (), f"The group reads more than {PARTITIONS_MAX} partitions."
    times = [now - step * HOUR_MS // STEPS for step in range(STEPS, 0, -1)]
    *ends_at, last = offsets_at(context, leaders, [*times, LATEST], unseen)
    commits = {place: history.commits.get((group.name, place), []) for place in places}
    found: list[LagAt] = []
    seen: list[tuple[int, Mapping[TopicPartition, int]]] = []
    for at, known in zip([*times, now], [*ends_at, last], strict=True):
        ends = {place: end if end >= 0 else last.get(place, -1) for place, end in known.items()}
        seen.append((at, ends))
        positions = positions_at(at, group, commits)
        found.append(LagAt(at, lag_at(positions, ends), waited_at(positions, seen)))
    return tuple(found), ""


def positions_at(
    at_ms: int, group: Group, commits: Mapping[TopicPartition, Sequence[Commit]]
) -> dict[TopicPartition, int | None]:
    """The position in each partition at a time, None where it is unknown."""
    found: dict[TopicPartition, int | None] = {}
    for place, known in group.committed.items():
        before = [each.offset for each in commits[place] if each.at_ms <= at_ms]
        found[place] = before[-1] if before else None if commits[place] else known.offset
    return found


def lag_at(positions: Mapping[TopicPartition, int | None], ends: Mapping[TopicPartition, int]) -> int | None:
    """The lag at a time, where `ends` are the log ends at that time; None if a position or an end is unknown."""
    lag = 0
    for place, position in positions.items():
        if position is None or place not in ends:
            return None
        lag += max(0, ends[place] - position)
    return lag


def waited_at(
    positions: Mapping[TopicPartition, int | None], seen: Sequence[tuple[int, Mapping[TopicPartition, int]]]
) -> int | None:
    """How long the oldest unread record had waited at the last of these times, in milliseconds. `seen`: times with the
    log ends at each, oldest first. None if it waited since before the first of them, or if a position is unknown.

    Between two times, records are taken to arrive evenly, so a short burst may be some minutes off.
    """
    waits = [
        _waited(position, [(at, ends[place]) for at, ends in seen if place in ends])
        for place, position in positions.items()
    ]
    return None if None in waits else max((each for each in waits if each is not None), default=0)


def _waited(position: int | None, seen: Sequence[tuple[int, int]]) -> int | None:
    """How long the record at this position had waited at the last of these times, with the log end at each."""
    if position is None or not seen:
        return None
    now, end = seen[-1]
    if position >= end:
        return 0
    for (earlier, low), (later, high) in reversed([*pairwise(seen)]):
        if low <= position < high:
            return now - round(earlier + (later - earlier) * (position - low) / (high - low))
    return None


def rebalances_of(generations: Sequence[Generation]) -> tuple[Rebalance, ...]:
    """The generations, newest first. A generation that was written again, with the same members, counts once."""
    found: list[Rebalance] = []
    before: Generation | None = None
    for each in generations:
        if before is not None and before.number == each.number and before.members == each.members:
            continue
        old = each.members if before is None else before.members
        came = names(sorted(f"{visible(member.client_id)} {member.host}" for member in each.members - old))
        went = names(sorted(f"{visible(member.client_id)} {member.host}" for member in old - each.members))
        found.append(Rebalance(each.at_ms, each.number, len(each.members), came, went))
        before = each
    return tuple(reversed(found[-REBALANCES_MAX:]))
