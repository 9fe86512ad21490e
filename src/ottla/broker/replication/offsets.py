"""Asks where a leader's log begins and ends, if it does not have the offset that a follower wants to fetch.

It sends two ListOffsets requests, one after the other. A log that is longer than the leader's is truncated to the
leader's end. A log that ends before the leader's start is emptied and restarts there. Any other log is kept as it is.

Source: Kafka's AbstractFetcherThread.fetchOffsetAndApplyTruncateAndBuild.
"""

from __future__ import annotations

from typing import Final, Protocol

from ottla.broker.cluster.peers import Peers
from ottla.broker.partitions.partition import Partition
from ottla.log.answers import StorageError
from ottla.machine import Millis
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.replica.fetcher import Key

LATEST: Final = -1
EARLIEST: Final = -4
"""Of the leader's own disk."""


class Follows(Protocol):
    """Carries out what the answer says."""

    def cut_to(self, now: Millis, partition: Partition, offset: int) -> None: ...

    def begin_at(self, now: Millis, partition: Partition, offset: int) -> None: ...

    def go_on(self, key: Key, partition: Partition) -> None: ...

    def rest(self, now: Millis, key: Key) -> None: ...

    def storage_failed(self, now: Millis, partition: Partition, failed: StorageError) -> None: ...


class OffsetQuestion:
    """One such question, about one partition in one leader epoch; a `peers.Asker`."""

    def __init__(
        self,
        follows: Follows,
        peers: Peers,
        node_id: int,
        leader: int,
        partition: Partition,
        key: Key,
        leader_epoch: int,
    ) -> None:
        self._follows = follows
        self._peers = peers
        self._node_id = node_id
        self._leader = leader
        self._partition = partition
        self._key = key
        self._leader_epoch = leader_epoch
        self._about = LATEST

    def ask(self, now: Millis) -> None:
        asked = ListOffsetsPartition(self._partition.index, self._leader_epoch, self._about)
        topic = ListOffsetsTopic(self._partition.topic_name, [asked])
        self._peers.ask(now, self._leader, ListOffsetsRequest(self._node_id, topics=[topic]), self)

    def answered(self, now: Millis, answer: object) -> None:
        partition = self._partition
        if partition.leads or partition.leader_epoch != self._leader_epoch:
            return  # the partition follows a new leader or epoch
        offset = _offset_in(answer)
        if offset is None or partition.log.failed is not None:
            self._follows.rest(now, self._key)
            return
        try:
            self._go_by(now, offset)
        except StorageError as failed:
            self._follows.storage_failed(now, partition, failed)
            self._follows.rest(now, self._key)

    def _go_by(self, now: Millis, offset: int) -> None:
        partition, end = self._partition, self._partition.log.log_end_offset
        if self._about == LATEST and offset >= end:
            self._about = EARLIEST
            self.ask(now)
            return
        if self._about == LATEST:
            self._follows.cut_to(now, partition, offset)
        elif offset > end:
            self._follows.begin_at(now, partition, offset)
        self._follows.go_on(self._key, partition)


def _offset_in(answer: object) -> int | None:
    if not isinstance(answer, ListOffsetsResponse) or not answer.topics or not answer.topics[0].partitions:
        return None
    part = answer.topics[0].partitions[0]
    return None if part.error_code or part.offset < 0 else part.offset
