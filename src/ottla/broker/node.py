"""Runs one node: routes requests to handlers, owns the topics, the shards and the parked requests.

A node does I/O only through `FileSystem` and `MetadataStore`, and has no clock and no randomness. The I/O host
(`ottla.server`, or `ottla.sim` under test) gives it time, entropy and frames, and carries out its effects.

    I/O host                                 node
    receive(now, channel, frame)      ->     parts of the answer | Parked | None
    tick(now) when deadline() comes   ->
    disconnected(now, connection)     ->
    take_effects(now)                 ->     Reply, Close, Mute, Sync, Store, Ask, Commit, Reread,
                                             Derive, FetchKeys, Audited
    synced(now, token, failures)      ->
    answered(now, token, answer)      ->
    committed(now, token, outcome)    ->
    reread(now, token, answer)        ->
    changed(now, delta)               ->
    wall_clock_is(now, ahead_ms)      ->

`now` is a time of the monotonic clock, and so is every deadline. So a step of the wall clock delays no request and
expires no member. Timestamps come from `wall`; see `machine.WallClock`.

Each of these calls delivers the completions that it has queued before it returns; `completions` has the order of
effects.

Invariant: each frame gets exactly one answer, from `receive` or later by a Reply effect; acks=0 gets none.

An unexpected exception affects only the part in which it happened: one shard, one log, one parked request. `faults`
receives it. Without `faults` it propagates, so tests and the simulator see every one.

Sources: ARCHITECTURE.md, section 2, rule 7; Kafka's KafkaApis.scala and ReplicaManager.scala.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from ottla.broker.api_spec import RequestSize
from ottla.broker.channel import Channel
from ottla.broker.core import Core
from ottla.broker.effects import Close, CommitOutcome, Effect, Parked, Part, Reading, Unread
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import Decoded, Request, RequestRefusedError
from ottla.broker.served import Served
from ottla.broker.upkeep.clean_stop import completing
from ottla.broker.upkeep.identity import (
    NODE_KEY,
    OLD_SECRET_KEY,
    StartRefusedError,
    identify,
    is_identified,
    shared_row,
    too_old_for,
)
from ottla.log.checkpoints import forget_seen
from ottla.log.files import FileSlice, ReadError
from ottla.log.syncing import Syncable
from ottla.machine import Millis, Unanswered
from ottla.metadata.features import FEATURES
from ottla.metadata.image import MetadataDelta
from ottla.metadata.nodes import NODES, NodeState
from ottla.metadata.quotas import QUOTAS
from ottla.metadata.topics import TOPICS
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.framing import decode_request_header, encode_response
from ottla.protocol.wire import Buffer, has_elements

if TYPE_CHECKING:
    from ottla.broker.cluster.introduction import Introduction
    from ottla.broker.cluster.membership import Membership
    from ottla.broker.security.jwks import KeySet

LONG_BYTES_MAX: Final = 16 << 20
"""Longer requests are refused, except those that carry client data: records, subscriptions, assignments."""
LONG_ELEMENTS_MAX: Final = 250_000
"""Requests that name more are refused: a node has 100,000 partitions at most, each perhaps in a topic of its own."""
UNKNOWN_ACLS: Final = "which ACLs hold is not known without the cluster's metadata"
UNKNOWN_PASSWORDS: Final = "which passwords hold is not known without the cluster's metadata"
_PREFIX = struct.Struct(">hhi")
CLOCK_STEP_MS: Final = 1_000
"""A smaller change of the wall clock is drift or slewing, and needs no timer to be set again."""


class Node(Core):
    """A single broker. The module's docstring describes how an I/O host drives it."""

    # ---- lifecycle -------------------------------------------------------------------------------------------------

    def start(self, now: Millis) -> None:
        """Load metadata, open every log, begin to load the coordinators.

        Raises StartRefusedError with one sentence when the directory belongs to another node or version, or the cluster
        is at a level of a feature that this version does not support.
        """
        self.observations.start(now)
        files, directory = self.environment.files, self.environment.directory
        files.makedirs(directory)
        was_here = is_identified(files, directory)
        alone = self.members.is_alone
        self.cluster_id = identify(files, directory, self.store, self.node_id, self.environment.entropy, alone=alone)
        self._compare_store()
        if self.membership is not None or self.settings["ottla.cluster.secret"]:
            self._share_trust()
        self.upkeep.checkpoints.read(self.environment.notes)
        clean = self.upkeep.checkpoints.take_clean_stop(self.environment.notes)
        self.metadata.load()
        too_old = too_old_for(self.image)
        if too_old is not None:
            raise StartRefusedError(too_old)
        self.settings.load()
        self.keep_to_quotas()
        if self.membership is not None:
            known = self.image.nodes.get(str(self.node_id))
            self.upkeep.written.read(
                may_be_missing=known is None or known.is_of_earlier_version,
                may_be_torn=not self.environment.same_boot,
            )
        forgotten = self.store_memory is not None and self.store_memory.forgotten
        self.topics.load(now, clean_shutdown=clean, doubts_store=forgotten or self.store.lost > 0)
        self._replicate(now, list(self.replicas))
        if self.replicates:
            self.replication.send(now)
        self._be_ready_for(self.image.topics)
        self.coordinators.start(now)
        self.upkeep.start(now)
        if self.membership is not None:
            kept, by_fsync = clean or self.environment.same_boot, self.upkeep.commits.by_fsync
            self.membership.join(
                now,
                files,
                directory,
                clean=clean,
                verified=clean and self.upkeep.checkpoints.knows_left,
                kept=kept,
                by_fsync=by_fsync,
                same_disk=was_here,
                lost_commits=self.store.lost,
                knows_store=self.store_memory is None or not self.store_memory.forgotten,
            )
            if self.store_memory is not None:
                self.store_memory.compared(self.image, knows_store=self.membership.knows_store)
            # Behind the losses, which are on the disk now: with these files the next start would not notice them.
            self.upkeep.checkpoints.begin()
            self.upkeep.written.begin(self.upkeep.partitions)
            self.failures.has_news = True
        self.is_started = True
        self.completions.deliver(now)

    def _share_trust(self) -> None:
        """Find out how the nodes of this cluster recognize each other. Raises StoreError."""
        secret: str = self.settings["ottla.cluster.secret"] or ""
        entropy = self.environment.entropy
        listener = "" if self.membership is None else self.membership.joining.listener
        old_secret = shared_row(self.store, OLD_SECRET_KEY, entropy.randbytes(16).hex().encode())
        stored = shared_row(self.store, NODE_KEY, entropy.randbytes(32))
        self.peers.trust.share(self.cluster_id, stored, secret, secret or old_secret.decode(), listener)

    def _compare_store(self) -> None:
        """Find out whether the store is older than the one that an earlier incarnation here has seen; sets
        `store.lost`."""
        if self.store_memory is None or self.membership is None:
            forget_seen(self.environment.files, self.environment.directory)
        else:
            self.store_memory.begin(self.store, self.membership.joining.incarnation)
        self.topics.producer_ids.lost(self.store.lost)

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
        if self.audit is not None:
            self.audit.finish(now)
        self.topics.removals.finish(now)
        if self.store_memory is not None:
            self.store_memory.finish(self.image)
        self.upkeep.finish(now, self.store)

    # ---- requests --------------------------------------------------------------------------------------------------

    def decode(self, frame: memoryview) -> Decoded:
        """Decode a frame as `receive` would, on any thread: a host may do this beside its loop if a frame is long.

        Returns None if the API reads its frames itself. Raises RequestRefusedError, also if a frame is longer than any
        request needs.
        """
        api_key, version, _ = _PREFIX.unpack_from(frame)
        served = self.served.get(api_key)
        if served is None or (size := served.spec.size) is RequestSize.READ_BY_HANDLER:
            return None
        if len(frame) > LONG_BYTES_MAX and size is not RequestSize.LARGE_FIELDS:
            raise RequestRefusedError(f"{served.name} of {len(frame)} bytes: at most {LONG_BYTES_MAX} are accepted")
        if not served.min_version <= version <= served.max_version:
            raise RequestRefusedError(f"{served.name} version {version} is not served")
        try:
            header, position = decode_request_header(frame)
            body = served.decode(frame, position, version)
        except MalformedFrameError as error:
            raise RequestRefusedError(f"{served.name} version {version} does not parse: {error}") from error
        if size is not RequestSize.MANY_ELEMENTS and has_elements(body, LONG_ELEMENTS_MAX):
            raise RequestRefusedError(f"{served.name} names more than {LONG_ELEMENTS_MAX} topics, partitions or groups")
        return header, body

    def receive(
        self, now: Millis, channel: Channel, frame: memoryview, decoded: Decoded = None
    ) -> list[Part] | Parked | None:
        """Serve one frame (without its length prefix); `frame` must be writable and is not kept.

        `decoded`: the result of `decode` for it, if the host has called that. Returns the parts of the answer,
        `Parked`, or None if the request has no answer. Raises RequestRefusedError if Kafka would close the connection:
        an unknown API, an unsupported version, a frame that does not parse, an unauthenticated client.
        """
        if self.membership is not None:
            self._look_at_lease(self.membership, now)
        if channel.bare_tokens:
            if self.leadership.suspended:
                raise RequestRefusedError(UNKNOWN_PASSWORDS)
            return self.served[ApiKey.SASL_AUTHENTICATE].module().receive_bare(self, now, channel, bytes(frame))
        if len(frame) < 8:
            raise RequestRefusedError(f"a request of {len(frame)} bytes has no header")
        api_key, version, correlation_id = _PREFIX.unpack_from(frame)
        served = self.served.get(api_key)
        if served is None:
            raise RequestRefusedError(f"API key {api_key} is not served")
        if not (channel.authenticated or served.before_authentication):
            raise RequestRefusedError(f"Unexpected Kafka request of type {served.name} during SASL handshake.")
        if not served.min_version <= version <= served.max_version and not served.spec.answers_any_version:
            raise RequestRefusedError(f"{served.name} version {version} is not served")
        record = channel.record
        if not record.requests:
            self.observations.opened(channel)
        record.requests += 1
        record.received_bytes += len(frame)
        if self.leadership.suspended:
            self._without_lease(channel, served)
        try:
            if served.receive is None:
                answer = self._handle(now, channel, served, version, correlation_id, frame, decoded)
            elif decoded is None:
                answer = served.receive(self, now, channel, version, correlation_id, frame)
            else:
                answer = served.receive(self, now, channel, version, correlation_id, frame, decoded)
        except MalformedFrameError as error:
            raise RequestRefusedError(f"{served.name} version {version} does not parse: {error}") from error
        return self._completed(now, answer) if self.completions.waiting else answer

    def _handle(
        self,
        now: Millis,
        channel: Channel,
        served: Served,
        version: int,
        correlation_id: int,
        frame: memoryview,
        decoded: Decoded,
    ) -> list[Part] | Parked | None:
        """Serve a request that its handler gets as a message. Raises MalformedFrameError."""
        if decoded is None:
            header, position = decode_request_header(frame)
            body = served.decode(frame, position, version)
        else:
            header, body = decoded
        request = Request(channel, served.key, version, correlation_id, header.client_id, now, body)
        if not channel.record.client_id:
            self.observations.named(channel, request.client_id)
        if not served.is_forwarded or self.members.is_alone:
            answer = served.handle(self, request)
        elif self.members.is_controller:
            answer = self.forwarding.serve(request, partial(served.handle, self))
        else:
            answer = self.forwarding.forward(request)
        if answer is None or isinstance(answer, Parked | list):
            return cast("list[Part] | Parked | None", answer)
        self.throttle.charge_message(now, request, answer)
        self.observations.answered(now, request, answer)
        return [encode_response(header, answer)]

    def _without_lease(self, channel: Channel, served: Served) -> None:
        """Others may know better than this node by now: close the connection, so that the client asks another node.

        Raises RequestRefusedError if the answer depends on ACLs or passwords, which may have changed, or if another
        process is this node now.
        """
        if self.membership is not None and self.membership.is_replaced:
            raise RequestRefusedError(f"another process has registered as node {self.node_id}")
        if served.spec.key is ApiKey.SASL_AUTHENTICATE and not self.sasl.is_of_node(channel):
            raise RequestRefusedError(UNKNOWN_PASSWORDS)
        if not served.spec.before_authentication and self.access.depends_on_acls(channel.identity):
            raise RequestRefusedError(UNKNOWN_ACLS)
        if served.needs_lease:
            # Otherwise a client would ask this node for the new leader: librdkafka asks the broker that it used last.
            self.outbox.add(Close(channel.identity.address.connection_id, "others may lead by now what this node led"))

    def _completed(self, now: Millis, answer: list[Part] | Parked | None) -> list[Part] | Parked | None:
        """Deliver the completions that a request has queued. One of them may be its own answer."""
        self.completions.deliver(now)
        reply = self.outbox.take_reply(answer.ticket) if isinstance(answer, Parked) else None
        return answer if reply is None else cast("list[Part]", reply.parts) or None

    def spent(self, now: Millis, channel: Channel, micros: int) -> None:
        """Serving the last request of this channel took this long: charge its client, if the quotas count that."""
        if self.throttle.quotas is not None:
            self.throttle.quotas.spent(now, channel, micros)

    def stood_still(
        self, now: Millis, took_ms: int, api_key: int | None = None, channel: Channel | None = None
    ) -> None:
        """The host's event loop was busy for so long with `tick`, or with a request of this channel."""
        slowest = self.schedule.slowest if channel is None else None
        self.observations.stood_still(now, took_ms, api_key, channel, "" if slowest is None else slowest.value)

    def disconnected(self, now: Millis, connection: int) -> None:
        """This connection is closed: drop the requests that wait for an answer on it."""
        self.events.disconnected(now, connection)
        self.completions.deliver(now)

    # ---- the disk --------------------------------------------------------------------------------------------------

    def unreadable(self, part: FileSlice, error: OSError) -> None:
        """The host could not read this part of an answer that it was already sending.

        Later requests for these bytes get an error, for this partition alone, until they can be read. If the file has
        fewer bytes than the log, the log is checked.
        """
        for partition in self.replicas:
            log = partition.log
            if any(segment.file is part.file for segment in log.segments):
                if is_cut_off(part):
                    self.upkeep.scrubs.check_next(partition)
                else:
                    log.not_read(part)
                    self.failures.read_failed(partition, ReadError(error, part.file.path, part.position))

    def synced(self, now: Millis, token: int, failures: Mapping[int, str]) -> None:
        """The fsyncs of a Sync effect have ended; see there for `failures`. A log checks only its own files."""
        self.upkeep.synced(now, token, failures)
        self.events.synced(now)
        self.completions.deliver(now)

    def derived(self, now: Millis, token: int, mechanism: str, salted_password: bytes) -> None:
        """Handle the result of a Derive effect."""
        self.sasl.derived(token, mechanism, salted_password)
        self.completions.deliver(now)

    def keys_changed(self, listener: str, keys: KeySet) -> None:
        """The keys that check clients' tokens on a listener are these from now on."""
        self.sasl.keys[listener] = keys

    def introduction(self, node_id: int, binding: bytes = b"") -> Introduction | None:
        """The beginning of a connection to another node; see `Trust.introduction`."""
        return self.peers.trust.introduction(node_id, binding)

    def not_stored(self, path: str) -> None:
        """The file of a Store effect could not be written: its content is requested again."""
        self.upkeep.checkpoints.not_stored(path)

    # ---- time and effects ------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        """When `tick` has to be called next, as of now."""
        return self.schedule.deadline()

    def _look_at_lease(self, membership: Membership, now: Millis) -> None:
        """Check the lease before anything is answered: a process that was suspended may have been fenced meanwhile."""
        self.leadership.suspended = not membership.is_fresh(now) or membership.is_replaced
        self.leadership.given_up = membership.given_up

    def tick(self, now: Millis) -> None:
        if self.membership is not None:
            self._look_at_lease(self.membership, now)
        self.schedule.tick(now, self.completions.deliver)

    def wall_clock_is(self, now: Millis, ahead_ms: int) -> None:
        """The wall clock is now this far ahead of the monotonic one, because it was set or because it drifts."""
        by_ms, self.wall.ahead_ms = ahead_ms - self.wall.ahead_ms, ahead_ms
        if abs(by_ms) >= CLOCK_STEP_MS:
            self.notes(f"the wall clock was set {'forward' if by_ms > 0 else 'back'} by {abs(by_ms)} ms")
            self.events.clock_stepped(now, by_ms)
            self.completions.deliver(now)

    def take_effects(self, now: Millis) -> list[Effect]:
        """The effects that the host has to carry out now, in order. Fetches that became ready are answered here, once
        for all appends."""
        membership = self.membership
        if membership is not None:
            self._look_at_lease(membership, now)
            if self.failures.has_news:
                self.failures.has_news = False
                if self.replicates:
                    self.replication.look_at_damage(now)
                membership.look_at_logs(now)
        completions = self.completions
        if completions.waiting:
            completions.deliver(now)
        parking, peers, commits = self.parking, self.peers, self.upkeep.commits
        if parking.ready:
            parking.serve_ready(now)
        while peers.own or (completions.waiting and completions.is_due):
            self._serve_own(now)
            completions.deliver(now)
            parking.serve_ready(now)  # a waiting request may need what the node sent to itself: a marker
        if commits.unsynced:
            commits.begin(now)
        if self.audit is not None and self.audit.has_notes:
            self.audit.settle(now)
        return self.outbox.take()

    # ---- other nodes -----------------------------------------------------------------------------------------------

    def answered(self, now: Millis, token: int, answer: Buffer | Unanswered) -> None:
        """Handle the result of a PeerRequest: the frame of the answer without its length, or that there is none.

        The node does not keep the frame.
        """
        self.peers.answered(now, token, answer)
        self.completions.deliver(now)

    def _serve_own(self, now: Millis) -> None:
        """Serve the requests that the node sent to itself."""
        for request in self.peers.take_own(now):
            answer = self.served[request.api_key].handle(self, request)
            if not isinstance(answer, Parked):
                request.take_answer(answer)

    # ---- metadata --------------------------------------------------------------------------------------------------

    def committed(self, now: Millis, token: int, outcome: CommitOutcome) -> None:
        """Handle the outcome of a Commit effect."""
        self.metadata.committed(now, token, outcome)
        self.completions.deliver(now)

    def reread(self, now: Millis, token: int, answer: Reading | Unread) -> None:
        """Handle the result of a Reread effect."""
        self.metadata.reread(now, token, answer)
        self.completions.deliver(now)

    def changed(self, now: Millis, delta: MetadataDelta) -> None:
        """The metadata store has new rows, from any writer. Deltas arrive in the order of their generations."""
        self.follow(now, delta)
        self.completions.deliver(now)

    def follow(self, now: Millis, delta: MetadataDelta) -> None:
        before = self.metadata.move(delta)
        if self.membership is not None and self.membership.enter() and self.store_memory is not None:
            self.store_memory.reported(self.image)
        self.settings.follow(now, delta)
        if delta.names(QUOTAS):
            self.keep_to_quotas()
        if delta.names(FEATURES):
            too_old = too_old_for(self.image)
            if too_old is not None:  # set while this node was registering; the controller does not take it in
                self.environment.warn(too_old)
            self.events.features_changed(now)
        names = delta.names(TOPICS)
        if self.store_memory is not None:  # first of all that follows
            self.store_memory.follow(before, self.image, names)
        if names:
            self.topics.follow(now, before, names)
            if self.replicates:
                self.replication.removed(names)
            self._be_ready_for(names)
            self.metadata.node_is_behind(before)
            self.follow_image(now)
        for name in delta.names(NODES):
            if name == str(self.node_id):
                self.failures.has_news = True  # what this node reports of its logs is in its row now
            known = self.image.nodes.get(name)
            if known is None or known.state is NodeState.FENCED:
                self.peers.given_up(int(name))
                if known is not None and name in before.nodes and before.nodes[name].state is NodeState.ACTIVE:
                    self.members.lost(now, int(name))
        if self.membership is not None:
            self.membership.follow(now, delta)

    def follow_image(self, now: Millis) -> None:
        """Bring partitions in line with the image for one slice; the next tick continues. A start does it at once."""
        time_slice = self.environment.time_slice() if self.is_started else None
        placed, done = self.topics.place(now, time_slice)
        self._replicate(now, placed)
        self.forwarding.topics_changed(done)
        if self.replicas.behind:
            self.following.set(now)
            return
        if self.replicates:
            self.replication.send(now)
        self.metadata.node_has_followed(now)

    def go_on_following(self, now: Millis) -> None:
        """Continue to follow the image. In the end the node's row may have to report more about its logs."""
        self.follow_image(now)
        if not self.replicas.behind:
            self.failures.has_news = True

    def _replicate(self, now: Millis, partitions: Iterable[Partition]) -> None:
        """Follow the leaders of these partitions, once there is one that has more than one replica."""
        if not self.replicates and not any(map(self._is_replicated, partitions)):
            return
        self.replication.follow(now, partitions)

    def _is_replicated(self, partition: Partition) -> bool:
        placed = self.image.partition(partition.topic_name, partition.index)
        return placed is not None and len(placed.replicas) > 1

    def _be_ready_for(self, names: Iterable[str]) -> None:
        """Load the code that this node needs if it may have to coordinate with one of these topics later."""
        for name in names:
            topic = self.image.topics.get(name)
            partitions = () if topic is None else topic.partitions
            is_replicated_here = any(self.node_id in each.replicas and len(each.replicas) > 1 for each in partitions)
            if is_replicated_here and self.coordinators.may_coordinate(name):
                for each in self.served.values():
                    if each.spec.loaded_with == name:
                        each.module()


def is_cut_off(part: FileSlice) -> bool:
    """Whether the file ends before the end of this slice."""
    try:
        return len(part.read()) < part.length
    except OSError:
        return False
