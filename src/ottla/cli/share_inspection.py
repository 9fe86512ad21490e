"""Prints which records of a share group are in flight: rows for a table, sentences, JSON.

The leaders of the partitions report them (`client/share_partitions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from ottla.cli.output import counted
from ottla.cli.times import shown_time

if TYPE_CHECKING:
    from ottla.client.share_partitions import ShareGroup, SharePartition

OFFSET_COLUMNS: Final = ("GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG")
RUN_COLUMNS: Final = (
    "TOPIC",
    "PARTITION",
    "FIRST",
    "LAST",
    "STATE",
    "DELIVERIES",
    "NEXT-TRY-MS",
    "CONSUMER-ID",
    "CLIENT-ID",
    "HOST",
    "HELD-MS",
    "LOCK-LEFT-MS",
    "LAST-REASON",
)


REASONS_MAX: Final = 3


def offset_row(part: SharePartition) -> tuple[Any, ...]:
    """A partition of which only the coordinator has reported."""
    start_offset, lag = (each if each >= 0 else None for each in (part.start_offset, part.lag))
    return part.topic, part.partition, start_offset, lag


def run_rows(part: SharePartition) -> Iterator[tuple[Any, ...]]:
    """The runs of a partition."""
    for run in part.runs:
        waits = run.next_try_ms, run.member, run.client_id, run.host, run.held_ms, run.lock_left_ms, run.reason
        yield part.topic, part.partition, run.first_offset, run.last_offset, run.state, run.delivery_count, *waits


def summary(found: ShareGroup) -> str:
    """One sentence about the whole group."""
    acquired, archiving, letters = (
        sum(getattr(part, name) for part in found.partitions) for name in ("acquired", "archiving", "dead_letters")
    )
    said = [found.state, counted(found.members, "member"), f"lag {sum(max(part.lag, 0) for part in found.partitions)}"]
    if any(part.why_unknown is None for part in found.partitions):
        said += [f"{counted(acquired, 'record')} acquired", f"{counted(letters, 'dead letter')} written"]
    if archiving:
        said.append(f"{archiving} still to be written")
    if found.is_paused:
        since = "" if found.paused_since_ms is None else f" since {shown_time(found.paused_since_ms)}"
        said.insert(0, f"paused{since}{'' if found.paused_by is None else f', by {found.paused_by}'}")
    return f"{found.name}: {', '.join(said)}."


def reasons(found: ShareGroup) -> Iterator[str]:
    """A sentence about the reasons that members gave lately; none without any."""
    from ottla.client.share_partitions import frequent_reasons

    common = frequent_reasons(found.partitions)
    if common:
        shown = ", ".join(f'"{each.text}" ({counted(each.failures, "failure")})' for each in common[:REASONS_MAX])
        yield f"Most common reasons of the latest failures: {shown}."


def gaps(found: ShareGroup) -> Iterator[str]:
    """Sentences about what is missing."""
    unknown = [part for part in found.partitions if part.why_unknown is not None]
    if unknown and len(unknown) == len(found.partitions) and found.unserved_by:
        nodes = ", ".join(map(str, found.unserved_by))
        yield (
            "Which records are acquired, or wait for their next delivery, is not known: "
            f"node {nodes} does not report it, because it is no Ottla node, or one of an earlier version."
        )
    else:
        for part in unknown:
            yield f"{part.topic}-{part.partition} is missing: {part.why_unknown}."
    for part in found.partitions:
        if part.has_more:
            yield f"{part.topic}-{part.partition} has more than these {len(part.runs)} ranges: see --max-ranges."


def as_json(found: ShareGroup) -> dict[str, Any]:
    """The group as an object; times in milliseconds."""
    return asdict(found)
