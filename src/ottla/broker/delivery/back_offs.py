"""Keeps the back-offs and failures of records while the state of a share partition is read again.

The coordinator stores how often a record was delivered, but not since when it waits. A node that reads the state again,
although it has led the partition all the time, knows that. Without these back-offs, a group whose members come and go
more often than the back-off lasts would never get the record. The same holds for the reasons that members gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.share.failures import ExplainedFailure
from ottla.share.partition import SharePartition
from ottla.share.records import Key
from ottla.share.standing import Back


class Kept(NamedTuple):
    """The returned records, and the latest failures with a reason."""

    backs: Sequence[Back] = ()
    recent: Sequence[ExplainedFailure] = ()


class BackOffs:
    """By topic id and share partition: of each there is an entry until its state was read, or it is led elsewhere."""

    def __init__(self) -> None:
        self._kept: dict[bytes, dict[Key, Kept]] = {}

    def keep(self, key: Key, machine: SharePartition) -> None:
        """Remember the back-offs of a share partition whose state is to be read again."""
        kept = Kept(machine.backs(), tuple(machine.failures.recent))
        if any(kept):
            self._kept.setdefault(key.topic_id, {})[key] = kept

    def take(self, key: Key) -> Kept:
        """Return the stored entries, and forget them."""
        kept = self._kept.get(key.topic_id)
        found = Kept() if kept is None else kept.pop(key, Kept())
        if kept is not None and not kept:
            del self._kept[key.topic_id]
        return found

    def forget_topic(self, topic_id: bytes, partition: int | None = None) -> None:
        """The topic is deleted, or this partition of it is led by another node, or in another epoch."""
        for key in list(self._kept.get(topic_id, ())):
            if partition in (None, key.partition):
                self.take(key)

    def forget_group(self, group_id: str) -> None:
        """The state of the group was altered or deleted."""
        for topic_id in list(self._kept):
            for key in list(self._kept[topic_id]):
                if key.group_id == group_id:
                    self.take(key)
