"""Loads share partitions: reads their state from the coordinator, and builds their machines.

The steps of a share partition that is LOADING, each begun by the answer to the one before:

    step                          it continues with
    create `__share_group_state`  the summary; the same step later if the topic can't be created
    ReadShareGroupStateSummary    the state; the last write's leader epoch says how far the log still has its records
    ReadShareGroupState           READY; from here on the coordinator refuses writes of the previous leader
      not initialized yet         InitializeShareGroupState with the offset of `share.auto.offset.reset`
      coordinator not available   the summary, after a back-off
      refused                     DROPPED
    InitializeShareGroupState     the summary; after a back-off if it failed

A tick begins a bounded number of loads; the others wait for later ticks. A share partition that was dropped meanwhile
ignores its answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.broker.config.durations import duration_ms
from ottla.broker.coordinators.remote_shards import TRY_AGAIN
from ottla.broker.delivery.back_offs import BackOffs
from ottla.broker.delivery.partitions import HostedShare, HostedState
from ottla.broker.delivery.state_calls import StateCalls, StateRequest, call_of
from ottla.broker.delivery.tick_count import TickCount
from ottla.broker.environment import Environment
from ottla.broker.forwarding import Forwarding
from ottla.broker.schedule import KeyedTimers, Timed
from ottla.broker.topics.new_topic import new_internal
from ottla.broker.upkeep.failures import Failures
from ottla.log.answers import OffsetOutOfRangeError
from ottla.machine import Call, Millis
from ottla.metadata.store import StoreError
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import initialize_share_group_state as initialize
from ottla.protocol.messages import read_share_group_state as read
from ottla.protocol.messages import read_share_group_state_summary as summary
from ottla.share.partition import SharePartition
from ottla.share.records import Key
from ottla.share.standing import StateBatch
from ottla.share.state import UNINITIALIZED

LOAD_RETRY_MS: Final = 20
"""Until a coordinator that is loading is asked again; twice as long each time."""
LOAD_RETRY_MS_MAX: Final = 1_000
LOADS_AT_ONCE: Final = 100
"""How many share partitions begin to load before other work has its turn: each needs some 0.2 ms the first time."""


class LoadRequest(StateRequest):
    """A step of loading a share partition."""

    __slots__ = ("_hosted", "_loader")

    def __init__(self, loader: Loader, hosted: HostedShare, call: tuple[int, Call]) -> None:
        super().__init__(loader.states.parking, call)
        self._loader = loader
        self._hosted = hosted

    def answered(self, now: Millis, reply: Any) -> None:
        self._loader.answered(now, self._hosted, reply)


class Loader:
    """Loads this node's share partitions. `settle` is called with those that are READY, `drop` with those that can't
    be loaded, and why."""

    def __init__(
        self,
        environment: Environment,
        forwarding: Forwarding,
        failures: Failures,
        states: StateCalls,
        settle: Callable[[Millis, HostedShare], None],
        drop: Callable[[Millis, HostedShare, ErrorCode], None],
    ) -> None:
        self.states = states
        self.back_offs = BackOffs()
        self._environment = environment
        self._forwarding = forwarding
        self._failures = failures
        self._settle = settle
        self._drop = drop
        self._timers = KeyedTimers[tuple[int, Key]](environment.schedule, Timed.SHARE, self._load_due)
        """When loads begin, or are tried again, by number and key."""
        self._waiting: dict[tuple[int, Key], HostedShare] = {}
        self._begun = TickCount(environment.schedule)
        self._without_topic: list[HostedShare] = []
        """Share partitions that load as soon as the coordinators' topic is created."""

    # ---- when ------------------------------------------------------------------------------------------------------

    def load(self, now: Millis, hosted: HostedShare) -> None:
        """Begin to load, now or with a later tick."""
        if self._begun.count < LOADS_AT_ONCE:
            self._begin(now, hosted)
        else:
            self._begin_at(now, hosted)

    def forget(self, hosted: HostedShare) -> None:
        """This share partition is dropped."""
        order = hosted.number, hosted.key
        self._timers.cancel(order)
        self._waiting.pop(order, None)

    def _load_due(self, now: Millis) -> None:
        for _ in range(LOADS_AT_ONCE):
            due = self._timers.pop(now)
            if due is None:
                break
            self._begin(now, self._waiting[due])

    def _begin_later(self, now: Millis, hosted: HostedShare) -> None:
        hosted.retry_ms = min(2 * hosted.retry_ms or LOAD_RETRY_MS, LOAD_RETRY_MS_MAX)
        self._begin_at(now + hosted.retry_ms, hosted)

    def _begin_at(self, at: Millis, hosted: HostedShare) -> None:
        order = hosted.number, hosted.key
        self._waiting[order] = hosted
        self._timers.set(order, at)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _begin(self, now: Millis, hosted: HostedShare) -> None:
        """Ask the coordinator under which leader epoch this share partition was written last."""
        self._begun.add(1)
        self.forget(hosted)
        if self.states.lacks_topic:
            self._without_topic.append(hosted)
            if len(self._without_topic) == 1:
                topic = new_internal(self._environment.settings, SHARE_GROUP_STATE_TOPIC)
                self._forwarding.make(now, topic, self)
            return
        call = self.states.call(now, summary.ReadShareGroupStateSummaryRequest, *hosted.key)
        hosted.shard_index = call[0]
        self.states.submit(now, LoadRequest(self, hosted, call))

    def change_ended(self, now: Millis, result: None) -> None:
        """The topic of the share coordinators is created, or can't be: load the share partitions that waited for it
        now, or later."""
        waiting, self._without_topic = self._without_topic, []
        for hosted in waiting:
            if hosted.state is HostedState.DROPPED:
                continue
            if self.states.lacks_topic:
                self._begin_later(now, hosted)
            else:
                self._begin_at(now, hosted)

    def change_failed(self, now: Millis, error: Exception) -> None:
        self.change_ended(now, None)
        if isinstance(error, StoreError):
            self._environment.notes(f"{SHARE_GROUP_STATE_TOPIC} can't be made: {error}")
        else:
            self._environment.fault(f"making {SHARE_GROUP_STATE_TOPIC} failed", error)

    def answered(self, now: Millis, hosted: HostedShare, reply: Any) -> None:
        """The coordinator has answered a step."""
        if hosted.state is HostedState.DROPPED:
            return
        result = reply.results[0].partitions[0]
        if isinstance(reply, read.ReadShareGroupStateResponse):
            self._read(now, hosted, result)
        elif isinstance(reply, summary.ReadShareGroupStateSummaryResponse):
            self._dated(now, hosted, result)
        elif result.error_code:
            self._begin_later(now, hosted)
        else:
            self._begin(now, hosted)

    def _dated(self, now: Millis, hosted: HostedShare, found: summary.PartitionResult) -> None:
        """Then ask for the whole state, which fences the previous leader."""
        if found.error_code:
            self._read(now, hosted, read.PartitionResult(found.partition, found.error_code))
            return
        log, key = hosted.partition.log, hosted.key
        hosted.log_end_offset = log.log_end_offset
        if found.leader_epoch >= 0:
            epoch, end_offset = log.end_offset_for(found.leader_epoch)
            if epoch >= 0:
                hosted.log_end_offset = end_offset
        part = read.PartitionData(key.partition, hosted.partition.leader_epoch)
        body = read.ReadShareGroupStateRequest(key.group_id, [read.ReadStateData(key.topic_id, [part])])
        self.states.submit(now, LoadRequest(self, hosted, (hosted.shard_index, call_of(body))))

    def _read(self, now: Millis, hosted: HostedShare, found: read.PartitionResult) -> None:
        error = ErrorCode(found.error_code)
        if error in TRY_AGAIN:
            self._begin_later(now, hosted)
        elif error is ErrorCode.INVALID_REQUEST:
            # Not initialized yet: the first fetch of a member initializes it.
            call = self._initialization(now, hosted.key, self._reset_offset(now, hosted), 0)
            self.states.submit(now, LoadRequest(self, hosted, call))
        elif error is not ErrorCode.NONE:
            self._environment.notes(f"{hosted.partition.name} can't be shared by {hosted.key.group_id}: {error.name}")
            self._drop(now, hosted, error)
        else:
            self._loaded(now, hosted, found)

    def _initialization(self, now: Millis, key: Key, start_offset: int, state_epoch: int) -> tuple[int, Call]:
        """The call that resets the coordinator's state to this offset and epoch."""
        kind = initialize.InitializeShareGroupStateRequest
        return self.states.call(now, kind, *key, start_offset=start_offset, state_epoch=state_epoch)

    # ---- the machine -----------------------------------------------------------------------------------------------

    def _loaded(self, now: Millis, hosted: HostedShare, found: read.PartitionResult) -> None:
        start_offset = found.start_offset
        if start_offset == UNINITIALIZED:
            start_offset = self._reset_offset(now, hosted)
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in found.state_batches
        ]
        machine = SharePartition(hosted.config.settings, start_offset, batches, now)
        machine.resume(now, *self.back_offs.take(hosted.key))
        machine.log_start_moved(hosted.partition.log.log_start_offset)
        if machine.log_end_is(hosted.log_end_offset):
            self._environment.notes(
                f"{hosted.partition.name} lost its end to a crash; {hosted.key.group_id} forgets what it knew beyond "
                f"{hosted.log_end_offset}"
            )
            reset = self._initialization(now, hosted.key, machine.start, found.state_epoch)
            self.states.submit(now, StateRequest(self.states.parking, reset))
            machine.rewrite()
        elif found.start_offset != start_offset:
            machine.rewrite()
        hosted.begin(machine, found.state_epoch)
        self._settle(now, hosted)

    def _reset_offset(self, now: Millis, hosted: HostedShare) -> int:
        """The start offset of a group that has never read this partition (`share.auto.offset.reset`)."""
        log, reset = hosted.partition.log, hosted.config.reset
        if reset == "earliest":
            return log.log_start_offset
        if reset != "latest":
            back_ms = duration_ms(reset.partition(":")[2])
            assert back_ms is not None, reset
            try:
                found = log.offset_for_timestamp(self._environment.wall.at(now) - back_ms)
            except OffsetOutOfRangeError:
                found = None
            except OSError as error:
                self._failures.read_failed(hosted.partition, error)
                return log.log_start_offset  # deliver too many records rather than skip some unread
            if found is not None:
                return found.offset
        return log.high_watermark

    def check(self) -> None:
        self._timers.check()
        assert len(self._timers) == len(self._waiting)
        for order, hosted in self._waiting.items():
            assert order in self._timers, order
            assert hosted.state is HostedState.LOADING, order
        assert all(hosted.state is not HostedState.READY for hosted in self._without_topic)
