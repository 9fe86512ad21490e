"""Checks consumer groups: lag, members, rebalances, positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ottla.doctor.authors import set_by
from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.observed import GroupChange
from ottla.doctor.snapshot import (
    CONSUMER,
    SHARE,
    UNSEEN_TOPIC,
    Committed,
    Evidence,
    Group,
    Member,
    Partition,
    TopicPartition,
)
from ottla.doctor.words import count, duration, names, place, places

HOT_SHARE: Final = 0.8
"""The part of a group's lag in one partition from which on that partition is hot."""
LAG_MIN: Final = 1_000
"""Less lag than this is no finding by itself."""
REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
LONG_REBALANCE_S: Final = 30
"""A rebalance that takes longer hangs."""
AT_RISK: Final = 0.8
"""The part of what a partition holds that a group has still to read, from which on retention may overtake it."""
RETENTION: Final = ("retention.ms", "retention.bytes")


def lost_unread(evidence: Evidence) -> Iterator[Finding]:
    """Groups whose position was deleted before they read it."""
    by_place = evidence.last.places()
    for group in _readers(evidence):
        lost = {
            where: partition.start - committed.offset
            for where, committed in group.committed.items()
            if (partition := by_place.get(where)) is not None
            and partition.start is not None
            and committed.offset < partition.start
        }
        if lost:
            yield Finding(
                Severity.DATA_AT_RISK,
                group.name,
                f"{group.name} has not read {count(sum(lost.values()), 'offset')} in {places(lost)} that retention has "
                "deleted: it continues by auto.offset.reset."
                + set_by(evidence, evidence.last.topic(min(lost)[0]), *RETENTION),
                f"longer retention: `ottla topics alter {min(lost)[0]} --set retention.ms=...`; or more consumers",
            )


def about_to_lose(evidence: Evidence) -> Iterator[Finding]:
    """Groups that have not read most of what a partition still holds, and do not catch up."""
    by_place, before = evidence.last.places(), evidence.first.groups_by_name()
    for group in _readers(evidence):
        for where, committed in sorted(group.committed.items()):
            partition = by_place.get(where)
            if partition is None or partition.end is None or partition.start is None or not partition.start:
                continue  # retention has deleted nothing yet
            lag, held = partition.end - committed.offset, partition.end - partition.start
            if committed.offset < partition.start or lag < LAG_MIN or lag <= AT_RISK * held:
                continue
            earlier = before.get(group.name)
            was = None if earlier is None else earlier.committed.get(where)
            if was is not None and was.offset < committed.offset and evidence.shows_movement:
                continue  # it reads: `falling_behind` compares the rates
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{group.name} has not read {lag / held:.0%} of the records in {place(where)}: retention will delete "
                "unread records next." + set_by(evidence, evidence.last.topic(where[0]), *RETENTION),
                f"start or mend its consumers, or `ottla topics alter {where[0]} --set retention.ms=...`",
                None if evidence.shows_movement else "a longer --window",
            )


def falling_behind(evidence: Evidence) -> Iterator[Finding]:
    """Groups that read more slowly than producers write."""
    if not evidence.shows_movement:
        return
    before, now = evidence.first.places(), evidence.last.places()
    groups = evidence.first.groups_by_name()
    for group in _readers(evidence):
        earlier = groups.get(group.name)
        if earlier is None or not group.members:
            continue
        written = read = lag = 0
        for where, committed in group.committed.items():
            was, one, two = earlier.committed.get(where), before.get(where), now.get(where)
            if was is None or one is None or two is None or one.end is None or two.end is None:
                continue
            written += two.end - one.end
            read += committed.offset - was.offset
            lag += max(0, two.end - committed.offset)
        if lag < LAG_MIN or not 0 < read < 0.9 * written:
            continue
        seconds = evidence.window_s
        yield Finding(
            Severity.WARNING,
            group.name,
            f"{group.name} falls behind: {written / seconds:,.0f} records/s arrive, it reads {read / seconds:,.0f}/s, "
            f"and its lag is {lag:,}.",
            "more consumers, up to one a partition; then more partitions, or a share group",
            f"a longer --window than {duration(seconds)}",
        )


