"""Makes the replicas on this node follow the metadata image: opens, leads, resigns and removes them as it says.

A deleted topic leaves the tables at once (`follow`). Its logs are removed a few at a time (removal.py), so that a big
topic does not stop the node. All other news are applied partition by partition (`place`), in slices: an image may bring
thousands of new partitions or leaders. Until its turn comes, a partition has its former state. It counts as led by no
node if the image has another leader epoch (`Replicas.behind`).

Invariant: when no topic is behind, `Replicas` has exactly the replicas that the image places here, with the topic's id
and the image's epochs. While a start opens logs that were here before, they wait in `_opened` for the commit that
begins to use them.

Source: ReplicaManager.applyDelta.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.members import NOBODY, Members
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.registrations import Registrations
from ottla.broker.config.live import Subscriber
from ottla.broker.config.values import topic_log_config, topic_value
from ottla.broker.environment import Environment
from ottla.broker.events import Events
from ottla.broker.metrics import Metrics
from ottla.broker.parking import Parking
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic, Replicas
from ottla.broker.partitions.unopened import Unopened
from ottla.broker.topics.opening import Logs
from ottla.broker.topics.removal import Removals
from ottla.broker.upkeep.upkeep import Upkeep
from ottla.log.answers import StorageError
from ottla.log.config import LogConfig
from ottla.log.cost import BEYOND_USUAL, TimeSlice
from ottla.log.log import Log
from ottla.log.unopened import UnopenedLog
from ottla.machine import Millis
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import FoundTopic
from ottla.metadata.producer_ids import ProducerIds
from ottla.metadata.topics import DeletedTopic, PartitionRecord, TopicImage, TopicRecord
from ottla.protocol.errors import ErrorCode
from ottla.replica.copy_status import Event
from ottla.replica.isr_history import IsrHistory

if TYPE_CHECKING:
    from ottla.replica.followers import Followers

OPENED: Final = 10
"""Steps for the first use of a partition here (`log.cost`)."""
LED: Final = 4
"""Steps for a change of its leader."""


class Placement(Subscriber):
    """See the module's docstring."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        members: Members,
        replicas: Replicas,
        removals: Removals,
        producer_ids: ProducerIds,
        upkeep: Upkeep,
        parking: Parking,
        metrics: Metrics,
        events: Events,
        isr_history: IsrHistory,
    ) -> None:
        self._environment = environment
        self._isr_history = isr_history
        self._upkeep = upkeep
        self._parking = parking
        self._metrics = metrics
        self._events = events
        self._metadata = metadata
        self._members = members
        self._replicas = replicas
        self._removals = removals
        self._producer_ids = producer_ids
        self._registrations = Registrations(metadata, members.incarnation)
        self.unopened = Unopened(environment, self._open_again)
        self.logs = Logs(environment, upkeep)
        self._opened: dict[tuple[str, int], Log] = {}
        self.is_loaded = False
        """Whether the start has placed all logs that the store knows."""
        self._waiting: deque[str] = deque()
        """The topics that are behind, in order."""
        self._topic: TopicImage | None = None
        """The first of them, as it was when its turn began."""
        self._left: deque[int] = deque()
        """The partitions of it whose turn has not come yet."""
        environment.settings.subscribe("replicas", self)

    def open_all(
        self, now: Millis, records: Mapping[str, TopicRecord], *, clean_shutdown: bool
    ) -> Mapping[tuple[str, int], Log]:
        """At start: open the logs of all that these records place here, by topic and index."""
        environment = self._environment
        here = [
            (name, record, index)
            for name, record in records.items()
            for index, placed in enumerate(record.partitions)
            if environment.node_id in placed.replicas
        ]
        if here and not clean_shutdown:
            checked = "the ends of their logs are" if environment.same_boot else "what may not have reached the disk is"
            environment.notes(
                f"the last node here did not stop cleanly: recovering {len(here)} partitions, {checked} checked"
            )
        places = [(name, index) for name, _, index in here]
        self.unopened.begin(places, power_cut=not clean_shutdown and not environment.same_boot)
        configs = {name: topic_log_config(environment.settings, record.configs) for name, record in records.items()}
        for name, record, index in here:
            interrupted = self.unopened.is_interrupted((name, index))
            log = self.logs.open_known(
                now, name, record, index, configs[name], clean_shutdown=clean_shutdown, interrupted=interrupted
            )
            self._opened[name, index] = log
            self._producer_ids.seen(log.producers.entries)
        self.unopened.note([place for place in places if self._opened[place].unopened])
        return self._opened

    def keep_unplaced(self) -> None:
        """At start: the logs that are left are of topics that the store has lost. Sync them: a clean stop does not."""
        self.is_loaded = True
        for (name, index), log in self._opened.items():
            try:
                if log.segments:
                    log.flush()
            except (OSError, StorageError) as error:
                self._environment.warn(
                    f"{name}-{index}, which the metadata store does not know, can't be synced: {error}"
                )

    def unplaced(self) -> tuple[FoundTopic, ...]:
        """The topics with logs here that the store does not place here, in order."""
        found: dict[tuple[str, bytes], list[int]] = {}
        for (name, index), log in sorted(self._opened.items()):
            found.setdefault((name, log.topic_id), []).append(index)
        return tuple(FoundTopic(name, topic_id, tuple(indexes)) for (name, topic_id), indexes in found.items())

    def follow(self, now: Millis, before: MetadataImage, names: Sequence[str]) -> None:
        """The image has news of these topics: remove those that are deleted. `place` does the rest."""
        image = self._metadata.image
        for name in names:
            old, new = before.topics.get(name), image.topics.get(name)
            if old is not None and (new is None or new.id != old.id):
                self._remove(now, old)
        coming = [name for name in names if name in image.topics and name not in self._replicas.by_name]
        if coming:
            self._make_way(now, coming)
        for name in names:
            if name in image.topics and name not in self._replicas.behind:
                self._replicas.behind.add(name)
                self._waiting.append(name)

    def place(self, now: Millis, time_slice: TimeSlice | None) -> tuple[list[Partition], list[str]]:
        """Bring partitions in line with the image until the slice is over, or all of them. Returns the partitions that
        had their turn, and the topics that are no longer behind."""
        placed: list[Partition] = []
        done: list[str] = []
        while self._waiting and not (placed and time_slice is not None and time_slice.is_over):
            name = self._waiting[0]
            topic = self._metadata.image.topics.get(name)
            if topic is not None and topic is not self._topic:
                self._topic = topic
                self._left = self._begin_topic(now, topic)
            if topic is not None and self._left:
                partition = self._place(now, topic, self._left.popleft())
                if partition is not None:
                    placed.append(partition)
                continue
            self._topic = None
            self._waiting.popleft()
            self._replicas.behind.discard(name)
            done.append(name)
        return placed, done

    def settings_changed(self, now: Millis) -> None:
        """Every topic that follows the broker's settings follows now."""
        for topic in self._replicas.by_name.values():
            agreed = self._metadata.image.topics_by_id.get(topic.id)
            if agreed is not None:  # otherwise the same commits remove it
                self._configure(now, topic, topic_log_config(self._environment.settings, agreed.configs))

    # ---- topics ----------------------------------------------------------------------------------------------------

    def _remove(self, now: Millis, topic: TopicImage) -> None:
        """The topic is deleted: remove its replicas here."""
        local = self._replicas.by_name.get(topic.name)
        partitions = [] if local is None else list(local.partitions.values())
        if local is not None:
            self._replicas.remove(local)
        self._metrics.topic_deleted(topic.name)
        for partition in partitions:
            partition.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._upkeep.forget(partition)
        self._events.topic_deleted(now, topic)
        for partition in partitions:
            self.unopened.forget(partition)
            self.logs.unowned.pop((topic.name, partition.index), None)
        deleted = DeletedTopic(topic.id, topic.name, len(topic.partitions), self._environment.node_id)
        places = [place for place, log in self._opened.items() if log.topic_id == topic.id]
        unplaced = [self._opened.pop(place) for place in places]
        self._removals.add(deleted, [*(partition.log for partition in partitions), *unplaced])

    def _make_way(self, now: Millis, names: Sequence[str]) -> None:
        """New topics may have these names: move the directories of deleted ones out of their way."""
        self.logs.unowned.update(self._removals.clear_way(now, names))
        self._upkeep.checkpoints.names_made(set(names))

    def _begin_topic(self, now: Millis, topic: TopicImage) -> deque[int]:
        """Configure the topic here. Returns the partitions that are here, or shall be, and whose records have
        changed."""
        node_id = self._environment.node_id
        here = [index for index, placed in enumerate(topic.partitions) if node_id in placed.replicas]
        local = self._replicas.by_name.get(topic.name)
        log_config = topic_log_config(self._environment.settings, topic.configs)
        if local is None:
            if not here:
                return deque()
            local = LocalTopic(topic.name, topic.id, log_config)
            self._replicas.add(local)
        self._configure(now, local, log_config)
        if local.partitions and any(index not in local.partitions for index in here):
            self._make_way(now, [topic.name])  # a replica may return before its old directory is removed
        followed = {index: partition.placed for index, partition in local.partitions.items()}
        changed = [index for index in here if followed.pop(index, None) is not topic.partitions[index]]
        return deque([*changed, *followed])

    def _place(self, now: Millis, topic: TopicImage, index: int) -> Partition | None:
        """Bring this partition in line with its record. Returns it unless this node never had it."""
        local = self._replicas.by_name[topic.name]
        partition = local.partitions.get(index)
        placed = topic.partitions[index] if index < len(topic.partitions) else None
        BEYOND_USUAL.steps += 1
        try:
            if placed is None or self._environment.node_id not in placed.replicas:
                if partition is not None:
                    self._give_up(now, local, index)
            elif partition is None:
                partition = self._open(now, local, topic, index)
                BEYOND_USUAL.steps += OPENED
            elif placed.leader_epoch == partition.leader_epoch:
                self._change_replicas(now, partition, placed)
            elif placed.leader_epoch > partition.leader_epoch:
                self._change_leader(now, local, partition, placed)
                BEYOND_USUAL.steps += LED
            if partition is not None:
                partition.placed = placed
        except Exception as error:
            self._environment.fault(f"{topic.name}-{index} could not follow the metadata", error)
        return partition

    def _configure(self, now: Millis, topic: LocalTopic, log_config: LogConfig) -> None:
        if log_config != topic.log_config:
            topic.log_config = log_config
            for partition in topic.partitions.values():
                partition.log.configure(log_config)
                self._upkeep.watch(now, partition)
        min_isr = self._min_isr(topic.name)
        for partition in topic.partitions.values():
            if partition.followers is not None:
                partition.followers.min_isr_wanted = min_isr

    # ---- partitions ------------------------------------------------------------------------------------------------

    def _open(self, now: Millis, local: LocalTopic, topic: TopicImage, index: int) -> Partition:
        """The partition has a replica here from now on."""
        placed = topic.partitions[index]
        log = self._opened.pop((topic.name, index), None)
        if log is not None and log.topic_id != topic.id:
            with suppress(OSError, StorageError):  # the name now belongs to another topic
                log.close(now)
            log = None
        was_known = log is not None
        # A partition that an earlier incarnation led needs a new election first: its log may have lost its end.
        was_here = was_known and len(placed.replicas) > 1
        if log is None:
            log = self.logs.open_new(now, topic.name, topic.record, index, local.log_config)
        partition = local.partitions[index] = Partition(
            topic.name,
            index,
            log,
            leads=self._leads(placed) and not was_here,
            leader_epoch=placed.leader_epoch,
            partition_epoch=placed.partition_epoch,
            traffic=self._metrics.traffic(topic.name),
            commits=self._upkeep.commits,
            wakes=self._parking,
        )
        if was_known:
            partition.copy = self.logs.copy_of(log, index)
        if was_known and self.is_loaded and log.segments:
            self._upkeep.written.note(partition)  # the start has listed the others
        if was_here and (topic.name, index) not in self.logs.others:
            partition.leader_high_watermark = self._upkeep.checkpoints.of(topic.name, index)[2]
        self._begin(now, partition, placed)
        return partition

    def _open_again(self, now: Millis, partition: Partition) -> bool:
        """Try to open an offline partition again; True if it is online now."""
        topic = self._metadata.image.topics[partition.topic_name]
        if self._removals.is_in_the_way(topic.name, partition.index) or topic.name in self._replicas.behind:
            return False
        config = self._replicas.by_name[topic.name].log_config
        log = self.logs.open_again(now, topic.name, topic.record, partition.index, config)
        is_replaced = False
        if log is None and self._has_whole_replica(partition, topic.partitions[partition.index]):
            leader = topic.partitions[partition.index].leader
            why = f"can't be opened, and node {leader} leads with all records: {partition.name} is copied from there"
            log = self.logs.open_anew(now, topic.name, topic.record, partition.index, config, why)
            is_replaced = True
        if log is None:
            return False
        partition.log = log
        partition.copy = self.logs.copy_of(log, partition.index)
        if is_replaced:
            partition.copy.on(Event.REPLACED)
        self._producer_ids.seen(log.producers.entries)
        self._begin(now, partition, topic.partitions[partition.index])
        self._upkeep.failures.opened_again(now, partition)
        return True

    def _has_whole_replica(self, partition: Partition, placed: PartitionRecord) -> bool:
        """Whether the files of this replica are damaged, another one leads, and the cluster does not count on this
        one: it lacks nothing then that the leader does not have."""
        log, node_id = partition.log, self._environment.node_id
        is_counted = node_id in (*placed.isr, *placed.elr)
        return isinstance(log, UnopenedLog) and log.is_damaged and placed.leader != NOBODY and not is_counted

    def _begin(self, now: Millis, partition: Partition, placed: PartitionRecord) -> None:
        """The log is open, or its substitute is."""
        log = partition.log
        if partition.leads:
            self._lead(now, partition, placed)
        if isinstance(log, UnopenedLog):
            self.unopened.add(now, partition, log.why, _advice(log, placed))
            self._upkeep.failures.has_news = True
        self._upkeep.watch(now, partition)

    def _leads(self, placed: PartitionRecord) -> bool:
        """Whether this node leads the partition. A partition that its previous incarnation led needs a new election
        first."""
        return self._members.has_joined and placed.leader == self._environment.node_id

    def _lead(self, now: Millis, partition: Partition, placed: PartitionRecord) -> None:
        """Begin to lead in the partition's epoch."""
        commits, log = self._upkeep.commits, partition.log
        log.assign_epoch(partition.leader_epoch)
        if log.unopened:
            return
        if not log.segments and not partition.copy.is_reported:
            self._upkeep.written.forget(partition)  # the cluster has accepted the loss of what it may have had
        partition.lead(self._followers(now, partition, placed) if len(placed.replicas) > 1 else None)
        if partition.followers is not None:
            if partition.fsyncs_each and log.recovery_point < log.log_end_offset:
                commits.sync_soon(partition)
            partition.advance(now)
        elif commits.by_fsync and log.recovery_point < log.log_end_offset:
            partition.holding = True
            commits.sync_soon(partition)
        else:
            log.advance_high_watermark(log.log_end_offset)

    def _followers(self, now: Millis, partition: Partition, placed: PartitionRecord) -> Followers:
        from ottla.replica.followers import Followers

        return Followers(
            now,
            self._environment.node_id,
            self._registrations,
            (partition.log.topic_id, partition.index),
            replicas=placed.replicas,
            isr=placed.isr,
            leader_epoch=placed.leader_epoch,
            partition_epoch=placed.partition_epoch,
            start_offset=partition.log.epoch_start_offset,
            lag_ms_max=self._environment.settings["replica.lag.time.max.ms"],
            min_isr_wanted=self._min_isr(partition.topic_name),
            history=self._isr_history,
            isr_before=() if partition.placed is None else partition.placed.isr,
        )

    def _min_isr(self, topic_name: str) -> int:
        """How many replicas a topic wants to be in sync."""
        agreed = self._metadata.image.topics[topic_name]
        return topic_value(self._environment.settings, agreed.configs, "min.insync.replicas")

    def _change_replicas(self, now: Millis, partition: Partition, placed: PartitionRecord) -> None:
        """The same node leads in the same epoch; other replicas may be in sync."""
        if placed.partition_epoch < partition.partition_epoch:
            return
        partition.partition_epoch = placed.partition_epoch
        followers = partition.followers
        if followers is not None:
            end, epochs = partition.log.log_end_offset, (placed.leader_epoch, placed.partition_epoch)
            followers.metadata(now, placed.replicas, placed.isr, *epochs, end)
            partition.advance(now)
        elif partition.leads and len(placed.replicas) > 1 and not partition.log.unopened:
            partition.lead(self._followers(now, partition, placed))  # it was the only replica until now
            partition.advance(now)

    def _change_leader(self, now: Millis, local: LocalTopic, partition: Partition, placed: PartitionRecord) -> None:
        """Another node now leads, or this node in a new epoch: notify the waiting requests, and restart the leader's
        state."""
        partition.leads = self._leads(placed)
        partition.leader_epoch = placed.leader_epoch
        partition.partition_epoch = placed.partition_epoch
        if partition.leads:
            self._lead(now, partition, placed)
        else:
            partition.follow()
        self._announce_leader(now, local, partition)

    def _give_up(self, now: Millis, local: LocalTopic, index: int) -> None:
        """The partition has no replica here any more: remove its log."""
        partition = local.partitions.pop(index)
        partition.leads = False
        partition.follow()
        if not local.partitions:
            self._replicas.remove(local)
        self._announce_leader(now, local, partition)
        self._upkeep.forget(partition)
        self.unopened.forget(partition)
        self._removals.add(None, [partition.log])

    def _announce_leader(self, now: Millis, local: LocalTopic, partition: Partition) -> None:
        """Another node now leads, or this one in a new epoch: notify the requests that wait for the partition, then the
        parts of the node."""
        # In a new epoch of this node the outcome of earlier appends is open.
        partition.resign(ErrorCode.REQUEST_TIMED_OUT if partition.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._upkeep.failures.leader_changed(partition)
        self._events.leader_changed(now, local, partition)


def _advice(log: UnopenedLog, placed: PartitionRecord) -> str:
    """Advice to the operator about a log that could not be opened."""
    if log.is_damaged and len(placed.replicas) > 1:
        return "It is copied from another replica once one leads that has all records"
    return f"Put the files right, or restore {log.directory} from a backup; no other replica is copied over it"
