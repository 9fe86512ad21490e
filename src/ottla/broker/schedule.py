"""Keeps every deadline of a node in one heap, and fires what is due.

A part of the node has no deadline of its own: it creates timers of this schedule, and sets them. So nothing has to be
reported to the I/O host, and no deadline can be forgotten: the node's deadline is the head of the heap.

    Timer(schedule, Timed.METADATA, self._read_again)              # one deadline: set, cancel
    KeyedTimers(schedule, Timed.PEERS, self._give_up_late)         # many deadlines, by key
    Limits(schedule, Timed.REQUESTS, self._expire, living)         # many deadlines, most of which end before they come
    Backlog(schedule, Timed.SLICES, self._next_slice)              # work that is due at once while there is any
    Reckoning(schedule, Timed.REPLICATION, self._send, deadline)   # a deadline that follows from other state

A pure machine (`groups`, `share`, `txn`, `replica`) keeps its `deadline()`. Its host copies that into a timer after
each call, or hands the machine out through a `reckoning`, which asks the machine again.

Order: `tick` is one pass over what is due, part by part in the order of `Timed`. Within a part, timers fire in the
order of their creation; within `KeyedTimers` and `Limits`, by time and key. Nothing fires twice in a pass. A timer that
becomes due during the pass fires in it if its turn has not passed, otherwise in the next one.

Deadlines are times of the monotonic clock, so a step of the wall clock moves none. The parts whose work depends on
timestamps set their timers again (`Node.wall_clock_is`). A process that was suspended fires everything that became due
meanwhile in one pass, each timer once. After `stop` nothing is due any more.

If a timer's work raises an unexpected exception, that timer alone rests for REST_MS; `fault` receives the exception.

Invariant: every timer that has a deadline has an entry in the heap that is not later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Hashable, Iterator
from enum import Enum
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeAlias, TypeVar

from ottla.log.cost import Stopwatch, counted_us
from ottla.machine import Millis
from ottla.machine.timers import Timers

AT_ONCE: Final[Millis] = 0
"""The deadline of work that waits only for its turn."""
REST_MS: Final = 60_000
"""How long a timer rests after its work failed unexpectedly."""
NEVER: Final[Millis] = 1 << 62
"""Later than any deadline."""
_COMING: Final[Millis] = -NEVER
"""Replaces the time of an entry whose turn in this pass has not come yet."""
_SWEPT_FROM: Final = 1024
"""The number of entries from which on stale ones are swept."""

KeyT = TypeVar("KeyT", bound=Hashable)
WorkT = TypeVar("WorkT")

Fire: TypeAlias = Callable[[Millis], None]
Deadline: TypeAlias = Callable[[], Millis | None]


class Timed(Enum):
    """The parts of a node that have timers, in the order in which they fire, with their names for messages."""

    COMPLETIONS = "completions"
    COMMITS = "commits by fsync"
    REQUESTS = "parked requests"
    SASL = "the lifetimes of authenticated sessions"
    METADATA = "changes of the metadata"
    SLICES = "long requests"
    PEERS = "requests to other nodes"
    FORWARDING = "requests to the controller"
    REMOVALS = "the removal of deleted topics"
    UNOPENED = "offline partitions"
    MEMBERSHIP = "the node's place in the cluster"
    GROUPS = "the coordinator of groups"
    SHARE_STATE = "the coordinator of share groups' state"
    TRANSACTIONS = "the coordinator of transactions"
    SHARE = "share groups"
    REPLICATION = "replication"
    UPKEEP = "the upkeep of logs"
    AUDIT = "the audit log"


def _nothing(now: Millis) -> None:
    pass


_RANKS: Final = {part: rank << 20 for rank, part in enumerate(Timed)}


class _Entry:
    """The heap's state of one timer. `queued`: the time of its entry in the heap; NEVER if it has none."""

    __slots__ = ("_schedule", "due", "fire", "order", "part", "queued", "rests_until")

    def __init__(self, schedule: Schedule, part: Timed, order: int, fire: Fire, due: Deadline) -> None:
        self._schedule = schedule
        self.part = part
        self.order = order
        self.fire = fire
        self.due = due
        self.queued: Millis = NEVER
        self.rests_until: Millis = 0

    def at(self) -> Millis:
        """When it fires next."""
        due = self.due()
        return NEVER if due is None else max(due, self.rests_until)

    def nearer(self, due: Millis) -> None:
        """Be in the heap at this time at the latest."""
        if due < self.queued:
            self._schedule.enter(self, due)

    def come_along(self) -> None:
        """Fire in the next pass, whatever that is for."""
        self._schedule.along[self] = None

    def stay(self) -> None:
        """Stop participating in each pass."""
        self._schedule.along.pop(self, None)


