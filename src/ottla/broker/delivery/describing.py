"""Describes share partitions: how far a group is, and which records are acquired, delayed, returned or archiving.

DescribeSharePartitions, the metrics port and the simulator's checkers use it. The figures of a share partition are read
in one step. Its runs may be many, so they are read some at a time: a run that changes meanwhile is shown as before or
as after the change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.broker.delivery.partitions import HostedShare
from ottla.machine import Millis
from ottla.share.partition import SharePartition
from ottla.share.standing import Acknowledge, InFlight

RUNS_MAX: Final = 1000
"""Maximum number of runs shown for each partition."""
RUNS_AT_ONCE: Final = 200
RUNS_EXAMINED_AT_ONCE: Final = 2_000
"""One slice shows and examines at most so many runs: a few milliseconds."""


REASONS_MAX: Final = 5
"""The most common reasons that are shown for each partition."""


class FrequentReason(NamedTuple):
    """A reason that members gave for recent failures: how many, and when the last one was."""

    text: str
    failures: int
    last: Millis


def frequent_reasons(machine: SharePartition) -> list[FrequentReason]:
    """The most common reasons among the latest failures with a reason, the most common first."""
    counts: Counter[str] = Counter()
    last: dict[str, Millis] = {}
    for at, text, count in machine.failures.recent:
        counts[text] += count
        last[text] = at
    return [FrequentReason(text, count, last[text]) for text, count in counts.most_common(REASONS_MAX)]


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """The figures of one share partition. `in_flight`: acquired records. `readable_end`: the end of the records that
    the group may read. `lag` is -1 if it is not known here."""

    group_id: str
    topic: str
    partition: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    readable_end: int
    in_flight: int
    archiving: int
    complete_count: int
    lag: int
    runs: int
    members: dict[str, int]
    acknowledged: dict[str, int]
    lock_timeouts: int
    dead_letters: int
    paused: bool


def described(
    hosted: HostedShare, machine: SharePartition, lag: int, readable_end: int, dead_letters: int
) -> DescribedPartition:
    """This share partition at this moment."""
    return DescribedPartition(
        group_id=hosted.key.group_id,
        topic=hosted.partition.topic_name,
        partition=hosted.key.partition,
        leader_epoch=hosted.partition.leader_epoch,
        start_offset=machine.start,
        end_offset=machine.end,
        readable_end=readable_end,
        in_flight=machine.in_flight,
        archiving=machine.archiving,
        complete_count=machine.complete_count,
        lag=lag,
        runs=machine.runs.count,
        members=dict(machine.held),
        acknowledged={kind.name.lower(): machine.acknowledged[kind] for kind in Acknowledge},
        lock_timeouts=machine.lock_timeouts,
        dead_letters=dead_letters,
        paused=hosted.config.paused,
    )


def in_flight(
    hosted: HostedShare, offset: int, runs_max: int
) -> Generator[list[InFlight], None, tuple[list[InFlight], int | None]]:
    """The runs in flight from `offset` on, at most `runs_max`: yields those of each slice but the last.

    Returns those of the last slice, and the offset from which there may be more, None at the end.

    Ends early if this node no longer delivers the share partition.
    """
    left = runs_max
    while (machine := hosted.machine) is not None:
        found, more = machine.in_flight_from(offset, min(left, RUNS_AT_ONCE), RUNS_EXAMINED_AT_ONCE)
        left -= len(found)
        if more is None or left <= 0:
            return found, more
        offset = more
        yield found
    return [], None


def lag_of(end_offset: int, start_offset: int, complete_count: int) -> int:
    """Records that a group still has to process in a partition with this end; -1 if it has not begun (KIP-1226)."""
    if start_offset < 0 or complete_count < 0:
        return -1
    return max(end_offset - start_offset - complete_count, 0)
