"""Partition directories: whose they are, and taking over a data directory that no metadata store knows yet.

A directory moves here after a clean stop of a Kafka broker (or after the loss of our own store): names, numbers and
topic ids stand in the directories themselves. What does not stand there is lost and said so: topics' own configs, and
partitions that never had a record at the end of a topic.

Source: Kafka's LogManager.scala (parseTopicPartitionName), PartitionMetadataFile.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ottla.broker.topic_names import FORBIDDEN
from ottla.log.checkpoints import CheckpointUnreadable, read_partition_metadata
from ottla.log.files import FileSystem
from ottla.metadata.topics import PartitionRecord, TopicRecord

_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(\d{1,9})", re.ASCII)


def place_of(entry: str) -> tuple[str, int] | None:
    """(topic, partition) that a directory of this name belongs to; None for other names, and for KRaft's own log."""
    match = _PARTITION_DIRECTORY.fullmatch(entry)
    if match is None or match[1] in FORBIDDEN:
        return None
    return match[1], int(match[2])


def owner_of(files: FileSystem, path: str) -> bytes | None:
    """The id of the topic that owns a partition directory; None where it does not say."""
    try:
        return read_partition_metadata(files, path)
    except (CheckpointUnreadable, OSError):
        return None


def adoptable(files: FileSystem, directory: str, node_id: int, notes: Callable[[str], None]) -> dict[str, TopicRecord]:
    """The topics that the directories in `directory` tell of, as records of a cluster of this one node."""
    indexes: dict[tuple[str, bytes], list[int]] = {}
    for entry in files.listdir(directory):
        place = place_of(entry)
        owner = owner_of(files, f"{directory}/{entry}") if place is not None else None
        if place is not None and owner is not None:
            indexes.setdefault((place[0], owner), []).append(place[1])
    placed = PartitionRecord(replicas=(node_id,), isr=(node_id,), leader=node_id)
    records: dict[str, TopicRecord] = {}
    for (name, topic_id), found in sorted(indexes.items()):
        if name in records:
            continue  # two topics of one name: the second is put aside like any stranger
        records[name] = TopicRecord(topic_id, {}, (placed,) * (max(found) + 1))
    if records:
        notes(
            f"{directory} holds {len(records)} topics and no metadata: they are taken over, with the broker's defaults "
            "instead of configs of their own"
        )
    return records
