"""Says why replicas left the in-sync replicas, as their leaders remember it (docs/doctor.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import ClientError
from ottla.client.observations import replicas_seen
from ottla.doctor.observed import BACK, REMOVED, SILENT, IsrChange
from ottla.doctor.remembered import isr_changes
from ottla.doctor.snapshot import Snapshot
from ottla.doctor.words import count, duration

HOUR_MS: Final = 3_600_000


def changes_of_last_hour(
    client: Client, node_ids: Iterable[int]
) -> tuple[list[tuple[int, IsrChange]], dict[int, ClientError]]:
    """The changes of in-sync replicas in the last hour, newest first, each with the leader that reports it, and the
    errors of the nodes that report none."""
    found: list[tuple[int, IsrChange]] = []
    failed: dict[int, ClientError] = {}
    for leader, answer in replicas_seen(client, node_ids).items():
        if isinstance(answer, ClientError):
            failed[leader] = answer
        else:
            recent = (each for each in isr_changes(answer) if answer.now_ms - each.at_ms <= HOUR_MS)
            found += ((leader, each) for each in recent)
    return sorted(found, key=lambda each: each[1].at_ms, reverse=True), failed


def event(change: IsrChange) -> str:
    """Describe a change for a table: "left: it sent no fetch for 31 s", "is back"."""
    return "is back" if change.cause == BACK else f"left: {left_why(change)}"


def left_why(change: IsrChange) -> str:
    """A clause: "it sent no fetch for 31 s"."""
    if change.cause == REMOVED:
        return "its node stopped or failed, or reported that its log may lack records"
    if change.cause == SILENT:
        since = f" for {duration(change.silent_ms / 1000)}" if change.silent_ms >= 0 else ""
        return f"it sent no fetch{since}"
    behind = f"{count(change.records, 'record')} and " if change.records >= 0 else ""
    return f"it fetched, but was {behind}{duration(change.behind_ms / 1000)} behind"


def where_left(change: IsrChange) -> str:
    """The partitions: "orders-3 and 11 other partitions"."""
    others = f"{count(change.partitions - 1, 'other partition')}" if change.partitions > 1 else ""
    named = f"{change.topic}-{change.partition}" if change.topic else "a deleted topic"
    return f"{named} and {others}" if others else named


def last_departure(snapshot: Snapshot, node: int) -> IsrChange | None:
    """The last time that a node left in-sync replicas, if a leader remembers it."""
    left = (
        each
        for leader in snapshot.observed
        for each in leader.isr_changes
        if each.node == node and each.cause <= REMOVED
    )
    return max(left, key=lambda each: each.at_ms, default=None)
