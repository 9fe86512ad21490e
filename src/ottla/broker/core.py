"""Creates the parts of one node, gives each the other parts that it needs, and subscribes them to the node's events.

Handlers (`ottla.broker.api`) get the core of their node. They cannot import `Node`, which drives the core and is driven
by the I/O host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.broker import served
from ottla.broker.client_identity import Identity
from ottla.broker.cluster.encoded_topics import EncodedTopics
from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import Peers
from ottla.broker.cluster.trust import Trust
from ottla.broker.completions import Completions
from ottla.broker.config.live import LiveSettings
from ottla.broker.config.values import BrokerSettings, held, super_users_of, topic_value
from ottla.broker.connection_quotas import ConnectionQuotas
from ottla.broker.coordination import Coordinators
from ottla.broker.effects import Outbox
from ottla.broker.environment import Environment
from ottla.broker.events import Events, Order
from ottla.broker.fetch.sessions import FetchSessions
from ottla.broker.forwarding import Forwarding
from ottla.broker.metrics import Metrics
from ottla.broker.observations.observations import Observations
from ottla.broker.parking import Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.replicas import Replicas
from ottla.broker.quotas import Throttle
from ottla.broker.requests import Listening, Request
from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.broker.security.authorizer import Access
from ottla.broker.slices import Slices
from ottla.broker.topics.new_topic import new_internal
from ottla.broker.topics.topics import Topics
from ottla.broker.upkeep.upkeep import Upkeep
from ottla.log.cost import Stopwatch, counted_us
from ottla.log.files import FileSystem
from ottla.machine import Entropy, Millis, WallClock
from ottla.metadata.credentials import CREDENTIALS
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.metadata.quotas import QUOTAS
from ottla.metadata.store import MetadataStore
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.metadata.topics import TopicImage
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.cluster.membership import Joining, Membership
    from ottla.broker.cluster.store_memory import StoreMemory
    from ottla.broker.replication.replication import Replication
    from ottla.broker.security.acls import AclAuthorizer
    from ottla.broker.security.audit import Audit
    from ottla.broker.security.sasl import Sasl


def _let_through(what: str, error: Exception) -> None:
    raise error


class Core:
    """The parts of one node. The arguments are what the I/O host provides; see `Environment`."""

    def __init__(
        self,
        settings: BrokerSettings,
        files: FileSystem,
        directory: str,
        store: MetadataStore,
        *,
        entropy: Entropy,
        same_boot: bool,
        notes: Callable[[str], None],
        faults: Callable[[str, Exception], None] = _let_through,
        wall: WallClock | None = None,
        warnings: Callable[[str], None] | None = None,
        joining: Joining | None = None,
        stopwatch: Stopwatch = counted_us,
    ) -> None:
        self.files = files
        self.directory = directory
        self.store = store
        self.notes = notes
        self.wall = wall if wall is not None else WallClock()
        self.node_id: int = settings["node.id"]
        self.outbox = Outbox()
        self.events = Events()
        self.schedule = Schedule(faults, stopwatch)
        self.completions = Completions(self.schedule, faults)
        self.metadata = self._metadata(entropy)
        self.settings = LiveSettings(settings, self.metadata, self.wall, warnings or notes)
        self.cluster_id = ""
        self.metrics = Metrics()
        self.throttle = Throttle(self.outbox)
        self.observations = Observations(self.wall)
        self.connection_quotas = ConnectionQuotas(self.settings)
        self.listening: tuple[Listening, ...] = ()
        """The listeners of this node's I/O host, if it has set them."""
        self.parking = Parking(self.outbox, self.schedule, self.completions, self.throttle, self.observations, faults)
        self.environment = self._environment(entropy, same_boot, warnings or notes, faults, stopwatch)
        trust = Trust(self.node_id, entropy, lambda: self.image.nodes)
        self.peers = Peers(self.outbox, self.schedule, self.completions, trust)
        self.access, self.audit = self._access(settings)
        self.upkeep = Upkeep(self.environment, self.metadata, taken_back=self.events.taken_back)
        self.failures = self.upkeep.failures
        self.replicas = Replicas()
        self.members = Members(self.metadata, self.node_id, settings["broker.rack"], joining and joining.incarnation)
        self.encoded_topics = EncodedTopics()
        self.leadership = Leadership(self.metadata, self.replicas, self.members)
        self.topics = self._topics()
        self.store_memory = None if joining is None else self._store_memory()
        self.membership = None if joining is None else self._membership(joining)
        self.slices = Slices(self.parking, self.schedule, self.completions, self.metadata)
        self.forwarding = self._forwarding()
        self.fetch_sessions = FetchSessions(self.settings, entropy)
        self.coordinators = self._coordinators()
        self._replication: Replication | None = None
        self._sasl: Sasl | None = None
        self.served = served.load(internal=joining is not None)
        self.is_started = False
        self.following = Timer(self.schedule, Timed.METADATA, self.go_on_following)
        self._subscribe()

    def _access(self, settings: BrokerSettings) -> tuple[Access, Audit | None]:
        """The rules of access, and the audit log of decisions."""
        authorizer = self._authorizer(settings)
        audit = self._audit(settings, authorizer)
        return Access(authorizer, self.peers.trusts, self.metadata, audit), audit

    def _audit(self, settings: BrokerSettings, authorizer: AclAuthorizer | None) -> Audit | None:
        """The audit log, None if the settings record nothing."""
        kinds = settings["ottla.audit.events"]
        if kinds is None:
            kinds = () if authorizer is None else ("denied", "changes", "logins")
        if not kinds:
            return None
        from ottla.broker.security.audit import Audit

        return Audit(
            frozenset(kinds),
            self.node_id,
            settings["ottla.audit.records.per.second"],
            authorizer,
            self.outbox,
            self.schedule,
            self.wall,
        )

    def _authorizer(self, settings: BrokerSettings) -> AclAuthorizer | None:
        """The authorizer that the settings name, None if they name none."""
        if not settings["authorizer.class.name"]:
            return None
        from ottla.broker.security.acls import AclAuthorizer

        return AclAuthorizer(self.metadata, super_users_of(settings), settings["allow.everyone.if.no.acl.found"])

    def _metadata(self, entropy: Entropy) -> Metadata:
        return Metadata(
            self.store,
            self.outbox,
            self.schedule,
            self.completions,
            self.follow,
            node_id=self.node_id,
            entropy=entropy,
        )

    def _environment(
        self,
        entropy: Entropy,
        same_boot: bool,
        warn: Callable[[str], None],
        fault: Callable[[str, Exception], None],
        stopwatch: Stopwatch,
    ) -> Environment:
        return Environment(
            node_id=self.node_id,
            files=self.files,
            directory=self.directory,
            settings=self.settings,
            entropy=entropy,
            wall=self.wall,
            outbox=self.outbox,
            schedule=self.schedule,
            completions=self.completions,
            same_boot=same_boot,
            notes=self.notes,
            warn=warn,
            fault=fault,
            stopwatch=stopwatch,
        )

    def _topics(self) -> Topics:
        return Topics(
            self.environment,
            self.metadata,
            self.members,
            self.store,
            self.replicas,
            self.upkeep,
            self.parking,
            self.metrics,
            self.events,
            self.observations.isr,
        )

    def _coordinators(self) -> Coordinators:
        return Coordinators(
            self.environment,
            self.metadata,
            self.members,
            self.leadership,
            self.parking,
            self.peers,
            self.forwarding,
            self.failures,
            self.topics.producer_ids,
            self.events,
            self.observations.groups,
        )

    def _store_memory(self) -> StoreMemory:
        from ottla.broker.cluster.store_memory import StoreMemory

        by_fsync = self.upkeep.commits.by_fsync
        environment = self.environment
        return StoreMemory(environment.files, environment.directory, self.node_id, environment.warn, durable=by_fsync)

    def _forwarding(self) -> Forwarding:
        def refused(request: Request, error: ErrorCode, sentence: str) -> Any:
            return self.served[request.api_key].refused(request, error, sentence)

        return Forwarding(
            self.metadata,
            self.members,
            self.topics,
            self.peers,
            self.parking,
            self.schedule,
            self.completions,
            self.slices,
            self.settings,
            refused,
        )

    def _membership(self, joining: Joining) -> Membership:
        from ottla.broker.cluster.adopting import Adopted
        from ottla.broker.cluster.elections import Rules
        from ottla.broker.cluster.membership import Membership
        from ottla.broker.partitions.own_logs import OwnLogs

        def rules_of(topic: TopicImage) -> Rules:
            return Rules(
                topic_value(self.settings, topic.configs, "min.insync.replicas"),
                topic_value(self.settings, topic.configs, "unclean.leader.election.enable"),
            )

        def return_every_ms() -> int | None:
            every_s: int = self.settings["leader.imbalance.check.interval.seconds"]
            return every_s * 1000 if self.settings["auto.leader.rebalance.enable"] else None

        def adopted(name: str) -> Adopted:
            if name not in INTERNAL_TOPICS:
                return Adopted(held({}), replicas=self.settings["default.replication.factor"])
            new = new_internal(self.settings, name)
            return Adopted(dict(new.overrides), new.partitions, new.replication_factor)

        rack = self.settings["broker.rack"]
        failures = self.failures
        logs = OwnLogs(
            self.node_id,
            self.metadata,
            self.replicas,
            failures.takes_nothing,
            failures.reads.all,
            self.topics.unplaced,
        )
        return Membership(
            self.metadata,
            self.members,
            self.peers,
            joining,
            rack,
            rules_of,
            adopted,
            return_every_ms,
            logs,
            self.notes,
            self.schedule,
        )

    def _subscribe(self) -> None:
        """The parts that every node has; coordinators subscribe when they are created, and so does replication."""
        self.events.disconnected.subscribe(Order.REQUESTS, lambda _, identity: self.parking.disconnected(identity))
        self.events.disconnected.subscribe(
            Order.FETCH_SESSIONS, lambda _, identity: self.fetch_sessions.connection_lost(identity)
        )
        self.events.disconnected.subscribe(Order.OBSERVATIONS, self.observations.disconnected)
        self.events.clock_stepped.subscribe(Order.UPKEEP, lambda now, _: self.upkeep.wall_clock_was_set(now))

    # ---- metadata --------------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The newest metadata of the cluster that this node has received."""
        return self.metadata.image

    def follow(self, now: Millis, delta: MetadataDelta) -> None:
        """Apply new rows of the metadata store to the image, and bring all parts in line with them."""
        raise NotImplementedError

    def go_on_following(self, now: Millis) -> None:
        """Bring the next partitions in line with the image."""
        raise NotImplementedError

    def keep_to_quotas(self) -> None:
        """Charge clients by the quotas of the image; without any quota nothing is counted."""
        quotas, settings = self.image[QUOTAS], self.settings
        self.connection_quotas.keep_to(quotas)
        self.throttle.quotas = None
        if quotas:
            from ottla.broker.client_quotas import ClientQuotas

            samples, window_ms = settings["quota.window.num"], settings["quota.window.size.seconds"] * 1000
            burst_s = settings["controller.quota.window.num"] * settings["controller.quota.window.size.seconds"]
            self.throttle.quotas = ClientQuotas(quotas, samples, window_ms, burst_s * 1000, self.peers.trusts)

    # ---- authentication --------------------------------------------------------------------------------------------

    def logged_in(self, identity: Identity, mechanism: str, user: str = "", why: str | None = None) -> None:
        """A client has authenticated by this mechanism, or has failed to, for the reason `why`. `user`: whom a failed
        login is about, empty if that is unknown."""
        if self.audit is not None:
            self.audit.logged_in(identity, mechanism, user, why)

    def stranger(self, now: Millis, identity: Identity, why: str) -> None:
        """A connection is closed because its client does not speak the protocol of the listener."""
        self.observations.stranger(now, identity, why)

    @property
    def sasl(self) -> Sasl:
        """The authentication of clients on listeners with SASL, created by the first of them."""
        return self._sasl or self._make_sasl()

    def _make_sasl(self) -> Sasl:
        from ottla.broker.security.sasl import Sasl

        made = self._sasl = Sasl(
            self.settings.of_listener,
            lambda: self.image[CREDENTIALS],
            self.outbox,
            self.schedule,
            self.completions,
            self.environment.entropy,
            self.wall,
            self.logged_in,
            self.peers.trust,
        )
        self.events.disconnected.subscribe(Order.SASL, lambda _, connection: made.disconnected(connection))
        return made

    # ---- replication -----------------------------------------------------------------------------------------------

    @property
    def replicates(self) -> bool:
        """Whether this node has had a partition with more than one replica."""
        return self._replication is not None

    @property
    def replication(self) -> Replication:
        """The replication of this node, created at first use: its fetches from other leaders, and the fetches of its
        followers."""
        return self._replication or self._make_replication()

    def _make_replication(self) -> Replication:
        from ottla.broker.replication.replication import Replication

        made = self._replication = Replication(
            self.environment, self.metadata, self.members, self.replicas, self.peers, self.upkeep, self.parking
        )
        self.events.synced.subscribe(Order.REPLICATION, made.synced)
        self.events.taken_back.subscribe(Order.REPLICATION, made.taken_back)
        return made
