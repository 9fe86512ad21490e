"""Holds a tracker's counters and the state of each partition. Metrics, logs and tests read it; one thread writes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ottla.kmq.events import Reason


@dataclass(slots=True)
class TrackerFigures:
    """Counters since the tracker started."""

    markers_read: int = 0
    markers_malformed: int = 0
    redelivered: int = 0
    dead_lettered: Counter[Reason] = field(default_factory=Counter[Reason])
    read_failures: int = 0
    write_failures: int = 0
    rewinds: int = 0
    """How often a partition was full, so that its markers had to be read again."""
    assignments: int = 0


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """The recent state of one assigned partition."""

    partition: int
    open: int
    in_flight: int
    replaying: bool
    oldest_due_ms: int | None
    """Due time of the open message that is due first, epoch ms; it may be in the past."""
    commit_offset: int | None
