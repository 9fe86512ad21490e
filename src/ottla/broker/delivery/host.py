"""Hosts share groups on this node: the share partitions of the partitions that it leads, their sessions and state.

The interface for other packages (`coordinators.share`, a ShareHost, and `coordinators.share_state`, the ShardHost of
`__share_group_state`):

    ShareFetch does not ask the group coordinator for membership (Kafka's does not either): a session is enough.
    A share partition that was never initialized starts where `share.auto.offset.reset` says at the first fetch, so
    nothing has to be initialized before members may fetch.

    state_call(now, InitializeShareGroupState | ReadShareGroupStateSummary | DeleteShareGroupState, group_id, topic_id,
               partition, start_offset=-1, state_epoch=0) -> (shard index, Call)
        For the `calls` of a CoordinatorRequest submitted to `coordinators.share_state` (one call a partition; replies
        are those messages with one result). Creates `__share_group_state` if it does not exist.
        AlterShareGroupOffsets = initialize with the next state epoch, then `forget`.
    forget(now, group_id, topic_id=None, partition=None)
        The state of these share partitions was altered or deleted: their loaded state is dropped, acknowledgements of
        acquired records get INVALID_RECORD_STATE, the next fetch loads the state again.
    group_configured(group_id)      the group's dynamic configs changed
    lag(group_id, topic_id, partition, start_offset, delivery_complete_count) -> int
        log end - start_offset - delivery_complete_count (KIP-1226), -1 if that is not known.
    describe(now, group_id=None) -> list[DescribedPartition]
        Which members hold which locks, for the CLI and the metrics port.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import Peers
from ottla.broker.config.durations import duration_ms
from ottla.broker.config.live import Subscriber
from ottla.broker.config.share_groups import GroupConfigs
from ottla.broker.coordinators.elsewhere import TRY_AGAIN
from ottla.broker.coordinators.shards import CoordinatorRequest, ShardHost
from ottla.broker.delivery.back_offs import BackOffs
from ottla.broker.delivery.batch_parts import Slices
from ottla.broker.delivery.dead_letters import DeadLetters
from ottla.broker.delivery.partitions import HostedShare, ShareWaiter
from ottla.broker.delivery.sessions import Place, ShareSession, ShareSessions
from ottla.broker.environment import Environment
from ottla.broker.forwarding import Forwarding
from ottla.broker.parking import Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic
from ottla.broker.requests import NODE_REQUEST, Parked
from ottla.broker.schedule import Backlog, KeyedTimers, Timed, Timer
from ottla.broker.topics.new_topic import new_internal
from ottla.broker.upkeep.failures import Failures
from ottla.log.answers import OffsetOutOfRange
from ottla.machine import Call, Millis
from ottla.metadata.features import SHARE_VERSION
from ottla.metadata.store import StoreFailed
from ottla.metadata.topics import TopicImage
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import delete_share_group_state as delete
from ottla.protocol.messages import initialize_share_group_state as initialize
from ottla.protocol.messages import read_share_group_state as read
from ottla.protocol.messages import read_share_group_state_summary as summary
from ottla.protocol.messages import write_share_group_state as write
from ottla.share.partition import RUNS_PER_STEP, SharePartition
from ottla.share.records import Key
from ottla.share.standing import Acknowledge, Held, StateBatch, Write
from ottla.share.state import UNINITIALIZED, ShareStateShard, TopicGone, coordinator_key

KeyT = TypeVar("KeyT", str, bytes)

StateRequest: TypeAlias = (
    type[initialize.InitializeShareGroupStateRequest]
    | type[summary.ReadShareGroupStateSummaryRequest]
    | type[delete.DeleteShareGroupStateRequest]
)

LOAD_RETRY_MS: Final = 20
"""Until a coordinator that is loading is asked again; twice as long each time."""
LOAD_RETRY_MS_MAX: Final = 1_000
LOADS_AT_ONCE: Final = 100
"""How many share partitions begin to load before other work has its turn: each needs some 0.2 ms the first time."""


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """One share partition for display. `held` is cut to the requested number, the counts are not."""

    group_id: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    in_flight: int
    archiving: int
    complete_count: int
    lag: int
    runs: int
    members: dict[str, int]
    held: list[Held]
    acknowledged: dict[str, int]
    lock_timeouts: int
    dead_letters: int
    paused: bool


class ShareStateRequest(CoordinatorRequest):
    """One call of a share partition to its coordinator."""

    __slots__ = ("hosted", "share", "write")
    goes_elsewhere = True

    def __init__(
        self, share: ShareHost, hosted: HostedShare | None, call: tuple[int, Call], write: Write | None = None
    ) -> None:
        super().__init__([call])
        self.share = share
        self.hosted = hosted
        self.write = write

    def answer_when_whole(self, now: Millis) -> None:
        """The answer came later: it goes to the share partition, not to a client."""
        if not self.missing and not self.on_its_way and self.share.parking.take(self.ticket) is not None:
            self.share.take_reply(now, self, self.replies[0])


class ShareHost(Subscriber):
    """See the module's docstring."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        leadership: Leadership,
        forwarding: Forwarding,
        parking: Parking,
        peers: Peers,
        failures: Failures,
        states: ShardHost,
    ) -> None:
        self.environment = environment
        self.metadata = metadata
        self.leadership = leadership
        self.parking = parking
        self.failures = failures
        self._forwarding = forwarding
        self._states = states
        self.sessions = ShareSessions(environment.settings)
        self.configs = GroupConfigs(environment.settings, environment.settings.of_group)
        schedule = environment.schedule
        self._timers = KeyedTimers[Key](schedule, Timed.SHARE, self._expire)
        self._loads = KeyedTimers[tuple[int, Key]](schedule, Timed.SHARE, self._load_due)
        """When loads begin, or are tried again, by number and key."""
        self.letters = DeadLetters(environment, metadata, leadership, forwarding, parking, peers, self.settle)
        self.slices = Slices(environment.notes)
        self._hosted: dict[Key, HostedShare] = {}
        self._of_group: dict[str, dict[Key, HostedShare]] = {}
        self._of_topic: dict[bytes, dict[Key, HostedShare]] = {}
        self._back_offs = BackOffs()
        self._loading: dict[Key, HostedShare] = {}
        self._numbers = 0
        self._tick = 0
        """Which tick the next two count from."""
        self._begun = 0
        """How many loads have begun since the last tick."""
        self._looked = 0
        """How many runs of share partitions were checked for expiring locks since then."""
        self._without_topic: list[HostedShare] = []
        """Share partitions that load as soon as the coordinators' topic is created."""
        self._acknowledging = Backlog[ShareWaiter](schedule, Timed.SHARE, self._acknowledge_more)
        """Requests that acknowledge more than one slice processes."""
        self._pruning = Timer(schedule, Timed.SHARE, self._prune)
        environment.settings.subscribe("share groups", self)

    # ---- lifecycle and time ----------------------------------------------------------------------------------------

    def acknowledge_later(self, asked: ShareWaiter) -> None:
        """A later tick processes the next slice of this request's acknowledgements."""
        self._acknowledging.append(asked)

    def _acknowledge_more(self, now: Millis) -> None:
        asked = self._acknowledging.popleft()
        try:
            asked.acknowledge_more(now)
        except Exception as error:
            if asked.ticket is None:
                self.environment.fault("acknowledgements of a client that is gone failed", error)
            else:
                self.parking.give_up(asked.ticket, "a long acknowledgement", error)

    def _count_by_tick(self) -> None:
        """Reset the counters that are bounded between two ticks."""
        ticks = self.environment.schedule.ticks
        if self._tick != ticks:
            self._tick, self._begun, self._looked = ticks, 0, 0

    def _expire(self, now: Millis) -> None:
        self._count_by_tick()
        while self._looked < RUNS_PER_STEP and (key := self._timers.pop(now)) is not None:
            hosted = self._hosted.get(key)
            if hosted is not None and hosted.machine is not None:
                try:
                    self._looked += 1 + hosted.machine.expire(now, RUNS_PER_STEP - self._looked)
                    self.settle(now, hosted)
                except Exception as error:
                    self._drop(now, key)
                    self.environment.fault(
                        f"{hosted.partition.name} of share group {key.group_id} failed, starts over", error
                    )

    def _load_due(self, now: Millis) -> None:
        self._count_by_tick()
        for _ in range(LOADS_AT_ONCE):
            due = self._loads.pop(now)
            if due is None:
                break
            self._load(now, self._loading[due[1]])

    def disconnected(self, now: Millis, connection: int) -> None:
        """A connection has closed, and with it the sessions opened over it: release their members' records."""
        for session in self.sessions.of_connection(connection):
            self.close_session(now, session)

    def features_changed(self, now: Millis) -> None:
        """Feature levels changed: if share groups are disabled, close all sessions and drop the loaded state."""
        if not self.metadata.image.level_of(SHARE_VERSION):
            for key in list(self._hosted):
                self._drop(now, key)
            for session in self.sessions.every():
                self.close_session(now, session)

    def topic_deleted(self, now: Millis, topic: TopicImage) -> None:
        """Drop the topic's share partitions, and their coordinators' state."""
        if topic.name == SHARE_GROUP_STATE_TOPIC:
            for key in list(self._hosted):
                self._drop(now, key)
            return
        for key in list(self._of_topic.get(topic.id, ())):
            self._drop(now, key)
        self._back_offs.forget_topic(topic.id)
        self._states.tell_all(now, Call(-1, 0, "", "", TopicGone(topic.id)))

    def leader_changed(self, now: Millis, topic: LocalTopic, partition: Partition) -> None:
        """Another node leads its share partitions, or the new epoch fences them: load them again."""
        for key in [key for key in self._of_topic.get(topic.id, ()) if key.partition == partition.index]:
            self._drop(now, key)
        self._back_offs.forget_topic(topic.id, partition.index)

    def wall_clock_was_set(self, now: Millis, by_ms: int) -> None:
        """Delayed messages are due by the wall clock."""
        for hosted in list(self._hosted.values()):
            if hosted.machine is not None:
                hosted.machine.put_off(-by_ms)
                self.settle(now, hosted)

    def close_session(self, now: Millis, session: ShareSession) -> None:
        """Release the records that the member has acquired: of many, the rest with later ticks."""
        self.sessions.close(session)
        for hosted in list(self._of_group.get(session.group_id, {}).values()):
            machine = hosted.machine
            if machine is not None and session.member_id in machine.held:
                self._count_by_tick()
                runs_max = max(RUNS_PER_STEP - self._looked, 0)
                self._looked += machine.release_member(now, session.member_id, runs_max)
                self.settle(now, hosted)

    # ---- share partitions ------------------------------------------------------------------------------------------

    def known(self, group_id: str, place: Place) -> HostedShare | None:
        return self._hosted.get(Key(group_id, *place))

    def get(self, now: Millis, group_id: str, place: Place) -> HostedShare | ErrorCode:
        """The share partition, loaded now if it is not; or why there is none."""
        key = Key(group_id, *place)
        hosted = self._hosted.get(key)
        if hosted is not None:
            return hosted
        partition = self.leadership.led(*place)
        if isinstance(partition, ErrorCode):
            return partition
        self._numbers += 1
        hosted = self._hosted[key] = HostedShare(key, self._numbers, partition, self.configs, self.parking)
        self._of_group.setdefault(group_id, {})[key] = hosted
        self._of_topic.setdefault(place[0], {})[key] = hosted
        self._loading[key] = hosted
        self._count_by_tick()
        if self._begun < LOADS_AT_ONCE:
            self._load(now, hosted)
        else:
            self._load_at(now, hosted)
        return hosted

    def forget(self, now: Millis, group_id: str, topic_id: bytes | None = None, partition: int | None = None) -> None:
        """The state of these share partitions was altered or deleted behind their back."""
        for key in list(self._of_group.get(group_id, {})):
            if topic_id in (None, key.topic_id) and partition in (None, key.partition):
                self._drop(now, key)
        self._back_offs.forget_group(group_id)
        if topic_id is None:
            self.configs.forget(group_id)

    def first_member_comes(self, now: Millis, group_id: str) -> None:
        """This is the group's first session here. In a cluster another node may have altered the group's state since.

        So share partitions without acquired records are loaded again; back-offs continue. This is not done if the
        coordinator lacks the delivery counts: a record that no member can process would never reach its last
        delivery.
        """
        if self._states.elsewhere is None:
            return
        for key, hosted in list(self._of_group.get(group_id, {}).items()):
            machine = hosted.machine
            if machine is not None and not (machine.held or machine.archiving or hosted.awaited or hosted.unsaved):
                self._back_offs.keep(key, machine)
                self._drop(now, key)

    def settings_changed(self, now: Millis) -> None:
        self.configs.forget_all()

    def group_configured(self, group_id: str) -> None:
        """The group's configs changed: apply them at once, and retry the waiting fetches."""
        self.configs.forget(group_id)
        for hosted in self._of_group.get(group_id, {}).values():
            if hosted.machine is not None:
                hosted.machine.settings = hosted.config.settings
                hosted.wake()

    def _drop(self, now: Millis, key: Key, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        hosted = self._hosted.pop(key, None)
        if hosted is None:
            return
        _remove(self._of_group, key.group_id, key)
        _remove(self._of_topic, key.topic_id, key)
        self._loading.pop(key, None)
        self._timers.cancel(key)
        self._loads.cancel((hosted.number, key))
        self.letters.forget(hosted)
        hosted.machine = None
        hosted.fail_awaited(now, error)
        hosted.give_up(now)

    # ---- loading ---------------------------------------------------------------------------------------------------

    def _load(self, now: Millis, hosted: HostedShare) -> None:
        """Ask the coordinator under which leader epoch this share partition was written last."""
        self._begun += 1
        self._loads.cancel((hosted.number, hosted.key))
        if self.lacks_state_topic:
            self._without_topic.append(hosted)
            if len(self._without_topic) == 1:
                topic = new_internal(self.environment.settings, SHARE_GROUP_STATE_TOPIC)
                self._forwarding.make(now, topic, self)
            return
        key = hosted.key
        index, call = self.state_call(now, summary.ReadShareGroupStateSummaryRequest, *key)
        hosted.shard_index = index
        self._submit(now, ShareStateRequest(self, hosted, (index, call)))

    def _load_later(self, now: Millis, hosted: HostedShare) -> None:
        hosted.retry_ms = min(2 * hosted.retry_ms or LOAD_RETRY_MS, LOAD_RETRY_MS_MAX)
        self._load_at(now + hosted.retry_ms, hosted)

    def _load_at(self, at: Millis, hosted: HostedShare) -> None:
        self._loads.set((hosted.number, hosted.key), at)

    def _dated(self, now: Millis, hosted: HostedShare, found: summary.PartitionResult) -> None:
        """Then ask for the whole state, which fences the previous leader."""
        if found.error_code:
            self._loaded(now, hosted, read.PartitionResult(found.partition, found.error_code))
            return
        log, key = hosted.partition.log, hosted.key
        hosted.log_end_offset = log.log_end_offset
        if found.leader_epoch >= 0:
            epoch, end_offset = log.end_offset_for(found.leader_epoch)
            if epoch >= 0:
                hosted.log_end_offset = end_offset
        part = read.PartitionData(key.partition, hosted.partition.leader_epoch)
        body = read.ReadShareGroupStateRequest(key.group_id, [read.ReadStateData(key.topic_id, [part])])
        call = Call(body.API_KEY, body.MAX_VERSION, "", "", body)
        self._submit(now, ShareStateRequest(self, hosted, (hosted.shard_index, call)))

    def _loaded(self, now: Millis, hosted: HostedShare, found: read.PartitionResult) -> None:
        error = ErrorCode(found.error_code)
        if error in TRY_AGAIN:
            self._load_later(now, hosted)
        elif error is ErrorCode.INVALID_REQUEST:
            # Not initialized yet: the first fetch of a member initializes it.
            self._initialize(now, hosted, hosted.key, self._reset_offset(now, hosted), 0)
        elif error is not ErrorCode.NONE:
            self.environment.notes(f"{hosted.partition.name} can't be shared by {hosted.key.group_id}: {error.name}")
            self._drop(now, hosted.key, error)
        else:
            self._begin(now, hosted, found)

    def _initialize(
        self, now: Millis, hosted: HostedShare | None, key: Key, start_offset: int, state_epoch: int
    ) -> None:
        """Reset the coordinator's state to this offset and epoch; `hosted` is loaded afterwards."""
        kind = initialize.InitializeShareGroupStateRequest
        call = self.state_call(now, kind, *key, start_offset=start_offset, state_epoch=state_epoch)
        self._submit(now, ShareStateRequest(self, hosted, call))

    def _begin(self, now: Millis, hosted: HostedShare, found: read.PartitionResult) -> None:
        log = hosted.partition.log
        start_offset = found.start_offset
        if start_offset == UNINITIALIZED:
            start_offset = self._reset_offset(now, hosted)
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in found.state_batches
        ]
        machine = SharePartition(hosted.config.settings, start_offset, batches, now)
        machine.resume(now, self._back_offs.take(hosted.key))
        machine.log_start_moved(log.log_start_offset)
        if machine.log_end_is(hosted.log_end_offset):
            self.environment.notes(
                f"{hosted.partition.name} lost its end to a crash; {hosted.key.group_id} forgets what it knew beyond "
                f"{hosted.log_end_offset}"
            )
            self._initialize(now, None, hosted.key, machine.start, found.state_epoch)
            machine.rewrite()
        elif found.start_offset != start_offset:
            machine.rewrite()
        hosted.machine = machine
        hosted.retry_ms = 0
        hosted.state_epoch = found.state_epoch
        self._loading.pop(hosted.key, None)
        self.settle(now, hosted)

    def _reset_offset(self, now: Millis, hosted: HostedShare) -> int:
        """The start offset of a group that has never read this partition (`share.auto.offset.reset`)."""
        log, reset = hosted.partition.log, hosted.config.reset
        if reset == "earliest":
            return log.log_start_offset
        if reset != "latest":
            back_ms = duration_ms(reset.partition(":")[2])
            assert back_ms is not None, reset
            try:
                found = log.offset_for_timestamp(self.environment.wall.at(now) - back_ms)
            except OffsetOutOfRange:
                found = None
            except OSError as error:
                self.failures.read_failed(hosted.partition, error)
                return log.log_start_offset  # deliver too many records rather than skip some unread
            if found is not None:
                return found.offset
        return log.high_watermark

    # ---- effects of a machine --------------------------------------------------------------------------------------

    def settle(self, now: Millis, hosted: HostedShare) -> None:
        """A machine was stepped: submit its writes, write its dead letters, set its timer, wake the waiting fetches."""
        machine = hosted.machine
        while machine is not None and (machine.writes or machine.letters):
            for each in machine.take_writes():
                self._persist(now, hosted, each)
            if machine.letters:
                self.letters.take(now, hosted, machine.take_letters())
            machine = hosted.machine
        if machine is None:
            return
        key, deadline = hosted.key, machine.deadline()
        if deadline is None:
            self._timers.cancel(key)
        elif self._timers.at(key) != deadline:
            self._timers.set(key, deadline)
        if hosted.waiters and hosted.has_more(now):
            hosted.wake()

    def _persist(self, now: Millis, hosted: HostedShare, wanted: Write) -> None:
        key = hosted.key
        part = write.PartitionData(
            key.partition,
            hosted.state_epoch,
            hosted.partition.leader_epoch,
            wanted.start_offset,
            wanted.complete_count,
            [write.StateBatch(*batch) for batch in wanted.batches],
        )
        body = write.WriteShareGroupStateRequest(key.group_id, [write.WriteStateData(key.topic_id, [part])])
        call = Call(body.API_KEY, body.MAX_VERSION, "", "", body)
        if wanted.stands:
            hosted.unsaved.add(wanted.number)
        self._submit(now, ShareStateRequest(self, hosted, (hosted.shard_index, call), wanted))

    def _persisted(self, now: Millis, hosted: HostedShare, wanted: Write, error: ErrorCode) -> None:
        machine = hosted.machine
        if machine is None or self._hosted.get(hosted.key) is not hosted:
            return
        if error is ErrorCode.NONE:
            hosted.unsaved.discard(wanted.number)
            machine.persisted(wanted)
        else:
            machine.failed(wanted)
        awaited = hosted.awaited.pop(wanted.number, None)
        if awaited is not None:
            waiter, at = awaited
            waiter.acknowledged(now, at, _told(error))
        if error is not ErrorCode.NONE and error not in TRY_AGAIN:
            self.environment.notes(
                f"{hosted.key.group_id} lost its state of {hosted.partition.name} and loads it again: {error.name}"
            )
            self._drop(now, hosted.key)

    # ---- the coordinator -------------------------------------------------------------------------------------------

    def state_call(
        self,
        now: Millis,
        kind: StateRequest,
        group_id: str,
        topic_id: bytes,
        partition: int,
        start_offset: int = UNINITIALIZED,
        state_epoch: int = 0,
    ) -> tuple[int, Call]:
        """(shard index, Call) for a CoordinatorRequest to `coordinators.share_state`; see the module's docstring."""
        self.prune_later(now)
        key = Key(group_id, topic_id, partition)
        if kind is initialize.InitializeShareGroupStateRequest:
            part = initialize.PartitionData(partition, state_epoch, start_offset)
            topics = [initialize.InitializeStateData(topic_id, [part])]
            return self._call(key, initialize.InitializeShareGroupStateRequest(group_id, topics))
        if kind is summary.ReadShareGroupStateSummaryRequest:
            topics = [summary.ReadStateSummaryData(topic_id, [summary.PartitionData(partition, -1)])]
            return self._call(key, summary.ReadShareGroupStateSummaryRequest(group_id, topics))
        assert kind is delete.DeleteShareGroupStateRequest, kind
        topics = [delete.DeleteStateData(topic_id, [delete.PartitionData(partition)])]
        return self._call(key, delete.DeleteShareGroupStateRequest(group_id, topics))

    def prune_later(self, now: Millis) -> None:
        """The share coordinators on this node are in use, or may be: prune their state from time to time."""
        if self._pruning.at is None:
            self._pruning.set(now + self.environment.settings["share.coordinator.state.topic.prune.interval.ms"])

    def _call(self, key: Key, body: Any) -> tuple[int, Call]:
        """The body's call and the shard that answers for this key; if there can't be one, the call reports that."""
        index = self._states.partition_for(coordinator_key(*key))
        return index, Call(body.API_KEY, body.MAX_VERSION, "", "", body)

    @property
    def lacks_state_topic(self) -> bool:
        """Whether `making_state_topic` has to run first: without the state topic there is no coordinator."""
        return SHARE_GROUP_STATE_TOPIC not in self.metadata.image.topics

    def making_state_topic(self) -> Generator[Any, Any, None]:
        """The step of a longer work that creates `__share_group_state` if it does not exist."""
        try:
            yield from self._forwarding.making_internal(SHARE_GROUP_STATE_TOPIC)
        except StoreFailed as failed:
            self.environment.notes(f"{SHARE_GROUP_STATE_TOPIC} can't be made: {failed}")

    def change_ended(self, now: Millis, result: None) -> None:
        """The topic of the share coordinators is created, or can't be: load the share partitions that waited for it
        now, or later."""
        waiting, self._without_topic = self._without_topic, []
        for hosted in waiting:
            if self._hosted.get(hosted.key) is not hosted:
                continue
            if self.lacks_state_topic:
                self._load_later(now, hosted)
            else:
                self._load_at(now, hosted)

    def change_failed(self, now: Millis, error: Exception) -> None:
        self.change_ended(now, None)
        if isinstance(error, StoreFailed):
            self.environment.notes(f"{SHARE_GROUP_STATE_TOPIC} can't be made: {error}")
        else:
            self.environment.fault(f"making {SHARE_GROUP_STATE_TOPIC} failed", error)

    def _submit(self, now: Millis, asked: ShareStateRequest) -> None:
        reply = self._states.submit(now, NODE_REQUEST, asked)
        if not isinstance(reply, Parked):
            self.take_reply(now, asked, reply)

    def take_reply(self, now: Millis, asked: ShareStateRequest, reply: Any) -> None:
        """A coordinator has answered."""
        hosted = asked.hosted
        if hosted is None:
            return
        result = reply.results[0].partitions[0]
        if asked.write is not None:
            self._persisted(now, hosted, asked.write, ErrorCode(result.error_code))
            if asked.replies:
                self.settle(now, hosted)
        elif self._hosted.get(hosted.key) is not hosted:
            return
        elif isinstance(reply, read.ReadShareGroupStateResponse):
            self._loaded(now, hosted, result)
        elif isinstance(reply, summary.ReadShareGroupStateSummaryResponse):
            self._dated(now, hosted, result)
        elif result.error_code:
            self._load_later(now, hosted)
        else:
            self._load(now, hosted)

    def _prune(self, now: Millis) -> None:
        """Drop what no key's state needs any more."""
        self._pruning.set(now + self.environment.settings["share.coordinator.state.topic.prune.interval.ms"])
        for partition, shard in self._states.loaded():
            if isinstance(shard, ShareStateShard):
                offset = shard.prunable_offset(partition.log.high_watermark)
                if offset > partition.log.log_start_offset:
                    partition.log.delete_records_before(offset)

    # ---- checking --------------------------------------------------------------------------------------------------

    def lag(self, topic_id: bytes, partition: int, start_offset: int, complete_count: int) -> int:
        """Records that a group still has to process; -1 if that is not known here."""
        led = self.leadership.led(topic_id, partition)
        return -1 if isinstance(led, ErrorCode) else lag_of(led.log.high_watermark, start_offset, complete_count)

    def describe(self, now: Millis, group_id: str | None = None, held_max: int = 1000) -> list[DescribedPartition]:
        """Every loaded share partition, of one group or of all."""
        found: list[DescribedPartition] = []
        for key, hosted in sorted(self._hosted.items()):
            machine = hosted.machine
            if machine is None or group_id not in (None, key.group_id):
                continue
            held = [each for each, _ in zip(machine.held_runs(), range(held_max), strict=False)]
            found.append(
                DescribedPartition(
                    group_id=key.group_id,
                    topic=hosted.partition.topic_name,
                    partition=key.partition,
                    start_offset=machine.start,
                    end_offset=machine.end,
                    in_flight=machine.in_flight,
                    archiving=machine.archiving,
                    complete_count=machine.complete_count,
                    lag=self.lag(key.topic_id, key.partition, machine.start, machine.complete_count),
                    runs=machine.runs.count,
                    members=dict(machine.held),
                    held=held,
                    acknowledged={kind.name.lower(): machine.acknowledged[kind] for kind in Acknowledge},
                    lock_timeouts=machine.lock_timeouts,
                    dead_letters=self.letters.written(hosted.key),
                    paused=hosted.config.paused,
                )
            )
        return found

    def check(self) -> None:
        self.sessions.check()
        self._timers.check()
        for key, hosted in self._hosted.items():
            assert hosted.key == key
            assert (hosted.machine is None) == (key in self._loading), key
            if hosted.machine is not None:
                hosted.machine.check()
                assert not hosted.machine.writes, key
                assert not hosted.machine.letters, key
                due, at = hosted.machine.deadline(), self._timers.at(key)
                assert due is None or (at is not None and at <= due), f"{key} is due at {due}, its timer at {at}"
            assert bool(hosted.waiters) == hosted.partition.is_watched_by(hosted.gate), key
            assert self._of_group[key.group_id][key] is self._of_topic[key.topic_id][key] is hosted, key
        for index in (self._of_group, self._of_topic):
            assert sum(map(len, index.values())) == len(self._hosted)


def _remove(index: dict[KeyT, dict[Key, HostedShare]], name: KeyT, key: Key) -> None:
    """Remove one share partition from those of a group or a topic."""
    of_name = index[name]
    del of_name[key]
    if not of_name:
        del index[name]


def lag_of(end_offset: int, start_offset: int, complete_count: int) -> int:
    """Records that a group still has to process in a partition with this end; -1 if it has not begun."""
    if start_offset < 0 or complete_count < 0:
        return -1
    return max(end_offset - start_offset - complete_count, 0)


def _told(error: ErrorCode) -> ErrorCode:
    """The error that a member gets when its acknowledgement could not be persisted
    (SharePartition.fetchPersisterError)."""
    if error in TRY_AGAIN:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if error in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        return error
    return ErrorCode.UNKNOWN_SERVER_ERROR
