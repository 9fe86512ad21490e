"""The topics of this node: their records in the metadata store and their partitions' logs.

Knows how a topic comes, changes and goes: first the store commits, then memory and the disk follow. Does not know the
requests that ask for it (`broker/api`) nor what a log holds.

Invariants:
- a topic in `by_name` stands in `by_id` too and in the store, with the same id, partitions and overrides;
- every partition's leader epoch is higher than in any earlier life of the node: one commit raises them all at start,
  above the store's and above the newest in the log;
- a directory is opened for a partition only if `partition.metadata` names the topic's id. Which topics there are is
  what the store and the directories say together (adoption.py); what nobody owns is renamed to `-stray`, never deleted.

A deleted topic leaves the tables at once; its logs go a few at a time (removal.py), so that a big topic does not stop
the node.

Sources: Kafka's ReplicationControlManager.java, LogManager.scala; the design's cluster notes, section 1.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.config.live import Subscriber
from ottla.broker.config.values import held, is_held, topic_log_config, without_ended_hold
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.unopened import Unopened
from ottla.broker.topics.adoption import Stranger, Told, place_of, sort_directories, stray_path
from ottla.broker.topics.names import INTERNAL_TOPICS, folded
from ottla.broker.topics.removal import Graves
from ottla.log.checkpoints import read_partition_metadata
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.log.unopened import UnopenedLog
from ottla.machine import Millis
from ottla.metadata.producer_ids import ProducerIds
from ottla.metadata.store import ABSENT, Delete, Put, StoreFailed, decoded
from ottla.metadata.topics import DELETED_PREFIX, PREFIX, DeletedTopic, PartitionRecord, TopicRecord, key_of
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.node import Node

OF_THE_WHOLE_NODE: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)
"""Errors at the start that no single partition is to blame for."""
NAMES_SHOWN: Final = 10
"""How many topics a sentence of the log names."""


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


class Topics(Subscriber):
    """All topics of a node. Raises StoreFailed where the metadata store does."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.producer_ids = ProducerIds(node.store)
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.partition_count = 0
        self._folded: dict[str, set[str]] = {}
        self.graves = Graves(node)
        self.unopened = Unopened(node)
        self._unowned: dict[tuple[str, int], str] = {}
        """Why the directory of this place is not opened for its topic, nor for a new one of the name."""
        node.settings.subscribe("topics", self)

    def parts(self) -> list[tuple[str, Graves | Unopened]]:
        """What has timers, by name."""
        return [("the removal of deleted topics", self.graves), ("partitions out of service", self.unopened)]

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
        rows = {
            key.removeprefix(PREFIX): (decoded(node.store, key, TopicRecord.decode, row.value), row.version)
            for key, row in node.store.list(PREFIX)
        }
        records = self._survey(now, {name: record for name, (record, _) in rows.items()})
        count = sum(len(record.partitions) for record in records.values())
        if count and not clean_shutdown:
            checked = "the ends of their logs are" if node.same_boot else "what may not have reached the disk is"
            node.notes(f"the last node here did not stop cleanly: recovering {count} partitions, {checked} checked")
        opened = self._open_all(now, records, clean_shutdown)
        for logs in opened.values():
            for log in logs:
                self.producer_ids.seen(log.producers.entries)
        raised = {name: _raised(record, opened[name], node.node_id) for name, record in records.items()}
        versions = {name: version for name, (_, version) in rows.items()}
        puts = [Put(key_of(name), record.encode(), versions.get(name, ABSENT)) for name, record in raised.items()]
        if puts := [*puts, *self.producer_ids.behind_lost()]:
            version = node.store.commit(puts)
            for name, record in raised.items():
                self._take_in(now, name, record, version, opened[name])
        self.graves.begun()

    def _open_all(self, now: Millis, records: dict[str, TopicRecord], clean_shutdown: bool) -> dict[str, list[Log]]:
        """The logs of these topics, in the order of their partitions."""
        places = [(name, index) for name, record in records.items() for index in range(len(record.partitions))]
        self.unopened.begin(places, power_cut=not clean_shutdown and not self._node.same_boot)
        opened: dict[str, list[Log]] = {name: [] for name in records}
        for name, index in places:
            opened[name].append(self._open_or_leave(now, name, records[name], index, clean_shutdown))
        self.unopened.note([(name, index) for name, index in places if opened[name][index].unopened])
        return opened

    def _survey(self, now: Millis, stored: dict[str, TopicRecord]) -> dict[str, TopicRecord]:
        """The topics of this node: those of the store, and what the directories add to them."""
        node = self._node
        deleted = [
            decoded(node.store, key, partial(DeletedTopic.decode, key), row.value)
            for key, row in node.store.list(DELETED_PREFIX)
        ]
        found = sort_directories(node.files, node.directory, stored, {topic.topic_id for topic in deleted})
        self._unowned = {**found.unreadable, **found.left}
        self.graves.begin(now, found.gone, deleted, {name for name, _ in self._unowned})
        for stranger in found.strangers:
            self._put_aside(stranger)
        for sentence in found.left.values():
            node.warn(sentence)
        records = dict(stored)
        if node.store.lost:
            records = {name: self._doubted(name, record) for name, record in stored.items()}
            node.warn(
                f"the metadata store {node.store.place} has lost its newest {node.store.lost} commits (it is damaged, "
                "or an older copy): topics that were deleted since may be back, empty; configs may be older ones"
            )
        for name, told in found.told.items():
            records[name] = self._taken_over(name, told, stored.get(name), exact=found.from_kafka)
        if found.told:
            node.warn(
                f"{node.directory} holds {_listed(found.told)} of which the metadata store knows nothing, or less: "
                "taken over from the directories, without the configs they had"
            )
        on_hold = sorted(name for name, record in records.items() if is_held(node.settings, record.configs))
        if on_hold:
            node.warn(
                f"retention and compaction delete nothing of {_listed(on_hold)}: ottla.retention.hold is set, as it is "
                "where a topic's configs are not known. Set retention.ms, retention.bytes or cleanup.policy of a topic "
                "to end it there"
            )
        return records

    def _doubted(self, name: str, record: TopicRecord) -> TopicRecord:
        """The record of a topic whose configs may have changed since."""
        return record if name in INTERNAL_TOPICS else replace(record, configs=held(record.configs))

    def _taken_over(self, name: str, told: Told, record: TopicRecord | None, *, exact: bool) -> TopicRecord:
        """The record of a topic whose directories say more than the store."""
        placed = () if record is None else record.partitions
        count = max(told.partitions, len(placed))
        if name in INTERNAL_TOPICS:
            new = self.new_internal(name)
            configs = new.overrides if record is None else record.configs
            count = count if exact else max(count, new.partitions)
        else:
            configs = held({} if record is None else record.configs)
        return TopicRecord(told.topic_id, configs, placed + self._placed(range(len(placed), count)))

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
        interrupted: bool = False,
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
            write_again=node.upkeep.commits.by_fsync,
            interrupted=interrupted,
            notes=node.notes,
            wall=node.wall,
        )

    def _open_or_leave(self, now: Millis, name: str, record: TopicRecord, index: int, clean_shutdown: bool) -> Log:
        """The log of a partition that was there before; what can't be read takes its partition out of service alone."""
        node = self._node
        checkpoint = node.upkeep.checkpoints.of(name, index)
        directory = f"{node.directory}/{name}-{index}"
        why = self._unowned.get((name, index))
        interrupted = self.unopened.is_interrupted((name, index))
        try:
            if why is None:
                return self._open_log(now, name, record, index, checkpoint, clean_shutdown, interrupted)
        except OSError as error:
            if error.errno in OF_THE_WHOLE_NODE:
                raise
            why = f"{error.filename or directory} can't be read: {error.strerror or error}"
        except Exception as error:
            why = f"{directory} can't be opened: {error!r}"
            node.fault(f"{name}-{index} is out of service", error)
        return UnopenedLog(
            node.files,
            directory,
            topic_log_config(node.settings, record.configs),
            topic_id=record.topic_id,
            now=now,
            checkpoint=checkpoint,
            why=why,
        )

    def open_again(self, now: Millis, partition: Partition) -> bool:
        """Look whether a partition that is out of service can be read now; True where it is in service again."""
        node, topic = self._node, self.by_name[partition.topic_name]
        directory = partition.log.directory
        try:
            if node.files.exists(directory) and read_partition_metadata(node.files, directory) != topic.id:
                return False
            checkpoint = node.upkeep.checkpoints.of(topic.name, partition.index)
            log = self._open_log(
                now, topic.name, topic.record, partition.index, checkpoint, clean_shutdown=False, interrupted=True
            )
        except Exception:  # it is as it was, and why was told at the start
            return False
        self._unowned.pop((topic.name, partition.index), None)
        partition.log = log
        self.producer_ids.seen(log.producers.entries)
        self._begin(now, partition)
        return True

    def _lead(self, now: Millis, topic: Topic, log: Log) -> None:
        """Begin to lead the topic's next partition, whose log this is."""
        index = len(topic.partitions)
        placed = topic.record.partitions[index]
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
        topic.partitions.append(partition)
        self.partition_count += 1
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

    def _put_aside(self, stranger: Stranger) -> None:
        files, path = self._node.files, stranger.path
        stray = stray_path(path, stranger.owner)
        if files.exists(stray):
            stray = stray_path(path, stranger.owner, f".{self._node.entropy.randbytes(4).hex()}")
        try:
            files.rename(path, stray)
        except OSError as error:
            why = f"{path} {stranger.why}; it can't be renamed to {stray}: {error}"
            self._node.warn(why)
            place = place_of(path.rpartition("/")[2])
            if place is not None:
                self._unowned[place] = why
        else:
            self._node.warn(f"{path} {stranger.why}; it was renamed to {stray}")

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
        self.graves.clear_way(now, records)
        for (name, _), why in self._unowned.items():
            if name in records:
                raise StoreFailed(f"a directory is in the way of {name}: {why}")
        self._node.upkeep.checkpoints.names_made(records.keys())
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
            CONSUMER_OFFSETS_TOPIC: ("offsets.topic", {"cleanup.policy": "compact", "compression.type": "producer"}),
            TRANSACTION_STATE_TOPIC: (
                "transaction.state.log",
                {"cleanup.policy": "compact", "compression.type": "uncompressed"},
            ),
            SHARE_GROUP_STATE_TOPIC: (
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
            for partition in topic.partitions:
                self.unopened.forget(partition)
                self._unowned.pop((topic.name, partition.index), None)
            self.graves.add(graves[topic.name], [partition.log for partition in topic.partitions])

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
        configs = without_ended_hold(topic.overrides, overrides)
        self._commit(topic, replace(topic.record, configs=configs))
        topic.overrides = topic.record.configs
        self._configure(now, topic)

    def settings_changed(self, now: Millis) -> None:
        """Every topic that follows the broker's settings follows now."""
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


def _raised(record: TopicRecord, logs: Sequence[Log], node_id: int) -> TopicRecord:
    """The record with leader epochs above all that it and the logs have seen (a store may be older than its logs)."""
    return replace(
        record,
        partitions=tuple(
            replace(placed, leader_epoch=max(placed.leader_epoch, log.latest_epoch)).led_anew(node_id)
            for placed, log in zip(record.partitions, logs, strict=True)
        ),
    )


def _listed(names: Collection[str]) -> str:
    """`topic a`, `topics a, b`, or how many more than these there are."""
    shown = sorted(names)[:NAMES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{'topic' if len(names) == 1 else 'topics'} {', '.join(shown)}{more}"
