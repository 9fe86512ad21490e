"""Hands out producer ids from durable blocks: an id that was ever given is never given again (KIP-730's rule).

A block is committed to the store before its first id leaves; what a crash leaves unused of it is lost for good.
Several nodes may share the store: the block is taken by compare-and-set.

Clients may write any producer id into a log, so logs are asked only where the store is new or has lost commits, and ids
that no store can have reached are not believed. Kafka does not ask logs at all.
"""

import json
from collections.abc import Iterable

from ottla.metadata.store import ABSENT, Conflict, MetadataStore, Put, decoded

KEY = "producer-ids"
BLOCK = 1000
"""Ids a block holds, as Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""

_SEEN_MAX = 1 << 60
"""Ids from here on were made up by a client: a thousand blocks a second take 36,000 years to come here."""
_STORED_MAX = 1 << 62
_RESTART = 1 << 61
"""Where a store goes on that was led beyond `_STORED_MAX` by such ids: nobody honest has been here."""


class NoProducerIds(Exception):
    """The store kept changing under us."""


class ProducerIds:
    """The node's source of new producer ids."""

    __slots__ = ("_end", "_floor", "_lost", "_next", "_store")

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._floor = 0
        self._next = 0
        self._end = 0
        self._lost = store.lost  # commits of an earlier life; each may have handed out a block

    def seen(self, producer_ids: Iterable[int]) -> None:
        """A log knows these ids: where the store does not know how far it had come, it goes on behind them."""
        known = max((each for each in producer_ids if each < _SEEN_MAX), default=-1)
        self._floor = max(self._floor, known + 1)

    def take(self) -> int:
        """A producer id nobody ever had. Raises NoProducerIds, StoreFailed."""
        if self._next == self._end:
            self._next = self._claim()
            self._end = self._next + BLOCK
        taken = self._next
        self._next += 1
        return taken

    def behind_lost(self) -> list[Put]:
        """What leaves out the blocks that lost commits of the store may have handed out, as long as it knows of these:
        for the first commit of a start. Raises StoreFailed."""
        if not self._lost:
            return []
        first, version = self._first()
        self._lost = 0
        return [_put(first, version)]

    def _claim(self) -> int:
        for _ in range(10):
            first, version = self._first()
            try:
                self._store.commit([_put(first + BLOCK, version)])
            except Conflict:
                continue
            self._lost = 0
            return first
        raise NoProducerIds("other nodes took ten blocks of producer ids in a row")

    def _first(self) -> tuple[int, int]:
        """The first id that nobody had, as far as the store and the logs know, and the row's version."""
        row = self._store.get(KEY)
        stored = decoded(self._store, KEY, _next_producer_id, row.value) if row else 0
        if stored >= _STORED_MAX:
            stored = _RESTART
        first = stored + self._lost * BLOCK
        if row is None or self._lost:
            first = max(first, self._floor)
        return first, row.version if row else ABSENT


def _put(next_producer_id: int, version: int) -> Put:
    return Put(KEY, json.dumps({"next_producer_id": next_producer_id}).encode(), version)


def _next_producer_id(value: bytes) -> int:
    first = json.loads(value)["next_producer_id"]
    if not isinstance(first, int) or first < 0:
        raise ValueError(f"{first!r} is no producer id")
    return first
