"""Holds what a tracker counts, and how each partition stands. Read by metrics, logs and tests; written by one
thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ottla.kmq.events import Reason


@dataclass(slots=True)
class TrackerFigures:
    """Since the tracker began."""

    markers_read: int = 0
    markers_malformed: int = 0
    redelivered: int = 0
    dead_lettered: Counter[Reason] = field(default_factory=Counter[Reason])
    read_failures: int = 0
    write_failures: int = 0
    rewinds: int = 0
    """How often a partition was full and the markers had to be read again."""
    assignments: int = 0


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One assigned partition, as it was a moment ago."""

    partition: int
    open: int
    in_flight: int
    replaying: bool
    oldest_due_ms: int | None
    """When the first of the open messages is, or was, due; epoch ms."""
    commit_offset: int | None
