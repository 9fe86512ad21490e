"""Reads what the leaders of share groups' partitions report of records in flight into a snapshot.

Only Ottla's nodes report it. A group without members or without waiting records has nothing in flight that matters, so
the doctor asks for the others alone, and for at most `GROUPS_MAX` of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ClientError
from ottla.client.share_partitions import InFlight, RunState, ShareGroup, SharePartition, describe_share_partitions
from ottla.doctor.snapshot import SHARE, Deliveries, Group, Holder, TopicPartition
from ottla.doctor.words import count

GROUPS_MAX: Final = 20
RUNS_MAX: Final = 100
"""Runs of a partition: enough to see its holders. With more runs, some figures are missing."""
WAITING: Final = (RunState.BACKING_OFF, RunState.DELAYED)


def with_deliveries(client: Client, groups: Iterable[Group], unseen: dict[str, None]) -> list[Group]:
    """The groups, with the deliveries of share groups that have members and waiting records. Adds what is missing to
    `unseen`."""
    found: list[Group] = []
    asked = 0
    left_out = 0
    is_served = True
    for group in groups:
        if group.type != SHARE or not group.members or not any(each.lag for each in group.committed.values()):
            found.append(group)
            continue
        if asked == GROUPS_MAX or not is_served:
            left_out += is_served
            found.append(group)
            continue
        asked += 1
        try:
            described = describe_share_partitions(client, group.name, runs_max=RUNS_MAX)
        except ClientError as failure:
            unseen[f"records in flight of {group.name}: {failure}"] = None
            found.append(group)
            continue
        if described.limits is None and described.unserved_by:
            is_served = False
            unseen[
                "records in flight of share groups, which only Ottla reports: the doctor cannot know who holds them"
            ] = None
        found.append(replace(group, deliveries=_deliveries(described)))
        for reason in dict.fromkeys(each.why_unknown for each in described.partitions if is_served):
            if reason is not None:
                unseen[f"records in flight of {group.name}: {reason}"] = None
    if left_out:
        unseen[f"records in flight of {count(left_out, 'share group')} beyond the first {GROUPS_MAX}"] = None
    return found


def _deliveries(group: ShareGroup) -> dict[TopicPartition, Deliveries]:
    """The deliveries of each partition that its leader has loaded."""
    limit = None if group.limits is None else group.limits["record_locks"]
    return {(each.topic, each.partition): _of(each, limit) for each in group.partitions if each.is_loaded}


def _of(part: SharePartition, limit: int | None) -> Deliveries:
    waiting = [each for each in part.runs if each.state in WAITING]
    return Deliveries(
        part.start_offset,
        max(0, part.readable_end - part.start_offset - part.completed),
        part.acquired,
        part.archiving,
        sum(map(_size, waiting)),
        min((each.next_try_ms for each in waiting if each.next_try_ms is not None), default=None),
        limit,
        _holders(part.runs),
    )


def _size(run: InFlight) -> int:
    return run.last_offset - run.first_offset + 1


def _holders(runs: Iterable[InFlight]) -> tuple[Holder, ...]:
    """The members with records, those with the most records first."""
    found: dict[str, Holder] = {}
    for run in runs:
        if run.state is not RunState.ACQUIRED or run.member is None:
            continue
        known = found.get(run.member) or Holder(run.client_id or run.member, run.host or "")
        found[run.member] = replace(
            known,
            records=known.records + _size(run),
            held_ms=max(known.held_ms, run.held_ms or 0),
            lock_left_ms=max(known.lock_left_ms, run.lock_left_ms or 0),
        )
    return tuple(sorted(found.values(), key=lambda each: -each.records))
