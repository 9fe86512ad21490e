"""Describes share partitions for the command line and the metrics port: which members hold which locks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from ottla.broker.delivery.partitions import HostedShare
from ottla.share.partition import SharePartition
from ottla.share.standing import Acknowledge, Held


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """One share partition for display. `held` is cut to the requested number, the counts are not."""

    group_id: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    in_flight: int
    archiving: int
    complete_count: int
    lag: int
    runs: int
    members: dict[str, int]
    held: list[Held]
    acknowledged: dict[str, int]
    lock_timeouts: int
    dead_letters: int
    paused: bool


def described(
    hosted: HostedShare, machine: SharePartition, lag: int, dead_letters: int, held_max: int
) -> DescribedPartition:
    """This share partition at this moment."""
    return DescribedPartition(
        group_id=hosted.key.group_id,
        topic=hosted.partition.topic_name,
        partition=hosted.key.partition,
        start_offset=machine.start,
        end_offset=machine.end,
        in_flight=machine.in_flight,
        archiving=machine.archiving,
        complete_count=machine.complete_count,
        lag=lag,
        runs=machine.runs.count,
        members=dict(machine.held),
        held=list(islice(machine.held_runs(), held_max)),
        acknowledged={kind.name.lower(): machine.acknowledged[kind] for kind in Acknowledge},
        lock_timeouts=machine.lock_timeouts,
        dead_letters=dead_letters,
        paused=hosted.config.paused,
    )


def lag_of(end_offset: int, start_offset: int, complete_count: int) -> int:
    """Records that a group still has to process in a partition with this end; -1 if it has not begun (KIP-1226)."""
    if start_offset < 0 or complete_count < 0:
        return -1
    return max(end_offset - start_offset - complete_count, 0)
