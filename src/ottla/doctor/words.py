"""Formats the numbers in findings: sizes, durations, rates and partitions."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.doctor.snapshot import TopicPartition


def size(count: float) -> str:
    """Bytes: "1.5 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds as a length of time in its largest unit: "40 s", "6 min", "3 h", "2 days"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"


def count(number: int, noun: str) -> str:
    """A number and its noun: "1 record", "1,200 records", "2 replicas"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def names(given: Iterable[object], most: int = 3) -> str:
    """The first few of some names, and how many more there are: "a, b and 4 more"."""
    texts = [str(each) for each in given]
    if len(texts) <= most:
        return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))
    return f"{', '.join(texts[:most])} and {len(texts) - most:,} more"


def place(given: TopicPartition) -> str:
    """A partition in Kafka's notation: "clicks-3"."""
    return f"{given[0]}-{given[1]}"


def places(given: Iterable[TopicPartition], most: int = 3) -> str:
    """The first few of some partitions."""
    return names(map(place, sorted(given)), most)
