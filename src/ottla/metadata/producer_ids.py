"""Allocates producer ids from durable blocks: an id is never allocated twice (KIP-730's rule).

A block is committed to the store before its first id is used. A crash loses the unused ids of its block. Several nodes
may share the store: a block is claimed by compare-and-set. The caller does the commit.

Clients may write any producer id into a log. So the logs' ids count only if the store is new or has lost commits, and
ids that no store can have reached are ignored. Kafka does not read ids from logs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.metadata.row_kinds import single
from ottla.metadata.store import ABSENT

KEY = "producer-ids"
BLOCK = 1000
"""Ids a block holds, as Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""

_SEEN_MAX = 1 << 60
"""Ids from here on were invented by a client: at a thousand blocks a second, allocation takes 36,000 years to get
here."""
_STORED_MAX = 1 << 62
_RESTART = 1 << 61
"""The next id if such ids raised the store's value above `_STORED_MAX`. No id from here on was ever allocated."""


class ProducerIdsRecord(NamedTuple):
    """The next producer id to allocate. `version` is that of its row, 0 until it is committed."""

    next_producer_id: int
    version: int = 0

    def encode(self) -> bytes:
        return json.dumps({"next_producer_id": self.next_producer_id}).encode()

    @staticmethod
    def decode(value: bytes) -> ProducerIdsRecord:
        """Raises ValueError, KeyError or TypeError if the value is not such a row."""
        first = json.loads(value)["next_producer_id"]
        if not isinstance(first, int) or first < 0:
            raise ValueError(f"{first!r} is no producer id")
        return ProducerIdsRecord(first)


PRODUCER_IDS: Final = single(KEY, ProducerIdsRecord.decode)
"""None if no node has claimed a block yet."""


class ProducerIds:
    """The node's source of new producer ids: a block in hand. `lost`: how many commits the store has lost, as far as
    that is known yet."""

    __slots__ = ("_end", "_floor", "_lost", "_next")

    def __init__(self, lost: int) -> None:
        self._floor = 0
        self._next = 0
        self._end = 0
        self._lost = lost  # lost commits of an earlier incarnation; each may have allocated a block

    def lost(self, commits: int) -> None:
        """Note that the store has lost this number of commits of earlier incarnations."""
        self._lost = commits

    def seen(self, producer_ids: Iterable[int]) -> None:
        """Note ids that a log contains. If the store does not know the next id, allocation continues above them."""
        known = max((each for each in producer_ids if each < _SEEN_MAX), default=-1)
        self._floor = max(self._floor, known + 1)

    @property
    def is_used_up(self) -> bool:
        """Whether the next block has to be claimed first."""
        return self._next == self._end

    def take(self) -> int | None:
        """A new producer id; None if the current block is used up."""
        if self.is_used_up:
            return None
        taken = self._next
        self._next += 1
        return taken

    def next_block(self, stored: ProducerIdsRecord | None) -> tuple[int, ProducerIdsRecord, int]:
        """The first id of the next block, the row that claims it, and the version that the row must have."""
        first, version = self._first(stored)
        return first, ProducerIdsRecord(first + BLOCK), version

    def claimed(self, first: int) -> None:
        """Use the block that begins with this id: it is this node's."""
        self._next, self._end, self._lost = first, first + BLOCK, 0

    def behind_lost(self, stored: ProducerIdsRecord | None) -> tuple[ProducerIdsRecord, int] | None:
        """The row that skips the blocks that the store's lost commits may have allocated, and the version that the row
        must have. It is for the first commit of a start, as long as the store knows of lost commits."""
        if not self._lost:
            return None
        first, version = self._first(stored)
        self._lost = 0
        return ProducerIdsRecord(first), version

    def _first(self, stored: ProducerIdsRecord | None) -> tuple[int, int]:
        """The first unallocated id, as far as the store and the logs show, and the row's version."""
        first = 0 if stored is None else stored.next_producer_id
        if first >= _STORED_MAX:
            first = _RESTART
        first += self._lost * BLOCK
        if stored is None or self._lost:
            first = max(first, self._floor)
        return first, ABSENT if stored is None else stored.version
