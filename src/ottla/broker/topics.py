"""The topics of this node: their records in the metadata store and their partitions' logs.

Knows how a topic comes, changes and goes: first the store commits, then memory and the disk follow. Does not know the
requests that ask for it (`broker/api`) nor what a log holds.

Invariants:
- a topic in `by_name` stands in `by_id` too and in the store, with the same id, partitions and overrides;
- every partition's leader epoch is higher than in any earlier life of the node: one commit raises them all at start,
  above the store's and above the newest in the log;
- a directory is opened for a partition only if `partition.metadata` names the topic's id. Anything else of that shape
  is renamed to `-stray`, never deleted; what a deletion left behind is deleted.

A deleted topic leaves the tables at once; its logs wait in `_graves` and go a few at a time (`tick`), so that a big
topic does not stop the node.

Sources: Kafka's ReplicationControlManager.java, LogManager.scala; the design's cluster notes, section 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from ottla.broker.adoption import adoptable, owner_of, place_of
from ottla.broker.configs import topic_log_config
from ottla.broker.dynamic_configs import DynamicConfigs
from ottla.broker.partition import Partition
from ottla.broker.topic_names import GROUPS_TOPIC, INTERNAL_TOPICS, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, folded
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.machine import Millis
from ottla.metadata.producer_ids import ProducerIds
from ottla.metadata.store import ABSENT, Delete, Put, StoreFailed
from ottla.metadata.topics import DELETED_PREFIX, PREFIX, DeletedTopic, PartitionRecord, TopicRecord, key_of

if TYPE_CHECKING:
    from ottla.broker.node import Node

GRAVES_PER_TICK: Final = 4
"""Deleted logs whose files are removed before the node serves requests again: a few fsyncs each."""

_GRAVE = re.compile(r".*\.[0-9a-f]{32}-delete", re.ASCII)


class Topic:
    """One topic. `version` is the store's, for compare-and-set."""

    __slots__ = ("id", "internal", "log_config", "name", "overrides", "partitions", "record", "version")

    def __init__(self, name: str, record: TopicRecord, log_config: LogConfig, version: int) -> None:
        self.name = name
        self.id = record.topic_id
        self.record = record
        self.overrides = record.configs
        self.log_config = log_config
        self.internal = name in INTERNAL_TOPICS
        self.partitions: list[Partition] = []
        self.version = version


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made: everything about it has been checked."""

    name: str
    partitions: int
    overrides: dict[str, str] = field(default_factory=dict[str, str])
    topic_id: bytes | None = None


class Topics:
    """All topics of a node. Raises StoreFailed where the metadata store does."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.configs = DynamicConfigs(node)
        self.producer_ids = ProducerIds(node.store)
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.partition_count = 0
        self._folded: dict[str, set[str]] = {}
        self._graves: list[tuple[DeletedTopic, Log]] = []

    # ---- looking up ------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic | None:
        return self.by_name.get(name)

    def partition(self, name: str, index: int) -> Partition | None:
        topic = self.by_name.get(name)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def colliding_with(self, name: str) -> str | None:
        """A topic whose name differs only in '.' and '_'."""
        others = self._folded.get(folded(name), set()) - {name}
        return min(others) if others else None

    # ---- start -----------------------------------------------------------------------------------------------------

    def load(self, now: Millis, *, clean_shutdown: bool) -> None:
        """Read the store, open every log, raise every leader epoch in one commit."""
        node = self._node
        self.configs.load()
        found = {
            key.removeprefix(PREFIX): (TopicRecord.decode(row.value), row.version)
            for key, row in node.store.list(PREFIX)
        }
        if not found and not node.store.list(DELETED_PREFIX):
            adopted = adoptable(node.files, node.directory, node.node_id, node.notes)
            for name in sorted(INTERNAL_TOPICS & adopted.keys()):
                adopted[name] = replace(adopted[name], configs=self.new_internal(name).overrides)
            found = {name: (record, ABSENT) for name, record in adopted.items()}
        self._sort_directories({name: record for name, (record, _) in found.items()})
        opened = {
            name: [
                self._open_log(now, name, record, index, node.upkeep.checkpoint_of(name, index), clean_shutdown)
                for index in range(len(record.partitions))
            ]
            for name, (record, _) in found.items()
        }
        for logs in opened.values():
            for log in logs:
                self.producer_ids.skip_to(max(log.producers.entries, default=-1) + 1)
        raised = {name: _raised(record, opened[name], node.node_id) for name, (record, _) in found.items()}
        if raised:
            puts = [Put(key_of(name), record.encode(), found[name][1]) for name, record in raised.items()]
            version = node.store.commit(puts)
            for name, record in raised.items():
                self._take_in(now, name, record, version, opened[name])

    def _take_in(self, now: Millis, name: str, record: TopicRecord, version: int, logs: Sequence[Log]) -> Topic:
        """The topic stands in the store and its logs are open: put it into the tables."""
        topic = Topic(name, record, topic_log_config(self._node.settings, record.configs), version)
        self.by_name[name] = topic
        self.by_id[topic.id] = topic
        self._folded.setdefault(folded(name), set()).add(name)
        for log in logs:
            self._lead(now, topic, log)
        return topic

    def _open_log(
        self,
        now: Millis,
        name: str,
        record: TopicRecord,
        index: int,
        checkpoint: tuple[int, int, int] = (0, 0, 0),
        clean_shutdown: bool = True,
    ) -> Log:
        node = self._node
        recovery_point, log_start_offset, high_watermark = checkpoint
        return Log.open(
            node.files,
            f"{node.directory}/{name}-{index}",
            topic_log_config(node.settings, record.configs),
            topic_id=record.topic_id,
            now=now,
            clean_shutdown=clean_shutdown,
            same_boot=node.same_boot,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            producer_id_expiration_ms=node.settings["producer.id.expiration.ms"],
            notes=node.notes,
        )

    def _lead(self, now: Millis, topic: Topic, log: Log) -> None:
        """Begin to lead the topic's next partition, whose log this is."""
        node, index = self._node, len(topic.partitions)
        placed = topic.record.partitions[index]
        log.assign_epoch(placed.leader_epoch)
        partition = Partition(node, topic, index, log, placed.leader_epoch, placed.partition_epoch)
        topic.partitions.append(partition)
        self.partition_count += 1
        if node.group_commit and log.recovery_point < log.log_end_offset:
            partition.holding = True
            node.sync_soon(partition)
        else:
            log.advance_high_watermark(log.log_end_offset)
        node.partition_opened(now, partition)

    def _sort_directories(self, records: dict[str, TopicRecord]) -> None:
        """Remove what deletions left, and put aside directories that no topic of ours owns."""
        node = self._node
        deleted = [DeletedTopic.decode(key, row.value) for key, row in node.store.list(DELETED_PREFIX)]
        deleted_ids = {topic.topic_id for topic in deleted}
        for entry in node.files.listdir(node.directory):
            path = f"{node.directory}/{entry}"
            if _GRAVE.fullmatch(entry):
                node.files.rmtree(path)
                continue
            place = place_of(entry)
            if place is None:
                continue
            name, index = place
            record = records.get(name)
            owner = owner_of(node.files, path)
            if record is not None and owner == record.topic_id and index < len(record.partitions):
                continue
            if owner in deleted_ids:
                node.files.rmtree(path)
            else:
                self._put_aside(path, owner)
        if deleted:
            node.store.commit([Delete(topic.key) for topic in deleted])

    def _put_aside(self, path: str, owner: bytes | None) -> None:
        stray = f"{path}.{(owner or bytes(16)).hex()}-stray"
        if self._node.files.exists(stray):
            stray = f"{path}.{self._node.entropy.randbytes(16).hex()}-stray"
        self._node.files.rename(path, stray)
        why = "names another topic's id" if owner else "has no readable partition.metadata"
        self._node.notes(f"{path} {why}; it was renamed to {stray}")

    # ---- changes ---------------------------------------------------------------------------------------------------

    def create_all(self, now: Millis, wanted: Sequence[NewTopic]) -> list[Topic]:
        """Make these topics in one commit. Names, overrides and counts are checked already."""
        if not wanted:
            return []
        records = {
            new.name: TopicRecord(
                new.topic_id or self.new_topic_id(), dict(new.overrides), self._placed(range(new.partitions))
            )
            for new in wanted
        }
        self._bury(now, [grave for grave in self._graves if grave[0].name in records])
        version = self._node.store.commit([Put(key_of(name), r.encode(), ABSENT) for name, r in records.items()])
        created: list[Topic] = []
        for name, record in records.items():
            logs = [self._open_log(now, name, record, index) for index in range(len(record.partitions))]
            created.append(self._take_in(now, name, record, version, logs))
        return created

    def create(
        self, now: Millis, name: str, partitions: int, overrides: dict[str, str], *, topic_id: bytes | None = None
    ) -> Topic:
        return self.create_all(now, [NewTopic(name, partitions, overrides, topic_id)])[0]

    def ensure_internal(self, now: Millis, name: str) -> Topic:
        """One of the broker's own topics, made now if there is none."""
        topic = self.by_name.get(name)
        return topic if topic is not None else self.create_all(now, [self.new_internal(name)])[0]

    def new_internal(self, name: str) -> NewTopic:
        """How Kafka makes its internal topics (KafkaApis, AutoTopicCreationManager)."""
        settings = self._node.settings
        prefix, overrides = {
            GROUPS_TOPIC: ("offsets.topic", {"cleanup.policy": "compact", "compression.type": "producer"}),
            TRANSACTIONS_TOPIC: (
                "transaction.state.log",
                {"cleanup.policy": "compact", "compression.type": "uncompressed"},
            ),
            SHARE_STATE_TOPIC: (
                "share.coordinator.state.topic",
                # A snapshot of a fragmented share partition takes 20 bytes a run.
                {"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": str(16 << 20)},
            ),
        }[name]
        overrides["segment.bytes"] = str(settings[f"{prefix}.segment.bytes"])
        return NewTopic(name, settings[f"{prefix}.num.partitions"], overrides)

    def delete_all(self, now: Millis, topics: Iterable[Topic]) -> None:
        """Take these topics away in one commit; their files follow, a few at every tick."""
        going = list(topics)
        if not going:
            return
        graves = {topic.name: DeletedTopic(topic.id, topic.name, len(topic.partitions)) for topic in going}
        self._node.store.commit(
            [Delete(key_of(topic.name), topic.version) for topic in going]
            + [Put(grave.key, grave.encode()) for grave in graves.values()]
        )
        for topic in going:
            del self.by_name[topic.name]
            del self.by_id[topic.id]
            names = self._folded[folded(topic.name)]
            names.discard(topic.name)
            if not names:
                del self._folded[folded(topic.name)]
            self.partition_count -= len(topic.partitions)
            self._node.topic_deleted(now, topic)
            self._graves.extend((graves[topic.name], partition.log) for partition in topic.partitions)

    def delete(self, now: Millis, topic: Topic) -> None:
        self.delete_all(now, [topic])

    def add_partitions(self, now: Millis, topic: Topic, total: int) -> None:
        """Let the topic have `total` partitions; it has fewer now."""
        added = self._placed(range(len(topic.partitions), total))
        self._commit(topic, replace(topic.record, partitions=topic.record.partitions + added))
        for index in range(len(topic.partitions), total):
            self._lead(now, topic, self._open_log(now, topic.name, topic.record, index))

    def alter_configs(self, now: Millis, topic: Topic, overrides: dict[str, str]) -> None:
        """Replace the topic's own configs, which are checked already; they hold from now on."""
        self._commit(topic, replace(topic.record, configs=dict(overrides)))
        topic.overrides = topic.record.configs
        self._configure(now, topic)

    def reconfigure(self, now: Millis) -> None:
        """The broker's settings changed: every topic that follows them follows now."""
        for topic in self.by_name.values():
            self._configure(now, topic)

    def _configure(self, now: Millis, topic: Topic) -> None:
        log_config = topic_log_config(self._node.settings, topic.overrides)
        if log_config != topic.log_config:
            topic.log_config = log_config
            for partition in topic.partitions:
                partition.log.configure(log_config)
                self._node.upkeep.watch(now, partition)

    def _commit(self, topic: Topic, record: TopicRecord) -> None:
        topic.version = self._node.store.commit([Put(key_of(topic.name), record.encode(), topic.version)])
        topic.record = record

    def _placed(self, indexes: range) -> tuple[PartitionRecord, ...]:
        node_id = self._node.node_id
        placed = PartitionRecord(replicas=(node_id,), isr=(node_id,), leader=node_id)
        return (placed,) * len(indexes)

    def new_topic_id(self) -> bytes:
        """16 random bytes that no topic has."""
        while True:
            topic_id = self._node.entropy.randbytes(16)
            # Kafka reserves small ids, and ids whose text would begin with a dash.
            if topic_id[:8] != bytes(8) and topic_id[0] >> 2 != 62 and topic_id not in self.by_id:
                return topic_id

    # ---- what deletion leaves behind -------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        """When `tick` has something to do: at once, while there are graves."""
        return 0 if self._graves else None

    def tick(self, now: Millis) -> None:
        if self._graves:
            self._bury(now, self._graves[:GRAVES_PER_TICK])

    def finish(self, now: Millis) -> None:
        """Remove everything that is still waiting for it."""
        self._bury(now, self._graves)

    def _bury(self, now: Millis, graves: list[tuple[DeletedTopic, Log]]) -> None:
        if not graves:
            return
        for topic, log in graves:
            try:
                log.delete()
            except OSError as error:
                self._node.notes(f"{log.directory} of the deleted topic {topic.name} can't be removed: {error}")
        buried = {id(log) for _, log in graves}
        self._graves = [grave for grave in self._graves if id(grave[1]) not in buried]
        waiting = {topic.topic_id for topic, _ in self._graves}
        done = {topic.key for topic, _ in graves if topic.topic_id not in waiting}
        if done:
            try:
                self._node.store.commit([Delete(key) for key in sorted(done)])
            except StoreFailed as failed:
                self._node.notes(f"the next start looks for the files of deleted topics again: {failed}")


def _raised(record: TopicRecord, logs: Sequence[Log], node_id: int) -> TopicRecord:
    """The record with leader epochs above all that it and the logs have seen (a store may be older than its logs)."""
    return replace(
        record,
        partitions=tuple(
            replace(placed, leader_epoch=max(placed.leader_epoch, log.latest_epoch)).led_anew(node_id)
            for placed, log in zip(record.partitions, logs, strict=True)
        ),
    )
