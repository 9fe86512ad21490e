"""Keeps the leader's view of the other replicas of one partition: their progress, and which are in sync.

It covers one leader epoch of one partition. It has the end offsets from which followers fetched, and the time when each
was caught up. It also has the committed in-sync replicas (ISR), and the one pending change to them. It determines how
far the high watermark may advance.

The leader proposes a change of the ISR to the controller, and the change takes effect once the controller has committed
it. Until then the *maximal* ISR counts: the committed one, plus a replica that is about to join, and including replicas
that are about to leave. So the high watermark never passes a replica that may already or may still be in sync.

Invariants: the leader is in the ISR. There is at most one proposal at a time. The committed ISR is within the maximal
one. A follower's end offset always comes from a fetch in this leader epoch.

Sources: KIP-497, KIP-841, KIP-903, KIP-966; Kafka's Partition.scala, Replica.scala, AlterPartitionManager.scala;
KAFKA-7128, 7152, 12751, 13091, 13141, 15221, 15583.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode
from ottla.replica.isr_history import Cause, Distance, IsrHistory

NEVER: Final = -(1 << 62)
"""A moment before all others."""
UNKNOWN: Final = -1
"""The end offset, or the broker epoch, of a follower that has not fetched yet in this leader epoch."""

_NOT_APPLIED: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
"""Errors after which the proposal has certainly changed nothing."""
_ASK_AGAIN: Final = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_CONTROLLER_ID,
    ErrorCode.NETWORK_EXCEPTION,
)
"""Errors after which the proposal may have been applied, or did not reach the controller."""


class Registrations(Protocol):
    """The nodes that are members of the cluster now."""

    def broker_epoch_of(self, node_id: int) -> int | None:
        """The epoch of the node's registration; None if the node is not registered, fenced, or shutting down."""
        ...

    def epoch_of(self, node_id: int) -> int:
        """The epoch of the node's registration, whatever its state; -1 if it is not registered."""
        ...

    def may_count(self, node_id: int, place: tuple[bytes, int]) -> bool:
        """Whether the node has not reported that its log of this partition (topic id, index) accepts no records, or may
        lack some."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """The ISR that the leader proposes; `isr` are (node id, broker epoch), with epoch -1 if unknown."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class Follower:
    """The leader's state of another replica. Offsets are UNKNOWN until it fetches in this leader epoch."""

    __slots__ = ("broker_epoch", "caught_up_ms", "end_offset", "last_fetch_ms", "leader_end_offset", "log_start_offset")

    def __init__(self, caught_up_ms: Millis) -> None:
        self.end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.leader_end_offset = UNKNOWN
        """The leader's end at the follower's last fetch."""
        self.last_fetch_ms: Millis = NEVER
        self.caught_up_ms: Millis = caught_up_ms
        """When it last had all of the leader's records."""
        self.broker_epoch = UNKNOWN

    def fetched(
        self, now: Millis, offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int
    ) -> None:
        """The follower has every record below `offset`; before the read, the leader's log ended at
        `leader_end_offset`."""
        if offset >= leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now)
        elif offset >= self.leader_end_offset:
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = leader_end_offset
        self.last_fetch_ms = now
        self.broker_epoch = broker_epoch


