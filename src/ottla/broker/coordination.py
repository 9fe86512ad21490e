"""Creates the coordinators of a node when they are first needed, and subscribes them to the node's events.

A request for a coordinator creates it. So do a start with its topic, and the leadership of a partition of its topic.
Most nodes in tests never need one, and their modules are a third of what a node imports.

    coordinator          holds                                  needs
    groups               shards of `__consumer_offsets`         the settings of groups (`group_shards`)
    share_state          shards of `__share_group_state`        other nodes' coordinators, if there are other nodes
    transactions         shards of `__transaction_state`        producer ids
    verifier             nothing                                transactions
    share                share partitions and their sessions    share_state, forwarding (to create its topic)
    share_members        connections of members                 groups
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import Peers
from ottla.broker.environment import Environment
from ottla.broker.events import Events, Order
from ottla.broker.forwarding import Forwarding
from ottla.broker.parking import Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic
from ottla.broker.upkeep.failures import Failures
from ottla.groups.history import GroupHistory
from ottla.machine import Millis
from ottla.metadata.producer_ids import ProducerIds
from ottla.metadata.topics import TopicImage
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.coordinators.metadata_view import GroupShards
    from ottla.broker.coordinators.shards import ShardClass, ShardHost
    from ottla.broker.coordinators.verification import Verifier
    from ottla.broker.delivery.host import ShareHost
    from ottla.broker.delivery.members import ShareMembers


@dataclass(slots=True)
class InUse:
    """The coordinators that exist; None for one that nothing has needed yet."""

    group_shards: GroupShards | None = None
    groups: ShardHost | None = None
    share_state: ShardHost | None = None
    transactions: ShardHost | None = None
    verifier: Verifier | None = None
    share: ShareHost | None = None
    share_members: ShareMembers | None = None

    def check(self) -> None:
        """Raises AssertionError."""
        for each in (self.groups, self.share_state, self.transactions, self.share, self.share_members):
            if each is not None:
                each.check()


class Coordinators:
    """Each property creates its coordinator at first use. `in_use` creates nothing."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        members: Members,
        leadership: Leadership,
        parking: Parking,
        peers: Peers,
        forwarding: Forwarding,
        failures: Failures,
        producer_ids: ProducerIds,
        events: Events,
        history: GroupHistory,
    ) -> None:
        self._history = history
        self._environment = environment
        self._metadata = metadata
        self._members = members
        self._leadership = leadership
        self._parking = parking
        self._peers = peers
        self._forwarding = forwarding
        self._failures = failures
        self._producer_ids = producer_ids
        self._events = events
        self.in_use = InUse()
        self._of_topic: Final[dict[str, Callable[[], ShardHost]]] = {
            CONSUMER_OFFSETS_TOPIC: lambda: self.groups,
            SHARE_GROUP_STATE_TOPIC: lambda: self.share_state,
            TRANSACTION_STATE_TOPIC: lambda: self.transactions,
        }
        """Topic: the coordinator whose state it holds."""
        events.leader_changed.subscribe(Order.COORDINATORS, self._leader_changed)
        events.topic_deleted.subscribe(Order.COORDINATORS, self._topic_deleted)

    # ---- when they are created -------------------------------------------------------------------------------------

    def start(self, now: Millis) -> None:
        """Create the coordinators whose topics exist, and begin to load their shards."""
        for name, coordinator in self._of_topic.items():
            if name in self._metadata.image.topics:
                coordinator().start(now)

    def may_coordinate(self, topic_name: str) -> bool:
        """Have the coordinator of this topic ready, since another node may fail and leave its shards to this one; False
        if it is no coordinator's topic.

        Its clients would wait for the code, and loading that takes some 200 ms of CPU.
        """
        coordinator = self._of_topic.get(topic_name)
        if coordinator is None:
            return False
        coordinator()
        if topic_name == SHARE_GROUP_STATE_TOPIC:
            _ = self.share
        return True

    def _leader_changed(self, now: Millis, topic: LocalTopic, partition: Partition) -> None:
        """A new coordinator at once completes what its predecessor left unfinished, whether or not a client asks for
        it."""
        if partition.leads and topic.name in self._of_topic:
            self._of_topic[topic.name]()

    def _topic_deleted(self, now: Millis, topic: TopicImage) -> None:
        if self.in_use.share_state is not None:
            _ = self.share  # it has its coordinators forget the topic

    # ---- shards ----------------------------------------------------------------------------------------------------

    @property
    def group_shards(self) -> GroupShards:
        """Creates group shards, which see the topics and the configs of groups."""
        return self.in_use.group_shards or self._make_group_shards()

    @property
    def groups(self) -> ShardHost:
        """The coordinator of consumer and share groups."""
        return self.in_use.groups or self._make_groups()

    @property
    def share_state(self) -> ShardHost:
        """The coordinator of share groups' delivery state."""
        return self.in_use.share_state or self._make_share_state()

    @property
    def transactions(self) -> ShardHost:
        """The coordinator of transactional ids."""
        return self.in_use.transactions or self._make_transactions()

    def _make_group_shards(self) -> GroupShards:
        from ottla.broker.coordinators.metadata_view import GroupShards

        made = self.in_use.group_shards = GroupShards(self._metadata, self._environment.settings, self._history)
        return made

    def _make_groups(self) -> ShardHost:
        shards = self.group_shards
        host = self._shard_host(Order.GROUPS, CONSUMER_OFFSETS_TOPIC, shards, "offsets.commit.timeout.ms")
        shards.metadata.shards = host.shards
        shards.metadata.every_shard = host.every_shard
        self.in_use.groups = host
        return host

    def _make_share_state(self) -> ShardHost:
        from ottla.broker.coordinators.remote_shards import Elsewhere
        from ottla.broker.coordinators.share_state_shards import ShareStateShards

        settings, topic_name = self._environment.settings, SHARE_GROUP_STATE_TOPIC
        host = self._shard_host(
            Order.SHARE_STATE, topic_name, ShareStateShards(settings), "share.coordinator.write.timeout.ms"
        )
        if not self._members.is_alone:
            node_id, schedule = self._environment.node_id, self._environment.schedule
            host.elsewhere = Elsewhere(topic_name, node_id, self._leadership, self._peers, settings, schedule)
        self.in_use.share_state = host
        return host

    def _make_transactions(self) -> ShardHost:
        from ottla.broker.coordinators.transaction_shards import TransactionShards, writes

        shards = TransactionShards(self._metadata, self._producer_ids, self._environment.settings)
        host = self._shard_host(Order.TRANSACTIONS, TRANSACTION_STATE_TOPIC, shards, "request.timeout.ms")
        host.needs_enough_replicas = writes
        self.in_use.transactions = host
        return host

    def _shard_host(self, order: Order, topic_name: str, shard_class: ShardClass, commits_within: str) -> ShardHost:
        from ottla.broker.coordinators.shards import ShardHost

        host = ShardHost(
            self._environment,
            self._metadata,
            self._leadership,
            self._parking,
            self._peers,
            topic_name,
            shard_class,
            commits_within,
        )
        self._events.leader_changed.subscribe(order, host.leader_changed)
        self._events.topic_deleted.subscribe(order, host.topic_deleted)
        self._events.taken_back.subscribe(order, host.taken_back)
        return host

    # ---- what uses them --------------------------------------------------------------------------------------------

    @property
    def verifier(self) -> Verifier:
        """Asks coordinators before a transaction's first batch in a partition."""
        return self.in_use.verifier or self._make_verifier()

    @property
    def share(self) -> ShareHost:
        """The share partitions, sessions and parked share fetches."""
        return self.in_use.share or self._make_share()

    @property
    def share_members(self) -> ShareMembers:
        """Which connection speaks for which member of a share group."""
        return self.in_use.share_members or self._make_share_members()

    def _make_verifier(self) -> Verifier:
        from ottla.broker.coordinators.verification import Verifier

        made = self.in_use.verifier = Verifier(
            self.transactions, self._leadership, self._parking, self._peers, self._environment.settings
        )
        return made

    def _make_share(self) -> ShareHost:
        from ottla.broker.delivery.host import ShareHost

        made = self.in_use.share = ShareHost(
            self._environment,
            self._metadata,
            self._leadership,
            self._forwarding,
            self._parking,
            self._peers,
            self._failures,
            self.share_state,
        )
        self._events.leader_changed.subscribe(Order.SHARE, made.leader_changed)
        self._events.topic_deleted.subscribe(Order.SHARE, made.topic_deleted)
        self._events.features_changed.subscribe(Order.SHARE, made.features_changed)
        self._events.clock_stepped.subscribe(Order.SHARE, made.wall_clock_was_set)
        self._events.disconnected.subscribe(Order.SHARE, made.disconnected)
        return made

    def _make_share_members(self) -> ShareMembers:
        from ottla.broker.delivery.members import ShareMembers

        made = self.in_use.share_members = ShareMembers(self.groups)
        self._events.disconnected.subscribe(Order.SHARE_MEMBERS, made.disconnected)
        return made
