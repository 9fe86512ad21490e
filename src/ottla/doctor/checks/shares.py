"""Checks share groups: what keeps records from their consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.snapshot import SHARE, Evidence, Group
from ottla.doctor.words import count, places

PAUSED: Final = "share.delivery.paused"
"""The group config in which Ottla stores a pause."""


def share_group_is_idle(evidence: Evidence) -> Iterator[Finding]:
    """Share groups that deliver nothing although records wait."""
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
            yield from _begins_at_the_end(evidence, group)
            yield from _does_not_move(evidence, group)


def _begins_at_the_end(evidence: Evidence, group: Group) -> Iterator[Finding]:
    """A group that skipped the records older than itself."""
    partitions = evidence.last.places()
    skipped = {
        where
        for where, committed in group.committed.items()
        if (partition := partitions.get(where)) is not None
        and partition.start is not None
        and partition.end is not None
        and partition.start < committed.offset == partition.end
        and committed.offset > 0
    }
    reset = group.configs.get("share.auto.offset.reset", "latest")
    if reset == "latest" and skipped and len(skipped) == len(group.committed) and not _ever_moved(evidence, group):
        yield Finding(
            Severity.NOTE,
            group.name,
            f"{group.name} is at the end of {places(skipped)}. A new share group begins at the end, so that it "
            "skips older records.",
            f"ottla configs alter --group {group.name} --add share.auto.offset.reset=earliest, before it first reads",
        )


def _ever_moved(evidence: Evidence, group: Group) -> bool:
    earlier = next((each for each in evidence.first.groups if each.name == group.name), None)
    return earlier is not None and earlier.committed != group.committed


def _does_not_move(evidence: Evidence, group: Group) -> Iterator[Finding]:
    """A group whose start offsets stand still while records wait."""
    earlier = next((each for each in evidence.first.groups if each.name == group.name), None)
    if earlier is None or evidence.window_s < 5:
        return
    partitions = evidence.last.places()
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