class Timer:
    """One moment. It ends when it fires. `comes_along`: once set it fires in the next pass, at its own time at the
    latest."""

    __slots__ = ("_act", "_comes_along", "_entry", "at")

    def __init__(self, schedule: Schedule, part: Timed, act: Fire, *, comes_along: bool = False) -> None:
        self.at: Millis | None = None
        """When it fires; None while it is not set."""
        self._act = act
        self._comes_along = comes_along
        self._entry = schedule.new_entry(part, self._fire, lambda: self.at)

    def set(self, at: Millis) -> None:
        self.at = at
        self._entry.nearer(at)
        if self._comes_along:
            self._entry.come_along()

    def cancel(self) -> None:
        self.at = None
        if self._comes_along:
            self._entry.stay()

    def _fire(self, now: Millis) -> None:
        at = self.at
        self.cancel()
        try:
            self._act(now)
        except Exception:
            if self.at is None:
                self.at = at  # tried again once it has rested
            raise


class KeyedTimers(Timers[KeyT]):
    """Deadlines by key. The called function takes the due keys with `pop`."""

    __slots__ = ("_entry",)

    def __init__(self, schedule: Schedule, part: Timed, fire: Fire) -> None:
        super().__init__()
        self._entry = schedule.new_entry(part, fire, self.deadline)

    def set(self, key: KeyT, due: Millis) -> None:
        super().set(key, due)
        self._entry.nearer(due)

    def pop_all(self, now: Millis) -> list[KeyT]:
        """Remove and return all that is due at `now`, by time and key."""
        due: list[KeyT] = []
        while (key := self.pop(now)) is not None:
            due.append(key)
        return due


class Limits(Generic[KeyT]):
    """Deadlines by key, possibly several per key; a key that `living` no longer has counts as none. Cheaper than
    `KeyedTimers` if most end before they are due: nothing is cancelled."""

    __slots__ = ("_entry", "_heap", "_living", "_swept_at")

    def __init__(self, schedule: Schedule, part: Timed, fire: Fire, living: Container[KeyT]) -> None:
        self._heap: list[tuple[Millis, KeyT]] = []
        self._living = living
        self._swept_at = _SWEPT_FROM
        self._entry = schedule.new_entry(part, fire, self.deadline)

    def add(self, key: KeyT, due: Millis) -> None:
        heap = self._heap
        heappush(heap, (due, key))
        if due < self._entry.queued:
            self._entry.nearer(due)
        if len(heap) > self._swept_at:
            self._heap = [each for each in heap if each[1] in self._living]
            heapify(self._heap)
            self._swept_at = max(_SWEPT_FROM, 2 * len(self._heap))

    def deadline(self) -> Millis | None:
        heap, living = self._heap, self._living
        while heap and heap[0][1] not in living:
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_all(self, now: Millis) -> list[KeyT]:
        """Remove and return all that is due at `now`, by time and key."""
        due: list[KeyT] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            key = heappop(heap)[1]
            if key in self._living:
                due.append(key)
        return due

    def __iter__(self) -> Iterator[tuple[KeyT, Millis]]:
        return ((key, due) for due, key in self._heap if key in self._living)


class Backlog(Generic[WorkT]):
    """Work in order of arrival, due at once while there is any. The called function takes some of it."""

    __slots__ = ("_entry", "_work")

    def __init__(self, schedule: Schedule, part: Timed, fire: Fire) -> None:
        self._work: deque[WorkT] = deque()
        self._entry = schedule.new_entry(part, fire, lambda: AT_ONCE if self._work else None)

    def append(self, work: WorkT) -> None:
        self._work.append(work)
        self._entry.nearer(AT_ONCE)

    def popleft(self) -> WorkT:
        return self._work.popleft()

    def take(self) -> list[WorkT]:
        """All of it, which is no longer here."""
        taken = list(self._work)
        self._work.clear()
        return taken

    def discard(self, work: Container[WorkT]) -> None:
        """Drop what is in `work`."""
        self._work = deque(each for each in self._work if each not in work)

    def __len__(self) -> int:
        return len(self._work)

    def __iter__(self) -> Iterator[WorkT]:
        return iter(self._work)


class Reckoning:
    """A deadline that follows from other state. Code that changes that state calls `touched`.

    The deadline is computed only when the node's deadline may depend on it.
    """

    __slots__ = ("_deadline", "_entry", "_is_known", "_known")

    def __init__(self, schedule: Schedule, part: Timed, fire: Fire, deadline: Deadline) -> None:
        self._deadline = deadline
        self._is_known = True
        self._known: Millis | None = None
        self._entry = schedule.new_entry(part, fire, self._due)

    def touched(self) -> None:
        """The deadline may be another one from now on."""
        if self._is_known:
            self._is_known = False
            self._entry.nearer(AT_ONCE)

    def _due(self) -> Millis | None:
        if not self._is_known:
            self._is_known, self._known = True, self._deadline()
        return self._known


