"""Keeps the leader's view of the other replicas of one partition: how far each has come, and who is in sync.

Knows one leader epoch of one partition: the end offsets that followers fetched from, when each was caught up, the
in-sync replicas (ISR) that the cluster agreed on, and the one change to them that is under way. Says how far the high
watermark may go. Does not know records, requests or who the controller is.

A change of the ISR is proposed to the controller and counts once that has committed it. Until then the *maximal* ISR
counts: the committed one and whoever shall join it, while a shrink still has its old members. So the high watermark
never passes a replica that may be in sync already, or may be still.

Invariants: the leader is in the ISR; at most one proposal at a time; the committed ISR is within the maximal one; a
follower's end offset is only what it said in this leader epoch.

Sources: KIP-497, KIP-841, KIP-903, KIP-966; Kafka's Partition.scala, Replica.scala, AlterPartitionManager.scala;
KAFKA-7128, 7152, 12751, 13091, 13141, 15221, 15583.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode

NEVER: Final = -(1 << 62)
"""A moment before every other."""
UNKNOWN: Final = -1
"""The end offset, or the broker epoch, of a follower that has not fetched yet in this leader epoch."""

_NOT_APPLIED: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
"""Refusals after which the proposal has surely changed nothing."""
_ASK_AGAIN: Final = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_CONTROLLER_ID,
    ErrorCode.NETWORK_EXCEPTION,
)
"""Nobody knows whether it was applied, or it reached nobody who could."""


class Registrations(Protocol):
    """Which nodes take part in the cluster now."""

    def broker_epoch_of(self, node_id: int) -> int | None:
        """The epoch of the node's registration; None where it is not registered, fenced, or about to leave."""
        ...

    def takes_nothing(self, node_id: int, place: tuple[bytes, int]) -> bool:
        """Whether the node has said that its log of this partition, a topic's id and an index, takes no records."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """The ISR that the leader would like; `isr` are (node id, broker epoch), -1 where the epoch is not known."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class Follower:
    """One other replica, as the leader knows it. Offsets are UNKNOWN until it fetches in this leader epoch."""

    __slots__ = ("broker_epoch", "caught_up_ms", "end_offset", "last_fetch_ms", "leader_end_offset", "log_start_offset")

    def __init__(self, caught_up_ms: Millis) -> None:
        self.end_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.leader_end_offset = UNKNOWN
        """The leader's end at the follower's last fetch."""
        self.last_fetch_ms: Millis = NEVER
        self.caught_up_ms: Millis = caught_up_ms
        """When it last had all that the leader had."""
        self.broker_epoch = UNKNOWN

    def fetched(
        self, now: Millis, offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int
    ) -> None:
        """It has everything below `offset`; the leader's end was `leader_end_offset` before it was read."""
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
    """The followers of one partition in one leader epoch. `start_offset`: where that epoch began."""

    __slots__ = (
        "_joining",
        "followers",
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
    ) -> None:
        self.node_id = node_id
        self.registrations = registrations
        self.place = place
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.start_offset = start_offset
        self.lag_ms_max = lag_ms_max
        self.min_isr_wanted = min_isr_wanted
        """What min.insync.replicas asks for."""
        self.isr = isr
        """As the cluster agreed."""
        self.followers = {each: Follower(now if each in isr else NEVER) for each in replicas if each != node_id}
        self.proposal: Proposal | None = None
        """The change that is under way, or of which nobody knows what became, until newer metadata says so."""
        self._joining: tuple[int, ...] = ()

    # ---- who is in sync --------------------------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """The committed ISR and whoever is about to join it."""
        return self.isr + self._joining

    @property
    def min_isr(self) -> int:
        """How many must be in sync for a record to be committed: never more than there are replicas."""
        return min(self.min_isr_wanted, len(self.followers) + 1)

    @property
    def enough_to_append(self) -> bool:
        """Whether acks=all may be asked for now."""
        return len(self.isr) >= self.min_isr

    @property
    def enough_to_acknowledge(self) -> bool:
        """Whether what was appended, and is committed, has as many copies as acks=all promises."""
        return len(self.maximal_isr) >= self.min_isr

    @property
    def awaits_first_fetch(self) -> bool:
        """Whether an in-sync follower has not fetched in this leader epoch: until it has, nothing is committed."""
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
        """A follower has fetched from `offset`, without an error and without diverging. False where that counts for
        nothing: no replica, or an earlier life of it (KIP-903)."""
        follower = self.followers.get(node_id)
        if follower is None or broker_epoch < follower.broker_epoch:
            return False
        registered = self.registrations.broker_epoch_of(node_id)
        if registered is not None and broker_epoch < registered:
            return False
        follower.fetched(now, offset, log_start_offset, leader_end_offset, broker_epoch)
        return True

    def fetched_again(self, now: Millis, node_id: int, offset: int, broker_epoch: int) -> bool:
        """An in-sync follower has fetched from the log's end, where it was before: it is caught up still. False where
        it is not in sync, was elsewhere, or lives anew, and `fetched` has to look."""
        follower = self.followers.get(node_id)
        if follower is None or node_id not in self.isr:
            return False
        if follower.end_offset != offset or follower.broker_epoch != broker_epoch:
            return False
        follower.caught_up_ms = follower.last_fetch_ms = now
        return True

    def high_watermark(self, now: Millis, end_offset: int) -> int | None:
        """How far it may go, where the leader itself has everything below `end_offset`. None: not at all, while fewer
        are in sync than min.insync.replicas asks for (KAFKA-15583)."""
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
        """It was caught up a moment ago: the high watermark must not run away from it."""
        return now - follower.caught_up_ms <= self.lag_ms_max and self._is_eligible(node_id, follower)

    def _is_eligible(self, node_id: int, follower: Follower) -> bool:
        """Active, the life of it that fetched (KIP-841, KIP-903), and with a log that takes records."""
        epoch = self.registrations.broker_epoch_of(node_id)
        if epoch is None or epoch != follower.broker_epoch:
            return False
        return not self.registrations.takes_nothing(node_id, self.place)

    # ---- changes of the ISR ----------------------------------------------------------------------------------------

    def grow(self, node_id: int, high_watermark: int) -> Proposal | None:
        """Propose that this follower joins, if it may: it has all that is committed, and all below this epoch's
        beginning (KAFKA-7128)."""
        follower = self.followers.get(node_id)
        if self.proposal is not None or follower is None or node_id in self.isr:
            return None
        if follower.end_offset < max(high_watermark, self.start_offset) or not self._is_eligible(node_id, follower):
            return None
        self._joining = (node_id,)
        return self._propose((*self.isr, node_id))

    def shrink(self, now: Millis, end_offset: int) -> Proposal | None:
        """Propose that those leave who have been behind for too long."""
        if self.proposal is not None:
            return None
        staying = tuple(each for each in self.isr if not self._is_out_of_sync(now, each, end_offset))
        return None if staying == self.isr else self._propose(staying)

    def _is_out_of_sync(self, now: Millis, node_id: int, end_offset: int) -> bool:
        follower = self.followers.get(node_id)
        if follower is None or follower.end_offset == end_offset:  # the leader itself; or who has everything
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
        """The controller refused it, or could not be asked; True where the same proposal has to be sent again."""
        if proposal is not self.proposal:
            return False
        if error in _NOT_APPLIED:
            self.proposal, self._joining = None, ()
        return error in _ASK_AGAIN

    def accepted(self, proposal: Proposal, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...]) -> bool:
        """The controller says how the partition stands now; True where that is news."""
        if proposal is not self.proposal or leader_epoch != self.leader_epoch:
            return False
        if partition_epoch < self.partition_epoch:
            return False
        self._agreed(partition_epoch, isr)
        return True

    def metadata(
        self, now: Millis, replicas: Iterable[int], isr: tuple[int, ...], leader_epoch: int, partition_epoch: int
    ) -> bool:
        """What the cluster agrees on, as the image says it. True where that is news: whatever was under way is void.
        The controller's answer may have told of the in-sync replicas before, and never tells of the others."""
        assert leader_epoch == self.leader_epoch
        if partition_epoch < self.partition_epoch:
            return False
        others = [each for each in replicas if each != self.node_id]
        known = self.followers
        self.followers = {each: known.get(each) or Follower(now if each in isr else NEVER) for each in others}
        if partition_epoch == self.partition_epoch:
            return False
        self._agreed(partition_epoch, isr)
        return True

    def _agreed(self, partition_epoch: int, isr: tuple[int, ...]) -> None:
        self.partition_epoch = partition_epoch
        self.isr = isr
        self.proposal, self._joining = None, ()

    def check(self) -> None:
        """Raises AssertionError."""
        assert self.node_id not in self.followers
        assert len(set(self.maximal_isr)) == len(self.maximal_isr), self.maximal_isr
        assert not self._joining or self.proposal is not None
