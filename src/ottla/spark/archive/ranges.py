"""Computes with sets of offsets as sorted runs, and with the ranges that an archive covered.

Union, intersection, difference and overlap of runs are vectorised in numpy, so a partition with a billion offsets is a
few rows. The module is pure: no Spark, no files.

Invariant: the runs of a `Runs` are half-open [first, until), sorted, disjoint and not adjacent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ottla.client import TopicPartition

Longs: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Covered:
    """A range [first, until) of a partition that one commit of an archive covered, with the `count` of its records.

    `count` is smaller than the range's length if the log itself has holes: compaction, control batches, aborted
    transactions. `lost`: offsets that the log dropped before they could be read.
    """

    topic: str
    partition: int
    first: int
    until: int
    count: int
    lost: int = 0

    @property
    def place(self) -> TopicPartition:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Runs:
    """A set of offsets."""

    first: Longs
    until: Longs

    @property
    def total(self) -> int:
        """The number of offsets."""
        return int((self.until - self.first).sum())

    def __bool__(self) -> bool:
        return len(self.first) > 0

    def __or__(self, other: Runs) -> Runs:
        points, (mine, theirs) = sweep(self, other)
        return runs_where(points, (mine > 0) | (theirs > 0))

    def __and__(self, other: Runs) -> Runs:
        points, (mine, theirs) = sweep(self, other)
        return runs_where(points, (mine > 0) & (theirs > 0))

    def __sub__(self, other: Runs) -> Runs:
        points, (mine, theirs) = sweep(self, other)
        return runs_where(points, (mine > 0) & (theirs == 0))

    def pairs(self) -> list[tuple[int, int]]:
        """[(first, until), ...]"""
        return list(zip(self.first.tolist(), self.until.tolist(), strict=True))

    def shown(self, most: int = 3) -> str:
        """A few of the runs for a person: "7, 10-19 and 4 more"."""
        texts = [str(first) if until == first + 1 else f"{first}-{until - 1}" for first, until in self.pairs()[:most]]
        more = len(self.first) - most
        return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


EMPTY = Runs(np.empty(0, np.int64), np.empty(0, np.int64))


def run(first: int, until: int) -> Runs:
    """One run; empty where `until` is not after `first`."""
    return Runs(np.array([first], np.int64), np.array([until], np.int64)) if until > first else EMPTY


def union(pieces: Iterable[tuple[int, int]]) -> Runs:
    """The offsets in any of the [first, until) pieces."""
    return once_and_twice(*_arrays(pieces))[0]


def once_and_twice(first: Longs, until: Longs) -> tuple[Runs, Runs]:
    """(offsets in at least one piece, offsets in more than one) of pieces in any order that may overlap."""
    points, (depth,) = sweep(Runs(first, until))
    return runs_where(points, depth > 0), runs_where(points, depth > 1)


def sweep(*sets: Runs) -> tuple[Longs, list[Longs]]:
    """(every boundary in order, for each set how many of its runs cover the stretch that begins at each boundary)."""
    bounds = [array for each in sets for array in (each.first, each.until)]
    points = np.unique(np.concatenate(bounds)) if bounds else np.empty(0, np.int64)
    depths: list[Longs] = []
    for each in sets:
        change = np.zeros(len(points), np.int64)
        np.add.at(change, np.searchsorted(points, each.first), 1)
        np.add.at(change, np.searchsorted(points, each.until), -1)
        depths.append(np.cumsum(change))
    return points, depths


def runs_where(points: Longs, wanted: NDArray[np.bool_]) -> Runs:
    """The stretches between `points` that are `wanted`, neighbours joined. The last point begins no stretch."""
    edges = np.diff(np.concatenate(([False], wanted, [False])).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return Runs(points[starts], points[ends])


def runs_of(offsets: Longs) -> tuple[Longs, Longs]:
    """Split an array of offsets into pieces [first, until) of consecutive offsets. Pieces overlap if an offset occurs
    twice."""
    if not len(offsets):
        return EMPTY.first, EMPTY.until
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(offsets)])) - 1
    return offsets[starts], offsets[ends] + 1


def next_offsets(covered: Iterable[Covered]) -> dict[TopicPartition, int]:
    """Return the offset at which an archive continues in each partition."""
    found: dict[TopicPartition, int] = {}
    for each in covered:
        found[each.place] = max(found.get(each.place, each.until), each.until)
    return found


def joined(covered: Iterable[Covered]) -> list[Covered]:
    """Join neighbouring ranges; ranges that overlap or leave a gap stay as they are."""
    made: list[Covered] = []
    for each in sorted(covered, key=lambda one: (one.topic, one.partition, one.first, one.until)):
        last = made[-1] if made else None
        if last is not None and last.place == each.place and last.until == each.first:
            count, lost = last.count + each.count, last.lost + each.lost
            made[-1] = Covered(last.topic, last.partition, last.first, each.until, count, lost)
        else:
            made.append(each)
    return made


def _arrays(pieces: Iterable[tuple[int, int]]) -> tuple[Longs, Longs]:
    table = np.array(list(pieces), np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
