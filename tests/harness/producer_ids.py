"""Producer ids straight from a store: what a node does, without one."""

from ottla.metadata.producer_ids import KEY, ProducerIds, ProducerIdsRecord
from ottla.metadata.store import MetadataStore, Put


def take(ids: ProducerIds, store: MetadataStore) -> int:
    """The next id, out of a new block where that in hand is used up."""
    taken = ids.take()
    if taken is not None:
        return taken
    row = store.get(KEY)
    stored = None if row is None else ProducerIdsRecord.decode(row.value)._replace(version=row.version)
    first, behind, expected = ids.next_block(stored)
    store.commit([Put(KEY, behind.encode(), expected)])
    ids.claimed(first)
    return take(ids, store)
