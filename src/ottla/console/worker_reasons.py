"""Shows the reasons that members of a share group gave for failed records.

Their texts are untrusted: any client that may read the group chooses them, so pages show them as text, cut, like values
of records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from ottla.client.share_partitions import SharePartition, frequent_reasons

SHOWN_MAX: Final = 5
CHARS_MAX: Final = 200
QUIET_MS: Final = 60_000
"""A reason of which no failure came for that long is over, although other records of the group are not done."""


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """A reason that members gave for the latest failures: how many, and when the last one was. `not_done`: records in
    flight that failed with it last. `is_over`: no record fails with it any more."""

    text: str
    failures: int
    last_ms: int
    not_done: int
    is_over: bool


def cut(text: str) -> str:
    """The beginning of a reason."""
    return text if len(text) <= CHARS_MAX else f"{text[:CHARS_MAX]}..."


def shown_reasons(partitions: Collection[SharePartition], quiet_since_ms: int | None) -> tuple[ReasonRow, ...]:
    """The most common reasons of these partitions. A reason is over if its last failure was before `quiet_since_ms` and
    none of its records is in flight; none is over if that is None, or if a partition has more runs than were read."""
    not_done: Counter[str | None] = Counter()
    for part in partitions:
        for run in part.runs:
            not_done[run.reason] += run.last_offset - run.first_offset + 1
    if any(each.has_more for each in partitions):
        quiet_since_ms = None
    return tuple(
        ReasonRow(
            cut(each.text),
            each.failures,
            each.last_ms,
            not_done[each.text],
            quiet_since_ms is not None and each.last_ms < quiet_since_ms and not not_done[each.text],
        )
        for each in frequent_reasons(partitions)[:SHOWN_MAX]
    )
