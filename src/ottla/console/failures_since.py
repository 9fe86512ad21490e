"""Counts what a share group has accepted and failed since a moment: its counters now, less those of that moment.

The address of the page has the counters of that moment, so the console remembers nothing, and all who open the address
see the same. A partition's leader begins to count again when it changes; then nothing is known.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final

from ottla.client.share_partitions import ShareGroup
from ottla.console.page import InputError

DIGITS_MAX: Final = 18
FAILURES: Final = ("release", "reject")
"""Acknowledgements of a delivery that failed."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a share group at a moment. `epochs`: the sum of the leaders' epochs, by which a change shows."""

    at_ms: int
    epochs: int
    failed: int
    accepted: int

    def __str__(self) -> str:
        """The counters in an address."""
        return "-".join(map(str, astuple(self)))


@dataclass(frozen=True, slots=True)
class Since:
    """Deliveries that failed and records that were accepted since a moment; None if a leader has changed."""

    at_ms: int
    failed: int | None
    accepted: int | None


def counters_of(group: ShareGroup | None, at_ms: int) -> Counters | None:
    """The counters now; None if a leader does not report them."""
    if group is None or not all(each.leader_epoch >= 0 for each in group.partitions):
        return None
    parts = group.partitions
    return Counters(
        at_ms,
        sum(each.leader_epoch for each in parts),
        sum(each.lock_timeouts + sum(each.acknowledged.get(kind, 0) for kind in FAILURES) for each in parts),
        sum(each.acknowledged.get("accept", 0) for each in parts),
    )


def counters_in(text: str) -> Counters:
    """The counters that an address has. Raises InputError."""
    numbers = text.split("-")
    if len(numbers) != 4 or not all(each.isascii() and each.isdigit() and len(each) <= DIGITS_MAX for each in numbers):
        raise InputError("The address names no counters: since= is not as a link of this page writes it.")
    return Counters(*map(int, numbers))


def since(before: Counters, now: Counters | None) -> Since:
    """What has happened since then."""
    if now is None or now.epochs != before.epochs or now.failed < before.failed or now.accepted < before.accepted:
        return Since(before.at_ms, None, None)
    return Since(before.at_ms, now.failed - before.failed, now.accepted - before.accepted)
