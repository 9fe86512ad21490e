"""Sorts partition directories: which topic each one belongs to, and how a start handles those that the store lacks.

A directory itself names its topic, partition and topic id. So a data directory can be moved here after a clean stop of
a Kafka broker. Topics also survive the loss of our own store, or of its newest commits. Everything that the directories
do not hold is lost. That includes topics' own configs (except those in Kafka's metadata log: kraft_configs.py), and
partitions at the end of a topic that never had a record. Then it is unknown what may be deleted of these topics, so
`broker/topics/topics.py` suspends their retention and compaction.

Rules, for a directory of partition P of topic T:
- A directory of a deleted topic is removed. So is one that a kill during the first append left without any record.
- A power cut tore or removed `partition.metadata`, or its id differs from T's only in a few flipped bits: the directory
  is T's if the store has T.
- The directory can't be read, or `partition.metadata` is damaged: P is offline if any source names T.
- The id is that of T in the store: the directory is T's, and T has at least P + 1 partitions. If P has its replicas on
  other nodes, it was moved there, and the directory is removed.
- No topic has the id: the directory is T's if no directory has the id that the store gives to T. Then the store is an
  older copy, or has lost its newest commits.
- Any other directory belongs to an unknown topic.

Source: Kafka's LogManager.scala (parseTopicPartitionName), PartitionMetadataFile.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.log.checkpoints import CheckpointUnreadableError, mend_partition_metadata, read_partition_metadata
from ottla.log.files import FileSystem
from ottla.log.removal import fitting
from ottla.metadata.topic_names import FORBIDDEN
from ottla.metadata.topics import TopicRecord

STRAY_SUFFIX: Final = "-stray"

_PARTITION_DIRECTORY: Final = r"([a-zA-Z0-9._-]{1,249})-(\d{1,9})"
_GRAVE: Final = r".*\.[0-9a-f]{32}-delete"
_KRAFT_LOG = "__cluster_metadata-0"


class Told(NamedTuple):
    """A topic as its directories describe it: its id, one more than the highest partition that has a directory, and the
    partitions whose directories name it, in order."""

    topic_id: bytes
    partitions: int
    indexes: tuple[int, ...] = ()


class Stranger(NamedTuple):
    """A directory of a partition's name that no topic of ours owns, and why; it is put aside, never deleted."""

    path: str
    owner: bytes | None
    why: str


@dataclass(slots=True)
class Sorted:
    """The sorted directories.

    - `told`: topics that the store lacks, or knows less of than the directories.
    - `unreadable`: why a partition of a topic is offline.
    - `left`: why an unreadable directory that no topic asks for stays as it is.
    - `owned`: the directories of the store's own topics.
    - `others`: partitions whose directory was another topic's, and so is what is checkpointed of them.
    """

    told: dict[str, Told] = field(default_factory=dict[str, Told])
    unreadable: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    gone: list[str] = field(default_factory=list[str])
    strangers: list[Stranger] = field(default_factory=list[Stranger])
    left: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    owned: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    others: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    from_kafka: bool = False
    """Kafka creates a directory for every partition, so the count is the topic's; Ottla creates it with the first
    record."""


def place_of(entry: str) -> tuple[str, int] | None:
    """(topic, partition) that a directory of this name belongs to; None for other names, and for KRaft's own log."""
    match = re.fullmatch(_PARTITION_DIRECTORY, entry, re.ASCII)
    if match is None or match[1] in FORBIDDEN:
        return None
    return match[1], int(match[2])


