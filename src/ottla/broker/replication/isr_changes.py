"""Sends ISR changes that leaders on this node propose to the controller.

One request is sent at a time, with all proposals that wait. Each leader is notified of the outcome of its own proposal.
A proposal without an answer is sent again unchanged (AlterPartition is idempotent).

Sources: KIP-497, KIP-903; Kafka's AlterPartitionManager.java.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.broker.cluster.peers import Peers
from ottla.broker.cluster.registrations import Registrations
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from ottla.replica.followers import Followers, Proposal

AGAIN_MIN_MS: Final = 20
AGAIN_MAX_MS: Final = 1_000
"""The longest pause before a request is sent again that got no answer; the pause doubles each time."""


class _Proposed(NamedTuple):
    partition: Partition
    followers: Followers
    proposal: Proposal

    @property
    def is_current(self) -> bool:
        """Whether the leader that proposed this still waits for the outcome."""
        return self.partition.followers is self.followers and self.followers.proposal is self.proposal


class IsrChanges:
    """The proposals of one node; a `peers.Asker`."""

    def __init__(self, node_id: int, registrations: Registrations, peers: Peers, schedule: Schedule) -> None:
        self._node_id = node_id
        self._registrations = registrations
        self._peers = peers
        self._waiting: dict[Partition, _Proposed] = {}
        self._under_way: dict[tuple[bytes, int], _Proposed] | None = None
        self._again_at: Millis = 0
        self._again_ms = AGAIN_MIN_MS
        self._timer = Timer(schedule, Timed.REPLICATION, self.send)

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        """Have this proposal sent; see `send`."""
        assert partition.followers is not None
        self._wait(_Proposed(partition, partition.followers, proposal))

    def _wait(self, proposed: _Proposed) -> None:
        self._waiting[proposed.partition] = proposed
        if self._under_way is None:
            self._timer.set(self._again_at)

    def send(self, now: Millis) -> None:
        """Send the waiting proposals, unless a request is in flight or this node is backing off from the controller."""
        if self._under_way is not None:
            return
        if now < self._again_at:
            if self._waiting:
                self._timer.set(self._again_at)
            return
        self._timer.cancel()
        current = [each for each in self._waiting.values() if each.is_current]
        self._waiting.clear()
        controller_id = self._registrations.controller_id
        if not current:
            return
        self._under_way = {(each.partition.log.topic_id, each.partition.index): each for each in current}
        if controller_id is None:
            self._nothing_came(now)
        else:
            self._peers.ask(now, controller_id, self._request(current), self)

    def _request(self, current: list[_Proposed]) -> AlterPartitionRequest:
        topics: dict[bytes, RequestTopicData] = {}
        for partition, _, proposal in current:
            topic_id = partition.log.topic_id
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = RequestTopicData(topic_id=topic_id)
            topic.partitions.append(
                RequestPartitionData(
                    partition.index,
                    proposal.leader_epoch,
                    new_isr_with_epochs=[BrokerState(*each) for each in proposal.isr],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        broker_epoch = self._registrations.epoch_here(self._node_id)
        return AlterPartitionRequest(self._node_id, broker_epoch, list(topics.values()))

    # ---- answers ---------------------------------------------------------------------------------------------------

    def answered(self, now: Millis, answer: object) -> None:
        if not isinstance(answer, AlterPartitionResponse) or answer.error_code:
            self._nothing_came(now)
        else:
            self._again_ms = AGAIN_MIN_MS
            under_way, self._under_way = self._under_way or {}, None
            for topic in answer.topics:
                for part in topic.partitions:
                    proposed = under_way.pop((topic.topic_id, part.partition_index), None)
                    if proposed is not None:
                        self._settle(now, proposed, part)
            for proposed in under_way.values():  # the answer lacks these
                self._refuse(now, proposed, ErrorCode.NETWORK_EXCEPTION)
        self.send(now)

    def _nothing_came(self, now: Millis) -> None:
        under_way, self._under_way = self._under_way or {}, None
        for proposed in under_way.values():
            self._refuse(now, proposed, ErrorCode.NETWORK_EXCEPTION)

    def _refuse(self, now: Millis, proposed: _Proposed, error: int) -> None:
        if proposed.is_current and proposed.followers.refused(proposed.proposal, error):
            if now >= self._again_at:
                self._again_at = now + self._again_ms
                self._again_ms = min(2 * self._again_ms, AGAIN_MAX_MS)
            self._wait(proposed)

    def _settle(self, now: Millis, proposed: _Proposed, part: ResponsePartitionData) -> None:
        partition, followers, proposal = proposed
        if part.error_code:
            self._refuse(now, proposed, part.error_code)
        elif proposed.is_current and followers.accepted(
            now,
            proposal,
            part.leader_epoch,
            part.partition_epoch,
            tuple(part.isr),
            partition.log.log_end_offset,
        ):
            partition.partition_epoch = part.partition_epoch
            partition.advance(now)
