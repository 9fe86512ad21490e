"""Persists the changes of share partitions: each write of a machine becomes a call to its coordinator.

Writes of one share partition are submitted in order. When the coordinator has committed a write, the machine applies
its changes; when the write failed, the machine takes them back. In both cases the request that waits for the write gets
its result. If the coordinator refuses a write for good, this node's state of the share partition is outdated, and the
share partition is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.broker.coordinators.remote_shards import TRY_AGAIN
from ottla.broker.delivery.partitions import HostedShare
from ottla.broker.delivery.state_calls import StateCalls, StateRequest, call_of
from ottla.broker.environment import Environment
from ottla.machine import Call, Millis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import write_share_group_state as write
from ottla.share.standing import Write


class WriteRequest(StateRequest):
    """A write on its way to the coordinator."""

    __slots__ = ("_hosted", "_persister", "_write")

    def __init__(self, persister: Persister, hosted: HostedShare, call: tuple[int, Call], wanted: Write) -> None:
        super().__init__(persister.states.parking, call)
        self._persister = persister
        self._hosted = hosted
        self._write = wanted

    def answered(self, now: Millis, reply: Any) -> None:
        error = ErrorCode(reply.results[0].partitions[0].error_code)
        self._persister.answered(now, self._hosted, self._write, error)


class Persister:
    """Every write of this node's share partitions. `settle` submits what a stepped machine wants, `drop` drops a share
    partition."""

    def __init__(
        self,
        environment: Environment,
        states: StateCalls,
        settle: Callable[[Millis, HostedShare], None],
        drop: Callable[[Millis, HostedShare], None],
    ) -> None:
        self.states = states
        self._environment = environment
        self._settle = settle
        self._drop = drop

    def persist(self, now: Millis, hosted: HostedShare, wanted: Write) -> None:
        """Submit a write."""
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
        if wanted.stands:
            hosted.unsaved.add(wanted.number)
        self.states.submit(now, WriteRequest(self, hosted, (hosted.shard_index, call_of(body)), wanted))

    def answered(self, now: Millis, hosted: HostedShare, wanted: Write, error: ErrorCode) -> None:
        """The coordinator has answered a write. A share partition that was dropped meanwhile has no machine any more,
        and its requests have their answers."""
        machine = hosted.machine
        if machine is not None:
            if error is ErrorCode.NONE:
                hosted.unsaved.discard(wanted.number)
                machine.persisted(wanted)
            else:
                machine.failed(wanted)
            awaited = hosted.awaited.pop(wanted.number, None)
            if awaited is not None:
                waiter, at = awaited
                self._environment.completions.add(waiter.acknowledged, at, _told(error))
            if error is not ErrorCode.NONE and error not in TRY_AGAIN:
                self._environment.notes(
                    f"{hosted.key.group_id} lost its state of {hosted.partition.name} and loads it again: {error.name}"
                )
                self._drop(now, hosted)
        self._settle(now, hosted)


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
