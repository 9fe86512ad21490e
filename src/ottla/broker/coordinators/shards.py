"""Hosts shards: one coordinator per partition of an internal topic, driven by requests, time and the log.

A host finds a key's partition, writes a decision as a batch to the log, sends its answers once it is committed, and
reloads a shard's state. The shards decide; share, group and transaction coordinators are hosted alike.

    request -> CoordinatorRequest -> shard.decide -> one batch appended -> shard.apply -> answers, once all is committed

A `CoordinatorRequest` is one client request that goes through one shard or several. Each of its calls has a step: the
ticket that the shard knows. A shard whose append failed is discarded with all its parked requests (NOT_COORDINATOR). It
is rebuilt by replay, in slices between other work. While it loads, its clients get COORDINATOR_LOAD_IN_PROGRESS.

A damaged log (`ottla.log.replay` defines the signs) gets no shard, because the lost part might be the latest state of
any group there. Its clients get NOT_COORDINATOR until the node restarts. The server log names the file and the repair.
Sound records that make no sense here are skipped, each with a note: some program wrote them that way.

Invariants: an answer is sent when the high watermark has reached the log end that its decision saw, under the leader
epoch that it saw (ARCHITECTURE.md, section 2, rule 7). A step is in `_steps` exactly until its reply is in. A partition
without records costs nothing until a request asks for it.

Sources: Kafka's CoordinatorRuntime.java, GroupCoordinatorService.java (error codes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import MARKERS_LINE, Peers
from ottla.broker.coordinators.loading import Loading
from ottla.broker.coordinators.remote_shards import Elsewhere
from ottla.broker.effects import Parked
from ottla.broker.environment import Environment
from ottla.broker.observations.slowest import WAIT_FOR_MEMBERS, Awaited
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic
from ottla.broker.requests import NODE_REQUEST, Request
from ottla.broker.schedule import Backlog, KeyedTimers, Timed
from ottla.log.answers import Appended, AppendRefusedError, Origin, StorageError
from ottla.log.replay import ReplacedError, Replay, UnreadableError
from ottla.machine import (
    NO_PRODUCER_ID,
    NOTHING,
    AppliedBatch,
    AppliedRecord,
    AskingShard,
    Call,
    Decision,
    Entropy,
    Millis,
    Shard,
    ShardCall,
    Ticket,
    WallClock,
)
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC, partition_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import BatchHeader, peek
from ottla.protocol.records.control import EndTransactionMarker, decode_marker
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import Record, build_batch, decode_records

LOAD_SLICE_BYTES: Final = 128 * 1024
"""How much of a log is replayed at once: some 20 ms of work."""

LOAD_AGAIN_MS: Final = 100
"""A shard whose log refused a record twice in so short a time is not loaded again before this time has passed: it would
fail at once at the same record."""

SKIP_DAMAGED: Final = "ottla.coordinator.skip.damaged"
"""The setting with which an operator gives up unreadable records."""

NO_STEP: Final[Ticket] = 0
"""The ticket of a call that the node makes by itself, for no client."""

_COORDINATOR_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error that a coordinator's client gets when an append fails with the first."""

SHARDS_PER_TICK: Final = 4
"""How many shards take a due step before requests have their turn: a step may be milliseconds of work."""

SUSPENDED_MS: Final = 100
"""How long due work is deferred on a node without contact to its cluster, before the next check, in milliseconds."""

_TIMED: Final = {
    SHARE_GROUP_STATE_TOPIC: Timed.SHARE_STATE,
    TRANSACTION_STATE_TOPIC: Timed.TRANSACTIONS,
}
"""Topic: the part of the node whose timers fire; groups for any other."""


