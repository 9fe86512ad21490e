"""Producer ids, handed out from durable blocks: an id that was ever given is never given again (KIP-730's rule).

A block is committed to the store before its first id leaves; what a crash leaves unused of it is lost for good.
Several nodes may share the store: the block is taken by compare-and-set.
"""

import json

from ottla.metadata.store import ABSENT, Conflict, MetadataStore, Put, decoded

KEY = "producer-ids"
BLOCK = 1000
"""Ids a block holds, as Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE."""

_LAST = (1 << 63) - 1


class NoProducerIds(Exception):
    """All 2^63 ids have been handed out, or the store kept changing under us."""


class ProducerIds:
    """The node's source of new producer ids."""

    __slots__ = ("_end", "_floor", "_next", "_store")

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._floor = 0
        self._next = 0
        self._end = 0

    def skip_to(self, producer_id: int) -> None:
        """Hand out nothing below `producer_id` in the blocks to come: the logs have seen what lies there."""
        self._floor = max(self._floor, producer_id)

    def take(self) -> int:
        """A producer id nobody ever had. Raises NoProducerIds, StoreFailed."""
        if self._next == self._end:
            self._next = self._claim()
            self._end = self._next + BLOCK
        taken = self._next
        self._next += 1
        return taken

    def _claim(self) -> int:
        for _ in range(10):
            row = self._store.get(KEY)
            stored = decoded(self._store, KEY, _next_producer_id, row.value) if row else 0
            # Each commit that the store lost may have handed out a block.
            first = max(self._floor, stored + self._store.lost * BLOCK)
            if first > _LAST - BLOCK:
                raise NoProducerIds("every producer id has been handed out")
            value = json.dumps({"next_producer_id": first + BLOCK}).encode()
            try:
                self._store.commit([Put(KEY, value, row.version if row else ABSENT)])
            except Conflict:
                continue
            return int(first)
        raise NoProducerIds("other nodes took ten blocks of producer ids in a row")


def _next_producer_id(value: bytes) -> int:
    first = json.loads(value)["next_producer_id"]
    if not isinstance(first, int) or first < 0:
        raise ValueError(f"{first!r} is no producer id")
    return first