def stuck(evidence: Evidence) -> Iterator[Finding]:
    """Partitions at which a live member does not move although records wait."""
    if not evidence.shows_movement:
        return
    now, groups = evidence.last.places(), evidence.first.groups_by_name()
    for group in _readers(evidence):
        earlier = groups.get(group.name)
        if earlier is None or group.state in REBALANCING:
            continue
        for member in group.members:
            still = [each for each in sorted(member.owned) if _stands_still(earlier, group, each, now)]
            moved = [each for each in member.owned if each not in still and _moved(earlier, group, each)]
            pauses = [_pause(evidence, group.name, each) for each in still]
            if not still or moved or any(each is not None and each.is_usual for each in pauses):
                continue
            known = [each for each in pauses if each is not None]
            seconds = max((each.seconds for each in known), default=evidence.window_s)
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{member.client_id} ({member.host}) of {group.name} has not moved in {places(still)} for "
                f"{duration(seconds)}, at offset {group.committed[still[0]].offset:,}, although records wait.",
                f"read that record: `ottla consume {still[0][0]} -p {still[0][1]} -o "
                f"{group.committed[still[0]].offset} -n 1`; skip it with `ottla groups reset-offsets`",
                None if len(known) == len(still) else "a --window longer than the time that one record may need",
            )


@dataclass(frozen=True, slots=True)
class _Pause:
    """The time since a group's last commit in a partition. `is_usual`: the group has paused as long before."""

    seconds: float
    is_usual: bool


def _pause(evidence: Evidence, group: str, where: TopicPartition) -> _Pause | None:
    """None without two commits that differ in the past that is known. (Burrow's rule: a group has stopped if its last
    commit is longer ago than the commits before it took together.)"""
    commits = evidence.last.commits.get((group, where), ())
    if len(commits) < 2:
        return None
    since_ms = evidence.last.at_ms - commits[-1].at_ms
    gaps_ms = [two.at_ms - one.at_ms for one, two in pairwise(commits)]
    if commits[-1].offset == commits[-2].offset:  # it commits, but the same position again
        last_move = next((two.at_ms for one, two in reversed([*pairwise(commits)]) if one.offset != two.offset), None)
        since_ms = evidence.last.at_ms - (commits[0].at_ms if last_move is None else last_move)
    return _Pause(since_ms / 1000, since_ms <= 2 * max(gaps_ms))


def hot_partition(evidence: Evidence) -> Iterator[Finding]:
    """Partitions that hold most of a group's lag."""
    now = evidence.last.places()
    for group in _readers(evidence):
        by_topic: dict[str, dict[TopicPartition, int]] = {}
        for where, committed in group.committed.items():
            partition = now.get(where)
            if partition is not None and partition.end is not None:
                by_topic.setdefault(where[0], {})[where] = max(0, partition.end - committed.offset)
        for topic, lags in sorted(by_topic.items()):
            total, (most, where) = sum(lags.values()), max((lag, where) for where, lag in lags.items())
            if len(lags) >= 3 and total >= LAG_MIN and most >= HOT_SHARE * total:
                yield Finding(
                    Severity.WARNING,
                    group.name,
                    f"{place(where)} has {most / total:.0%} of {group.name}'s lag in {topic}: more members do not "
                    "help, because one partition has one reader.",
                    "look for a frequent key in that partition, or for a slow or stuck member that owns it",
                )


def idle_members(evidence: Evidence) -> Iterator[Finding]:
    """Groups with more members than partitions."""
    for group in _readers(evidence):
        idle = [each for each in group.members if not each.owned and not each.target]
        if group.state == "Stable" and idle and len(idle) < len(group.members):
            yield Finding(
                Severity.NOTE,
                group.name,
                f"{len(idle)} of {len(group.members)} members of {group.name} own no partition.",
                "more partitions (`ottla topics add-partitions`), or a share group, which has no such limit",
            )


def rebalance_hangs(evidence: Evidence) -> Iterator[Finding]:
    """Groups that stay in a rebalance, and the members that they wait for."""
    if not evidence.shows_movement:
        return
    groups, changes = evidence.first.groups_by_name(), evidence.last.changes()
    for group in evidence.last.groups:
        earlier = groups.get(group.name)
        lasts = _Lasting.of(evidence, changes.get(group.name, []))
        if group.type == SHARE or earlier is None or group.state != earlier.state or group.state not in REBALANCING:
            continue
        if group.type == CONSUMER:
            was = {member.id: _to_give_up(member) for member in earlier.members}
            for member in group.members:
                if kept := _to_give_up(member) & was.get(member.id, frozenset()):
                    yield Finding(
                        Severity.WARNING,
                        group.name,
                        f"{group.name} waits for {member.client_id} ({member.host}) to give up {places(kept)}, for "
                        f"{lasts.time}.",
                        "that member must poll; its group removes it after its rebalance timeout",
                        None if lasts.is_long else "a longer --window",
                    )
        else:
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{group.name} has been in {group.state} for {lasts.time}.",
                "a member does not poll: the group removes it after its max.poll.interval.ms",
                None if lasts.is_long else "a --window longer than the longest rebalance timeout of its members",
            )