class Schedule:
    """The timers of one node. See the module's docstring."""

    __slots__ = ("_entries", "_fault", "_heap", "_is_stopped", "_stopwatch", "along", "earliest", "slowest", "ticks")

    def __init__(self, fault: Callable[[str, Exception], None], stopwatch: Stopwatch = counted_us) -> None:
        self._fault = fault
        self._stopwatch = stopwatch
        self._heap: list[tuple[Millis, int, _Entry]] = []
        self._entries: list[_Entry] = []
        self._is_stopped = False
        self.along: dict[_Entry, None] = {}
        """Those that fire in the next pass, whatever that is for."""
        self.earliest: Millis = NEVER
        """Nothing is due before this. An I/O host whose own timer is not later need not read the deadline."""
        self.ticks = 0
        """The number of passes so far. Parts of the node use it to limit work between two passes."""
        self.slowest: Timed | None = None
        """The part whose timer took longest in the last pass, with what it has completed; None if none fired."""

    # ---- for the timers --------------------------------------------------------------------------------------------

    def new_entry(self, part: Timed, fire: Fire, due: Deadline) -> _Entry:
        """The entry of a timer that is being created."""
        entry = _Entry(self, part, _RANKS[part] + len(self._entries), fire, due)
        self._entries.append(entry)
        return entry

    def enter(self, entry: _Entry, due: Millis) -> None:
        """Put this timer into the heap; it is not there, or later."""
        entry.queued = due
        if due < self.earliest:
            self.earliest = due
        heap = self._heap
        heappush(heap, (due, entry.order, entry))
        if len(heap) > _SWEPT_FROM and len(heap) > 4 * len(self._entries):
            self._heap = [(each.queued, each.order, each) for each in self._entries if 0 <= each.queued < NEVER]
            heapify(self._heap)

    # ---- for the node ----------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        """When `tick` has to be called next; None: nothing is due any time."""
        heap = self._heap
        while heap and not self._is_stopped:
            queued, order, entry = heap[0]
            if entry.queued != queued:
                heappop(heap)  # it was set to an earlier time since
                continue
            at = entry.at()
            assert at >= queued, f"{entry.part.value}: due at {at}, in the heap at {queued}"
            if at == queued:
                self.earliest = queued
                return queued
            entry.queued = at
            if at == NEVER:
                heappop(heap)
            else:
                heapreplace(heap, (at, order, entry))
        self.earliest = NEVER
        return None

    def tick(self, now: Millis, after_each: Fire = _nothing) -> None:
        """Fire everything that is due. `after_each` is called after each timer."""
        if self._is_stopped:
            return
        self.ticks += 1
        coming: list[tuple[int, _Entry]] = []
        fired: list[_Entry] = []
        last = -1
        self.slowest, longest_us, began_us = None, -1, self._stopwatch()
        try:
            while True:
                self._gather(now, last, coming, fired)
                if not coming:
                    break
                last, entry = heappop(coming)
                self._fire(now, entry)
                after_each(now)
                ended_us = self._stopwatch()
                if ended_us - began_us > longest_us:
                    self.slowest, longest_us = entry.part, ended_us - began_us
                began_us = ended_us
        finally:
            for entry in (*fired, *(entry for _, entry in coming)):
                self._enter_again(entry)

    def _gather(self, now: Millis, last: int, coming: list[tuple[int, _Entry]], fired: list[_Entry]) -> None:
        """Take from the heap what may be due, into the entries whose turn comes or those that have had theirs."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            queued, order, entry = heappop(heap)
            if entry.queued == queued:
                entry.queued = _COMING
                if order > last:
                    heappush(coming, (order, entry))
                else:
                    fired.append(entry)
        for entry in self.along:
            if entry.order > last and entry.queued != _COMING:
                entry.queued = _COMING
                heappush(coming, (entry.order, entry))

    def _fire(self, now: Millis, entry: _Entry) -> None:
        """Let a timer fire if it is due, which it need not be any more."""
        comes_along = entry in self.along and entry.rests_until <= now
        try:
            if comes_along or entry.at() <= now:
                entry.fire(now)
        except Exception as error:
            entry.rests_until = now + REST_MS
            self._fault(f"timed work of {entry.part.value} failed and rests for {REST_MS // 1000} s", error)
        finally:
            self._enter_again(entry)

    def _enter_again(self, entry: _Entry) -> None:
        entry.queued = NEVER
        at = entry.at()
        if at < NEVER:
            self.enter(entry, at)

    def stop(self) -> None:
        """The node ends: nothing fires any more."""
        self._is_stopped = True

    def check(self) -> None:
        """Raises AssertionError."""
        entries = {(queued, order) for queued, order, _ in self._heap}
        assert all(self.earliest <= queued for queued, _ in entries)
        for entry in self._entries:
            at = entry.at()
            assert at >= entry.queued, f"{entry.part.value}: due at {at}, in the heap at {entry.queued}"
            assert entry.queued == NEVER or (entry.queued, entry.order) in entries, entry.part.value
