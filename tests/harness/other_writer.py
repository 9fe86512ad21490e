"""What another writer of the metadata store does to a partition, and how a node hears of it."""

from dataclasses import replace
from typing import Any

from ottla.broker.node import Node
from ottla.machine import Millis
from ottla.metadata.image import delta_since
from ottla.metadata.memory import MemoryStore
from ottla.metadata.row_kinds import encoded
from ottla.metadata.store import Put
from ottla.metadata.topics import key_of


def place(node: Node, store: MemoryStore, now: Millis, topic: str, index: int, **changes: Any) -> None:
    """Change a partition's record, and tell the node."""
    record = node.image.topics[topic].record
    placed = record.partitions[index]
    changed = replace(placed, partition_epoch=placed.partition_epoch + 1, **changes)
    partitions = (*record.partitions[:index], changed, *record.partitions[index + 1 :])
    store.commit([Put(key_of(topic), encoded(replace(record, partitions=partitions)))])
    node.changed(now, delta_since(store, node.image))