@dataclass(frozen=True, slots=True)
class _Lasting:
    """How long a rebalance lasts, in words. `is_long`: longer than the rebalance timeout of any member."""

    time: str
    is_long: bool

    @classmethod
    def of(cls, evidence: Evidence, changes: list[GroupChange]) -> _Lasting:
        """A rebalance begins with the last change that its coordinator remembers."""
        if not changes:
            return cls(f"at least {duration(evidence.window_s)}", False)
        seconds = max(evidence.window_s, (evidence.last.at_ms - changes[-1].at_ms) / 1000)
        timeout_s = max(each.timeout_ms for each in changes) / 1000
        return cls(duration(seconds), seconds >= max(timeout_s, LONG_REBALANCE_S))


def _to_give_up(member: Member) -> frozenset[TopicPartition]:
    """The partitions that a member owns, and that its coordinator wants another member to own."""
    return frozenset() if member.target is None else member.owned - member.target


def position_beyond_end(evidence: Evidence) -> Iterator[Finding]:
    """Positions beyond a partition's end, in both snapshots: the topic was created again, or records were lost. (A new
    leader needs a moment to learn how far records are committed.)"""
    now, before = evidence.last.places(), evidence.first.places()
    groups = evidence.first.groups_by_name()
    for group in _readers(evidence):
        older: list[TopicPartition] = []
        lost: dict[TopicPartition, int] = {}
        for where, committed in sorted(group.committed.items()):
            earlier = groups[group.name].committed.get(where) if group.name in groups else None
            by = _beyond(committed, now.get(where))
            if by <= 0 or _beyond(earlier, before.get(where)) <= 0:
                continue
            if committed.leader_epoch > now[where].leader_epoch >= 0:
                older.append(where)
            else:
                lost[where] = by
        if older:
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{group.name}'s positions in {places(older)} are of an earlier topic of that name: they are beyond "
                "the end, and of a later leader epoch.",
                f"ottla groups reset-offsets {group.name} --topic {older[0][0]} --to-earliest --execute",
            )
        if lost:
            yield Finding(
                Severity.DATA_AT_RISK,
                group.name,
                f"{group.name} has read {count(sum(lost.values()), 'record')} that {places(lost)} no longer holds: "
                "they were lost, for example in an unclean election, or the topic was created again.",
                f"ottla groups reset-offsets {group.name} --topic {min(lost)[0]} --to-latest --execute",
            )


def _beyond(committed: Committed | None, partition: Partition | None) -> int:
    """By how many records a position is beyond the end; 0 if it is not, or if one of them is unknown."""
    if committed is None or partition is None or partition.end is None:
        return 0
    return max(0, committed.offset - partition.end)


def forgotten_topics(evidence: Evidence) -> Iterator[Finding]:
    """Positions in topics that no longer exist."""
    there = {topic.name for topic in evidence.last.topics}
    for group in _readers(evidence):
        gone = sorted({topic for topic, _ in group.committed if topic not in there})
        if gone and there and not any(each.startswith(UNSEEN_TOPIC) for each in evidence.last.unseen):
            yield Finding(
                Severity.NOTE,
                group.name,
                f"{group.name} has positions in {names(gone)}, which do not exist or which you may not see.",
                f"ottla groups delete-offsets {group.name} --topic {gone[0]}",
            )


def _readers(evidence: Evidence) -> Iterator[Group]:
    """The groups whose members commit offsets."""
    return (each for each in evidence.last.groups if each.type != SHARE)


def _stands_still(earlier: Group, group: Group, where: TopicPartition, now: dict[TopicPartition, Partition]) -> bool:
    was, committed, partition = earlier.committed.get(where), group.committed.get(where), now.get(where)
    if was is None or committed is None or partition is None or partition.stable is None:
        return False
    start = partition.start or 0
    return was.offset == committed.offset and start <= committed.offset < partition.stable


def _moved(earlier: Group, group: Group, where: TopicPartition) -> bool:
    was, committed = earlier.committed.get(where), group.committed.get(where)
    return was is not None and committed is not None and committed.offset != was.offset


CHECKS: Final = (
    Check("lost-unread", "groups whose unread records were deleted", lost_unread),
    Check("position-beyond-end", "positions of an earlier topic, or beyond the end", position_beyond_end),
    Check("about-to-lose", "groups that retention is about to overtake", about_to_lose),
    Check("stuck", "members that do not move although records wait", stuck),
    Check("falling-behind", "groups that read more slowly than producers write", falling_behind),
    Check("rebalance-hangs", "groups that stay in a rebalance", rebalance_hangs),
    Check("hot-partition", "partitions with most of a group's lag", hot_partition),
    Check("idle-members", "members without a partition", idle_members),
    Check("forgotten-topic", "positions in topics that do not exist", forgotten_topics),
)
