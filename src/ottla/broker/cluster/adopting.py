"""Decides which topics a cluster adopts from its nodes' logs, after the metadata store was restored from a backup.

A node's row names the topics of which the node has logs that the store does not place there (`NodeRecord.found`). The
functions get the metadata image, and return topics that it lacks, or has without these replicas.

Rules:
- A topic is adopted if a starting node has logs of it and reports that the store has lost commits. Otherwise a topic
  that the store does not know was deleted, or its directory comes from an old copy of the disk: it stays unknown.
- No topic is adopted under a name that another one has.
- Its replicas are the nodes that have logs. While a node is missing, the topic stays on hold: that node may have logs
  too, and becomes a replica when it starts. No replica is known to be in sync, so the logs decide who leads.
- Its configs are unknown, so nothing of it is deleted before an operator has confirmed them. Those of the broker's own
  topics are known.
- The deletion of a topic on hold is noted for every node, so that none brings it back (`broker/topics/topics.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from ottla.broker.cluster.elections import counted, undecided
from ottla.broker.cluster.members import NOBODY
from ottla.broker.cluster.metadata import RowChange
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import NodeState
from ottla.metadata.store import ABSENT
from ottla.metadata.topics import PREFIX, PartitionRecord, TopicImage, TopicRecord, key_of


@dataclass(frozen=True, slots=True)
class Adopted:
    """The configs of a topic to adopt, the least number of its partitions, and how many replicas a new topic of this
    name would get."""

    configs: dict[str, str]
    partitions: int = 0
    replicas: int = 1


AdoptedAs = Callable[[str], Adopted]
"""Returns the configs of a topic of this name."""


def adopted_topics(image: MetadataImage, node_ids: Iterable[int], adopted: AdoptedAs) -> list[RowChange]:
    """The rows of the topics to adopt from the logs of these nodes, whose state changes."""
    rows = [image.nodes[str(node_id)] for node_id in sorted(node_ids)]
    doubting = [row for row in rows if row.state is NodeState.STARTING and row.lost_commits]
    ids: dict[str, bytes] = {}
    for row in doubting:
        for found in row.found:
            if found.name not in image.topics and found.topic_id not in image.topics_by_id:
                ids.setdefault(found.name, found.topic_id)
    if not ids:
        return []
    lost_commits = max(row.lost_commits for row in doubting)
    return [
        RowChange(key_of(name), _adopted(image, name, topic_id, lost_commits, adopted(name)), ABSENT)
        for name, topic_id in sorted(ids.items())
    ]


def _adopted(image: MetadataImage, name: str, topic_id: bytes, lost_commits: int, known: Adopted) -> TopicRecord:
    replicas = found_replicas(image, name, topic_id)
    every = sorted({node_id for nodes in replicas.values() for node_id in nodes})
    count = max(known.partitions, 1 + max(replicas))
    return TopicRecord(
        topic_id,
        known.configs,
        tuple(_placed(sorted(replicas.get(index, every)), index, lost_commits) for index in range(count)),
        adopted=True,
    )


def _placed(replicas: list[int], index: int, lost_commits: int) -> PartitionRecord:
    """A partition with these replicas. Which one is preferred as leader changes from partition to partition."""
    first = index % len(replicas)
    return undecided(PartitionRecord((*replicas[first:], *replicas[:first]), (), NOBODY), lost_commits)


def few_replicas(image: MetadataImage, rows: Iterable[RowChange], adopted: AdoptedAs) -> dict[str, tuple[int, int]]:
    """The adopted topics that are on hold no longer with these rows, and have fewer replicas than a new topic would
    get: how many each has, and would get, by name. The backup lacks how many the topic had."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        name, after = row.key.removeprefix(PREFIX), row.record
        before = image.topics.get(name)
        if before is None or not isinstance(after, TopicRecord) or not before.record.adopted or after.adopted:
            continue
        least = min(len(placed.replicas) for placed in after.partitions)
        wanted = min(adopted(name).replicas, len(image.nodes))
        if least < wanted:
            found[name] = least, wanted
    return found


def found_replicas(image: MetadataImage, name: str, topic_id: bytes) -> dict[int, set[int]]:
    """The nodes that report logs of this topic which the store does not place there, by partition."""
    replicas: dict[int, set[int]] = {}
    for node_id, row in image.nodes.items():
        for found in row.found:
            if (found.name, found.topic_id) == (name, topic_id):
                for index in found.partitions:
                    replicas.setdefault(index, set()).add(int(node_id))
    return replicas


def with_found_replicas(image: MetadataImage, topic: TopicImage) -> list[PartitionRecord]:
    """The partitions of an adopted topic, with the replicas on nodes that have started since."""
    partitions = list(topic.partitions)
    found = found_replicas(image, topic.name, topic.id)
    for index in range(len(partitions), 1 + max(found, default=-1)):
        partitions.append(undecided(PartitionRecord(_also(topic, index, found), (), NOBODY), 0))
    for index, nodes in found.items():
        placed = partitions[index]
        replicas = (*placed.replicas, *sorted(nodes.difference(placed.replicas)))
        partitions[index] = counted(placed, replace(placed, replicas=replicas))
    return partitions


def _also(topic: TopicImage, index: int, found: dict[int, set[int]]) -> tuple[int, ...]:
    """The replicas of a partition that the topic did not have so far."""
    known: Collection[int] = {node_id for placed in topic.partitions for node_id in placed.replicas}
    return tuple(sorted(found.get(index, known)))
