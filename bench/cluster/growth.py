"""What controller and metadata cost as a cluster grows, to 100 nodes and 100,000 partitions: CPU of one process.

The code is the nodes' own, without disks and sockets: the rows of a store in memory, the image that each node keeps,
the controller's duties. What every node has to do is measured for one of them. Three racks, three replicas, topics of
100 partitions.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from bench.figures import Figures
from ottla.broker.cluster.duties import duties, turnover
from ottla.broker.cluster.elections import Rules, with_isr
from ottla.broker.cluster.metadata import RowBatch, RowChange
from ottla.broker.cluster.spreading import spread
from ottla.metadata.image import MetadataImage, changed, delta_since, read_image
from ottla.metadata.memory import MemoryStore
from ottla.metadata.nodes import PREFIX, NodeRecord
from ottla.metadata.store import Put
from ottla.metadata.topics import PartitionRecord, TopicRecord, key_of

PER_TOPIC = 100
NODES_MAX = 100
RULES = Rules(min_isr=2)


def growth(partitions: int) -> Figures:
    """The controller and the metadata of a simulated cluster, a node for each 1,000 partitions: as it grows to
    `--simulated` partitions, and ratios to a tenth of these."""
    sizes = [size for size in (1_000, 10_000, 30_000, 100_000) if size < partitions] + [partitions]
    found = {size: measured(max(3, min(NODES_MAX, size // 1_000)), size) for size in sizes}
    figures = {f"{size:,}: {name}": value for size in sizes for name, value in found[size].items()}
    tenth, whole = found.get(partitions // 10), found[partitions]
    for name, value in (tenth or {}).items():
        if value:
            figures[f"of a tenth's: {name.rpartition(' ')[0]}"] = whole[name] / value
    return figures


def filled(nodes: int, partitions: int) -> MemoryStore:
    """A store of a cluster at rest."""
    store, chance = MemoryStore(), random.Random(1)
    racks: dict[int, str | None] = {node: f"rack-{node % 3}" for node in range(1, nodes + 1)}
    store.commit(
        [Put(f"{PREFIX}{node}", NodeRecord("h", 9092, rack, incarnation="a").encode()) for node, rack in racks.items()]
    )
    for at in range(0, partitions, PER_TOPIC):
        count = min(PER_TOPIC, partitions - at)
        placed = tuple(PartitionRecord(each, each, each[0]) for each in spread(racks, count, min(3, nodes), chance))
        record = TopicRecord(chance.randbytes(16), {}, placed)
        store.commit([Put(key_of(f"topic-{at // PER_TOPIC}"), record.encode())])
    return store


def decided(image: MetadataImage, present: dict[int, str]) -> list[RowChange]:
    """The controller's rows, decided in one go: a node lets other requests go between the slices."""
    slices = duties(image, turnover(image, present), lambda _: RULES)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return done.value


def measured(nodes: int, partitions: int) -> Figures:
    """Of a cluster of this size: what a node's start, a failover and a change of one partition's in-sync set cost."""
    store = filled(nodes, partitions)
    image, figures = timed("a node reads all: ms", lambda: read_image(store))
    figures["a node's image MB"] = image_mb(store)
    present = dict.fromkeys(range(1, nodes), "a")  # the last one is gone
    rows, took = timed("a node dies: controller decides ms", lambda: decided(image, present))
    figures |= took
    writes = RowBatch(rows).writes()
    figures["a node dies: rows KB"] = sum(len(write.value) for write in writes if isinstance(write, Put)) / 1e3
    figures |= timed("a node dies: controller writes ms", lambda: store.commit(RowBatch(rows).writes()))[1]
    after, took = timed("a node dies: each node follows ms", lambda: follow(store, image))
    figures |= took
    figures |= timed(
        "a look that finds nothing to do ms", lambda: duties(after, turnover(after, present), lambda _: RULES)
    )[1]
    one = in_sync_change(after)
    store.commit(one.writes())
    figures |= timed("one in-sync set: each node follows ms", lambda: follow(store, after))[1]
    return figures


def in_sync_change(image: MetadataImage) -> RowBatch:
    """The change of one partition's in-sync set."""
    from ottla.broker.cluster.duties import topic_row

    topic = next(each for each in image.topics.values() if len(each.partitions[0].isr) > 1)
    first, *others = topic.partitions
    shrunk = with_isr(first, first.isr[:-1], RULES, recovering=False)
    return RowBatch([topic_row(topic, [shrunk, *others])])


def follow(store: MemoryStore, image: MetadataImage) -> MetadataImage:
    return changed(image, delta_since(store, image))


def image_mb(store: MemoryStore) -> float:
    """What one node's image takes."""
    gc.collect()
    tracemalloc.start()
    image = read_image(store)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert image.partition_count
    return taken / 1e6


def timed(name: str, run: Callable[[], Any]) -> tuple[Any, Figures]:
    """What it returns, and the CPU that it takes, in milliseconds."""
    gc.disable()  # a node looks for circles next to never
    began = time.process_time()
    result = run()
    gc.enable()
    return result, {name: (time.process_time() - began) * 1e3}
