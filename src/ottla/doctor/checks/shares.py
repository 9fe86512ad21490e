"""Checks share groups: what keeps records from their consumers."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from ottla.client.share_groups import PAUSED
from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.observed import LEFT, SESSION
from ottla.doctor.snapshot import SHARE, Evidence, Group, Partition, TopicPartition
from ottla.doctor.words import count, duration, place, places

PAUSED_BY: Final = f"{PAUSED}.by"
BREAKER: Final = "the breaker"
"""The beginning of PAUSED_BY if too many dead letters have paused the group."""
REASON_CHARS_MAX: Final = 200

_Reason: TypeAlias = Callable[[Group, TopicPartition], Finding]
"""Makes the finding about a partition that delivers nothing."""


def share_group_is_idle(evidence: Evidence) -> Iterator[Finding]:
    """Share groups that deliver nothing although records wait."""
    partitions, before = evidence.last.places(), evidence.first.groups_by_name()
    for group in evidence.last.groups:
        if group.type != SHARE:
            continue
        lag = sum(each.lag for each in group.committed.values() if each.lag is not None and each.lag > 0)
        if group.configs.get(PAUSED) == "true":
            yield _paused(group, lag)
        elif not group.members and lag:
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{group.name} has no members, and {count(lag, 'record')} wait.{_last_member(evidence, group)}",
                f"start its consumers, or `ottla share-groups delete {group.name}`",
            )
        elif group.members and not group.owned:
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{group.name} has {count(len(group.members), 'member')} and no partition: its topics do not exist, "
                "or its members subscribe to none.",
                f"ottla share-groups describe {group.name} --members",
            )
        else:
            earlier = before.get(group.name)
            yield from _begins_at_the_end(group, earlier, partitions)
            explained = dict(_held_back(group, earlier if evidence.shows_movement else None, partitions))
            yield from _one_a_reason(group, explained)
            if earlier is not None and evidence.shows_movement:
                yield from _does_not_move(group, earlier, partitions, explained.keys())


def _paused(group: Group, lag: int) -> Finding:
    """A group that an admin or its circuit breaker has paused."""
    waits = f"{count(lag, 'record')} wait." if lag else "It delivers nothing until it is resumed."
    resume = f"ottla share-groups resume {group.name}"
    if group.configs.get(PAUSED_BY, "").startswith(BREAKER):
        sentence = (
            f"{group.name} has paused itself, because too many of its records failed within a minute. "
            f"{_last_reason(group)}{waits}"
        )
        shown = f"ottla share-groups redrive {group.name}"
        log = "" if group.reason else "; the log of the member that rejected a record says why"
        advice = (
            f"list the failed records with `{shown}`{log}. Mend the cause. Deliver the waiting records with "
            f"`{resume}`. Send back the failed ones with `{shown} --execute`"
        )
        return Finding(Severity.WARNING, group.name, sentence, advice)
    sentence = f"{group.name} is paused, and {waits}" if lag else f"{group.name} is paused. {waits}"
    return Finding(Severity.WARNING, group.name, sentence, resume)


def _last_reason(group: Group) -> str:
    """A sentence about the most common reason that members gave, before a space; "" if none is known."""
    text = group.reason
    if not text:
        return ""
    shown = text if len(text) <= REASON_CHARS_MAX else f"{text[:REASON_CHARS_MAX]}..."
    return f'The most common reason that its members gave: "{shown}". '


def _last_member(evidence: Evidence, group: Group) -> str:
    """A sentence about the last member, behind a space; "" if no node remembers it."""
    changes = evidence.last.changes().get(group.name, [])
    last = next((each for each in reversed(changes) if each.cause in (LEFT, SESSION)), None)
    if last is None:
        return ""
    why = "left" if last.cause == LEFT else "sent no heartbeat until its session ended,"
    ago = duration(max(0, evidence.last.at_ms - last.at_ms) / 1000)
    return f" Its last member, {last.client_id} ({last.host}), {why} {ago} ago."


def _begins_at_the_end(
    group: Group, earlier: Group | None, partitions: Mapping[TopicPartition, Partition]
) -> Iterator[Finding]:
    """A group that skipped the records older than itself."""
    skipped = {
        where
        for where, committed in group.committed.items()
        if (partition := partitions.get(where)) is not None
        and partition.start is not None
        and partition.end is not None
        and partition.start < committed.offset == partition.end
    }
    has_moved = earlier is not None and earlier.committed != group.committed
    reset = group.configs.get("share.auto.offset.reset", "latest")
    if reset == "latest" and skipped and len(skipped) == len(group.committed) and not has_moved:
        yield Finding(
            Severity.NOTE,
            group.name,
            f"{group.name} is at the end of {places(skipped)}. A new share group begins at the end, so it "
            "skips older records.",
            f"before it first reads: `ottla configs alter group {group.name} --set share.auto.offset.reset=earliest`",
        )


def _held_back(
    group: Group, earlier: Group | None, partitions: Mapping[TopicPartition, Partition]
) -> Iterator[tuple[TopicPartition, _Reason]]:
    """Partitions that deliver nothing now, with the reason. `earlier`: the group a while ago, None if the time between
    the snapshots is too short."""
    for where, committed in sorted(group.committed.items()):
        found, partition = group.deliveries.get(where), partitions.get(where)
        earlier_found = None if earlier is None else earlier.deliveries.get(where)
        if found is not None and found.limit is not None and found.acquired >= found.limit:
            yield where, _limit_reached
        elif found is not None and found.undone and found.waiting >= found.undone:
            yield where, _all_wait
        elif (
            found is not None
            and earlier_found is not None
            and min(found.archiving, earlier_found.archiving)
            and (found.start, found.archiving) == (earlier_found.start, earlier_found.archiving)
        ):
            yield where, _dead_letters_wait
        elif (
            partition is not None
            and partition.stable is not None
            and partition.end is not None
            and committed.offset == partition.stable < partition.end
            and earlier is not None
            and (was := earlier.committed.get(where)) is not None
            and was.offset == committed.offset
            and group.configs.get("share.isolation.level") == "read_committed"
        ):
            yield where, _transaction_open


def _one_a_reason(group: Group, explained: Mapping[TopicPartition, _Reason]) -> Iterator[Finding]:
    """A finding for each reason, about the first partition that has it, with the number of the others."""
    for reason in dict.fromkeys(explained.values()):
        where, *more = [each for each in explained if explained[each] is reason]
        finding = reason(group, where)
        also = f" This also holds for {count(len(more), 'more partition')}." if more else ""
        yield replace(finding, sentence=finding.sentence + also)


def _limit_reached(group: Group, where: TopicPartition) -> Finding:
    """Members have acquired as many records as they may."""
    found = group.deliveries[where]
    by = ""
    if found.holders:
        most = found.holders[0]
        by = (
            f": {most.client_id} ({most.host}) has {most.records:,} of them, the longest for "
            f"{duration(most.held_ms / 1000)}, and its last lock ends in {duration(most.lock_left_ms / 1000)}"
        )
    return Finding(
        Severity.WARNING,
        group.name,
        f"Members of {group.name} have acquired {count(found.acquired, 'record')} of {place(where)}, as many as "
        f"share.partition.max.record.locks allows, so they get no more{by}.",
        f"`ottla share-groups inspect {group.name}`; let that member acknowledge its records, or stop it",
    )


def _all_wait(group: Group, where: TopicPartition) -> Finding:
    """All records back off, or are delayed."""
    found = group.deliveries[where]
    soon = "" if found.next_try_ms is None else f", the first in {duration(found.next_try_ms / 1000)}"
    return Finding(
        Severity.NOTE,
        group.name,
        f"{group.name} has {count(found.undone, 'record')} of {place(where)} left, and delivers none before the "
        f"end of a back-off or a delay{soon}.",
        f"`ottla share-groups inspect {group.name}`; share.retry.backoff.ms sets the back-off",
    )


def _dead_letters_wait(group: Group, where: TopicPartition) -> Finding:
    """Dead letters that are not written."""
    found = group.deliveries[where]
    topic = group.configs.get("errors.deadletterqueue.topic.name")
    to = f" to {topic}" if topic else ""
    return Finding(
        Severity.WARNING,
        group.name,
        f"{count(found.archiving, 'record')} of {place(where)} that {group.name} gave up cannot be written{to} as dead "
        "letters, so its start offset does not move.",
        f"check that {topic or 'its dead-letter topic'} exists, has a leader and accepts records of this size",
        "a longer --window",
    )


def _transaction_open(group: Group, where: TopicPartition) -> Finding:
    """The group reads only committed records, and an open transaction comes first."""
    return Finding(
        Severity.WARNING,
        group.name,
        f"{group.name} reads only committed records, and the next record of {place(where)} belongs to an "
        "open transaction.",
        f"`ottla transactions find-hanging --topic {where[0]}`, or wait until the transaction ends",
    )


def _does_not_move(
    group: Group, earlier: Group, partitions: Mapping[TopicPartition, Partition], explained: Container[TopicPartition]
) -> Iterator[Finding]:
    """A group whose start offsets stand still while records wait, without the partitions that have a finding."""
    still = {
        where
        for where, committed in group.committed.items()
        if committed.lag
        and where not in explained
        and (was := earlier.committed.get(where)) is not None
        and (was.offset, was.lag or 0) == (committed.offset, committed.lag)
        and (partition := partitions.get(where)) is not None
        and partition.stable is not None
        and committed.offset < partition.stable
    }
    if still:
        yield Finding(
            Severity.WARNING,
            group.name,
            f"{group.name} has {count(len(group.members), 'member')}, and nothing moved in {places(still)} while "
            "records wait: members have acquired them, or they wait for their next delivery.",
            f"ottla share-groups inspect {group.name}",
            "a --window longer than the lock duration",
        )


CHECKS: Final = (
    Check("share-group-idle", "share groups that deliver nothing although records wait", share_group_is_idle),
)
