"""Holds one partition on this node: its log, its leadership, and the tickets that wait for its high watermark.

It decides which offsets are committed, and so which parked requests may be answered.

Invariants: tickets that wait for a commit are ordered by the offset they wait for. They were parked under the current
leader epoch, because a change of leadership first ends their waiting.

Sources: Kafka's Partition.scala and DelayedProduce; KIP-101 for the epochs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.metrics import Traffic
from ottla.log.answers import Appended, Damage, Origin, StorageError
from ottla.log.log import Log
from ottla.log.producers import VerificationGuard
from ottla.log.validation import Known
from ottla.machine import Millis, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import HEADER_BYTES, peek_producer
from ottla.protocol.records.control import EndTransactionMarker, build_marker_batch
from ottla.replica.copy_status import ReplicaCopy

if TYPE_CHECKING:
    from ottla.metadata.topics import PartitionRecord
    from ottla.replica.followers import Followers

LOOK_AGAIN: Final = 1 << 63
"""The byte count that wakes every fetch after an event other than new records."""
EVERYTHING: Final = 1 << 62
"""More bytes than any fetch waits for."""


class Commits(Protocol):
    """Follows up an append: the fsync that commits it, if one is needed, and housekeeping."""

    by_fsync: bool
    """Whether every append is committed by an fsync only, and not by the page cache."""
    appended_to: dict[Partition, None]
    """Partitions that housekeeping checks soon."""

    def sync_soon(self, partition: Partition) -> None:
        """Cover this partition with the next round of fsyncs."""
        ...

    def storage_failed(self, now: Millis, partition: Partition, why: str) -> None:
        """A write to this log failed."""
        ...

    def found_damage(self, partition: Partition, damage: Damage) -> None:
        """A batch in this log is damaged: another replica shall lead."""
        ...

    def read_failed(self, partition: Partition, why: OSError) -> None:
        """A read of this log failed."""
        ...

    def look_soon(self, now: Millis, partition: Partition) -> None:
        """Have housekeeping check this partition soon."""
        ...


class Wakes(Protocol):
    """Wakes what is parked at a partition, by ticket: `Parking`."""

    def committed(self, ticket: Ticket, partition: Partition) -> None: ...

    def grew(self, ticket: Ticket, size: int) -> None: ...

    def lost(self, ticket: Ticket, partition: Partition, error: ErrorCode) -> None: ...


class Partition:
    """A partition that has a replica on this node. `leads`: this node is its leader, in `leader_epoch`.

    `holding`: some appended records are not committed before an fsync covers them, or before other replicas have them.
    An fsync is needed if the node's durability is fsync or flush.messages asks for it. Otherwise an append is committed
    at once: the page cache is enough.

    `followers`: the progress of the other replicas, while this node leads and there are any. `leader_high_watermark`:
    the value that the leader last reported, while this node follows; None before.
    """

    __slots__ = (
        "_commit_waiters",
        "_commits",
        "_fetch_waiters",
        "_follower_fetches",
        "_wakes",
        "copy",
        "followers",
        "holding",
        "index",
        "leader_epoch",
        "leader_high_watermark",
        "leads",
        "log",
        "partition_epoch",
        "placed",
        "refused_epoch",
        "sent_to",
        "topic_name",
        "traffic",
    )

    def __init__(
        self,
        topic_name: str,
        index: int,
        log: Log,
        *,
        leads: bool,
        leader_epoch: int,
        partition_epoch: int,
        traffic: Traffic,
        commits: Commits,
        wakes: Wakes,
    ) -> None:
        self.topic_name = topic_name
        self.index = index
        self.log = log
        self.leads = leads
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.placed: PartitionRecord | None = None
        """The record in the metadata image that it has followed."""
        self.traffic = traffic
        self.holding = False
        self.followers: Followers | None = None
        self.copy = ReplicaCopy()
        self.refused_epoch = -1
        """The leader epoch whose leader this replica refuses to follow, as that leader lacks records committed here."""
        self.sent_to: dict[int, int] = {}
        """From which offset on each other replica last got records."""
        self.leader_high_watermark: int | None = None
        self._commits = commits
        self._wakes = wakes
        self._commit_waiters: deque[tuple[int, Ticket]] = deque()
        self._fetch_waiters: dict[Ticket, None] = {}
        self._follower_fetches: dict[Ticket, None] = {}

    @property
    def name(self) -> str:
        return f"{self.topic_name}-{self.index}"

    @property
    def commits_at_once(self) -> bool:
        """Whether the next append is committed at once, as nothing has to cover it first."""
        held_back = self.holding or self._commits.by_fsync
        return not held_back and self.log.config.flush_messages > self.log.unflushed + 1

    @property
    def fsyncs_each(self) -> bool:
        """Whether a record counts on this node only once it is on disk, whichever node leads."""
        return self._commits.by_fsync or self.log.config.flush_messages == 1

    def append(
        self, now: Millis, batch: memoryview, origin: Origin = Origin.CLIENT, inside: Known | None = None
    ) -> Appended:
        """Append one batch as the leader; it is committed at once, or when the fsync that covers it ends.

        `inside`: what an earlier check found inside it. Raises AppendRefusedError and StorageError as
        `Log.append_as_leader` does.
        """
        log = self.log
        try:
            appended = log.append_as_leader(
                batch, now=now, leader_epoch=self.leader_epoch, origin=origin, inside=inside
            )
        except StorageError as failed:
            self._commits.storage_failed(now, self, str(failed))
            raise
        first, last, _, duplicate = appended
        if not duplicate:
            commits, size = self._commits, len(batch)
            if commits.by_fsync or self.holding or (log.counts_unflushed and log.is_flush_due):
                self._hold(now, size)
            else:
                log.advance_high_watermark(last + 1)
                if self._fetch_waiters:
                    self.wake_fetches(size)
            traffic = self.traffic
            traffic.bytes_in += size
            traffic.messages_in += last - first + 1
            traffic.produce_requests += 1
            if self not in commits.appended_to:
                commits.look_soon(now, self)
        return appended

    def found_damage(self, damage: Damage) -> None:
        """A reader of the log has met a damaged batch."""
        self._commits.found_damage(self, damage)

    def read_failed(self, error: OSError) -> None:
        """A read of the log has failed."""
        self._commits.read_failed(self, error)

    # ---- transactions ----------------------------------------------------------------------------------------------

    def guard_for(self, now: Millis, batch: memoryview, *, second_version: bool) -> VerificationGuard | None:
        """The guard of a transactional batch whose coordinator must be asked first; None if it need not be asked.

        Raises AppendRefusedError if the producer is fenced.
        """
        if len(batch) < HEADER_BYTES:
            return None
        _, producer_id, epoch, sequence = peek_producer(batch)
        log = self.log
        return log.producers.guard(producer_id, epoch, sequence, log.wall.at(now), second_version=second_version)

    def append_transactional(
        self, now: Millis, batch: memoryview, guard: VerificationGuard | None, inside: Known | None = None
    ) -> Appended:
        """Append a client's batch to its transaction, or open one if the guard is valid. Raises as `append`."""
        if len(batch) >= HEADER_BYTES:
            delta, producer_id, epoch, sequence = peek_producer(batch)
            self.log.producers.verify_guard(producer_id, epoch, sequence, delta, guard)
        return self.append(now, batch, inside=inside)

    def append_marker(
        self,
        now: Millis,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
    ) -> Appended:
        """End the producer's transaction here, even if it has none. Raises as `append`."""
        producers, wall_ms = self.log.producers, self.log.wall.at(now)
        producers.verify_marker(
            producer_id, producer_epoch, marker.coordinator_epoch, transaction_version=transaction_version
        )
        batch = build_marker_batch(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=wall_ms)
        appended = self.append(now, memoryview(batch), Origin.COORDINATOR)
        producers.marker_written(producer_id, producer_epoch, transaction_version)
        return appended

    # ---- requests that wait for a commit ---------------------------------------------------------------------------

    def wait_for_commit(self, offset: int, ticket: Ticket) -> None:
        """Once the high watermark reaches `offset`, a completion resumes the parked work."""
        self._commit_waiters.append((offset, ticket))

    def synced(self, now: Millis, offset: int) -> None:
        """Everything below `offset` is on disk: it is committed unless other replicas must have it too."""
        if self.followers is not None:
            self.advance(now)
        elif self.leads:
            self._commit_up_to(offset)

    def _commit_up_to(self, offset: int) -> None:
        """The high watermark reaches `offset`: resume the requests that waited for it."""
        if not self.log.advance_high_watermark(offset):
            return
        self.holding = self.followers is not None or offset < self.log.log_end_offset
        waiters = self._commit_waiters
        while waiters and waiters[0][0] <= offset:
            self._wakes.committed(waiters.popleft()[1], self)
        if self._fetch_waiters:
            self.wake_fetches(EVERYTHING)

    def resign(self, error: ErrorCode) -> None:
        """Leadership or the partition itself ends: fetches are retried, and requests that wait for a commit get this
        error."""
        waiters, self._commit_waiters = self._commit_waiters, deque()
        self.wake_all_fetches()
        for _, ticket in waiters:
            self._wakes.lost(ticket, self, error)

    # ---- other replicas --------------------------------------------------------------------------------------------

    def lead(self, followers: Followers | None) -> None:
        """This node leads from now on, beside these followers, or as the only replica."""
        self.followers = followers
        self.sent_to.clear()
        self.holding = followers is not None

    def follow(self) -> None:
        """Another node leads from now on, or none."""
        self.lead(None)

    def taken_back(self) -> None:
        """The end of the log that no client had seen is cut off: nothing is held back any more."""
        self.holding = self.followers is not None

    def _hold(self, now: Millis, size: int) -> None:
        """A batch was appended that does not count before an fsync covers it or other replicas have it."""
        commits, log = self._commits, self.log
        self.holding = True
        if self.followers is None or commits.by_fsync or log.is_flush_due:
            commits.sync_soon(self)
        for ticket in self._follower_fetches:
            self._wakes.grew(ticket, size)
        self.advance(now)

    def appended_as_follower(self, now: Millis) -> None:
        """Records of the leader were appended."""
        commits = self._commits
        if commits.by_fsync or self.log.is_flush_due:
            commits.sync_soon(self)
        if self not in commits.appended_to:
            commits.look_soon(now, self)

    def advance_as_follower(self, high_watermark: int) -> None:
        """The leader has reported its high watermark: consumers here may read up to it, as far as this log goes
        (KIP-392)."""
        log = self.log
        self.leader_high_watermark = high_watermark
        if log.advance_high_watermark(min(high_watermark, log.log_end_offset)) and self._fetch_waiters:
            self.wake_fetches(EVERYTHING)

    @property
    def offset_lag(self) -> int:
        """How many offsets this replica is behind the high watermark that its leader last reported; -1 if none is
        known."""
        if self.log.unopened or self.log.failed is not None:
            return -1
        if self.leads:
            return 0
        return (
            -1 if self.leader_high_watermark is None else max(self.leader_high_watermark - self.log.log_end_offset, 0)
        )

    @property
    def sound_end(self) -> tuple[int, int]:
        """The newest leader epoch and the end offset of the part of the log that is not damaged."""
        log = self.log
        damaged_from = self.copy.damaged_from
        end = log.log_end_offset if damaged_from is None else min(damaged_from, log.log_end_offset)
        return log.epochs.epoch_at(end - 1), end

    @property
    def has_enough_replicas(self) -> bool:
        """Whether as many replicas are in sync as min.insync.replicas asks for; otherwise appends with acks=all are
        refused."""
        return self.followers is None or self.followers.enough_to_append

    @property
    def keeps_enough_copies(self) -> bool:
        """Whether committed records may be acknowledged to acks=all."""
        return self.followers is None or self.followers.enough_to_acknowledge

    def advance(self, now: Millis) -> None:
        """A follower has advanced, or the ISR changed, so the high watermark may advance."""
        followers, log = self.followers, self.log
        if followers is not None and log.high_watermark < log.log_end_offset:
            offset = followers.high_watermark(now, log.recovery_point if self.fsyncs_each else log.log_end_offset)
            if offset is not None:
                self._commit_up_to(offset)

    # ---- requests that wait for records ----------------------------------------------------------------------------

    def watch(self, ticket: Ticket, *, to_the_end: bool = False) -> None:
        """Notify this ticket when more can be read, `to_the_end` of the log or up to the high watermark."""
        if to_the_end:
            self._follower_fetches[ticket] = None
        else:
            self._fetch_waiters[ticket] = None

    def unwatch(self, ticket: Ticket) -> None:
        self._fetch_waiters.pop(ticket, None)
        self._follower_fetches.pop(ticket, None)

    def is_watched_by(self, ticket: Ticket | None) -> bool:
        return ticket in self._fetch_waiters

    def wake_fetches(self, size: int) -> None:
        """`size` more bytes are readable: fetches whose min_bytes are reached are answered before the node rests."""
        for ticket in self._fetch_waiters:
            self._wakes.grew(ticket, size)

    def wake_all_fetches(self) -> None:
        """The partition changed in another way than by new records (its log start moved, it was removed): retry all
        fetches."""
        self.wake_fetches(LOOK_AGAIN)
        for ticket in self._follower_fetches:
            self._wakes.grew(ticket, LOOK_AGAIN)
