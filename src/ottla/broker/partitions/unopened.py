"""Partitions whose log could not be opened at the start: tried again now and then, while all others are served.

Knows: why each is out of service, and when it is looked at next. A partition whose files were put right comes back
without a restart; one whose directory was taken away comes back empty. Does not know: how a log is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.machine import Millis

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.partitions.partition import Partition

RETRY_MS: Final = 10_000


class Unopened:
    """The partitions of one node that have no open log."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._partitions: dict[Partition, str] = {}
        self._retry_at: Millis | None = None

    def add(self, now: Millis, partition: Partition, why: str) -> None:
        """This partition has no log that could be read; `why` is told once."""
        self._partitions[partition] = why
        self._retry_at = now + RETRY_MS
        self._node.warn(f"{partition.name} is out of service, which is looked at again: {why}")

    def forget(self, partition: Partition) -> None:
        """This partition is deleted."""
        self._partitions.pop(partition, None)

    def deadline(self) -> Millis | None:
        return self._retry_at if self._partitions else None

    def tick(self, now: Millis) -> None:
        if self._partitions and self._retry_at is not None and self._retry_at <= now:
            self._retry_at = now + RETRY_MS
            for partition in list(self._partitions):
                if self._node.topics.open_again(now, partition):
                    del self._partitions[partition]
                    self._node.notes(f"{partition.name} is in service again")
