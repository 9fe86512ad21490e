"""Defines a record that was found in a partition."""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.records import Record


class Found(NamedTuple):
    """A record of a partition. `control` is the kind of a control record, "" for data."""

    partition: int
    record: Record
    transaction: str
    control: str
    producer_id: int
    codec: str
    leader_epoch: int

    @property
    def order(self) -> tuple[int, int, int]:
        return self.record.timestamp_ms, self.partition, self.record.offset
