"""Remembers which replicas left the in-sync replicas of the partitions that a node leads, why, and which came back.

A node that fails or falls behind leaves thousands of partitions at once. So what one node does for one cause within
`TOGETHER_MS` is one change, which names the partition that was furthest behind. One `IsrHistory` serves all partitions
of a node, outlives their leadership, and is no part of their state: only `DescribeObservations` reads it.

Invariants: at most `KEPT` changes are kept, the last ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.machine import Millis

KEPT: Final = 200
TOGETHER_MS: Final = 1_000
UNKNOWN: Final = -1


class Cause(IntEnum):
    """Why a replica left, or that it is back. The values are those of the wire."""

    SLOW = 1
    """It fetched, but did not have all records for replica.lag.time.max.ms."""
    SILENT = 2
    """It sent no fetch for replica.lag.time.max.ms."""
    REMOVED = 3
    """The controller removed it: its node stopped or failed, or reported that its log may lack records."""
    BACK = 4
    """It has all records again."""


class Distance(NamedTuple):
    """How far a follower is behind its leader: records, milliseconds since it had all of them, and since its last
    fetch. UNKNOWN if it has not fetched since this node began to lead."""

    records: int = UNKNOWN
    behind_ms: int = UNKNOWN
    silent_ms: int = UNKNOWN


NOWHERE: Final = Distance()


class IsrChange:
    """A node leaves the in-sync replicas of some partitions, or is back.

    `partitions`: how many, from `at` on for at most `TOGETHER_MS`. `place`: the topic id and index of the partition in
    which the node was furthest behind; `distance`: how far.
    """

    __slots__ = ("at", "cause", "distance", "node_id", "partitions", "place")

    def __init__(self, at: Millis, node_id: int, cause: Cause, place: tuple[bytes, int], distance: Distance) -> None:
        self.at = at
        self.node_id = node_id
        self.cause = cause
        self.place = place
        self.partitions = 1
        self.distance = distance


class IsrHistory:
    """The changes of all partitions that a node leads, or has led."""

    __slots__ = ("_changes", "_newest")

    def __init__(self) -> None:
        self._changes: deque[IsrChange] = deque(maxlen=KEPT)
        self._newest: dict[tuple[int, Cause], IsrChange] = {}

    def __len__(self) -> int:
        return len(self._changes)

    def note(
        self, now: Millis, place: tuple[bytes, int], node_id: int, cause: Cause, distance: Distance = NOWHERE
    ) -> None:
        """A node leaves the in-sync replicas of a partition, or is back."""
        newest = self._newest.get((node_id, cause))
        if newest is None or now - newest.at > TOGETHER_MS:
            change = self._newest[node_id, cause] = IsrChange(now, node_id, cause, place, distance)
            self._changes.append(change)
            return
        newest.partitions += 1
        if distance > newest.distance:
            newest.place, newest.distance = place, distance

    def changes(self) -> Iterator[IsrChange]:
        """The changes, oldest first."""
        return iter(self._changes)