def sort_directories(
    files: FileSystem, directory: str, stored: Mapping[str, TopicRecord], deleted_ids: AbstractSet[bytes]
) -> Sorted:
    """Sort the partition directories in `directory` for a node whose store has the topics `stored`."""
    found = Sorted()
    troubled: dict[tuple[str, int], _Trouble] = {}
    owned: dict[str, dict[bytes, list[int]]] = {}
    for entry in files.listdir(directory):
        path = f"{directory}/{entry}"
        found.from_kafka = found.from_kafka or entry == _KRAFT_LOG
        if re.fullmatch(_GRAVE, entry, re.ASCII):
            found.gone.append(path)
            continue
        place = place_of(entry)
        if place is not None:
            owner = _owner_of(files, path, place, stored.get(place[0]), found, troubled)
            if owner in deleted_ids:
                found.gone.append(path)
                found.others.add(place)
            elif owner is not None:
                owned.setdefault(place[0], {}).setdefault(owner, []).append(place[1])
    ids = {record.topic_id for record in stored.values()}
    for name, indexes in sorted(owned.items()):
        record = stored.get(name)
        mine = None if record is None else record.topic_id
        if mine not in indexes:
            # Directories are made with the first record, so the topic that the store knows has none to lose.
            mine = min((owner for owner in indexes if owner not in ids), default=mine)
        if record is not None and mine is not None and mine == record.topic_id:
            found.owned += [(name, index) for index in indexes.get(mine, ()) if index < len(record.partitions)]
        if mine in indexes and (
            record is None or mine != record.topic_id or max(indexes[mine]) >= len(record.partitions)
        ):
            found.told[name] = Told(mine, max(indexes[mine]) + 1, tuple(sorted(indexes[mine])))
        found.strangers += [
            Stranger(f"{directory}/{name}-{index}", owner, "belongs to a topic with another id")
            for owner in sorted(indexes.keys() - {mine})
            for index in sorted(indexes[owner])
        ]
        found.others.update((name, index) for owner in indexes.keys() - {mine} for index in indexes[owner])
    for (name, index), trouble in troubled.items():
        if name in stored or name in found.told:
            found.unreadable[name, index] = trouble.why
            if (told := found.told.get(name)) is not None:
                found.told[name] = told._replace(partitions=max(told.partitions, index + 1))
        elif trouble.is_damage:
            found.strangers.append(Stranger(f"{directory}/{name}-{index}", None, trouble.why))
        else:
            found.left[name, index] = f"{trouble.why}; it is left as it is"
    return found


def moved_away(node_id: int, found: Sorted, stored: Mapping[str, TopicRecord]) -> list[tuple[str, int]]:
    """The partitions with a directory here whose replicas are, by the store, all on other nodes.

    They were moved while this node was down, and their present replicas had all records before they were. A topic that
    was adopted has replicas that the store does not know yet.
    """
    owned = ((name, index) for name, index in found.owned if not stored[name].adopted)
    placed = ((name, index, stored[name].partitions[index]) for name, index in owned)
    return [(name, index) for name, index, record in placed if record.replicas and node_id not in record.replicas]


def unplaced(node_id: int, found: Sorted, stored: Mapping[str, TopicRecord]) -> dict[str, Told]:
    """The topics with directories here that the store does not know, or has adopted without these partitions: it may be
    an older copy."""
    known = {name: record.topic_id for name, record in stored.items() if record.adopted}
    indexes = {name: list(told.indexes) for name, told in found.told.items()}
    ids = {name: told.topic_id for name, told in found.told.items()}
    for name, index in found.owned:
        if name in known and name not in found.told:
            ids[name] = known[name]
            indexes.setdefault(name, []).append(index)
    left: dict[str, Told] = {}
    for name, topic_id in ids.items():
        if name in stored and known.get(name) != topic_id:
            continue
        placed = stored[name].partitions if name in stored else ()
        here = {index for index, record in enumerate(placed) if node_id in record.replicas}
        if unknown := sorted({*indexes[name]} - here):
            left[name] = Told(topic_id, unknown[-1] + 1, tuple(unknown))
    return left


class _Trouble(NamedTuple):
    """Why a directory does not identify its topic; damage is permanent, any other reason may pass."""

    why: str
    is_damage: bool


def _owner_of(
    files: FileSystem,
    path: str,
    place: tuple[str, int],
    record: TopicRecord | None,
    found: Sorted,
    troubled: dict[tuple[str, int], _Trouble],
) -> bytes | None:
    """The id of the topic that owns a partition directory; None if it is unknown, or the directory is empty."""
    try:
        owner = read_partition_metadata(files, path)
        if owner is None and all(name.endswith(".tmp") for name in files.listdir(path)):
            found.gone.append(path)
        elif owner is None and record is not None and mend_partition_metadata(files, path, record.topic_id):
            return record.topic_id
        elif owner is None:
            found.strangers.append(Stranger(path, None, "has no partition.metadata"))
        elif record is not None and owner != record.topic_id and mend_partition_metadata(files, path, record.topic_id):
            return record.topic_id
        return owner
    except NotADirectoryError:
        return None
    except CheckpointUnreadableError as unreadable:
        with suppress(OSError):
            if record is not None and mend_partition_metadata(files, path, record.topic_id):
                return record.topic_id
        troubled[place] = _Trouble(str(unreadable), is_damage=True)
    except OSError as error:
        why = f"{error.filename or path} can't be read: {error.strerror or error}"
        troubled[place] = _Trouble(why, is_damage=False)
    return None


def stray_path(path: str, owner: bytes | None, tail: str = "") -> str:
    """The new path of an unknown topic's directory: Kafka's suffix, in a name that the file system accepts."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/{fitting(name, f'.{(owner or bytes(16)).hex()}{tail}{STRAY_SUFFIX}')}"
