"""The topics: how one comes, changes and goes, and how what lies on this node follows.

Knows that first the store commits, then the image moves, then memory and the disk follow (`follow`), whoever it was
that committed. Does not know the requests that ask for a change (`broker/api`) nor what a log holds.

Invariants:
- every replica that the image places here, and no other, is in `Replicas`, with the topic's id and the image's epochs;
- every partition's leader epoch is higher than in any earlier life of the node: one commit raises them all at start,
  above the store's and above the newest in the log;
- which topics there are is what the store and the directories say together (survey.py).

A deleted topic leaves the tables at once; its logs go a few at a time (removal.py), so that a big topic does not stop
the node.

Sources: Kafka's ReplicationControlManager.java, ReplicaManager.applyDelta; the design's cluster notes, section 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.broker.cluster.metadata import Metadata, RowChange
from ottla.broker.config.live import Subscriber
from ottla.broker.config.values import topic_log_config, without_ended_hold
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic, Replicas
from ottla.broker.partitions.unopened import Unopened
from ottla.broker.topics.creation import NewTopic, new_internal
from ottla.broker.topics.opening import Logs
from ottla.broker.topics.removal import Graves
from ottla.broker.topics.survey import raised, survey
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.log.unopened import UnopenedLog
from ottla.machine import Millis
from ottla.metadata.image import MetadataImage, TopicImage
from ottla.metadata.producer_ids import ProducerIds
from ottla.metadata.store import ABSENT, Put, StoreFailed
from ottla.metadata.topic_names import INTERNAL_TOPICS, folded
from ottla.metadata.topics import DeletedTopic, TopicRecord, key_of, placed_on

if TYPE_CHECKING:
    from ottla.broker.node import Node


class Topics(Subscriber):
    """Makes, changes and removes topics. Raises StoreFailed where the metadata store does."""

    def __init__(self, node: Node, metadata: Metadata, replicas: Replicas) -> None:
        self._node = node
        self._metadata = metadata
        self._replicas = replicas
        self.producer_ids = ProducerIds(node.store)
        self.graves = Graves(node, metadata)
        self.unopened = Unopened(node)
        self._logs = Logs(node)
        self._opened: dict[tuple[str, int], Log] = {}
        """At start: logs that are open, while the commit that begins to use them is not done."""
        self._folded: dict[str, set[str]] = {}
        node.settings.subscribe("topics", self)

    def parts(self) -> list[tuple[str, Graves | Unopened]]:
        """What has timers, by name."""
        return [("the removal of deleted topics", self.graves), ("partitions out of service", self.unopened)]

    def colliding_with(self, name: str) -> str | None:
        """A topic whose name differs only in '.' and '_'."""
        others = self._folded.get(folded(name), set()) - {name}
        return min(others) if others else None

    # ---- start -----------------------------------------------------------------------------------------------------

    def load(self, now: Millis, *, clean_shutdown: bool) -> None:
        """Read the store, open every log, raise every leader epoch in one commit."""
        node, metadata = self._node, self._metadata
        stored = metadata.image.topics
        found = survey(node, self.graves, now, {name: topic.record for name, topic in stored.items()})
        self._logs.unowned = found.unowned
        here = [
            (name, record, index)
            for name, record in found.records.items()
            for index, placed in enumerate(record.partitions)
            if node.node_id in placed.replicas
        ]
        if here and not clean_shutdown:
            checked = "the ends of their logs are" if node.same_boot else "what may not have reached the disk is"
            node.notes(f"the last node here did not stop cleanly: recovering {len(here)} partitions, {checked} checked")
        self._open_all(now, here, clean_shutdown=clean_shutdown)
        changes: list[RowChange] = []
        for name, record in found.records.items():
            version = stored[name].version if name in stored else ABSENT
            changes.append(RowChange(key_of(name), raised(name, record, self._opened, node.node_id), version))
        producer_ids = self.producer_ids.behind_lost()
        if changes or producer_ids:
            metadata.commit(now, changes, producer_ids)
        self.graves.begun(now)

    def _open_all(self, now: Millis, here: Sequence[tuple[str, TopicRecord, int]], *, clean_shutdown: bool) -> None:
        places = [(name, index) for name, _, index in here]
        self.unopened.begin(places, power_cut=not clean_shutdown and not self._node.same_boot)
        for name, record, index in here:
            interrupted = self.unopened.is_interrupted((name, index))
            log = self._logs.open_known(
                now, name, record, index, clean_shutdown=clean_shutdown, interrupted=interrupted
            )
            self._opened[name, index] = log
            self.producer_ids.seen(log.producers.entries)
        self.unopened.note([place for place in places if self._opened[place].unopened])

    # ---- what lies here follows the image --------------------------------------------------------------------------

    def follow(self, now: Millis, before: MetadataImage, names: Sequence[str]) -> None:
        """The image says something new of these topics: open, lead, leave and remove what is here of them."""
        image = self._metadata.image
        for name in names:
            old, new = before.topics.get(name), image.topics.get(name)
            if old is not None and (new is None or new.id != old.id):
                self._gone(now, old)
        coming = [name for name in names if name in image.topics and name not in self._replicas.by_name]
        if coming:
            self._make_way(now, coming)
        for name in names:
            topic = image.topics.get(name)
            if topic is not None:
                self._folded.setdefault(folded(name), set()).add(name)
                self._follow(now, topic)

    def _gone(self, now: Millis, topic: TopicImage) -> None:
        """The topic is deleted: what is here of it goes, its files a few at every tick."""
        alike = self._folded.get(folded(topic.name), set())
        alike.discard(topic.name)
        if not alike:
            self._folded.pop(folded(topic.name), None)
        local = self._replicas.by_name.get(topic.name)
        partitions = [] if local is None else list(local.partitions.values())
        if local is not None:
            self._replicas.remove(local)
        self._node.topic_deleted(now, topic, partitions)
        for partition in partitions:
            self.unopened.forget(partition)
            self._logs.unowned.pop((topic.name, partition.index), None)
        grave = DeletedTopic(topic.id, topic.name, len(topic.partitions))
        self.graves.add(grave, [partition.log for partition in partitions])

    def _make_way(self, now: Millis, names: Sequence[str]) -> None:
        """New topics may have these names: what deleted ones left behind must not become theirs."""
        in_the_way = self.graves.clear_way(now, names)
        for name, why in in_the_way.items():
            for index in range(len(self._metadata.image.topics[name].partitions)):
                self._logs.unowned[name, index] = why
        self._node.upkeep.checkpoints.names_made(set(names))

    def _follow(self, now: Millis, topic: TopicImage) -> None:
        node_id = self._node.node_id
        here = [index for index, placed in enumerate(topic.partitions) if node_id in placed.replicas]
        local = self._replicas.by_name.get(topic.name)
        if local is None and not here:
            return
        log_config = topic_log_config(self._node.settings, topic.configs)
        if local is None:
            local = LocalTopic(topic.name, topic.id, log_config, internal=topic.name in INTERNAL_TOPICS)
            self._replicas.add(local)
        elif log_config != local.log_config:
            self._configure(now, local, log_config)
        for index in here:
            if index not in local.partitions:
                self._open(now, local, topic, index)

    def _open(self, now: Millis, local: LocalTopic, topic: TopicImage, index: int) -> None:
        """A partition that has a replica here from now on."""
        placed = topic.partitions[index]
        log = self._opened.pop((topic.name, index), None)
        if log is None:
            log = self._logs.open_new(now, topic.name, topic.record, index)
        node = self._node
        partition = Partition(
            topic.name,
            index,
            log,
            node_id=node.node_id,
            leader_epoch=placed.leader_epoch,
            partition_epoch=placed.partition_epoch,
            traffic=node.metrics.traffic(topic.name),
            commits=node.upkeep.commits,
            wakes=node.parking,
        )
        local.partitions[index] = partition
        self._begin(now, partition)

    def _begin(self, now: Millis, partition: Partition) -> None:
        node, log = self._node, partition.log
        log.assign_epoch(partition.leader_epoch)
        if isinstance(log, UnopenedLog):
            self.unopened.add(now, partition, log.why)
        elif node.upkeep.commits.by_fsync and log.recovery_point < log.log_end_offset:
            partition.holding = True
            node.upkeep.commits.sync_soon(partition)
        else:
            log.advance_high_watermark(log.log_end_offset)
        node.partition_opened(now, partition)

    def open_again(self, now: Millis, partition: Partition) -> bool:
        """Look whether a partition that is out of service can be read now; True where it is in service again."""
        topic = self._metadata.image.topics[partition.topic_name]
        log = self._logs.open_again(now, topic.name, topic.record, partition.index)
        if log is None:
            return False
        partition.log = log
        self.producer_ids.seen(log.producers.entries)
        self._begin(now, partition)
        return True

    def settings_changed(self, now: Millis) -> None:
        """Every topic that follows the broker's settings follows now."""
        for topic in self._replicas.by_name.values():
            agreed = self._metadata.image.topics_by_id.get(topic.id)
            if agreed is None:
                continue  # it goes with the same commits
            log_config = topic_log_config(self._node.settings, agreed.configs)
            if log_config != topic.log_config:
                self._configure(now, topic, log_config)

    def _configure(self, now: Millis, topic: LocalTopic, log_config: LogConfig) -> None:
        topic.log_config = log_config
        for partition in topic.partitions.values():
            partition.log.configure(log_config)
            self._node.upkeep.watch(now, partition)

    # ---- changes ---------------------------------------------------------------------------------------------------

    def create_all(self, now: Millis, wanted: Sequence[NewTopic]) -> None:
        """Make these topics in one commit. Names, overrides and counts are checked already."""
        if not wanted:
            return
        records = {
            new.name: TopicRecord(
                new.topic_id or self.new_topic_id(),
                dict(new.overrides),
                placed_on(self._node.node_id, new.partitions),
            )
            for new in wanted
        }
        for why in self.graves.clear_way(now, records).values():
            raise StoreFailed(why)
        for (name, _), why in self._logs.unowned.items():
            if name in records:
                raise StoreFailed(f"a directory is in the way of {name}: {why}")
        self._metadata.commit(now, [RowChange(key_of(name), record, ABSENT) for name, record in records.items()])

    def create(
        self, now: Millis, name: str, partitions: int, overrides: dict[str, str], *, topic_id: bytes | None = None
    ) -> LocalTopic:
        self.create_all(now, [NewTopic(name, partitions, overrides, topic_id)])
        return self._replicas.by_name[name]

    def ensure_internal(self, now: Millis, name: str) -> None:
        """One of the broker's own topics is made now if there is none."""
        if name not in self._metadata.image.topics:
            self.create_all(now, [new_internal(self._node.settings, name)])

    def delete_all(self, now: Millis, topics: Iterable[TopicImage]) -> None:
        """Take these topics away in one commit."""
        going = list(topics)
        if going:
            graves = [DeletedTopic(topic.id, topic.name, len(topic.partitions)) for topic in going]
            self._metadata.commit(
                now,
                [RowChange(key_of(topic.name), None, topic.version) for topic in going],
                [Put(grave.key, grave.encode()) for grave in graves],
            )

    def add_partitions(self, now: Millis, topic: TopicImage, total: int) -> None:
        """Let the topic have `total` partitions; it has fewer now."""
        added = placed_on(self._node.node_id, total - len(topic.partitions))
        self._replace(now, topic, replace(topic.record, partitions=topic.partitions + added))

    def alter_configs(self, now: Millis, topic: TopicImage, overrides: Mapping[str, str]) -> None:
        """Replace the topic's own configs, which are checked already; they hold from now on."""
        self._replace(now, topic, replace(topic.record, configs=without_ended_hold(topic.configs, overrides)))

    def _replace(self, now: Millis, topic: TopicImage, record: TopicRecord) -> None:
        self._metadata.commit(now, [RowChange(key_of(topic.name), record, topic.version)])

    def new_topic_id(self) -> bytes:
        """16 random bytes that no topic has."""
        taken = self._metadata.image.topics_by_id
        while True:
            topic_id = self._node.entropy.randbytes(16)
            # Kafka reserves small ids, and ids whose text would begin with a dash.
            if topic_id[:8] != bytes(8) and topic_id[0] >> 2 != 62 and topic_id not in taken:
                return topic_id
