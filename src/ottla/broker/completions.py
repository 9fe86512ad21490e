"""Delivers completions: the ends of what parts of a node have begun and wait for.

A part begins something with a call: it submits a call to a coordinator, asks for a change of the metadata, sends a
request to another node, waits for a commit. The end of it is a completion. **No completion is delivered within a call
that begins something, or within the delivery of another completion: it is queued, and delivered after the current
call.** So a part need not expect to be called while it is calling, and has no flags for that case.

    completions.add(awaits.change_ended, result)       # a part that has a result; `awaits` is not called yet
    completions.deliver(now)                           # the node, after each call: `awaits.change_ended(now, result)`

A part returns a result that it has at once, and then there is no completion: a handler returns its answer, or `Parked`;
`ShardHost.answer_here` returns a reply, or None.

A call is one request that is served, one timer that fires, or one event that the I/O host reports: the end of fsyncs,
an answer of another node, the outcome of a commit, new rows, a closed connection. Order of effects:

1. The call runs. It changes the state of the node's parts, adds effects to the outbox, and queues completions.
2. The node delivers the completions, first in, first out. A delivery may queue more. All are delivered before the call
   returns to the host. A request whose completion answers it during its own call is answered by what
   `Node.receive` returns, like one that waited for nothing.
3. The host calls `Node.take_effects`. Waiting fetches are checked once for all appends since, the node serves the
   requests that it sent to itself, and completions are delivered after each of these.
4. One round of fsyncs begins for all appends since, unless one is in progress.
5. The host gets all effects, in the order in which they were added, and carries them out in this order. The ends of
   `Sync`, `PeerRequest`, `Commit`, `Reread` and `Derive` are events: they begin at 1.

So a `Close` follows the answers that were added before it, and an answer that reports a commit is added once the commit
is known.

    begun by                          completed by                     the completion
    ShardHost.submit                  the shard, or its commit         CoordinatorRequest.complete
    Metadata.change, Forwarding.make  the end of the change            AwaitsChange.change_ended, change_failed
    Peers.ask                         the answer, a deadline           Asker.answered
    Partition.wait_for_commit         the high watermark               ParkedWork.committed
                                      the end of the leadership        ParkedWork.lost, with the error
    a write of a share partition      the share coordinator            ShareWaiter.acknowledged
    HostedShare.wait                  the end of the share partition   ShareWaiter.serve
    SubRequest, if it is light        its answer                       the next slice of the work
    Sasl.respond                      the derived keys                 Login.derived

A completion carries what it reports, such as an error. The state of the node may be newer when it is delivered: a
partition that was lost may be led again. Its waiter may have gone meanwhile: a ticket that is no longer parked is
ignored.

Two kinds of notice are not completions. `Parking.grew` marks a waiting fetch, which is checked at 3. `events` notifies
parts of a change within the call, in a fixed order.

A call may queue many completions, as when one fsync commits the requests of thousands of clients. After
DELIVERED_AT_ONCE of them the rest waits for a timer, so that other connections have their turn. Completions that are
queued meanwhile wait behind it.

An unexpected exception ends the completion in which it happened. `fault` receives it, and the next one is delivered.

Source: etcd/raft's doc.go, which gives the order in which a Ready is carried out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ottla.broker.schedule import AT_ONCE, Schedule, Timed, Timer
from ottla.machine import Millis

DELIVERED_AT_ONCE: Final = 1_000
"""How many completions are delivered before other calls have their turn: each needs some 10 us."""

Completion: TypeAlias = tuple[Callable[..., object], tuple[Any, ...]]


class Completions:
    """The completions of one node. `waiting`: those that are not delivered yet; the node checks it after each call."""

    __slots__ = ("_fault", "_rest", "waiting")

    def __init__(self, schedule: Schedule, fault: Callable[[str, Exception], None]) -> None:
        self.waiting: deque[Completion] = deque()
        self._fault = fault
        self._rest = Timer(schedule, Timed.COMPLETIONS, self.deliver)

    def add(self, act: Callable[..., object], *args: object) -> None:
        """Call `act(now, *args)` after the current call."""
        self.waiting.append((act, args))

    @property
    def is_behind(self) -> bool:
        """Whether the queue waits for its timer: what is added now is delivered after the call has returned to the
        host."""
        return self._rest.at is not None

    @property
    def is_due(self) -> bool:
        """Whether `deliver` would deliver something."""
        return bool(self.waiting) and self._rest.at is None

    def deliver(self, now: Millis) -> None:
        """After a call: deliver what it queued, and what that queues."""
        if self._rest.at is not None:
            return
        waiting = self.waiting
        left = DELIVERED_AT_ONCE
        while waiting and left:
            left -= 1
            act, args = waiting.popleft()
            try:
                act(now, *args)
            except Exception as error:
                self._fault(f"{getattr(act, '__qualname__', act)} failed", error)
        if waiting:
            self._rest.set(AT_ONCE)

    def check(self) -> None:
        """Between two calls nothing waits, unless there were too many. Raises AssertionError."""
        assert not self.waiting or self.is_behind, f"{len(self.waiting)} completions are not delivered"