class ShardClass(Protocol):
    """A kind of shard."""

    @staticmethod
    def of(entropy: Entropy, notes: Callable[[str], None], wall: WallClock, leader_epoch: int) -> Shard:
        """A shard without memory; `leader_epoch` is the one in which its partition is led here."""
        ...

    @staticmethod
    def refuse(call: Call, error: ErrorCode) -> object:
        """The answer of this kind's APIs to a call that reached no shard."""
        ...

    @staticmethod
    def topics_deleted(names: tuple[str, ...]) -> Call | None:
        """The call that every shard must receive when topics are deleted; None if there is none."""
        ...


class CoordinatorRequest(ParkedWork):
    """One request in progress. `calls` are (partition index, call); `replies` arrive in any order.

    APIs that ask several shards, or answer more than the shard, derive from it and build the answer in `finish`.
    """

    __slots__ = ("calls", "held", "host", "missing", "replies", "steps", "ticket")

    goes_elsewhere = False
    """Whether the node itself asks, and its calls may be answered by another node."""

    def __init__(self, calls: Sequence[tuple[int, Call]]) -> None:
        self.calls = calls
        self.replies: list[Any] = [None] * len(calls)
        self.missing = len(calls)
        self.steps: list[Ticket] = []
        self.held: list[Held] = []
        self.host: ShardHost | None = None
        self.ticket: Ticket = NO_STEP

    def awaits(self, request: Request) -> Awaited | None:
        return None if request.api_key in WAIT_FOR_MEMBERS else Awaited.COORDINATOR

    def finish(self, request: Request) -> Any:
        """The answer of the request, once every reply is in; None if its connection is closed instead."""
        return self.replies[0]

    def put(self, at: int, reply: object) -> None:
        """The reply to one call. `complete` is called after the last one, by a completion."""
        self.replies[at] = reply
        self.missing -= 1
        if not self.missing:
            assert self.host is not None
            self.host.completions.add(self.complete)

    def complete(self, now: Millis) -> None:
        """Every reply is in: answer, if the request still waits."""
        assert self.host is not None
        parking = self.host.parking
        request = parking.request_of(self.ticket)
        if request is None:
            return
        try:
            answer = self.finish(request)
        except Exception as error:
            parking.give_up(self.ticket, "a request to a coordinator", error)
            return
        if answer is None:
            parking.take(self.ticket)
        else:
            parking.answer(now, self.ticket, answer)

    def committed(self, now: Millis, ticket: Ticket, partition: Partition) -> None:
        waiting, self.held = self.held, []
        for held in waiting:
            if held.hosted.partition is not partition or partition.log.high_watermark < held.required:
                self.held.append(held)
            elif partition.leader_epoch != held.leader_epoch:
                self.put(held.at, self._refusal(held.at))
            else:
                self.put(held.at, held.reply)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        """The decision was not committed in time, and its outcome is unknown. The client retries."""
        waiting, self.held = self.held, []
        for held in waiting:
            if held.deadline > now:
                self.held.append(held)
            else:
                self.put(held.at, self._refusal(held.at, ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        """The partition it waited in is lost to this node: whatever is still missing is refused."""
        self._forget_steps()
        lost, self.held = self.held, []
        for at, reply in enumerate(self.replies):
            if reply is None:
                self.put(at, self._refusal(at))
        for held in lost:
            held.hosted.host.lost(now, held.hosted)

    def abandon(self, ticket: Ticket) -> None:
        self._forget_steps()
        self.held.clear()

    def _refusal(self, at: int, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> object:
        assert self.host is not None
        return self.host.shard_class.refuse(self.calls[at][1], error)

    def _forget_steps(self) -> None:
        assert self.host is not None
        for step in self.steps:
            self.host.forget(step)


class Held(NamedTuple):
    """The reply of a decision that is not committed yet: the call of the request (`at`), and the offset it waits
    for."""

    hosted: Hosted
    leader_epoch: int
    required: int
    at: int
    reply: object
    deadline: Millis


class Hosted:
    """One shard with its partition. `replay`: how far it has read; `loaded`: it has seen the log's end; `loads_from`:
    when to begin."""

    __slots__ = ("after_load", "host", "leader_epoch", "loaded", "loads_from", "partition", "replay", "shard")

    def __init__(self, host: ShardHost, partition: Partition, shard: Shard) -> None:
        self.host = host
        self.partition = partition
        self.shard = shard
        self.leader_epoch = partition.leader_epoch
        self.replay = Replay(partition.log)
        self.loaded = False
        self.loads_from: Millis = 0
        self.after_load: list[Call] = []

    @property
    def index(self) -> int:
        return self.partition.index


class ShardAsk:
    """A shard's request to a node of the cluster; a `cluster.peers.Asker`."""

    __slots__ = ("_host", "_hosted", "_number")

    def __init__(self, host: ShardHost, hosted: Hosted, number: int) -> None:
        self._host = host
        self._hosted = hosted
        self._number = number

    def answered(self, now: Millis, answer: object) -> None:
        self._host.answered(now, self._hosted, self._number, answer)


class UncommittedAsks(ParkedWork):
    """A shard's requests that are sent once its decision is committed; if that is lost they are never sent."""

    __slots__ = ("_asks", "_host", "_hosted")

    def __init__(self, host: ShardHost, hosted: Hosted, asks: Sequence[ShardCall]) -> None:
        self._host = host
        self._hosted = hosted
        self._asks = asks

    def committed(self, now: Millis, ticket: Ticket, partition: Partition) -> None:
        self._host.parking.take(ticket)
        self._host.send(now, self._hosted, self._asks)

    def lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        self._host.parking.take(ticket)


def _never(_: Call) -> bool:
    return False


class ShardHost:
    """The shards of one internal topic. `commits_within`: the setting for how long an answer waits for the commit of
    its decision."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        leadership: Leadership,
        parking: Parking,
        peers: Peers,
        topic_name: str,
        shard_class: ShardClass,
        commits_within: str,
    ) -> None:
        self.parking = parking
        self.completions = environment.completions
        self.topic_name = topic_name
        self.shard_class = shard_class
        self._commits_within = commits_within
        self.elsewhere: Elsewhere | None = None
        """Calls other nodes, if calls may be answered there."""
        self.needs_enough_replicas: Callable[[Call], bool] = _never
        """Which calls are refused while fewer replicas than min.insync.replicas are in sync. Kafka appends the records
        of groups and of share groups all the same: its CoordinatorPartitionWriter asks for acks=1."""
        self._environment = environment
        self._metadata = metadata
        self._leadership = leadership
        self._peers = peers
        self._hosted: dict[int, Hosted] = {}
        schedule, timed = environment.schedule, _TIMED.get(topic_name, Timed.GROUPS)
        self._loading: Loading[Hosted] = Loading(schedule, timed, self._load_slice)
        self._damaged: dict[int, Partition] = {}
        """Partitions whose log can't be replayed: they have no coordinator until the node restarts."""
        self._failed: dict[int, Millis] = {}
        """When the logs of these partitions last refused a record."""
        self._gone = Backlog[str](schedule, timed, self._tell_of_gone)
        self._timers = KeyedTimers[int](schedule, timed, self._expire)
        self._suspended_at: Millis = 0
        """When a shard was last due while the node had no contact to its cluster."""
        self._steps: dict[Ticket, tuple[CoordinatorRequest, int, Hosted]] = {}
        self._next_step: Ticket = 1

    # ---- lifecycle -------------------------------------------------------------------------------------------------

    def start(self, now: Millis) -> None:
        """Begin to load every partition that has records."""
        for partition in self._leadership.all_led(self.topic_name):
            if partition.log.log_end_offset > partition.log.log_start_offset:
                self._open(now, partition)

    def _tell_of_gone(self, now: Millis) -> None:
        call = self.shard_class.topics_deleted(tuple(self._gone.take()))
        if call is not None:
            self.tell_all(now, call)

    def _expire(self, now: Millis) -> None:
        """One step of every shard whose deadline has passed."""
        due: list[int] = []
        while len(due) < SHARDS_PER_TICK and (index := self._timers.pop(now)) is not None:
            due.append(index)
        for index in due:
            if self._leadership.is_in_doubt(self.topic_name, index):
                self._suspended_at = now
                self._timers.set(index, now + SUSPENDED_MS)
                continue
            hosted = self._usable(now, index)
            if hosted is not None and hosted.loaded:
                try:
                    self._carry_out(now, hosted, hosted.shard.expire(now))
                except Exception as error:
                    self._discard(now, hosted, ErrorCode.NOT_COORDINATOR)
                    self._environment.fault(f"the coordinator of {hosted.partition.name} failed and starts over", error)

    def topic_deleted(self, now: Millis, topic: Any) -> None:
        """A topic was deleted: the shards that refer to it are notified on the next tick, once for all deletions.

        If it was the shards' own topic, they are removed with it.
        """
        if topic.name == self.topic_name:
            for hosted in list(self._hosted.values()):
                self._discard(now, hosted, ErrorCode.NOT_COORDINATOR)
            self._damaged.clear()
            return
        self._gone.append(topic.name)

    def tell_all(self, now: Millis, call: Call) -> None:
        """Let every shard decide on a call that the node makes by itself, for no client."""
        for hosted in list(self._hosted.values()):
            self._tell(now, hosted, call)

    def tell(self, now: Millis, key: str, call: Call) -> None:
        """The same for the shard that owns `key`, if there is one."""
        hosted = self._hosted.get(self.partition_for(key))
        if hosted is not None:
            self._tell(now, hosted, call)

    def _tell(self, now: Millis, hosted: Hosted, call: Call) -> None:
        if hosted.loaded:
            self._carry_out(now, hosted, hosted.shard.decide(now, NO_STEP, call))
        else:
            hosted.after_load.append(call)

    # ---- requests --------------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The partition whose shard owns `key`, as every Kafka broker and client computes it."""
        topic = self._metadata.image.topics.get(self.topic_name)
        return 0 if topic is None else partition_of(key, len(topic.partitions))

    def active(self) -> list[int]:
        """The partitions that have a shard: those with records, and those that a request has asked for."""
        return sorted(self._hosted)

    @property
    def is_suspended(self) -> bool:
        """Whether others may coordinate in this node's place, so that no shard answers."""
        return self._leadership.suspended

    def shards(self) -> list[Shard]:
        """Every loaded shard, for checks and metrics."""
        return [hosted.shard for _, hosted in sorted(self._hosted.items()) if hosted.loaded]

    def every_shard(self) -> list[Shard]:
        """Every shard, including those that are being loaded."""
        return [hosted.shard for _, hosted in sorted(self._hosted.items())]

    def loaded(self) -> list[tuple[Partition, Shard]]:
        """Every loaded shard with the partition that is its memory."""
        return [(hosted.partition, hosted.shard) for _, hosted in sorted(self._hosted.items()) if hosted.loaded]

    def submit(self, now: Millis, request: Request, asked: CoordinatorRequest) -> Parked:
        """Submit the calls to their shards. `asked.complete` is called once all replies are in, never before this
        returns."""
        asked.host = self
        asked.ticket = self.parking.park(request, None, asked)
        for at, (index, call) in enumerate(asked.calls):
            self._ask(now, asked, at, index, call)
        if not asked.calls:
            self.completions.add(asked.complete)
        return Parked(asked.ticket)

    def _ask(self, now: Millis, asked: CoordinatorRequest, at: int, index: int, call: Call) -> None:
        if asked.goes_elsewhere and self.elsewhere is not None and self.elsewhere.takes(index):
            self.elsewhere.ask(now, index, asked, at, call)
            return
        hosted = self._usable(now, index)
        if hosted is None:
            asked.put(at, self.shard_class.refuse(call, ErrorCode.NOT_COORDINATOR))
            return
        if not hosted.loaded and hosted.loads_from <= now:
            self._load_slice(now, hosted)
        if not hosted.loaded:
            loading = self._hosted.get(index) is hosted
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NOT_COORDINATOR
            asked.put(at, self.shard_class.refuse(call, error))
            return
        if not hosted.partition.has_enough_replicas and self.needs_enough_replicas(call):
            asked.put(at, self.shard_class.refuse(call, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        step, self._next_step = self._next_step, self._next_step + 1
        self._steps[step] = (asked, at, hosted)
        asked.steps.append(step)
        self._carry_out(now, hosted, hosted.shard.decide(now, step, call))

    def answer_here(self, now: Millis, index: int, call: Call) -> object | None:
        """The reply to a read-only question that is answered without waiting; None if it has to be submitted.

        That is so for another node, a shard that is loading, or records that are not committed.
        """
        hosted = self._hosted.get(index)
        if hosted is None or not hosted.loaded or self._usable(now, index) is not hosted:
            return None
        log = hosted.partition.log
        if log.high_watermark < log.log_end_offset:
            return None
        (answer,) = hosted.shard.decide(now, NO_STEP, call).answers
        return answer.reply

    def change_here(self, now: Millis, index: int, call: Call) -> object | None:
        """The reply to a call that may write a record, if that is committed at once; None if the call has to be
        submitted."""
        hosted = self._hosted.get(index)
        if hosted is None or not hosted.loaded or self._usable(now, index) is not hosted:
            return None
        if not hosted.partition.commits_at_once:
            return None
        decision = hosted.shard.decide(now, NO_STEP, call)
        error = self._carry_out(now, hosted, decision)
        if error:
            return self.shard_class.refuse(call, error)
        (answer,) = decision.answers
        return answer.reply

    def forget(self, step: Ticket) -> None:
        """The client of this step has disconnected."""
        known = self._steps.pop(step, None)
        if known is not None:
            known[2].shard.abandon(step)

    # ---- transactions of other coordinators ------------------------------------------------------------------------

    def append_marker(
        self,
        now: Millis,
        index: int,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
    ) -> Appended | ErrorCode:
        """End a transaction that has records in this partition, and notify its shard at once.

        Raises AppendRefusedError, StorageError.
        """
        hosted = self._usable(now, index)
        if hosted is None or not hosted.loaded:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # as in Kafka: the coordinator of the transaction retries
        appended = hosted.partition.append_marker(now, producer_id, producer_epoch, marker, transaction_version)
        hosted.shard.apply_marker(producer_id, producer_epoch, marker.committed)
        self._carry_out(now, hosted, NOTHING)
        return appended

    # ---- decisions -------------------------------------------------------------------------------------------------

    def _carry_out(self, now: Millis, hosted: Hosted, decision: Decision) -> ErrorCode:
        """Append and apply the records, then answer, or hold the answers back until all is committed. Returns why
        nothing was appended."""
        if decision.records:
            try:
                self._append(now, hosted, decision)
            except (AppendRefusedError, StorageError) as failed:
                return self._fail(now, hosted, decision, failed)
        self._set_timer(hosted)
        partition = hosted.partition
        required = partition.log.log_end_offset
        committed = partition.log.high_watermark >= required
        for answer in decision.answers:
            known = self._steps.pop(answer.ticket, None)
            if known is None:
                continue
            asked, at, _ = known
            if committed:
                asked.put(at, answer.reply)
            else:
                deadline = now + self._environment.settings[self._commits_within]
                asked.held.append(Held(hosted, partition.leader_epoch, required, at, answer.reply, deadline))
                partition.wait_for_commit(required, asked.ticket)
                self.parking.limit(asked.ticket, deadline)
        if decision.asks:
            if committed:
                self.send(now, hosted, decision.asks)
            else:
                ticket = self.parking.park(NODE_REQUEST, None, UncommittedAsks(self, hosted, decision.asks))
                partition.wait_for_commit(required, ticket)
        return ErrorCode.NONE

    def _set_timer(self, hosted: Hosted) -> None:
        """A shard was called: it may be due at another moment."""
        deadline = hosted.shard.deadline()
        if deadline is None:
            self._timers.cancel(hosted.index)
        else:
            self._timers.set(hosted.index, deadline)

    def send(self, now: Millis, hosted: Hosted, asks: Sequence[ShardCall]) -> None:
        """Send a shard's requests to the nodes of the cluster, unless it has been thrown away: all are markers."""
        if self.is_current(hosted):
            for ask in asks:
                self._peers.ask(now, ask.node_id, ask.message, ShardAsk(self, hosted, ask.number), line=MARKERS_LINE)

    def is_current(self, hosted: Hosted) -> bool:
        return self._hosted.get(hosted.index) is hosted and hosted.leader_epoch == hosted.partition.leader_epoch

    def answered(self, now: Millis, hosted: Hosted, number: int, answer: object) -> None:
        """Another node has answered a shard's request; a shard that was discarded meanwhile asks again."""
        if self.is_current(hosted):
            self._carry_out(now, hosted, cast(AskingShard, hosted.shard).answered(now, number, answer))

    def _append(self, now: Millis, hosted: Hosted, decision: Decision) -> None:
        wall_ms, records, writer = self._environment.wall.at(now), decision.records, decision.writer
        producer_id, producer_epoch = (NO_PRODUCER_ID, -1) if writer is None else writer
        batch = build_batch(
            (Record(timestamp_ms=wall_ms, key=each.key, value=each.value) for each in records),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=writer is not None,
            max_timestamp=wall_ms,
        )
        base = hosted.partition.append(now, memoryview(batch), Origin.COORDINATOR).base_offset
        applied = [
            AppliedRecord(base + at, wall_ms, key, value, meaning) for at, (key, value, meaning) in enumerate(records)
        ]
        hosted.shard.apply(now, AppliedBatch(base, applied, producer_id, producer_epoch, writer is not None))

    def _fail(
        self, now: Millis, hosted: Hosted, decision: Decision, failed: AppendRefusedError | StorageError
    ) -> ErrorCode:
        error = _COORDINATOR_ERRORS.get(failed.error_code, failed.error_code)
        self._environment.notes(
            f"{hosted.partition.name} could not be appended to, its coordinator starts over: {failed}"
        )
        for answer in decision.answers:
            self._refuse(answer.ticket, error)
        self._discard(now, hosted, ErrorCode.NOT_COORDINATOR)
        again, index = self._hosted.get(hosted.index), hosted.index
        if again is not None and now <= self._failed.get(index, -LOAD_AGAIN_MS) + LOAD_AGAIN_MS:
            self._loading.put_off(again, now + LOAD_AGAIN_MS)
        self._failed[index] = now
        return error

    def _refuse(self, step: Ticket, error: ErrorCode) -> None:
        known = self._steps.pop(step, None)
        if known is not None:
            asked, at, _ = known
            asked.put(at, self.shard_class.refuse(asked.calls[at][1], error))

    def _discard(self, now: Millis, hosted: Hosted, error: ErrorCode) -> None:
        """Discard the shard; the next request creates a new one."""
        self._hosted.pop(hosted.index, None)
        self._timers.cancel(hosted.index)
        self._loading.remove(hosted)
        for step in [step for step, known in self._steps.items() if known[2] is hosted]:
            self._refuse(step, error)
        # Its members must not wait for one of them to ask before their sessions run again.
        if self._leads(hosted.partition):
            self._open(now, hosted.partition)

    def lost(self, now: Millis, hosted: Hosted) -> None:
        """An answer of this shard could not be committed. If its partition is lost too, fail the parked requests."""
        if self._hosted.get(hosted.index) is hosted and not self._leads(hosted.partition):
            self._discard(now, hosted, ErrorCode.NOT_COORDINATOR)

    def leader_changed(self, now: Millis, topic: LocalTopic, partition: Partition) -> None:
        """Its shard starts over in the new epoch, or elsewhere."""
        self.taken_back(now, partition)

    def taken_back(self, now: Millis, partition: Partition) -> None:
        """The end of this partition's log was cut off, with records that its shard may have applied: the shard starts
        over."""
        if partition.topic_name != self.topic_name:
            return
        self._damaged.pop(partition.index, None)  # it may have been copied again since
        hosted = self._hosted.get(partition.index)
        if hosted is not None:
            self._discard(now, hosted, ErrorCode.NOT_COORDINATOR)
        elif self._leads(partition) and partition.log.log_end_offset > partition.log.log_start_offset:
            self._open(now, partition)

    # ---- loading ---------------------------------------------------------------------------------------------------

    def _leads(self, partition: Partition) -> bool:
        return self._leadership.holds(partition) and partition.log.failed is None

    def _usable(self, now: Millis, index: int) -> Hosted | None:
        """The shard of this partition, created if there is none. None if this node can't coordinate it, or not now.

        A loaded shard is kept until another node is known to lead.
        """
        if self._leadership.is_in_doubt(self.topic_name, index):
            return None
        hosted = self._hosted.get(index)
        if hosted is not None:
            partition = hosted.partition
            if self._leads(partition) and partition.leader_epoch == hosted.leader_epoch:
                return hosted
            self._discard(now, hosted, ErrorCode.NOT_COORDINATOR)
            return self._hosted.get(index)
        partition = self._leadership.led(self.topic_name, index)
        if isinstance(partition, ErrorCode) or partition.log.failed or self._damaged.get(index) is partition:
            return None
        return self._open(now, partition)

    def _open(self, now: Millis, partition: Partition) -> Hosted:
        hosted = Hosted(self, partition, self._new_shard(partition))
        self._hosted[partition.index] = hosted
        if hosted.replay.done:
            self._loaded(now, hosted)
        else:
            self._loading.add(hosted)
        return hosted

    def _load_slice(self, now: Millis, hosted: Hosted) -> None:
        if hosted.partition.log.failed is not None:
            self._discard(now, hosted, ErrorCode.NOT_COORDINATOR)
            return
        try:
            for batch in hosted.replay.read(LOAD_SLICE_BYTES):
                self._apply(now, hosted, batch)
            if hosted.replay.done:
                self._loading.remove(hosted)
                self._loaded(now, hosted)
            else:
                self._loading.had_turn(hosted)
        except ReplacedError:
            self._begin_again(hosted)
        except UnreadableError as unreadable:
            self._met_damage(hosted, unreadable)
        except OSError as error:
            # Not opened again at once, as that would fail again at once: the next request tries.
            self._environment.notes(f"{hosted.partition.name} can't be read, its coordinator is not available: {error}")
            self._give_up(hosted)
            hosted.partition.read_failed(error)
        except Exception as error:
            self._damaged[hosted.index] = hosted.partition
            self._give_up(hosted)
            self._environment.fault(f"the coordinator of {hosted.partition.name} can't be loaded and is offline", error)

    def load_all(self, now: Millis) -> None:
        """Load at once everything that may be loaded: for checks."""
        while self._loading.may_go_on(now):
            self._loading.load_next(now)

    def replayed(self, now: Millis, partition: Partition) -> Shard:
        """A second shard of this partition, built by reading all of its log now, to check the running one.

        Raises ReplacedError, UnreadableError, OSError.
        """
        hosted = Hosted(self, partition, self._new_shard(partition))
        while not hosted.replay.done:
            for batch in hosted.replay.read(LOAD_SLICE_BYTES):
                self._apply(now, hosted, batch)
        return hosted.shard

    def _new_shard(self, partition: Partition) -> Shard:
        given = self._environment
        return self.shard_class.of(given.entropy, given.notes, given.wall, partition.leader_epoch)

    def _begin_again(self, hosted: Hosted) -> None:
        """Compaction or pruning replaced the segment that was being read."""
        hosted.shard = self._new_shard(hosted.partition)
        hosted.replay = Replay(hosted.partition.log)

    def _met_damage(self, hosted: Hosted, unreadable: UnreadableError) -> None:
        name = hosted.partition.name
        if self._environment.settings[SKIP_DAMAGED]:
            self._environment.notes(f"{name}: {unreadable}; skipped, because {SKIP_DAMAGED} is set.")
            hosted.replay.skip()
            return
        self._damaged[hosted.index] = hosted.partition
        self._give_up(hosted)
        self._environment.notes(
            f"{name}: {unreadable}. Its coordinator is offline on this node, and requests for its groups or "
            "transactional ids are refused; the others continue. If another replica is in sync, it takes over, and "
            "this node copies the records again. Otherwise stop the node and restore the file from a backup, or start "
            f"it with --set {SKIP_DAMAGED}=true, which skips what is damaged and loses it."
        )
        hosted.partition.found_damage(unreadable.damage)

    def _give_up(self, hosted: Hosted) -> None:
        """This shard is not loaded to its end."""
        self._hosted.pop(hosted.index, None)
        self._timers.cancel(hosted.index)
        self._loading.remove(hosted)

    def _apply(self, now: Millis, hosted: Hosted, batch: memoryview) -> None:
        """Replay one batch; a sound batch without readable records was written that way."""
        header = peek(batch)
        try:
            records = decode_records(batch)
            if header.is_control:
                _apply_markers(hosted.shard, header, records)
            else:
                hosted.shard.apply(now, _applied(header, records))
        except CorruptRecordsError as error:
            self._environment.notes(f"{hosted.partition.name}: the batch at {header.base_offset} is skipped: {error}")

    def _loaded(self, now: Millis, hosted: Hosted) -> None:
        hosted.loaded = True
        self._carry_out(now, hosted, hosted.shard.loaded(now))
        for call in hosted.after_load:
            self._carry_out(now, hosted, hosted.shard.decide(now, NO_STEP, call))
        hosted.after_load.clear()

    # ---- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._timers.check()
        if self.elsewhere is not None:
            self.elsewhere.check()
        for index, hosted in self._hosted.items():
            assert hosted.index == index
            assert hosted.loaded != (hosted in self._loading), f"{hosted.partition.name}: loaded {hosted.loaded}"
            if hosted.loaded:
                hosted.shard.check()
                self._check_timer(hosted)
        for step, (asked, at, hosted) in self._steps.items():
            assert asked.replies[at] is None, f"step {step} has its reply"
            assert self._hosted.get(hosted.index) is hosted, f"step {step} waits for a shard that is gone"

    def _check_timer(self, hosted: Hosted) -> None:
        """The timer of a shard is not later than the shard is due, unless the node has no contact to its cluster."""
        due, at = hosted.shard.deadline(), self._timers.at(hosted.index)
        if due is not None and not self._leadership.is_in_doubt(self.topic_name, hosted.index):
            assert at is not None, f"{hosted.partition.name} has no timer"
            latest = max(due, self._suspended_at) + SUSPENDED_MS
            assert at <= latest, f"{hosted.partition.name} is due at {due}, its timer at {at}"


def _applied(header: BatchHeader, records: list[Record]) -> AppliedBatch:
    return AppliedBatch(
        header.base_offset,
        [AppliedRecord(each.offset, each.timestamp_ms, each.key, each.value) for each in records],
        header.producer_id,
        header.producer_epoch,
        header.is_transactional,
    )


def _apply_markers(shard: Shard, header: BatchHeader, records: list[Record]) -> None:
    for record in records:
        marker = decode_marker(record)
        if marker is not None:
            shard.apply_marker(header.producer_id, header.producer_epoch, marker.committed)
