"""Hosts one share partition: the machine, the log it delivers from, parked fetches, and unsaved writes.

    state     event                                                     next state
    LOADING   the coordinator's state is read (`begin`)                 READY
    LOADING   the coordinator refuses the group or the topic (`drop`)   DROPPED
    READY     the coordinator refuses a write for good (`drop`)         DROPPED
    either    the partition is led elsewhere, its topic or the group's state is deleted or altered, share groups are
              disabled, the machine failed (`drop`)                     DROPPED

DROPPED is final: the next fetch hosts the share partition again, under another number. Only READY has a machine.

It serves parked fetches (`ShareWaiter`) one after the other, as long as there are records for them.

Invariant: the gate's ticket watches the partition exactly while a request waits. So a record that arrives costs one
check, however many members wait for it.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ottla.broker.completions import Completions
from ottla.broker.config.share_groups import GroupConfigs, ShareGroupConfig
from ottla.broker.delivery.reading import readable_end
from ottla.broker.delivery.sessions import TopicIdPartition
from ottla.broker.parking import ParkedWork, Parking
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import NODE_REQUEST
from ottla.machine import Millis, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.share.partition import SharePartition
from ottla.share.records import Key


class ShareWaiter(ParkedWork):
    """A parked request that share partitions may be able to answer. `ticket`: None before it is parked, and after its
    client has disconnected."""

    __slots__ = ("ticket",)

    ticket: Ticket | None

    def serve(self, now: Millis, ticket: Ticket) -> None:
        """Records may be available: answer, or continue to wait."""
        raise NotImplementedError

    def acknowledged(self, now: Millis, at: int, error: ErrorCode) -> None:
        """This request's acknowledgements in its partition number `at` are persisted, or have failed."""
        raise NotImplementedError

    def acknowledge_more(self, now: Millis) -> None:
        """Submit the next slice of this request's acknowledgements."""
        raise NotImplementedError


class HostedState(Enum):
    """How far a share partition is on this node; the module's docstring has the transitions."""

    LOADING = "loading"
    READY = "ready"
    DROPPED = "dropped"


_NEXT: Final = {
    HostedState.LOADING: (HostedState.READY, HostedState.DROPPED),
    HostedState.READY: (HostedState.DROPPED,),
    HostedState.DROPPED: (),
}


class HostedShare:
    """A share partition on the node that leads its partition. `machine` is None unless it is READY."""

    __slots__ = (
        "_completions",
        "_configs",
        "_parking",
        "awaited",
        "gate",
        "key",
        "log_end_offset",
        "machine",
        "number",
        "partition",
        "retry_ms",
        "shard_index",
        "state",
        "state_epoch",
        "unsaved",
        "waiters",
    )

    def __init__(
        self,
        key: Key,
        number: int,
        partition: Partition,
        configs: GroupConfigs,
        parking: Parking,
        completions: Completions,
    ) -> None:
        self._completions = completions
        self._configs = configs
        self._parking = parking
        self.key = key
        self.number = number
        """Of all that this node has loaded, or begun to."""
        self.partition = partition
        self.state = HostedState.LOADING
        self.machine: SharePartition | None = None
        self.log_end_offset = 0
        """The end of the cached part of the log, as far as the log still has it."""
        self.state_epoch = 0
        self.shard_index = -1
        """Which partition of `__share_group_state` remembers it."""
        self.retry_ms: Millis = 0
        self.waiters: dict[Ticket, ShareWaiter] = {}
        self.awaited: dict[int, tuple[ShareWaiter, int]] = {}
        """By number of a write: the request that waits for it, and the index of its partition."""
        self.unsaved: set[int] = set()
        """Numbers of writes that the coordinator does not have, or not yet, though this machine's state includes
        them."""
        self.gate: Ticket | None = None

    @property
    def place(self) -> TopicIdPartition:
        return self.key.topic_id, self.key.partition

    @property
    def config(self) -> ShareGroupConfig:
        return self._configs.of(self.key.group_id)

    def has_more(self, now: Millis) -> bool:
        """Whether a member that asks would get something."""
        machine, config = self.machine, self.config
        return (
            machine is not None
            and not config.paused
            and machine.has_more(now, readable_end(self.partition.log, config.isolation))
        )

    # ---- states ----------------------------------------------------------------------------------------------------

    def begin(self, machine: SharePartition, state_epoch: int) -> None:
        """The coordinator's state is read, and this machine delivers from here on."""
        self._enter(HostedState.READY)
        self.machine = machine
        self.state_epoch = state_epoch
        self.retry_ms = 0

    def drop(self, error: ErrorCode) -> None:
        """Another node delivers it, or it has to be loaded again: whatever waits for it gets an error."""
        self._enter(HostedState.DROPPED)
        self.machine = None
        self._fail_awaited(error)
        self._give_up()

    def _enter(self, state: HostedState) -> None:
        assert state in _NEXT[self.state], f"{self.key}: {self.state.value} -> {state.value}"
        self.state = state

    def check(self) -> None:
        assert self.state is not HostedState.DROPPED, self.key
        assert (self.state is HostedState.READY) == (self.machine is not None), self.key
        assert bool(self.waiters) == self.partition.is_watched_by(self.gate), self.key

    # ---- parked fetches --------------------------------------------------------------------------------------------

    def wait(self, ticket: Ticket, waiter: ShareWaiter) -> None:
        if self.gate is None:
            self.gate = self._parking.park(NODE_REQUEST, None, Gate(self))
        self.waiters[ticket] = waiter
        self.partition.watch(self.gate)

    def wait_no_more(self, ticket: Ticket) -> None:
        if self.waiters.pop(ticket, None) is not None and not self.waiters and self.gate is not None:
            self.partition.unwatch(self.gate)

    def wake(self) -> None:
        """Have the parked fetches served before the host takes the node's effects."""
        if self.waiters and self.gate is not None:
            self._parking.grew(self.gate, 1)

    def serve(self, now: Millis) -> None:
        """Let the waiters try, the longest waiting first, while there is something to get."""
        for ticket, waiter in list(self.waiters.items()):
            if not self.has_more(now):
                return
            if ticket in self.waiters:
                waiter.serve(now, ticket)

    def _give_up(self) -> None:
        """Resume the parked fetches, which get an error."""
        if self.gate is not None:
            self.partition.unwatch(self.gate)
            self._parking.take(self.gate)
            self.gate = None
        waiters, self.waiters = self.waiters, {}
        for ticket, waiter in waiters.items():
            self._completions.add(waiter.serve, ticket)

    def _fail_awaited(self, error: ErrorCode) -> None:
        """The outcome of these writes will never be known: fail them."""
        awaited, self.awaited = self.awaited, {}
        for waiter, at in awaited.values():
            self._completions.add(waiter.acknowledged, at, error)


class Gate(ParkedWork):
    """Represents all parked fetches of a share partition among the fetches that wait at its partition."""

    __slots__ = ("_hosted",)

    def __init__(self, hosted: HostedShare) -> None:
        self._hosted = hosted

    def grew(self, size: int) -> bool:
        return True

    def ready(self, now: Millis, ticket: Ticket) -> None:
        self._hosted.serve(now)

    def abandon(self, ticket: Ticket) -> None:
        raise AssertionError("the gate has no client that could leave")
