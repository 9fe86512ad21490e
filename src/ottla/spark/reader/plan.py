"""Distributes offset ranges over Spark's tasks, and limits the size of one micro-batch. Pure arithmetic.

A task costs more than a partition. Ranges are therefore combined into about as many tasks as there are cores, evenly by
offsets, and split only if the options ask for it.

Invariant: the ranges of all tasks together are exactly the ranges planned, each offset once.

Source: KafkaOffsetRangeCalculator.scala (splitting), KafkaMicroBatchStream.rateLimit (limiting).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from ottla.client import TopicPartition


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [first, until) of one partition."""

    topic: str
    partition: int
    first: int
    until: int

    @property
    def size(self) -> int:
        return self.until - self.first


class TaskRanges(InputPartition):
    """The ranges that one task reads, in this order."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)


def task_ranges(
    ranges: Sequence[Range],
    *,
    tasks: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[TaskRanges]:
    """One share per task, none empty. `tasks` is how many can run at once."""
    left = sorted((each for each in ranges if each.size > 0), key=lambda each: (each.topic, each.partition, each.first))
    if max_records is not None:
        left = [piece for each in left for piece in _cut(each, math.ceil(each.size / max_records))]
    if min_partitions is not None and len(left) < min_partitions:
        left = _split(left, min_partitions)
    if max_records is not None:
        return [TaskRanges([each]) for each in left]
    return _merged(left, max(tasks, min_partitions or 1))


def _split(ranges: Sequence[Range], wanted: int) -> list[Range]:
    """About `wanted` ranges: the larger ones in parts, each as many as its size makes up of all that is split."""
    total = sum(each.size for each in ranges)
    small = [each for each in ranges if _parts(each.size, total, wanted) == 1]
    rest = total - sum(each.size for each in small)
    parts = max(wanted - len(small), 1)
    kept = set(small)
    return [
        piece for each in ranges for piece in ([each] if each in kept else _cut(each, _parts(each.size, rest, parts)))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(math.floor(size / total * wanted + 0.5), 1)


def _cut(whole: Range, parts: int) -> list[Range]:
    """Equal parts; the last takes what rounding leaves. None is empty."""
    ends = [whole.first + whole.size * (i + 1) // parts for i in range(parts)]
    starts = [whole.first, *ends[:-1]]
    return [replace(whole, first=a, until=b) for a, b in zip(starts, ends, strict=True) if b > a]


def _merged(ranges: Sequence[Range], tasks: int) -> list[TaskRanges]:
    """Assign the largest range first, each to the task with the least so far; within a task, by topic and partition."""
    if not ranges:
        return []
    heap = [(0, task) for task in range(min(tasks, len(ranges)))]
    taken: list[list[Range]] = [[] for _ in heap]
    for each in sorted(ranges, key=lambda each: -each.size):
        size, task = heapq.heappop(heap)
        taken[task].append(each)
        heapq.heappush(heap, (size + each.size, task))
    return [TaskRanges(_joined(each)) for each in taken]


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """In order, and ranges that follow each other as one."""
    out: list[Range] = []
    for each in sorted(ranges, key=lambda each: (each.topic, each.partition, each.first)):
        if out and (out[-1].topic, out[-1].partition, out[-1].until) == (each.topic, each.partition, each.first):
            each = replace(out.pop(), until=each.until)
        out.append(each)
    return out


def limited(
    limit: int,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    begins: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the ends of a micro-batch of `limit` offsets. Each partition gets its share of the available offsets, and
    at least one offset, even beyond the limit. `begins`: first offsets of partitions that `start` does not have."""
    sizes: dict[TopicPartition, int] = {}
    for place, until in end.items():
        first = start.get(place, begins.get(place))
        if first is not None and until > first:
            sizes[place] = until - first
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    out = dict(end)
    before = 0  # available offsets so far; rounding their running sum leaves no offset of the limit unused
    for place, size in sizes.items():
        part = limit * (before + size) // total - limit * before // total
        out[place] += max(part, 1) - size
        before += size
    return out
