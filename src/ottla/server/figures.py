"""Reads a node's state for one scrape into plain values, on the event loop and between two requests.

A scrape creates nothing: a coordinator that no client has used yet stays unused. A node reports what it leads and
coordinates. It reports neither while its lease has expired, because another node may have taken over. The cluster's
state is in the metadata image. No thread changes an image, so `metrics.render` counts it on another thread.

Sources: Kafka's ReplicaManager.scala, Partition.scala (isUnderReplicated), ControllerMetadataMetrics.java;
kafka_exporter for the lag of groups.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from ottla.broker.cluster.members import NOBODY
from ottla.broker.metrics import Traffic
from ottla.machine import Millis
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import TopicIdPartition
from ottla.protocol.apis import APIS
from ottla.server import share_groups

if TYPE_CHECKING:
    from ottla.broker.coordinators.shards import ShardHost
    from ottla.broker.node import Node
    from ottla.broker.partitions.partition import Partition
    from ottla.groups.shard import GroupShard
    from ottla.log.log import Log
    from ottla.machine import Shard
    from ottla.metadata.topics import PartitionRecord
    from ottla.txn.shard import TransactionShard

PARTITIONS_PER_SLICE = 500
LATE_MS = 300_000
"""Milliseconds by which a transaction may exceed the longest time-out before it counts as late, as in Kafka."""
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort")


class PartitionFigures(NamedTuple):
    """One replica on this node. `committed_end`: the high watermark if it is current, which it is on the leader and on
    an in-sync follower, otherwise None; `failed`: its log is closed; `offline`: the last write to it failed, or it is
    closed."""

    topic: str
    partition: int
    size: int
    num_log_segments: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset_lag: int
    committed_end: int | None
    is_late: bool
    failed: bool
    offline: bool
    leads: bool
    under_replicated: bool
    under_min_isr: bool


@dataclass(frozen=True, slots=True)
class ApiFigures:
    """Requests of one API: per bucket (see `ottla.broker.metrics.BUCKETS`), and the microseconds of all."""

    name: str
    buckets: list[int]
    micros: int


@dataclass(frozen=True, slots=True)
class Figures:
    """All values of a scrape, read at one time."""

    node_id: int
    connections: int
    connections_accepted: int
    connections_refused: int
    apis: list[ApiFigures]
    traffic: dict[str, Traffic]
    all_traffic: Traffic
    partitions: list[PartitionFigures]
    image: MetadataImage
    is_controller: bool
    certificates: dict[str, float]
    """Seconds until the certificate of each listener expires; negative afterwards."""
    offline: frozenset[TopicIdPartition]
    """Partitions that this node leads and cannot write to."""
    damaged: int
    unreadable: int
    groups: dict[tuple[str, str], int]
    transactions: dict[str, int]
    oldest_open_ms: int
    positions: list[tuple[str, str, int, int]]
    share: share_groups.ShareFigures


async def take(node: Node, now: Millis) -> Figures:
    """Read the node, on its event loop: in slices, so that no request waits long for ten thousand partitions."""
    metrics = node.metrics
    wall_ms = node.wall.at(now)
    partitions, offline = await _partitions(node, now)
    groups = cast("list[GroupShard]", list(coordinated(node, now, node.coordinators.in_use.groups)))
    transactions = cast("list[TransactionShard]", list(coordinated(node, now, node.coordinators.in_use.transactions)))
    standings = [standing for shard in transactions for standing in shard.standings()]
    begun = [start_ms for state, start_ms in standings if state in UNDER_WAY]
    return Figures(
        node_id=node.node_id,
        connections=metrics.connections,
        connections_accepted=metrics.connections_accepted,
        connections_refused=metrics.connections_refused,
        apis=[ApiFigures(APIS[key].name, *metrics.latency(key)) for key in metrics.served()],
        traffic={name: traffic.copy() for name, traffic in sorted(metrics.topics.items())},
        all_traffic=metrics.totals(),
        partitions=partitions,
        image=node.image,
        is_controller=node.members.is_controller and share_groups.is_fresh(node, now),
        certificates={
            each.name: (each.certificate_until_ms - wall_ms) / 1000
            for each in node.listening
            if each.certificate_until_ms is not None
        },
        offline=offline,
        damaged=len(node.failures.damaged),
        unreadable=len(node.failures.reads.all()),
        groups=dict(Counter(state for shard in groups for state in shard.states())),
        transactions=dict(Counter(state for state, _ in standings)),
        oldest_open_ms=max(0, wall_ms - min(begun, default=wall_ms)),
        positions=[position for shard in groups for position in shard.positions()],
        share=share_groups.take(node, now),
    )


async def _partitions(node: Node, now: Millis) -> tuple[list[PartitionFigures], frozenset[TopicIdPartition]]:
    """Every replica here, and what this node leads and can't write to."""
    late_ms = node.wall.at(now) - node.settings["transaction.max.timeout.ms"] - LATE_MS
    found: list[PartitionFigures] = []
    offline: list[TopicIdPartition] = []
    for name in sorted(node.replicas.by_name):
        topic = node.replicas.by_name.get(name)
        for partition in list(topic.partitions.values()) if topic is not None else ():
            placed = node.image.partition(name, partition.index)
            figures = _figures(node, partition, placed, late_ms, fresh=share_groups.is_fresh(node, now))
            found.append(figures)
            if figures.offline and figures.leads:
                offline.append((partition.log.topic_id, partition.index))
            if len(found) % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)
    return found, frozenset(offline)


def _figures(
    node: Node, partition: Partition, placed: PartitionRecord | None, late_ms: int, *, fresh: bool
) -> PartitionFigures:
    log = partition.log
    leads = partition.leads and fresh
    in_sync = placed is not None and node.node_id in placed.isr
    return PartitionFigures(
        partition.topic_name,
        partition.index,
        log.size_bytes,
        len(log.segments),
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark - log.last_stable_offset,
        log.high_watermark if (leads or in_sync) and not log.unopened else None,
        is_late(log, late_ms),
        log.failed is not None,
        log.failed is not None or node.failures.takes_nothing(partition),
        leads,
        leads and placed is not None and len(placed.isr) < len(placed.origin),
        leads and not partition.has_enough_replicas,
    )


def is_late(log: Log, before_ms: int) -> bool:
    """Whether there is an open transaction whose producer has written nothing since then: its coordinator must have
    lost it."""
    return any(
        entry is not None and entry.last_timestamp < before_ms
        for entry in map(log.producers.entries.get, log.producers.open.values())
    )


def coordinated(node: Node, now: Millis, found: ShardHost | None) -> Iterator[Shard]:
    """The loaded shards of one kind of coordinator that this node is now; none if no client has used it yet."""
    if found is not None and share_groups.is_fresh(node, now):
        yield from (shard for partition, shard in found.loaded() if node.leadership.holds(partition))


def offline_partitions(image: MetadataImage, node_id: int, here: frozenset[TopicIdPartition]) -> int:
    """The number of the cluster's partitions that accept no records: they have no leader, or it has reported that its
    log fails. `here`: those that this node leads and can't write to."""
    reported = {int(name): frozenset(record.offline) for name, record in image.nodes.items()}
    reported[node_id] = here
    nothing: frozenset[TopicIdPartition] = frozenset()
    return sum(
        placed.leader == NOBODY or (topic.id, index) in reported.get(placed.leader, nothing)
        for topic in image.topics.values()
        for index, placed in enumerate(topic.partitions)
    )