class Followers:
    """The followers of one partition in one leader epoch. `start_offset`: where that epoch began. `history` gets each
    change of the committed ISR; `isr_before`: the one before this epoch, as far as this node knew it."""

    __slots__ = (
        "_joining",
        "followers",
        "history",
        "isr",
        "lag_ms_max",
        "leader_epoch",
        "min_isr_wanted",
        "node_id",
        "partition_epoch",
        "place",
        "proposal",
        "registrations",
        "start_offset",
    )

    def __init__(
        self,
        now: Millis,
        node_id: int,
        registrations: Registrations,
        place: tuple[bytes, int],
        *,
        replicas: Iterable[int],
        isr: tuple[int, ...],
        leader_epoch: int,
        partition_epoch: int,
        start_offset: int,
        lag_ms_max: int,
        min_isr_wanted: int,
        history: IsrHistory,
        isr_before: tuple[int, ...] = (),
    ) -> None:
        self.node_id = node_id
        self.registrations = registrations
        self.place = place
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.start_offset = start_offset
        self.lag_ms_max = lag_ms_max
        self.min_isr_wanted = min_isr_wanted
        """The value of min.insync.replicas."""
        self.isr = isr
        """The committed ISR."""
        self.followers = {each: Follower(now if each in isr else NEVER) for each in replicas if each != node_id}
        self.proposal: Proposal | None = None
        """The pending change, or one with an unknown result, until newer metadata arrives."""
        self._joining: tuple[int, ...] = ()
        self.history = history
        for each in isr_before:
            if each not in isr and each in self.followers:
                history.note(now, place, each, Cause.REMOVED)

    # ---- replicas in sync ------------------------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed ISR, plus the replica that is about to join."""
        return self.isr + self._joining

    @property
    def min_isr(self) -> int:
        """How many replicas must be in sync for a record to be committed: at most the number of replicas."""
        return min(self.min_isr_wanted, len(self.followers) + 1)

    @property
    def enough_to_append(self) -> bool:
        """Whether requests with acks=all are accepted now."""
        return len(self.isr) >= self.min_isr

    @property
    def enough_to_acknowledge(self) -> bool:
        """Whether appended and committed records have as many copies as acks=all promises."""
        return len(self.maximal_isr) >= self.min_isr

    @property
    def awaits_first_fetch(self) -> bool:
        """Whether an in-sync follower has not fetched in this leader epoch yet: until it has, no record is
        committed."""
        return any(each.end_offset == UNKNOWN for node_id, each in self.followers.items() if node_id in self.isr)

    def fetched(
        self,
        now: Millis,
        node_id: int,
        offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        broker_epoch: int,
    ) -> bool:
        """A follower has fetched from `offset`, without an error or divergence. Returns False if the fetch does not
        count: the node is not a replica, or an earlier incarnation of it sent the fetch (KIP-903)."""
        follower = self.followers.get(node_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        if broker_epoch < self.registrations.epoch_of(node_id):
            return False
        follower.fetched(now, offset, log_start_offset, leader_end_offset, broker_epoch)
        return True

    def counts_on_more(self, node_id: int, offset: int, broker_epoch: int) -> bool:
        """Whether a follower that is in sync, or about to be, fetches from below the end that it had reported: it has
        cut its log since. The change of the ISR that counts on that end must be decided first."""
        follower = self.followers.get(node_id)
        return (
            follower is not None
            and offset < follower.end_offset
            and broker_epoch == follower.broker_epoch
            and node_id in self.maximal_isr
        )

    def fetched_again(self, now: Millis, node_id: int, offset: int, broker_epoch: int) -> bool:
        """An in-sync follower has fetched again from the log's end, so it is still caught up. Returns False, so that
        the caller calls `fetched`, if it is not in sync, was at another offset, or is another incarnation."""
        follower = self.followers.get(node_id)
        if follower is None or node_id not in self.isr:
            return False
        if follower.end_offset != offset or follower.broker_epoch != broker_epoch:
            return False
        follower.caught_up_ms = follower.last_fetch_ms = now
        return True

    def high_watermark(self, now: Millis, end_offset: int) -> int | None:
        """The new high watermark, if the leader itself has every record below `end_offset`. None: it may not advance,
        because fewer replicas are in sync than min.insync.replicas requires (KAFKA-15583)."""
        if len(self.isr) < self.min_isr:
            return None
        bound = end_offset
        for node_id, follower in self.followers.items():
            if follower.end_offset < bound and (
                node_id in self.isr or node_id in self._joining or self._is_about_to_join(now, node_id, follower)
            ):
                bound = follower.end_offset
        return bound

    def _is_about_to_join(self, now: Millis, node_id: int, follower: Follower) -> bool:
        """Whether the follower was caught up a moment ago: the high watermark must not advance beyond it."""
        return now - follower.caught_up_ms <= self.lag_ms_max and self._is_eligible(node_id, follower)

    def _is_eligible(self, node_id: int, follower: Follower) -> bool:
        """Whether the node is active, is the incarnation that fetched (KIP-841, KIP-903), and its log accepts
        records."""
        epoch = self.registrations.broker_epoch_of(node_id)
        if epoch is None or epoch != follower.broker_epoch:
            return False
        return self.registrations.may_count(node_id, self.place)

    # ---- changes of the ISR ----------------------------------------------------------------------------------------

    def grow(self, node_id: int, high_watermark: int) -> Proposal | None:
        """Propose that this follower joins the ISR, if it has all committed records and all records before this epoch's
        start (KAFKA-7128)."""
        follower = self.followers.get(node_id)
        if self.proposal is not None or follower is None or node_id in self.isr:
            return None
        if follower.end_offset < max(high_watermark, self.start_offset) or not self._is_eligible(node_id, follower):
            return None
        self._joining = (node_id,)
        return self._propose((*self.isr, node_id))

    def shrink(self, now: Millis, end_offset: int) -> Proposal | None:
        """Propose to remove the replicas that have been behind for too long."""
        if self.proposal is not None:
            return None
        staying = tuple(each for each in self.isr if not self._is_out_of_sync(now, each, end_offset))
        return None if staying == self.isr else self._propose(staying)

    def _is_out_of_sync(self, now: Millis, node_id: int, end_offset: int) -> bool:
        follower = self.followers.get(node_id)
        if follower is None or follower.end_offset == end_offset:  # the leader itself, or a follower with every record
            return False
        return now - follower.caught_up_ms > self.lag_ms_max

    def _propose(self, isr: tuple[int, ...]) -> Proposal:
        epochs: list[tuple[int, int]] = []
        for each in isr:
            if each == self.node_id:
                own = self.registrations.broker_epoch_of(each)
                epochs.append((each, UNKNOWN if own is None else own))
            else:
                epochs.append((each, self.followers[each].broker_epoch))
        self.proposal = Proposal(self.leader_epoch, self.partition_epoch, tuple(epochs))
        return self.proposal

    def refused(self, proposal: Proposal, error: int) -> bool:
        """The controller rejected the proposal, or did not answer; returns whether to send the same proposal again."""
        if proposal is not self.proposal:
            return False
        if error in _NOT_APPLIED:
            self.proposal, self._joining = None, ()
        return error in _ASK_AGAIN

    def accepted(
        self,
        now: Millis,
        proposal: Proposal,
        leader_epoch: int,
        partition_epoch: int,
        isr: tuple[int, ...],
        end_offset: int,
    ) -> bool:
        """The controller reports the partition's state; returns whether it is new. `end_offset`: of this node's log."""
        if proposal is not self.proposal or leader_epoch != self.leader_epoch:
            return False
        if partition_epoch < self.partition_epoch:
            return False
        self._agreed(now, partition_epoch, isr, end_offset)
        return True

    def metadata(
        self,
        now: Millis,
        replicas: Iterable[int],
        isr: tuple[int, ...],
        leader_epoch: int,
        partition_epoch: int,
        end_offset: int,
    ) -> bool:
        """Apply the partition's state from the cluster's metadata. Returns whether it is new: a pending proposal is
        then void.

        The controller's answer may have reported the ISR before, but it never reports the replicas. `end_offset`: of
        this node's log.
        """
        assert leader_epoch == self.leader_epoch
        if partition_epoch < self.partition_epoch:
            return False
        others = [each for each in replicas if each != self.node_id]
        known = self.followers
        self.followers = {each: known.get(each) or Follower(now if each in isr else NEVER) for each in others}
        if partition_epoch == self.partition_epoch:
            return False
        self._agreed(now, partition_epoch, isr, end_offset)
        return True

    def _agreed(self, now: Millis, partition_epoch: int, isr: tuple[int, ...], end_offset: int) -> None:
        if isr != self.isr:
            self._note_changes(now, isr, end_offset)
        self.partition_epoch = partition_epoch
        self.isr = isr
        self.proposal, self._joining = None, ()

    # ---- what is remembered ----------------------------------------------------------------------------------------

    def _note_changes(self, now: Millis, isr: tuple[int, ...], end_offset: int) -> None:
        """The committed ISR becomes this one: note the replicas that leave and those that are back. A replica that is
        no longer one has been moved away."""
        for node_id in self.followers:
            if node_id in self.isr and node_id not in isr:
                distance = self.distance(now, node_id, end_offset)
                self.history.note(now, self.place, node_id, self._cause(node_id, distance), distance)
            elif node_id in isr and node_id not in self.isr:
                self.history.note(now, self.place, node_id, Cause.BACK)

    def _cause(self, node_id: int, distance: Distance) -> Cause:
        """Why a replica leaves that is this far behind."""
        if self.proposal is None or any(node_id == each for each, _ in self.proposal.isr):
            return Cause.REMOVED
        return Cause.SLOW if 0 <= distance.silent_ms <= self.lag_ms_max else Cause.SILENT

    def distance(self, now: Millis, node_id: int, end_offset: int) -> Distance:
        """How far a follower is behind this node's log, which ends at `end_offset`."""
        follower = self.followers[node_id]
        return Distance(
            UNKNOWN if follower.end_offset == UNKNOWN else max(0, end_offset - follower.end_offset),
            UNKNOWN if follower.caught_up_ms == NEVER else max(0, now - follower.caught_up_ms),
            UNKNOWN if follower.last_fetch_ms == NEVER else max(0, now - follower.last_fetch_ms),
        )

    def check(self) -> None:
        """Raises AssertionError."""
        assert self.node_id not in self.followers
        assert len(set(self.maximal_isr)) == len(self.maximal_isr), self.maximal_isr
        assert not self._joining or self.proposal is not None
