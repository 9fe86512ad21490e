"""Creates, changes and deletes topics.

A change is first committed to the store, then the image follows, then memory and disk (placement.py). That holds for
the commits of every node.

Invariants: every partition that the node leads has a higher leader epoch than in any earlier incarnation. One commit
raises them all at start, above the store's and above the newest in the log. The store and the directories together say
which topics exist (survey.py).

Sources: Kafka's ReplicationControlManager.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata, Planned, RowBatch, RowChange, planned
from ottla.broker.cluster.spreading import spread_also
from ottla.broker.config.values import without_ended_hold
from ottla.broker.environment import Environment
from ottla.broker.events import Events
from ottla.broker.metrics import Metrics
from ottla.broker.parking import Parking
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import Replicas
from ottla.broker.topics.adoption import Told
from ottla.broker.topics.new_topic import NewTopic, new_internal
from ottla.broker.topics.placement import Placement
from ottla.broker.topics.removal import Removals
from ottla.broker.topics.survey import raised, survey, with_replicas_here
from ottla.broker.upkeep.upkeep import Upkeep
from ottla.log.cost import TimeSlice
from ottla.machine import Millis
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import FoundTopic
from ottla.metadata.producer_ids import KEY as PRODUCER_IDS_KEY
from ottla.metadata.producer_ids import PRODUCER_IDS, ProducerIds
from ottla.metadata.store import ABSENT, MetadataStore, Put, StoreError
from ottla.metadata.topic_names import folded
from ottla.metadata.topics import PREFIX, DeletedTopic, PartitionRecord, TopicImage, TopicRecord, key_of, placed_on
from ottla.replica.isr_history import IsrHistory


class Topics:
    """Plans how topics are created, changed and deleted. A plan raises StoreError if the metadata store does."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        members: Members,
        store: MetadataStore,
        replicas: Replicas,
        upkeep: Upkeep,
        parking: Parking,
        metrics: Metrics,
        events: Events,
        isr_history: IsrHistory,
    ) -> None:
        self._environment = environment
        self._store = store
        self._metadata = metadata
        self._members = members
        self._replicas = replicas
        self.producer_ids = ProducerIds(store.lost)
        self.removals = Removals(environment, metadata)
        self._placement = Placement(
            environment,
            metadata,
            members,
            replicas,
            self.removals,
            self.producer_ids,
            upkeep,
            parking,
            metrics,
            events,
            isr_history,
        )
        self._folded: dict[str, set[str]] = {}

    def colliding_with(self, name: str) -> str | None:
        """A topic whose name differs only in '.' and '_'."""
        others = self._folded.get(folded(name), set()) - {name}
        return min(others) if others else None

    def load(self, now: Millis, *, clean_shutdown: bool, doubts_store: bool = False) -> None:
        """At start: find the topics, open every log, raise every leader epoch in one commit. `doubts_store`: the store
        of the cluster may be an older copy, as far as this node knows."""
        environment, stored = self._environment, self._metadata.image.topics
        found = survey(
            environment,
            self._store,
            self.removals,
            now,
            {name: topic.record for name, topic in stored.items()},
            alone=self._members.is_alone,
            doubts_store=doubts_store,
        )
        self._placement.logs.unowned = found.unowned
        self._placement.logs.others = found.others
        if not self._members.is_alone:
            self._load_as_told(now, found.unplaced, clean_shutdown=clean_shutdown)
            return
        logs = self._placement.open_all(now, found.records, clean_shutdown=clean_shutdown)
        changes: list[RowChange] = []
        for name, record in found.records.items():
            wanted = raised(name, record, logs, environment.node_id)
            if name not in stored or wanted != stored[name].record:
                version = stored[name].version if name in stored else ABSENT
                changes.append(RowChange(key_of(name), wanted, version))
        as_they_are = found.records.keys() - {change.key.removeprefix(PREFIX) for change in changes}
        behind_lost = self.producer_ids.behind_lost(self._metadata.image[PRODUCER_IDS])
        if behind_lost is not None:
            changes.append(RowChange(PRODUCER_IDS_KEY, *behind_lost))
        if changes:
            self._metadata.at_once(now, planned(RowBatch(changes)))
        self.follow(now, self._metadata.image, sorted(as_they_are))
        self.place(now)
        self.removals.begun(now)

    def _load_as_told(self, now: Millis, unplaced: Mapping[str, Told], *, clean_shutdown: bool) -> None:
        """At start in a cluster: open the partitions that the store places here, and those that it may have lost. The
        controller decides leaders and epochs."""
        stored = self._metadata.image.topics
        records = {name: topic.record for name, topic in stored.items()}
        for name, told in unplaced.items():
            records[name] = with_replicas_here(self._environment.node_id, told, records.get(name))
        self._placement.open_all(now, records, clean_shutdown=clean_shutdown)
        self.follow(now, MetadataImage(), list(stored))
        self.place(now)
        self._placement.keep_unplaced()
        self.removals.begun(now)

    def follow(self, now: Millis, before: MetadataImage, names: Sequence[str]) -> None:
        """The image has news of these topics: remove those that are deleted. `place` brings this node in line with the
        rest."""
        for name in names:
            alike = self._folded.setdefault(folded(name), set())
            if name in self._metadata.image.topics:
                alike.add(name)
            else:
                alike.discard(name)
            if not alike:
                del self._folded[folded(name)]
        self._placement.follow(now, before, names)

    def place(self, now: Millis, time_slice: TimeSlice | None = None) -> tuple[list[Partition], list[str]]:
        """See `Placement.place`."""
        return self._placement.place(now, time_slice)

    def unopened(self) -> list[Partition]:
        """The partitions whose logs could not be opened."""
        return self._placement.unopened.all()

    def unplaced(self) -> tuple[FoundTopic, ...]:
        """See `Placement.unplaced`."""
        return self._placement.unplaced()

    # ---- changes ---------------------------------------------------------------------------------------------------

    def creating(self, now: Millis, wanted: Sequence[NewTopic]) -> Planned:
        """Create these topics in one batch. Names, overrides and counts are validated already. Raises StoreError."""
        if not wanted:
            return
        records = {
            new.name: TopicRecord(
                new.topic_id or self.new_topic_id(),
                dict(new.overrides),
                self._placed(new.partitions, new.replication_factor, new.assignments),
            )
            for new in wanted
        }
        for why in self.removals.clear_way(now, records).values():
            raise StoreError(why)
        for (name, _), why in self._placement.logs.unowned.items():
            if name in records:
                raise StoreError(f"a directory is in the way of {name}: {why}")
        rows = [RowChange(key_of(name), record, ABSENT) for name, record in records.items()]
        yield RowBatch(rows, (), self._members.guards(rows))

    def creating_internal(self, now: Millis, name: str) -> Planned:
        """Create one of the broker's own topics if it does not exist."""
        if name not in self._metadata.image.topics:
            yield from self.creating_on_demand(now, [new_internal(self._environment.settings, name)])

    def creating_on_demand(self, now: Millis, wanted: Sequence[NewTopic]) -> Planned:
        """Create these topics, which no operator has asked for, unless one may exist that the metadata store has
        lost. Raises StoreError."""
        if wanted and self._members.may_know_lost_topics:
            raise StoreError("the metadata store is an older copy, and not all nodes have started that may know more")
        yield from self.creating(now, wanted)

    def deleting(self, topics: Iterable[TopicImage]) -> Planned:
        """Delete these topics in one batch."""
        going = list(topics)
        if going:
            deleted = [
                DeletedTopic(topic.id, topic.name, len(topic.partitions), node_id)
                for topic in going
                for node_id in sorted(self._nodes_with_logs(topic))
            ]
            yield RowBatch(
                [RowChange(key_of(topic.name), None, topic.version) for topic in going],
                [Put(each.key, each.encode()) for each in deleted],
                self._members.guards(),
            )

    def _nodes_with_logs(self, topic: TopicImage) -> set[int]:
        """The nodes that may have logs of this topic: of an adopted one, also those that are down."""
        others = self._metadata.image.nodes if topic.record.adopted else ()
        return {*map(int, others), *(node_id for placed in topic.partitions for node_id in placed.replicas)}

    def growing(self, topic: TopicImage, total: int, assignments: Sequence[Sequence[int]] = ()) -> Planned:
        """Grow the topic to `total` partitions; it has fewer now. `assignments`: the replicas of the new ones, if the
        request assigns them."""
        factor = len(topic.partitions[0].target)
        added = self._placed(total - len(topic.partitions), factor, assignments)
        rows = [self._replacing(topic, replace(topic.record, partitions=topic.partitions + added))]
        yield RowBatch(rows, (), self._members.guards(rows))

    def _placed(
        self, partitions: int, factor: int, assignments: Sequence[Sequence[int]]
    ) -> tuple[PartitionRecord, ...]:
        """This many new partitions, each led by its first active replica; inactive ones are not in sync.

        Raises StoreError if there are too few nodes now.
        """
        if self._members.is_alone:
            return placed_on(self._environment.node_id, partitions)
        racks = {node_id: record.rack for node_id, record in self._members.active().items()}
        if not assignments:
            down = {node_id: record.rack for node_id, record in self._members.down().items()}
            if not racks or len(racks) + len(down) < factor:
                raise StoreError(f"of the cluster's nodes {len(racks)} are active and {len(down)} are not")
            assignments = spread_also(racks, down, partitions, factor, self._environment.entropy)
        placed: list[PartitionRecord] = []
        for replicas in assignments:
            isr = tuple(node_id for node_id in replicas if node_id in racks)
            if not isr:
                raise StoreError(f"none of the nodes {', '.join(map(str, replicas))} is active")
            placed.append(PartitionRecord(tuple(replicas), isr, isr[0]))
        return tuple(placed)

    def configuring(self, topic: TopicImage, overrides: Mapping[str, str]) -> Planned:
        """Replace the topic's own configs, which are checked already."""
        record = replace(topic.record, configs=without_ended_hold(topic.configs, overrides))
        yield RowBatch([self._replacing(topic, record)], (), self._members.guards())

    def _replacing(self, topic: TopicImage, record: TopicRecord) -> RowChange:
        return RowChange(key_of(topic.name), record, topic.version)

    def claiming_producer_ids(self, now: Millis) -> Planned:
        """Have a block of producer ids in hand that is not used up."""
        ids = self.producer_ids
        if ids.is_used_up:
            first, behind, expected = ids.next_block(self._metadata.image[PRODUCER_IDS])
            yield RowBatch([RowChange(PRODUCER_IDS_KEY, behind, expected)])
            ids.claimed(first)

    def taking_producer_id(self, now: Millis) -> Planned:
        """Take a producer id that was never given out, from the current block if it has one left."""
        yield from self.claiming_producer_ids(now)
        return self.producer_ids.take()

    def new_topic_id(self) -> bytes:
        """16 random bytes that no topic has."""
        taken = self._metadata.image.topics_by_id
        while True:
            topic_id = self._environment.entropy.randbytes(16)
            if _may_be_id(topic_id) and topic_id not in taken:
                return topic_id


def id_made_by(attempt: str, name: str) -> bytes:
    """The id that this attempt of a request gives to its topic of this name, see `Request.tries`."""
    from hashlib import sha256  # a node that is alone starts without it

    return next(
        found
        for found in (sha256(f"{attempt}/{number}/{name}".encode()).digest()[:16] for number in count())
        if _may_be_id(found)
    )


def _may_be_id(topic_id: bytes) -> bool:
    """Kafka reserves small ids, and ids whose text would begin with a dash."""
    return topic_id[:8] != bytes(8) and topic_id[0] >> 2 != 62
