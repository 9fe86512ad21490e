"""Keeps counts and checksums of input and output.

The checksum is the sum, modulo 2**64, of an 8-byte BLAKE2b digest of each record with its partition and offset. It does
not depend on the order in which partitions are read. A record that is lost, changed or counted twice changes it.

Invariant of a `Tally`: each partition is a run of records from offset 0 without a gap. Records that arrive early wait;
records that arrive again are counted as `repeated` and nowhere else.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b

from ottla.client import TopicPartition

"""(topic, partition)."""

MODULUS = 1 << 64


def digest(topic: str, partition: int, offset: int, key: bytes, value: bytes) -> int:
    """Eight bytes that represent one record at its position in the log."""
    state = blake2b(f"{topic}/{partition}/{offset}/{len(key)}/".encode(), digest_size=8)
    state.update(key)
    state.update(value)
    return int.from_bytes(state.digest(), "big")


class Tally:
    """The records that one side has seen, over all partitions."""

    __slots__ = ("_ahead", "checksum", "next_offsets", "records", "repeated")

    def __init__(self) -> None:
        self.records = 0
        self.checksum = 0
        self.repeated = 0
        self.next_offsets: dict[TopicPartition, int] = {}
        self._ahead: dict[TopicPartition, dict[int, array[int]]] = {}

    def add(self, place: TopicPartition, first_offset: int, digests: array[int]) -> None:
        """Records of one partition, consecutive from `first_offset`."""
        expected = self.next_offsets.get(place, 0)
        if first_offset > expected:
            ahead = self._ahead.setdefault(place, {})
            shorter, longer = sorted((ahead.get(first_offset, digests[:0]), digests), key=len)
            self.repeated += len(shorter)
            ahead[first_offset] = longer
            return
        seen = min(expected - first_offset, len(digests))
        self.repeated += seen
        new = digests[seen:] if seen else digests
        self.records += len(new)
        self.checksum = (self.checksum + sum(new)) % MODULUS
        self.next_offsets[place] = expected + len(new)
        waiting = self._ahead.get(place)
        while waiting and (first := min(waiting)) <= self.next_offsets[place]:
            self.add(place, first, waiting.pop(first))

    @property
    def holes(self) -> list[TopicPartition]:
        """Partitions with records whose predecessors never arrived."""
        return sorted(place for place, waiting in self._ahead.items() if waiting)
