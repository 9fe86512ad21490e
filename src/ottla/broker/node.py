"""Runs one node: routes requests to handlers, owns the topics, the shards and the parked requests.

A node does I/O only through `FileSystem` and `MetadataStore`, and has no clock and no randomness. The I/O host
(`ottla.server`, or `ottla.sim` under test) gives it time, entropy and frames, and carries out its effects.

    I/O host                                 node
    receive(now, channel, frame)      ->     parts of the answer | Parked | None
    tick(now) when deadline() comes   ->
    disconnected(now, connection)     ->
    take_effects(now)                 ->     Reply, Close, Mute, Sync, Store, Ask, Commit, Reread
    synced(now, token, failures)      ->
    answered(now, token, answer)      ->
    committed(now, token, outcome)    ->
    reread(now, token, answer)        ->
    changed(now, delta)               ->
    wall_clock_is(now, ahead_ms)      ->

`now` is a time of the monotonic clock, and so is every deadline. So a step of the wall clock delays no request and
expires no member. Timestamps come from `wall`; see `machine.WallClock`.

Invariant: each frame gets exactly one answer, from `receive` or later by a Reply effect; acks=0 gets none.

An unexpected exception affects only the part in which it happened: one shard, one log, one parked request. `faults`
receives it. Without `faults` it propagates, so tests and the simulator see every one.

Sources: ARCHITECTURE.md, section 2, rule 7; Kafka's KafkaApis.scala and ReplicaManager.scala.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker import served
from ottla.broker.api_spec import RequestSize
from ottla.broker.channel import Channel
from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import Peers
from ottla.broker.config.live import LiveSettings
from ottla.broker.config.values import BrokerSettings, super_users_of, topic_value
from ottla.broker.connection_quotas import ConnectionQuotas
from ottla.broker.effects import Close, CommitOutcome, Effect, Outbox, Parked, Part, Reading, Unread
from ottla.broker.environment import Environment
from ottla.broker.fetch.sessions import FetchSessions
from ottla.broker.forwarding import Forwarding
from ottla.broker.metrics import Metrics
from ottla.broker.parking import Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.own_logs import OwnLogs
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic, Replicas
from ottla.broker.quotas import Throttle
from ottla.broker.requests import Decoded, Listening, Refused, Request
from ottla.broker.schedule import Schedule
from ottla.broker.security.authorizer import Access, Authorizer
from ottla.broker.slices import Slices
from ottla.broker.topics.topics import Topics
from ottla.broker.upkeep.clean_stop import completing
from ottla.broker.upkeep.identity import StartRefused, identify, is_identified, shared_secret, too_old_for
from ottla.broker.upkeep.upkeep import Upkeep
from ottla.log.checkpoints import forget_seen
from ottla.log.cost import Stopwatch, counted_us
from ottla.log.files import FileSlice, FileSystem
from ottla.log.syncing import Syncable
from ottla.machine import Entropy, Millis, Unanswered, WallClock
from ottla.metadata.acls import ACLS
from ottla.metadata.credentials import CREDENTIALS
from ottla.metadata.features import FEATURES
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.metadata.nodes import NODES, NodeState
from ottla.metadata.quotas import QUOTAS
from ottla.metadata.store import MetadataStore
from ottla.metadata.topics import TOPICS, PartitionRecord, TopicImage
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode, MalformedFrame
from ottla.protocol.framing import decode_request_header, encode_response
from ottla.protocol.wire import Buffer, has_elements

if TYPE_CHECKING:
    from ottla.broker.cluster.membership import Joining, Membership
    from ottla.broker.cluster.store_memory import StoreMemory
    from ottla.broker.coordinators.metadata_view import GroupShards
    from ottla.broker.coordinators.shards import ShardClass, ShardHost
    from ottla.broker.coordinators.verification import Verifier
    from ottla.broker.delivery.host import ShareHost
    from ottla.broker.delivery.members import ShareMembers
    from ottla.broker.replication.replication import Replication
    from ottla.broker.security.sasl import Sasl

LONG_BYTES_MAX: Final = 16 << 20
"""Longer requests are refused, except those that carry client data: records, subscriptions, assignments."""
LONG_ELEMENTS_MAX: Final = 250_000
"""Requests that name more are refused: a node has 100,000 partitions at most, each perhaps in a topic of its own."""
_PREFIX = struct.Struct(">hhi")
_COORDINATORS: Final = {
    CONSUMER_OFFSETS_TOPIC: "groups",
    SHARE_GROUP_STATE_TOPIC: "share_state",
    TRANSACTION_STATE_TOPIC: "transactions",
}
"""Topic: the hosts of the coordinators whose state it holds."""
CLOCK_STEP_MS: Final = 1_000
"""A smaller change of the wall clock is drift or slewing, and needs no timer to be set again."""


def _let_through(what: str, error: Exception) -> None:
    raise error


"""Places in one log that are remembered because they could not be read."""


class Node:
    """A single broker. The module's docstring describes how an I/O host drives it."""

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
        self.fault = faults
        self.wall = wall if wall is not None else WallClock()
        self.node_id: int = settings["node.id"]
        self.outbox = Outbox()
        self.schedule = Schedule(faults)
        self.metadata = Metadata(store, self.outbox, self.schedule, self.changed, node_id=self.node_id, entropy=entropy)
        self.settings = LiveSettings(settings, self.metadata, self.wall, warnings or notes)
        self.cluster_id = ""
        self.metrics = Metrics()
        self.throttle = Throttle(self.outbox)
        self.connection_quotas = ConnectionQuotas(self.settings)
        self.listening: tuple[Listening, ...] = ()
        """The listeners of this node's I/O host, if it has set them."""
        self.parking = Parking(self.outbox, self.schedule, self.throttle, faults)
        self.environment = Environment(
            node_id=self.node_id,
            files=files,
            directory=directory,
            settings=self.settings,
            entropy=entropy,
            wall=self.wall,
            outbox=self.outbox,
            schedule=self.schedule,
            same_boot=same_boot,
            notes=notes,
            warn=warnings or notes,
            fault=faults,
            stopwatch=stopwatch,
        )
        self.peers = Peers(self.outbox, self.schedule, self.node_id)
        self.access = Access(self._authorizer(settings), self.peers.trusts)
        self.upkeep = Upkeep(self.environment, self.metadata, taken_back=self._taken_back)
        self.failures = self.upkeep.failures
        self.replicas = Replicas()
        self.members = Members(self.metadata, self.node_id, settings["broker.rack"], joining and joining.incarnation)
        self.leadership = Leadership(self.metadata, self.replicas, self.members)
        self.topics = self._topics()
        self.store_memory = None if joining is None else self._store_memory()
        self.membership = None if joining is None else self._membership(joining)
        self.forwarding = self._forwarding()
        self.fetch_sessions = FetchSessions(self.settings, entropy)
        self.slices = Slices(self.parking, self.schedule, self.metadata)
        self._served = served.load(internal=joining is not None)

    # ---- lifecycle -------------------------------------------------------------------------------------------------

    def start(self, now: Millis) -> None:
        """Load metadata, open every log, begin to load the coordinators.

        Raises StartRefused with one sentence when the directory belongs to another node or version, or the cluster is
        at a level of a feature that this version does not support.
        """
        files, directory = self.environment.files, self.environment.directory
        files.makedirs(directory)
        was_here = is_identified(files, directory)
        alone = self.members.is_alone
        self.cluster_id = identify(files, directory, self.store, self.node_id, self.environment.entropy, alone=alone)
        self._compare_store()
        secret = self.settings["ottla.cluster.secret"]
        if secret or not alone:
            self.peers.share(secret or shared_secret(self.store, self.environment.entropy))
        self.upkeep.checkpoints.read(self.environment.notes)
        clean = self.upkeep.checkpoints.take_clean_stop(self.environment.notes)
        self.metadata.load()
        too_old = too_old_for(self.image)
        if too_old is not None:
            raise StartRefused(too_old)
        self.settings.load()
        self._keep_to_quotas()
        if self.membership is not None:
            known = self.image.nodes.get(str(self.node_id))
            self.upkeep.written.read(
                may_be_missing=known is None or known.is_of_earlier_version,
                may_be_torn=not self.environment.same_boot,
            )
        self.topics.load(now, clean_shutdown=clean)
        self._replicate(now, list(self.image.topics))
        for name, host in _COORDINATORS.items():
            if name in self.image.topics:
                getattr(self, host).start(now)
        self.upkeep.start(now)
        if self.membership is not None:
            kept, by_fsync = clean or self.environment.same_boot, self.upkeep.commits.by_fsync
            self.membership.join(
                now,
                files,
                directory,
                kept=kept,
                by_fsync=by_fsync,
                same_disk=was_here,
                lost_commits=self.store.lost,
            )
            # Behind the losses, which are on the disk now: with these files the next start would not notice them.
            self.upkeep.checkpoints.begin()
            self.upkeep.written.begin(self.upkeep.partitions)
            self.failures.has_news = True

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
            self,
        )

    def _authorizer(self, settings: BrokerSettings) -> Authorizer | None:
        """The authorizer that the settings name, None if they name none."""
        if not settings["authorizer.class.name"]:
            return None
        from ottla.broker.security.acls import AclAuthorizer

        return AclAuthorizer(
            lambda: self.image[ACLS], super_users_of(settings), settings["allow.everyone.if.no.acl.found"]
        )

    def _compare_store(self) -> None:
        """Find out whether the store is older than the one that an earlier incarnation here has seen; sets
        `store.lost`."""
        if self.store_memory is None or self.membership is None:
            forget_seen(self.environment.files, self.environment.directory)
        else:
            self.store_memory.begin(self.store, self.membership.joining.incarnation)
        self.topics.producer_ids.lost(self.store.lost)

    def _store_memory(self) -> StoreMemory:
        from ottla.broker.cluster.store_memory import StoreMemory

        by_fsync = self.upkeep.commits.by_fsync
        environment = self.environment
        return StoreMemory(environment.files, environment.directory, self.node_id, environment.warn, durable=by_fsync)

    def _forwarding(self) -> Forwarding:
        def refused(request: Request, error: ErrorCode, sentence: str) -> Any:
            return self._served[request.api_key].refused(request, error, sentence)

        return Forwarding(
            self.metadata, self.members, self.topics, self.peers, self.parking, self.schedule, self.settings, refused
        )

    def _membership(self, joining: Joining) -> Membership:
        from ottla.broker.cluster.elections import Rules
        from ottla.broker.cluster.membership import Membership

        def rules_of(topic: TopicImage) -> Rules:
            return Rules(
                topic_value(self.settings, topic.configs, "min.insync.replicas"),
                topic_value(self.settings, topic.configs, "unclean.leader.election.enable"),
            )

        def return_every_ms() -> int | None:
            every_s: int = self.settings["leader.imbalance.check.interval.seconds"]
            return every_s * 1000 if self.settings["auto.leader.rebalance.enable"] else None

        rack = self.settings["broker.rack"]
        logs = OwnLogs(self.metadata, self.replicas, self.failures.takes_nothing)
        return Membership(
            self.metadata,
            self.members,
            self.peers,
            joining,
            rack,
            rules_of,
            return_every_ms,
            logs,
            self.notes,
            self.schedule,
        )

    def completing(self) -> Generator[list[Syncable], Mapping[int, str], None]:
        """Before `stop`, for an I/O host that can sync many files at once: yields batches of files, each to be synced
        whole.

        Send back the failures: the index in the batch, and the system's message. `stop` syncs the same files one by
        one.
        """
        directory = self.files.directory(self.directory)
        return completing(list(self.upkeep.partitions), directory, self.files.pins_max // 2)

    def stop(self, now: Millis) -> None:
        """Close cleanly: parked requests are not answered (the process closes their connections), and no timer fires
        any more."""
        self.schedule.stop()
        for host in self._in_use(*_COORDINATORS.values()):
            host.stop()
        self.topics.removals.finish(now)
        if self.store_memory is not None:
            self.store_memory.finish(self.image)
        self.upkeep.finish(now, self.store)

    # Coordinators are created by the first request for them, or at start if their topic exists. Most nodes in tests
    # never need one, and their modules are a third of what a node imports.

    @cached_property
    def group_shards(self) -> GroupShards:
        from ottla.broker.coordinators.metadata_view import GroupShards

        return GroupShards(self.metadata, self.settings)

    @cached_property
    def groups(self) -> ShardHost:
        """The coordinator of consumer and share groups."""
        host = self._shard_host(CONSUMER_OFFSETS_TOPIC, self.group_shards, "offsets.commit.timeout.ms")
        self.group_shards.metadata.shards = host.shards
        self.group_shards.metadata.every_shard = host.every_shard
        return host

    @cached_property
    def share_state(self) -> ShardHost:
        """The coordinator of share groups' delivery state."""
        from ottla.broker.coordinators.elsewhere import Elsewhere
        from ottla.broker.coordinators.share_state_shards import ShareStateShards

        shards = ShareStateShards(self.settings)
        host = self._shard_host(SHARE_GROUP_STATE_TOPIC, shards, "share.coordinator.write.timeout.ms")
        if not self.members.is_alone:
            host.elsewhere = Elsewhere(
                SHARE_GROUP_STATE_TOPIC, self.node_id, self.leadership, self.peers, self.settings, self.schedule
            )
        return host

    @cached_property
    def transactions(self) -> ShardHost:
        """The coordinator of transactional ids."""
        from ottla.broker.coordinators.transaction_shards import TransactionShards

        shards = TransactionShards(self.metadata, self.topics.producer_ids, self.settings)
        return self._shard_host(TRANSACTION_STATE_TOPIC, shards, "request.timeout.ms")

    @cached_property
    def verifier(self) -> Verifier:
        """Asks coordinators before a transaction's first batch in a partition."""
        from ottla.broker.coordinators.verification import Verifier

        return Verifier(self.transactions, self.leadership, self.parking, self.peers, self.settings)

    def _shard_host(self, topic_name: str, shard_class: ShardClass, commits_within: str) -> ShardHost:
        from ottla.broker.coordinators.shards import ShardHost

        return ShardHost(
            self.environment,
            self.metadata,
            self.leadership,
            self.parking,
            self.peers,
            topic_name,
            shard_class,
            commits_within,
        )

    @cached_property
    def share(self) -> ShareHost:
        """The share partitions, sessions and parked share fetches."""
        from ottla.broker.delivery.host import ShareHost

        return ShareHost(
            self.environment,
            self.metadata,
            self.leadership,
            self.forwarding,
            self.parking,
            self.peers,
            self.failures,
            self.share_state,
        )

    @cached_property
    def share_members(self) -> ShareMembers:
        """Which connection speaks for which member of a share group."""
        from ottla.broker.delivery.members import ShareMembers

        return ShareMembers(self.groups)

    @cached_property
    def sasl(self) -> Sasl:
        """The authentication of clients on listeners with SASL."""
        from ottla.broker.security.sasl import Sasl

        return Sasl(
            self.settings.of_listener,
            lambda: self.image[CREDENTIALS],
            self.outbox,
            self.schedule,
            self.environment.entropy,
        )

    @cached_property
    def replication(self) -> Replication:
        """The replication of this node: its fetches from other leaders, and the fetches of its followers."""
        from ottla.broker.replication.replication import Replication

        return Replication(self.environment, self.metadata, self.replicas, self.peers, self.upkeep, self.parking)

    def _in_use(self, *names: str) -> list[Any]:
        """Those of these coordinators that a request has used."""
        return [self.__dict__[name] for name in names if name in self.__dict__]

    # ---- requests --------------------------------------------------------------------------------------------------

    def decode(self, frame: memoryview) -> Decoded:
        """Decode a frame as `receive` would, on any thread: a host may do this beside its loop if a frame is long.

        Returns None if the API reads its frames itself. Raises Refused, also if a frame is longer than any request
        needs.
        """
        api_key, version, _ = _PREFIX.unpack_from(frame)
        served = self._served.get(api_key)
        if served is None or (size := served.spec.size) is RequestSize.READ_BY_HANDLER:
            return None
        if len(frame) > LONG_BYTES_MAX and size is not RequestSize.LARGE_FIELDS:
            raise Refused(f"{served.name} of {len(frame)} bytes: at most {LONG_BYTES_MAX} are accepted")
        if not served.min_version <= version <= served.max_version:
            raise Refused(f"{served.name} version {version} is not served")
        try:
            header, position = decode_request_header(frame)
            body = served.decode(frame, position, version)
        except MalformedFrame as error:
            raise Refused(f"{served.name} version {version} does not parse: {error}") from error
        if size is not RequestSize.MANY_ELEMENTS and has_elements(body, LONG_ELEMENTS_MAX):
            raise Refused(f"{served.name} names more than {LONG_ELEMENTS_MAX} topics, partitions or groups")
        return header, body

    def receive(
        self, now: Millis, channel: Channel, frame: memoryview, decoded: Decoded = None
    ) -> list[Part] | Parked | None:
        """Serve one frame (without its length prefix); `frame` must be writable and is not kept.

        `decoded`: the result of `decode` for it, if the host has called that. Returns the parts of the answer,
        `Parked`, or None if the request has no answer. Raises Refused if Kafka would close the connection: an unknown
        API, an unsupported version, a frame that does not parse, an unauthenticated client.
        """
        if self.membership is not None:
            self._look_at_lease(self.membership, now)
        if channel.bare_tokens:
            return self._served[ApiKey.SASL_AUTHENTICATE].module().receive_bare(self, now, channel, bytes(frame))
        if len(frame) < 8:
            raise Refused(f"a request of {len(frame)} bytes has no header")
        api_key, version, correlation_id = _PREFIX.unpack_from(frame)
        served = self._served.get(api_key)
        if served is None:
            raise Refused(f"API key {api_key} is not served")
        if not (channel.authenticated or served.before_authentication):
            raise Refused(f"Unexpected Kafka request of type {served.name} during SASL handshake.")
        if not served.min_version <= version <= served.max_version and not served.spec.answers_any_version:
            raise Refused(f"{served.name} version {version} is not served")
        if self.leadership.suspended and served.needs_lease:
            # Otherwise a client would ask this node for the new leader: librdkafka asks the broker that it used last.
            self.outbox.add(Close(channel.identity.address.connection_id, "others may lead by now what this node led"))
        try:
            if served.receive is not None:
                if decoded is not None:
                    return served.receive(self, now, channel, version, correlation_id, frame, decoded)
                return served.receive(self, now, channel, version, correlation_id, frame)
            if decoded is None:
                header, position = decode_request_header(frame)
                body = served.decode(frame, position, version)
            else:
                header, body = decoded
        except MalformedFrame as error:
            raise Refused(f"{served.name} version {version} does not parse: {error}") from error
        request = Request(channel, api_key, version, correlation_id, header.client_id, now, body)
        elsewhere = served.is_forwarded and not self.members.is_controller
        answer = self.forwarding.forward(request) if elsewhere else served.handle(self, request)
        if answer is None or isinstance(answer, Parked | list):
            return cast("list[Part] | Parked | None", answer)
        self.throttle.charge_message(now, request, answer)
        return [encode_response(header, answer)]

    def spent(self, now: Millis, channel: Channel, micros: int) -> None:
        """Serving the last request of this channel took this long: charge its client, if the quotas count that."""
        if self.throttle.quotas is not None:
            self.throttle.quotas.spent(now, channel, micros)

    def disconnected(self, now: Millis, connection: int) -> None:
        """This connection is closed: drop the requests that wait for an answer on it."""
        self.parking.disconnected(connection)
        self.fetch_sessions.connection_lost(connection)
        for host in self._in_use("share", "share_members"):
            host.disconnected(now, connection)
        for sasl in self._in_use("sasl"):
            sasl.disconnected(connection)

    # ---- the disk --------------------------------------------------------------------------------------------------

    def unreadable(self, part: FileSlice, why: str) -> None:
        """The host could not read this part of an answer that it was already sending.

        Later requests for these bytes get an error, for this partition alone, until they can be read.
        """
        for partition in self.replicas:
            log = partition.log
            if any(segment.file is part.file for segment in log.segments):
                log.not_read(part)
                self.failures.read_failed(partition, why)

    def synced(self, now: Millis, token: int, failures: Mapping[int, str]) -> None:
        """The fsyncs of a Sync effect have ended; see there for `failures`. A log checks only its own files."""
        self.upkeep.synced(now, token, failures)
        for replication in self._in_use("replication"):
            replication.synced(now)

    def derived(self, now: Millis, token: int, mechanism: str, salted_password: bytes) -> None:
        """Handle the result of a Derive effect."""
        self.sasl.derived(now, token, mechanism, salted_password)

    def not_stored(self, path: str) -> None:
        """The file of a Store effect could not be written: its content is requested again."""
        self.upkeep.checkpoints.not_stored(path)

    def _taken_back(self, now: Millis, partition: Partition) -> None:
        """The uncommitted end of this partition's log was cut off. No client had seen it, but the coordinator on this
        node had."""
        for host in self._in_use(*_COORDINATORS.values()):
            host.taken_back(now, partition)
        for replication in self._in_use("replication"):
            replication.taken_back(now, partition)

    # ---- time and effects ------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        """When `tick` has to be called next, as of now."""
        return self.schedule.deadline()

    def _look_at_lease(self, membership: Membership, now: Millis) -> None:
        """Check the lease before anything is answered: a process that was suspended may have been fenced meanwhile."""
        self.leadership.suspended = not membership.is_fresh(now)
        self.leadership.given_up = membership.given_up

    def tick(self, now: Millis) -> None:
        if self.membership is not None:
            self._look_at_lease(self.membership, now)
        self.schedule.tick(now)

    def wall_clock_is(self, now: Millis, ahead_ms: int) -> None:
        """The wall clock is now this far ahead of the monotonic one, because it was set or because it drifts."""
        by_ms, self.wall.ahead_ms = ahead_ms - self.wall.ahead_ms, ahead_ms
        if abs(by_ms) >= CLOCK_STEP_MS:
            self.notes(f"the wall clock was set {'forward' if by_ms > 0 else 'back'} by {abs(by_ms)} ms")
            self.upkeep.wall_clock_was_set(now)
            for host in self._in_use("share"):
                host.wall_clock_was_set(now, by_ms)

    def take_effects(self, now: Millis) -> list[Effect]:
        """The effects that the host has to carry out now, in order. Fetches that became ready are answered here, once
        for all appends."""
        membership = self.membership
        if membership is not None:
            self._look_at_lease(membership, now)
            if self.failures.has_news:
                self.failures.has_news = False
                for replication in self._in_use("replication"):
                    replication.look_at_damage(now)
                membership.look_at_logs(now)
        self.slices.serve_resumed(now)
        self.parking.serve_ready(now)
        while self.peers.has_own:
            self._serve_own(now)
            self.slices.serve_resumed(now)
            self.parking.serve_ready(now)  # a waiting request may need what the node sent to itself: a marker
        self.upkeep.commits.begin(now)
        return self.outbox.take()

    # ---- other nodes -----------------------------------------------------------------------------------------------

    def answered(self, now: Millis, token: int, answer: Buffer | Unanswered) -> None:
        """Handle the result of an Ask effect: the frame of the answer without its length, or that there is none.

        The node does not keep the frame.
        """
        self.peers.answered(now, token, answer)

    def _serve_own(self, now: Millis) -> None:
        """Serve the requests that the node sent to itself, and deliver the answers that are ready."""
        for request in self.peers.take_own(now):
            answer = self._served[request.api_key].handle(self, request)
            if not isinstance(answer, Parked):
                request.take_answer(answer)
        self.peers.hand_over(now)

    # ---- metadata --------------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The newest metadata of the cluster that this node has received."""
        return self.metadata.image

    def committed(self, now: Millis, token: int, outcome: CommitOutcome) -> None:
        """Handle the outcome of a Commit effect."""
        self.metadata.committed(now, token, outcome)

    def reread(self, now: Millis, token: int, answer: Reading | Unread) -> None:
        """Handle the result of a Reread effect."""
        self.metadata.reread(now, token, answer)

    def changed(self, now: Millis, delta: MetadataDelta) -> None:
        """The metadata store has new rows, from any writer. Deltas arrive in the order of their generations."""
        before = self.metadata.move(delta)
        if self.membership is not None and self.membership.enter() and self.store_memory is not None:
            self.store_memory.reported(self.image)
        self.settings.follow(now, delta)
        if delta.names(QUOTAS):
            self._keep_to_quotas()
        if delta.names(FEATURES):
            too_old = too_old_for(self.image)
            if too_old is not None:  # set while this node was registering; the controller does not take it in
                self.environment.warn(too_old)
            for host in self._in_use("share"):
                host.features_changed(now)
        names = delta.names(TOPICS)
        if self.store_memory is not None:  # first of all that follows
            self.store_memory.follow(before, self.image, names)
        if names:
            self.topics.follow(now, before, names)
            self._replicate(now, names)
            self.forwarding.topics_changed(now, names)
        for name in delta.names(NODES):
            known = self.image.nodes.get(name)
            if known is None or known.state is NodeState.FENCED:
                self.peers.given_up(now, int(name))
                if known is not None and name in before.nodes and before.nodes[name].state is NodeState.ACTIVE:
                    self.members.lost(now, int(name))
        if self.membership is not None:
            self.membership.follow(now, delta)

    def _keep_to_quotas(self) -> None:
        """Charge clients by the quotas of the image; without any quota nothing is counted."""
        quotas, settings = self.image[QUOTAS], self.settings
        self.connection_quotas.keep_to(quotas)
        self.throttle.quotas = None
        if quotas:
            from ottla.broker.client_quotas import ClientQuotas

            samples, window_ms = settings["quota.window.num"], settings["quota.window.size.seconds"] * 1000
            burst_s = settings["controller.quota.window.num"] * settings["controller.quota.window.size.seconds"]
            self.throttle.quotas = ClientQuotas(quotas, samples, window_ms, burst_s * 1000, self.peers.trusts)

    def _replicate(self, now: Millis, names: list[str]) -> None:
        """Follow the leaders of these topics' partitions, once there is one that has more than one replica."""
        topics = [self.image.topics[name] for name in names if name in self.image.topics]
        if self._in_use("replication") or any(len(each.replicas) > 1 for topic in topics for each in topic.partitions):
            self.replication.follow(now, names)
        for topic in topics:
            if topic.name in _COORDINATORS and any(self._may_lead_later(each) for each in topic.partitions):
                self._load_code_of(topic.name)

    def _may_lead_later(self, placed: PartitionRecord) -> bool:
        return len(placed.replicas) > 1 and self.node_id in placed.replicas

    def _load_code_of(self, topic_name: str) -> None:
        """Load the code that this node needs as such a coordinator.

        It may have to coordinate when another node fails: then its clients wait, and loading takes some 200 ms of
        CPU.
        """
        getattr(self, _COORDINATORS[topic_name])
        if topic_name == SHARE_GROUP_STATE_TOPIC:
            _ = self.share
        for each in self._served.values():
            if each.spec.loaded_with == topic_name:
                each.module()

    def leader_changed(self, now: Millis, topic: LocalTopic, partition: Partition) -> None:
        """Another node now leads this partition, or this one in a new epoch: notify the requests that wait for it.

        A new coordinator at once completes what its predecessor left unfinished, whether or not a client asks for
        it.
        """
        partition.resign(now)
        self.failures.leader_changed(partition)
        if partition.leads and topic.name in _COORDINATORS:
            getattr(self, _COORDINATORS[topic.name])
        for host in self._in_use(*_COORDINATORS.values(), "share"):
            host.leader_changed(now, topic, partition)

    def topic_deleted(self, now: Millis, topic: TopicImage, partitions: Iterable[Partition]) -> None:
        """The topic was deleted, with these partitions of it on this node: notify the requests that wait for one of
        them."""
        self.metrics.topic_deleted(topic.name)
        for partition in partitions:
            partition.resign(now)
            self.upkeep.forget(partition)
        if self._in_use("share_state"):
            _ = self.share  # it has its coordinators forget the topic
        for host in self._in_use(*_COORDINATORS.values(), "share"):
            host.topic_deleted(now, topic)
