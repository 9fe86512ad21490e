"""Defines a topic's row in the metadata store: one key per topic, so that thousands of partitions are a few keys.

A topic's record has every field that replication needs: replicas, in-sync replicas, eligible leader replicas, epochs.

    topic/<name>            {"topic_id": base64url, "configs": {name: text}, "partitions": [[...], ...],
                             "unclean": {index: leader epoch}, "unproven": {index: [...]}, "adopted": true}
    deleted/<topic_id hex>/<node id>  {"name": ..., "partitions": n}: deleted, but that node may still have files

A partition is an array, because 10,000 of them must fit into one value: [replicas, isr, elr, last_known_elr, adding,
removing, leader, leader_epoch, partition_epoch, recovering]. `unclean` has an entry for each partition that was ever
led by a replica which may have lacked acknowledged records. `unproven` names eligible replicas that may lack some,
for each partition that has such replicas. `adopted` marks a topic whose replicas may not all be
known.

Source: Kafka's TopicRecord and PartitionRecord (metadata/src/main/resources/common/metadata), KIP-497, KIP-966.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from ottla.metadata.row_kinds import Configs, RowKind, Rows
from ottla.protocol.uuids import parse_uuid, uuid_text

PREFIX: Final = "topic/"
DELETED_PREFIX: Final = "deleted/"


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """The cluster's metadata of one partition; ids are node ids, and `leader` -1 is none."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False
    unclean_epoch: int = -1
    """The newest leader epoch whose leader may have lacked acknowledged records when it was elected, -1 for none. Only
    a replica whose log is older than that gives up records that it knows to be committed."""
    unproven: tuple[int, ...] = ()
    """Eligible replicas whose nodes were killed and have started again since they were in sync: their logs may have
    lost an end that no checkpoint shows."""

    @property
    def is_moving(self) -> bool:
        """Whether replicas of it are being moved to other nodes (KIP-455)."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas of the partition once its reassignment is complete."""
        return tuple(node_id for node_id in self.replicas if node_id not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas of the partition before its reassignment."""
        return tuple(node_id for node_id in self.replicas if node_id not in self.adding)

    def columns(self) -> list[object]:
        return [
            self.replicas,
            self.isr,
            self.elr,
            self.last_known_elr,
            self.adding,
            self.removing,
            self.leader,
            self.leader_epoch,
            self.partition_epoch,
            int(self.recovering),
        ]

    @staticmethod
    def of(columns: list[Any], unclean_epoch: int = -1, unproven: Sequence[int] = ()) -> PartitionRecord:
        replicas, isr, elr, last_known_elr, adding, removing, leader, leader_epoch, partition_epoch, recovering = (
            columns
        )
        if not all(type(each) is int for each in (*replicas, *isr, leader, leader_epoch, partition_epoch)):
            raise ValueError(f"{columns!r} is no partition")
        return PartitionRecord(
            replicas=tuple(replicas),
            isr=tuple(isr),
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            elr=tuple(elr),
            last_known_elr=tuple(last_known_elr),
            adding=tuple(adding),
            removing=tuple(removing),
            recovering=bool(recovering),
            unclean_epoch=unclean_epoch,
            unproven=tuple(unproven),
        )

    def stands_in(self, columns: list[Any], unclean_epoch: int = -1, unproven: Sequence[int] = ()) -> bool:
        """Whether these columns equal the record, without creating a record of them: of thousands only few have
        changed."""
        replicas, isr, elr, last_known_elr, adding, removing, *rest = columns
        return (
            [self.leader, self.leader_epoch, self.partition_epoch, int(self.recovering)] == rest
            and self.replicas == (*replicas,)
            and self.isr == (*isr,)
            and self.elr == (*elr,)
            and self.last_known_elr == (*last_known_elr,)
            and self.adding == (*adding,)
            and self.removing == (*removing,)
            and self.unclean_epoch == unclean_epoch
            and self.unproven == (*unproven,)
        )

    def led_anew(self, leader: int) -> PartitionRecord:
        """`leader` leads from now on, in a higher epoch."""
        return replace(
            self, leader=leader, leader_epoch=self.leader_epoch + 1, partition_epoch=self.partition_epoch + 1
        )


def placed_on(node_id: int, count: int) -> tuple[PartitionRecord, ...]:
    """This number of new partitions, each with one replica, on this node."""
    return (PartitionRecord(replicas=(node_id,), isr=(node_id,), leader=node_id),) * count


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """One topic: 16-byte id, its own configs as text, its partitions in order.

    `adopted`: the store has learned of the topic from logs, and a node may be down that has more of them.
    """

    topic_id: bytes
    configs: dict[str, str]
    partitions: tuple[PartitionRecord, ...]
    adopted: bool = False

    def encode(self) -> bytes:
        row: dict[str, object] = {
            "topic_id": uuid_text(self.topic_id),
            "configs": self.configs,
            "partitions": [partition.columns() for partition in self.partitions],
        }
        unclean = {
            str(index): partition.unclean_epoch
            for index, partition in enumerate(self.partitions)
            if partition.unclean_epoch >= 0
        }
        if unclean:  # beside the columns: earlier versions read rows with exactly these
            row["unclean"] = unclean
        unproven = {str(index): each.unproven for index, each in enumerate(self.partitions) if each.unproven}
        if unproven:
            row["unproven"] = unproven
        if self.adopted:
            row["adopted"] = True
        return json.dumps(row, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes, known: tuple[PartitionRecord, ...] = ()) -> TopicRecord:
        """Partitions that equal those in `known` are the same objects. Raises ValueError, KeyError or TypeError if the
        value is not a topic's."""
        fields = json.loads(value)
        columns = fields["partitions"]
        unclean = {int(index): int(epoch) for index, epoch in fields.get("unclean", {}).items()}
        unproven = {int(index): [int(each) for each in nodes] for index, nodes in fields.get("unproven", {}).items()}
        before = [*known[: len(columns)], *[None] * (len(columns) - len(known))]
        return TopicRecord(
            topic_id=parse_uuid(fields["topic_id"]),
            configs=texts(fields["configs"]),
            partitions=tuple(
                old
                if old is not None and old.stands_in(new, unclean.get(index, -1), unproven.get(index, ()))
                else PartitionRecord.of(new, unclean.get(index, -1), unproven.get(index, ()))
                for index, (old, new) in enumerate(zip(before, columns, strict=True))
            ),
            adopted=bool(fields.get("adopted", False)),
        )


class DeletedTopic(NamedTuple):
    """A deleted topic whose directories may still be on the disk of a node; `node_id` None: of any node, as in older
    stores."""

    topic_id: bytes
    name: str
    partitions: int
    node_id: int | None

    @property
    def key(self) -> str:
        whose = "" if self.node_id is None else f"/{self.node_id}"
        return f"{DELETED_PREFIX}{self.topic_id.hex()}{whose}"

    def encode(self) -> bytes:
        return json.dumps({"name": self.name, "partitions": self.partitions}).encode()

    @staticmethod
    def decode(key: str, value: bytes) -> DeletedTopic:
        """Raises ValueError, KeyError or TypeError if the value is not a deleted topic's."""
        fields = json.loads(value)
        topic_id, _, node_id = key.removeprefix(DELETED_PREFIX).partition("/")
        whose = int(node_id) if node_id else None
        return DeletedTopic(bytes.fromhex(topic_id), fields["name"], fields["partitions"], whose)


def key_of(name: str) -> str:
    return PREFIX + name


def texts(value: object) -> dict[str, str]:
    """A JSON object of texts. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} has no names and values")
    fields = cast("dict[object, object]", value)
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in fields.items()):
        raise ValueError(f"{value!r} has values that are no texts")
    return cast("dict[str, str]", value)


# ---- what the image holds ------------------------------------------------------------------------------------------


class TopicImage(NamedTuple):
    """One topic. `version` is that of its row."""

    name: str
    record: TopicRecord
    version: int

    @property
    def id(self) -> bytes:
        return self.record.topic_id

    @property
    def configs(self) -> Configs:
        """Its own configs, which override the broker's."""
        return self.record.configs

    @property
    def partitions(self) -> tuple[PartitionRecord, ...]:
        return self.record.partitions


class Topics(NamedTuple):
    """All topics, and how many partitions they have together."""

    by_name: Mapping[str, TopicImage] = MappingProxyType({})
    by_id: Mapping[bytes, TopicImage] = MappingProxyType({})
    partition_count: int = 0


def _decode(value: bytes, name: str, known: Topics) -> TopicRecord:
    topic = known.by_name.get(name)
    return TopicRecord.decode(value, () if topic is None else topic.partitions)


def _apply(known: Topics, rows: Rows) -> Topics:
    by_name, by_id, count = dict(known.by_name), dict(known.by_id), known.partition_count
    # All removals come first: a topic of the same name may be added by the same rows.
    for name in rows:
        old = by_name.get(name)
        if old is not None:
            del by_id[old.id]
            count -= len(old.partitions)
    for name, row in rows.items():
        if row is None:
            by_name.pop(name, None)
        else:
            assert isinstance(row.record, TopicRecord)
            topic = by_name[name] = TopicImage(name, row.record, row.version)
            by_id[topic.id] = topic
            count += len(topic.partitions)
    return Topics(by_name, by_id, count)


def _names(known: Topics) -> Mapping[str, TopicImage]:
    return known.by_name


TOPICS: Final = RowKind(PREFIX, _decode, _apply, _names, Topics())
