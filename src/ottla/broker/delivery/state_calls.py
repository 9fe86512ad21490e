"""Calls the coordinators of share partitions' state, and prunes the state that coordinators on this node keep.

The state of a share partition belongs to a shard of `__share_group_state`, on this node or on another one. All calls to
it are messages of the share coordinator's wire API (APIs 83 to 87), each with one share partition.

Callers that need the coordinators create their topic first: `lacks_topic`, `making_topic`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.coordinators.shards import CoordinatorRequest, ShardHost
from ottla.broker.environment import Environment
from ottla.broker.forwarding import Forwarding
from ottla.broker.parking import Parking
from ottla.broker.requests import NODE_REQUEST
from ottla.broker.schedule import Timed, Timer
from ottla.machine import Call, Millis
from ottla.metadata.store import StoreError
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.messages import delete_share_group_state as delete
from ottla.protocol.messages import initialize_share_group_state as initialize
from ottla.protocol.messages import read_share_group_state_summary as summary
from ottla.share.state import UNINITIALIZED, ShareStateShard, TopicGone, coordinator_key

RequestKind: TypeAlias = (
    type[initialize.InitializeShareGroupStateRequest]
    | type[summary.ReadShareGroupStateSummaryRequest]
    | type[delete.DeleteShareGroupStateRequest]
)


class StateRequest(CoordinatorRequest):
    """One call of this node to a share partition's coordinator."""

    __slots__ = ("_parking",)
    goes_elsewhere = True

    def __init__(self, parking: Parking, call: tuple[int, Call]) -> None:
        super().__init__([call])
        self._parking = parking

    def complete(self, now: Millis) -> None:
        """The answer goes to this node, not to a client."""
        if self._parking.take(self.ticket) is not None:
            self.answered(now, self.replies[0])

    def answered(self, now: Millis, reply: Any) -> None:
        """The coordinator has answered. By default no part of the node needs the answer."""


class StateCalls:
    """Every call of this node to the coordinators of share partitions' state."""

    def __init__(
        self, environment: Environment, metadata: Metadata, forwarding: Forwarding, parking: Parking, shards: ShardHost
    ) -> None:
        self.parking = parking
        self._environment = environment
        self._metadata = metadata
        self._forwarding = forwarding
        self._shards = shards
        self._pruning = Timer(environment.schedule, Timed.SHARE, self._prune)

    # ---- calls -----------------------------------------------------------------------------------------------------

    def call(
        self,
        now: Millis,
        kind: RequestKind,
        group_id: str,
        topic_id: bytes,
        partition: int,
        start_offset: int = UNINITIALIZED,
        state_epoch: int = 0,
    ) -> tuple[int, Call]:
        """(shard index, call) for the `calls` of a CoordinatorRequest to `node.share_state`. Its reply is a message of
        that API with one result."""
        self.prune_later(now)
        index = self._shards.partition_for(coordinator_key(group_id, topic_id, partition))
        if kind is initialize.InitializeShareGroupStateRequest:
            part = initialize.PartitionData(partition, state_epoch, start_offset)
            topics = [initialize.InitializeStateData(topic_id, [part])]
            return index, call_of(initialize.InitializeShareGroupStateRequest(group_id, topics))
        if kind is summary.ReadShareGroupStateSummaryRequest:
            asked = [summary.ReadStateSummaryData(topic_id, [summary.PartitionData(partition, -1)])]
            return index, call_of(summary.ReadShareGroupStateSummaryRequest(group_id, asked))
        assert kind is delete.DeleteShareGroupStateRequest, kind
        deleted = [delete.DeleteStateData(topic_id, [delete.PartitionData(partition)])]
        return index, call_of(delete.DeleteShareGroupStateRequest(group_id, deleted))

    def submit(self, now: Millis, asked: StateRequest) -> None:
        """Submit this node's own call; `asked.answered` is called with the reply, never before this returns."""
        self._shards.submit(now, NODE_REQUEST, asked)

    @property
    def may_go_elsewhere(self) -> bool:
        """Whether other nodes may coordinate, so that state may change without this node."""
        return self._shards.elsewhere is not None

    def topic_deleted(self, now: Millis, topic_id: bytes) -> None:
        """The coordinators on this node forget this topic's share partitions."""
        self._shards.tell_all(now, Call(-1, 0, "", "", TopicGone(topic_id)))

    # ---- the coordinators' topic -----------------------------------------------------------------------------------

    @property
    def lacks_topic(self) -> bool:
        """Whether `making_topic` has to run first: without the state topic there is no coordinator."""
        return SHARE_GROUP_STATE_TOPIC not in self._metadata.image.topics

    def making_topic(self) -> Generator[Any, Any, None]:
        """The step of a longer work that creates `__share_group_state` if it does not exist."""
        try:
            yield from self._forwarding.making_internal(SHARE_GROUP_STATE_TOPIC)
        except StoreError as failed:
            self._environment.notes(f"{SHARE_GROUP_STATE_TOPIC} can't be made: {failed}")

    # ---- pruning ---------------------------------------------------------------------------------------------------

    def prune_later(self, now: Millis) -> None:
        """The share coordinators on this node are in use, or may be: prune their state from time to time."""
        if self._pruning.at is None:
            self._set_pruning(now)

    def _set_pruning(self, now: Millis) -> None:
        self._pruning.set(now + self._environment.settings["share.coordinator.state.topic.prune.interval.ms"])

    def _prune(self, now: Millis) -> None:
        """Drop what no key's state needs any more."""
        self._set_pruning(now)
        for partition, shard in self._shards.loaded():
            if isinstance(shard, ShareStateShard):
                offset = shard.prunable_offset(partition.log.high_watermark)
                if offset > partition.log.log_start_offset:
                    partition.log.delete_records_before(offset)


def call_of(body: Any) -> Call:
    """The call with this body, at its newest version."""
    return Call(body.API_KEY, body.MAX_VERSION, "", "", body)
