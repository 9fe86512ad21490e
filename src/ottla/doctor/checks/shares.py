"""Checks share groups: what keeps records from their consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.snapshot import SHARE, Evidence, Group, Partition, TopicPartition
from ottla.doctor.words import count, places

PAUSED: Final = "share.delivery.paused"
"""The group config in which Ottla stores a pause."""


def share_group_is_idle(evidence: Evidence) -> Iterator[Finding]:
    """Share groups that deliver nothing although records wait."""
    partitions, before = evidence.last.places(), evidence.first.groups_by_name()
    for group in evidence.last.groups:
        if group.type != SHARE:
            continue
        lag = sum(each.lag for each in group.committed.values() if each.lag is not None and each.lag > 0)
        if group.configs.get(PAUSED) == "true":
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{group.name} is paused, and {count(lag, 'record')} wait."
                if lag
                else f"{group.name} is paused: it delivers nothing until it is resumed.",
                f"ottla share-groups resume {group.name}",
            )
        elif not group.members and lag:
            yield Finding(
                Severity.WARNING,
                group.name,
                f"{group.name} has no members, and {count(lag, 'record')} wait.",
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
            if earlier is not None and evidence.shows_movement:
                yield from _does_not_move(group, earlier, partitions)


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
            f"{group.name} is at the end of {places(skipped)}. A new share group begins at the end, so that it "
            "skips older records.",
            f"before it first reads: `ottla configs alter group {group.name} --set share.auto.offset.reset=earliest`",
        )


def _does_not_move(group: Group, earlier: Group, partitions: Mapping[TopicPartition, Partition]) -> Iterator[Finding]:
    """A group whose start offsets stand still while records wait."""
    still = {
        where
        for where, committed in group.committed.items()
        if committed.lag
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
            "records wait: members hold them, or they wait for their next delivery.",
            f"ottla share-groups inspect {group.name}",
            "a --window longer than the lock duration",
        )


CHECKS: Final = (
    Check("share-group-idle", "share groups that deliver nothing although records wait", share_group_is_idle),
)
