"""Replicates a node's partitions: it follows the leaders that the metadata image names, and serves its own followers.

It handles the partitions here that have replicas on other nodes. Those that it follows it fetches (fetching.py). For
those that it leads it tracks followers, moves the high watermark, and proposes ISR changes (isr_changes.py).

Source: Kafka's ReplicaManager.scala.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.broker.cluster.elections import awaits_logs
from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import Peers
from ottla.broker.cluster.registrations import Registrations
from ottla.broker.environment import Environment
from ottla.broker.parking import Parking
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import Replicas
from ottla.broker.replication.fetching import Fetching, key_of
from ottla.broker.replication.isr_changes import IsrChanges
from ottla.broker.replication.throttle import FOLLOWER, LEADER, Throttle
from ottla.broker.replication.waits import FetchWaits
from ottla.broker.schedule import Timed, Timer
from ottla.broker.upkeep.upkeep import Upkeep
from ottla.machine import Millis
from ottla.replica.copy_status import Event
from ottla.replica.fetcher import Key


class Replication:
    """See the module's docstring."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        members: Members,
        replicas: Replicas,
        peers: Peers,
        upkeep: Upkeep,
        parking: Parking,
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._replicas = replicas
        registrations = Registrations(metadata, members.incarnation)
        self.leader_throttle = Throttle(LEADER, environment.node_id, environment.settings, metadata)
        self._look = Timer(environment.schedule, Timed.REPLICATION, self._look_at_followers)
        follower_throttle = Throttle(FOLLOWER, environment.node_id, environment.settings, metadata)
        self._fetching = Fetching(environment, metadata, registrations, peers, upkeep, follower_throttle)
        self._changes = IsrChanges(environment.node_id, registrations, peers, environment.schedule)
        self.fetch_waits = FetchWaits(parking)
        self._keys: dict[str, dict[Key, None]] = {}
        """The partitions that are fetched, by topic."""

    # ---- leaders ---------------------------------------------------------------------------------------------------

    def removed(self, names: Iterable[str]) -> None:
        """Fetch no longer for topics of these names that have no replica here."""
        for name in names:
            if name not in self._replicas.by_name:
                for key in self._keys.pop(name, {}):
                    self._fetching.drop(key)

    def follow(self, now: Millis, partitions: Iterable[Partition]) -> None:
        """These partitions match the image, or are no longer here. Nothing is fetched for them before `send`."""
        is_new_leader = False
        for partition in partitions:
            name, key = partition.topic_name, key_of(partition)
            is_here = self._replicas.get(name, partition.index) is partition
            if is_here:
                self._look_at_damage(partition)
            leader = self._leader_of(partition) if is_here else None
            if leader is not None:
                self._keys.setdefault(name, {})[key] = None
                self._fetching.follow(now, partition, leader)
                continue
            if key in self._keys.get(name, ()):
                del self._keys[name][key]
                self._fetching.drop(key)
            if is_here and partition.followers is not None:
                is_new_leader = is_new_leader or partition.followers.awaits_first_fetch
                if self._look.at is None:
                    self._look.set(now + self._look_every_ms)
        if is_new_leader:
            self.fetch_waits.begins_to_lead(now)

    def send(self, now: Millis) -> None:
        """Send the fetches and the ISR changes that are due."""
        self._fetching.send(now)
        self._changes.send(now)

    def _leader_of(self, partition: Partition) -> int | None:
        """The leader that this node has to follow; None if this node leads, or no node does."""
        placed = self._metadata.image.partition(partition.topic_name, partition.index)
        if placed is None or partition.leads or placed.leader in (-1, self._environment.node_id):
            return None
        return placed.leader

    def _is_current(self, partition: Partition) -> bool:
        """Whether the partition follows the image already."""
        placed = self._metadata.image.partition(partition.topic_name, partition.index)
        return placed is not None and placed.leader_epoch == partition.leader_epoch

    def _look_at_damage(self, partition: Partition) -> None:
        """A log that may lack records reports that until the cluster no longer counts on it; then its end may decide
        who leads. A leader with a damaged log reports it again: another replica should lead once that one is whole."""
        placed = self._metadata.image.partition(partition.topic_name, partition.index)
        if partition.leads:
            partition.copy.on(Event.LEADS)
        elif placed is not None and awaits_logs(placed):
            partition.copy.on(Event.UNDECIDED)

    def look_at_damage(self, now: Millis) -> None:
        """The state of logs has changed, which no news of their topics may follow."""
        for partition in self._replicas:
            if not self._replicas.behind or self._is_current(partition):
                self._look_at_damage(partition)
        self._fetching.look_at_damage(now)
        self._fetching.send(now)

    def synced(self, now: Millis) -> None:
        """Some fsyncs have ended: continue to fetch for the partitions that waited for them."""
        self._fetching.synced(now)

    def taken_back(self, now: Millis, partition: Partition) -> None:
        """A log accepts records again, after its end was cut off."""
        self._fetching.taken_back(now, partition)

    # ---- partitions that this node leads ---------------------------------------------------------------------------

    def fetched(
        self,
        now: Millis,
        partition: Partition,
        node_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        leader_end_offset: int,
    ) -> None:
        """A follower has fetched from `offset`, without an error and without diverging; the log ended at
        `leader_end_offset` before it was read."""
        followers = partition.followers
        if followers is None:
            return
        if followers.fetched(now, node_id, offset, log_start_offset, leader_end_offset, broker_epoch):
            proposal = followers.grow(node_id, partition.log.high_watermark)
            if proposal is not None:
                self._changes.propose(partition, proposal)
                self._changes.send(now)
            partition.advance(now)

    @property
    def _look_every_ms(self) -> int:
        return max(1, self._environment.settings["replica.lag.time.max.ms"] // 2)

    def _look_at_followers(self, now: Millis) -> None:
        """Propose to remove the replicas that have been behind for too long."""
        led = [partition for partition in self._replicas if partition.followers is not None]
        if led:
            self._look.set(now + self._look_every_ms)
        for partition in led:
            assert partition.followers is not None
            proposal = partition.followers.shrink(now, partition.log.log_end_offset)
            if proposal is not None:
                self._changes.propose(partition, proposal)
            partition.advance(now)  # the high watermark no longer waits for a replica whose join was dropped

    def check(self) -> None:
        """Raises AssertionError."""
        self._fetching.check()
        for partition in self._replicas:
            if partition.followers is not None:
                partition.followers.check()
                assert partition.leads
                assert partition.followers.leader_epoch == partition.leader_epoch
