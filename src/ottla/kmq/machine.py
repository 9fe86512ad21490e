"""Decides which messages are in progress and which must be redelivered: one partition of the markers topic, no I/O.

**Open** is a message whose last marker is a start. Its end marker, from a worker or the tracker, closes it. The state
is a function of the markers from the smallest open one on (`commit_offset`). So the tracker commits that offset, and a
tracker that takes over reads from there. It redelivers nothing until it has read past the end it found at its start
(the original's issue 158).

**Time.** A message is due when `clock` reaches its marker's timestamp plus its time-out. The clock is the newest
timestamp read. So however late the markers are read, every end marker before that time in the topic has been read. Only
when the topic's end was reached and `use_now_after_ms` passed without a marker does the clock use the host's time,
reduced by `UNDERWAY_MS`. The host's time is `now`, which is monotonic, plus `ahead_ms`, the host's estimate of the
offset to the markers' time. Pauses between attempts use `now` alone.

**A redelivery** has three phases. READING: the record is fetched; only the record has the redelivery count. COPYING:
the copy or the dead letter is being written. Once the copy is durable, the message waits in `_copied` until its end
marker is read. A failed step is retried indefinitely with a growing pause: the marker stays open and the committed
offset stays before it.

**Back-off** is counted from the deadline, so that a tracker that takes over computes the same time.

**Bounded.** At `open_max` messages the partition is full. It reads on, follows only the messages it has, and remembers
where it began to skip (`_skipped_from`). When half of them are closed, it reads again from there, as after a start.

Invariants: `check`. Source: softwaremill/kmq 0.3.2, MarkersQueue.scala, ConsumeMarkersActor.scala,
Redeliverer.scala.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from struct import Struct
from typing import Final, TypeAlias, assert_never

from ottla.kmq import markers
from ottla.kmq.config import KmqConfig
from ottla.kmq.deadlines import Deadlines, rounded
from ottla.kmq.events import (
    Copied,
    DeadLetter,
    Effect,
    EndReached,
    Event,
    Failed,
    MarkersRead,
    ReadRecord,
    Reason,
    RecordBeyondEnd,
    RecordGone,
    RecordRead,
    Redeliver,
    Rewind,
    Tick,
    WriteEnd,
)
from ottla.kmq.markers import END, START_BYTE, Kind, Start

RETRY_MS: Final = 250
RETRY_MS_MAX: Final = 30_000
UNDERWAY_MS: Final = 100
"""A marker may be written but not read yet, so the host's time is reduced by this much."""
BEYOND_END_ATTEMPTS: Final = 12
"""After this many attempts, about two minutes, a record beyond the end of its partition counts as lost."""
STALE_MAX: Final = 4_096
DURATIONS_MAX: Final = 1_024
LOST: Final = "There is no record at this offset any more."

_KEY: Final = Struct(">iq")

Open: TypeAlias = tuple[int, int, int, Start | None]
"""(marker_offset, due_ms, deadline_ms, verdict): due is the deadline until the back-off is known; verdict is the
worker's marker."""


def reason_of(deadline_ms: int, verdict: Start | None) -> tuple[int, Reason, str]:
    """(when the back-off starts, why the message is redelivered, the worker's reason)."""
    if verdict is None:
        return deadline_ms, Reason.TIMED_OUT, ""
    return deadline_ms - verdict.duration_ms, Reason(verdict.kind.name.lower()), verdict.reason


def becomes_dead_letter(config: KmqConfig, reason: Reason, redeliveries: int) -> bool:
    """Whether a message with this many redeliveries becomes a dead letter now."""
    return reason is Reason.REJECTED or redeliveries >= config.max_redeliveries


def comes_again_ms(config: KmqConfig, deadline_ms: int, since_ms: int, redeliveries: int) -> int:
    """When a message with this many redeliveries is redelivered next."""
    return max(deadline_ms, since_ms + config.backoff_after_ms(redeliveries))


class Phase(Enum):
    """The phase of a redelivery."""

    READING = "reading"
    COPYING = "copying"


class MarkersPartition:
    """One assigned partition. `replay_end`: the end found at assignment; None if only EndReached will show it.

    `step` accepts an event and the host's time, and returns the effects in order. `deadline` says when to step with
    Tick.
    """

    def __init__(self, partition: int, config: KmqConfig, replay_end: int | None = None) -> None:
        self.partition = partition
        self.config = config
        self.malformed = 0
        """Records that are not markers, or belong to another partition: counted, otherwise ignored."""
        self.ahead_ms = 0
        """How far the markers' time is ahead of `now`, as the host estimates it."""
        self.skipped = 0
        """How often the partition became full and began to skip."""
        self._position: int | None = None
        self._replaying = True
        self._replay_end = replay_end
        self._latest_ms = 0
        self._read_at = 0
        self._at_end = False
        self._skipped_from: int | None = None
        self._open: dict[int, Open] = {}
        self._order: deque[tuple[int, int]] = deque()
        """(marker_offset, offset) in the order of the topic; an entry is valid while `_open` agrees with it."""
        self._deadlines = Deadlines()
        self._phases: dict[int, Phase] = {}
        self._copied: set[int] = set()
        self._attempts: dict[int, int] = {}
        self._retry_at: dict[int, int] = {}
        self._retries = Deadlines()
        self._durations: dict[bytes, int] = {}

    # ---- queries ---------------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def in_flight(self) -> int:
        """The number of redeliveries in progress."""
        return len(self._phases)

    @property
    def replaying(self) -> bool:
        """Whether markers from before the assignment are still being read; meanwhile nothing is redelivered."""
        return self._replaying

    @property
    def commit_offset(self) -> int | None:
        """The offset where another tracker would have to begin: the smallest open marker; None before anything was
        read."""
        order = self._order
        while order:
            marker_offset, offset = order[0]
            found = self._open.get(offset)
            if found is not None and found[0] == marker_offset:
                break
            order.popleft()
        bounds = [each for each in (self._position, self._skipped_from) if each is not None]
        if order:
            bounds.append(order[0][0])
        return min(bounds, default=None)

    def due_times_ms(self) -> Iterator[int]:
        """The due time of each open message; some may be in the past."""
        return (entry[1] for entry in self._open.values())

    def in_work(self) -> Iterator[tuple[int, Open]]:
        """(offset, state) of each open message."""
        return iter(self._open.items())

    def clock(self, now: int) -> int:
        """The time that deadlines are compared with."""
        if self._at_end and now - self._read_at >= self.config.use_now_after_ms:
            return max(now + self.ahead_ms - UNDERWAY_MS, self._latest_ms)
        return self._latest_ms

    def deadline(self) -> int | None:
        """When to step with Tick; None if only an event can change anything."""
        if self._replaying or self._room <= 0:
            return None
        times = [] if (retry := self._retries.next()) is None else [retry]
        due = self._deadlines.next()
        if due is not None and (self._at_end or due <= self._latest_ms):
            at = due - self.ahead_ms
            idle = max(at + UNDERWAY_MS, self._read_at + self.config.use_now_after_ms)
            times.append(min(at, self._read_at) if due <= self._latest_ms else idle)
        return min(times, default=None)

    # ---- events ----------------------------------------------------------------------------------------------------

    def step(self, now: int, event: Event) -> list[Effect]:
        """Handle one event at `now`, the host's time; returns the effects in order."""
        effects: list[Effect] = []
        match event:
            case MarkersRead():
                self._read(now, event)
                self._rewind(effects)
            case EndReached(position):
                self._position = max(position, self._position or 0)
                self._at_end, self._replaying = True, False
                self._rewind(effects)
            case Tick():
                pass
            case RecordRead(offset, redeliveries):
                self._decide(now, offset, redeliveries, effects)
            case RecordGone(offset):
                self._give_up_lost(now, offset, effects)
            case RecordBeyondEnd(offset):
                if self._attempts.get(offset, 0) + 1 >= BEYOND_END_ATTEMPTS:
                    self._give_up_lost(now, offset, effects)
                else:
                    self._retry(now, offset)
            case Copied(offset):
                self._end(now, offset, effects)
            case Failed(offset):
                self._retry(now, offset)
            case _:
                assert_never(event)
        self._start_due(now, effects)
        return effects

    def _read(self, now: int, read: MarkersRead) -> None:
        """Follow the markers. Hot: two of them for every message.

        Most messages end soon, so most starts have their ends among the same markers. The other markers of a key are
        examined only if its last one is not an end.
        """
        keys, values = read.keys, read.values
        last = dict(zip(keys, range(len(keys)), strict=True))
        ended = [key for key, at in last.items() if values[at] == END]
        self._close(ended)
        if len(ended) < len(last):
            live = last.keys() - set(ended)
            for at, key in enumerate(keys):
                if key in live:
                    self._follow(read.offsets[at], read.timestamps_ms[at], key, values[at])
        self._latest_ms = max(self._latest_ms, max(read.timestamps_ms))
        self._position = read.offsets[-1] + 1
        self._at_end, self._read_at = False, now
        if self._replay_end is not None and self._position >= self._replay_end:
            self._replaying = False
        if max(len(self._order), self._deadlines.size) > 2 * len(self._open) + STALE_MAX:
            self._sweep()

    def _close(self, keys: list[bytes | None]) -> None:
        """Handle end markers."""
        whole = [key for key in keys if key is not None and len(key) == _KEY.size]
        self.malformed += len(keys) - len(whole)
        opened, own = self._open, self.partition
        for partition, offset in _KEY.iter_unpack(b"".join(whole)):
            if partition != own:
                self.malformed += 1
            elif opened.pop(offset, None) is not None and (self._phases or self._attempts or self._copied):
                self._forget(offset)

    def _follow(self, marker_offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None) -> None:
        """Handle one marker."""
        if key is None or len(key) != _KEY.size or not value:
            self.malformed += 1
            return
        partition, offset = _KEY.unpack(key)
        if partition != self.partition:
            self.malformed += 1
        elif value[0] != START_BYTE:
            self._close([key])
        elif (duration_ms := self._durations.get(value)) is not None:
            self._begin(marker_offset, offset, timestamp_ms + duration_ms)
        else:
            self._start(marker_offset, offset, timestamp_ms, value)

    def _begin(self, marker_offset: int, offset: int, due_ms: int) -> None:
        if len(self._open) >= self.config.open_max and offset not in self._open:
            if self._skipped_from is None:
                self._skipped_from = marker_offset
                self.skipped += 1
            return
        self._open[offset] = (marker_offset, due_ms, due_ms, None)
        self._order.append((marker_offset, offset))
        self._deadlines.add(rounded(due_ms), offset)
        if self._retry_at and offset not in self._copied:
            self._retry_at.pop(offset, None)

    def _start(self, marker_offset: int, offset: int, timestamp_ms: int, value: bytes) -> None:
        """Handle a start marker with a new time-out or a tail."""
        try:
            said = markers.decode(value)
        except markers.InvalidMarkerError:
            self.malformed += 1
            return
        assert said is not None
        due_ms = timestamp_ms + said.duration_ms
        if said.kind is Kind.BEGIN:
            if len(self._durations) < DURATIONS_MAX:
                self._durations[value] = said.duration_ms
            self._begin(marker_offset, offset, due_ms)
        elif offset in self._open and offset not in self._copied:
            verdict = None if said.kind is Kind.EXTEND else said
            self._open[offset] = (
                self._open[offset][0],
                due_ms,
                due_ms,
                verdict,
            )  # keeps its first marker
            self._deadlines.add(due_ms, offset)
            self._retry_at.pop(offset, None)

    def _forget(self, offset: int) -> None:
        """The message is closed: abandon its redelivery."""
        self._phases.pop(offset, None)
        self._copied.discard(offset)
        self._attempts.pop(offset, None)
        self._retry_at.pop(offset, None)

    def _sweep(self) -> None:
        """Drop obsolete entries; costs time in proportion to the entries added since the last sweep."""
        read = self._position or 0
        self._order = deque(sorted((entry[0], offset) for offset, entry in self._open.items() if entry[0] < read))
        self._deadlines.clear()
        for offset, entry in self._open.items():
            if offset not in self._phases and offset not in self._copied and offset not in self._retry_at:
                self._deadlines.add(rounded(entry[1]) if entry[3] is None else entry[1], offset)

    def _rewind(self, effects: list[Effect]) -> None:
        """Read the skipped markers again, once at most half of `open_max` messages are open."""
        if self._skipped_from is None or len(self._open) > self.config.open_max // 2:
            return
        effects.append(Rewind(self._skipped_from))
        self._replay_end = max(self._position or 0, self._replay_end or 0)
        self._order = deque(each for each in self._order if each[0] < self._skipped_from)  # the rest is read again
        self._position, self._skipped_from = self._skipped_from, None
        self._replaying, self._at_end = True, False

    # ---- redelivery ------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        """How many more redeliveries may start."""
        return self.config.in_flight_max - len(self._phases)

    def _start_due(self, now: int, effects: list[Effect]) -> None:
        """Start redeliveries that are due, within the limit."""
        if self._replaying:
            return
        retries, deadlines, clock = self._retries, self._deadlines, self.clock(now)
        while (at := retries.next()) is not None and at <= now and (room := self._room) > 0:
            for offset in retries.take(room):
                self._try_again(now, offset, effects)
        while (at := deadlines.next()) is not None and at <= clock and (room := self._room) > 0:
            for offset in deadlines.take(room):
                entry = self._open.get(offset)
                busy = offset in self._phases or offset in self._retry_at  # a copied message waits in _retry_at too
                if entry is not None and entry[1] <= clock and not busy:
                    self._fetch(now, offset, effects)

    def _try_again(self, now: int, offset: int, effects: list[Effect]) -> None:
        """Retry a redelivery that is due, unless the message was postponed or closed meanwhile."""
        if self._retry_at.get(offset, now + 1) > now:
            return
        del self._retry_at[offset]
        if offset in self._copied:
            self._end(now, offset, effects)
        elif self._open[offset][1] > self.clock(now):  # its time-out was extended meanwhile
            self._deadlines.add(self._open[offset][1], offset)
        elif offset not in self._phases:
            self._fetch(now, offset, effects)

    def _fetch(self, now: int, offset: int, effects: list[Effect]) -> None:
        self._phases[offset] = Phase.READING
        effects.append(ReadRecord(offset))

    def _decide(self, now: int, offset: int, redeliveries: int, effects: list[Effect]) -> None:
        """The record was read: copy it, write a dead letter, or wait for its back-off."""
        if not self._still_due(now, offset):
            return
        marker_offset, _, deadline_ms, verdict = self._open[offset]
        since_ms, reason, text = reason_of(deadline_ms, verdict)
        if becomes_dead_letter(self.config, reason, redeliveries):
            self._phases[offset] = Phase.COPYING
            effects.append(DeadLetter(offset, redeliveries, reason, text))
            return
        target_ms = comes_again_ms(self.config, deadline_ms, since_ms, redeliveries)
        if target_ms > self.clock(now):
            del self._phases[offset]
            self._open[offset] = (marker_offset, target_ms, deadline_ms, verdict)
            self._deadlines.add(target_ms, offset)
            return
        self._phases[offset] = Phase.COPYING
        effects.append(Redeliver(offset, redeliveries + 1))

    def _still_due(self, now: int, offset: int) -> bool:
        """Whether the message that was read is still due: it may have been closed or extended meanwhile."""
        if self._phases.get(offset) is not Phase.READING:
            return False
        due_ms = self._open[offset][1]
        if due_ms > self.clock(now):  # extended, or the clock went back from the host's time to the markers'
            del self._phases[offset]
            self._deadlines.add(due_ms, offset)
            return False
        return True

    def _give_up_lost(self, now: int, offset: int, effects: list[Effect]) -> None:
        if self._still_due(now, offset):
            self._phases[offset] = Phase.COPYING
            effects.append(DeadLetter(offset, 0, Reason.LOST, LOST))

    def _end(self, now: int, offset: int, effects: list[Effect]) -> None:
        """Write the end marker, and write it again if it is not read in time."""
        self._phases.pop(offset, None)
        self._attempts.pop(offset, None)
        if offset in self._open:
            self._copied.add(offset)
            self._later(now + RETRY_MS_MAX, offset)
            effects.append(WriteEnd(offset))

    def _retry(self, now: int, offset: int) -> None:
        if self._phases.pop(offset, None) is None:
            return
        attempts = self._attempts[offset] = self._attempts.get(offset, 0) + 1
        self._later(now + min(RETRY_MS_MAX, RETRY_MS << min(attempts - 1, 10)), offset)

    def _later(self, at_ms: int, offset: int) -> None:
        self._retry_at[offset] = at_ms
        self._retries.add(at_ms, offset)

    # ---- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError where the state contradicts itself."""
        opened = self._open
        assert len(opened) <= self.config.open_max
        assert len(self._phases) <= self.config.in_flight_max
        assert self._phases.keys() <= opened.keys()
        assert self._copied <= opened.keys()
        assert self._retry_at.keys() <= opened.keys()
        assert self._attempts.keys() <= opened.keys()
        assert not self._phases.keys() & self._retry_at.keys()
        assert not self._phases.keys() & self._copied
        assert self._copied <= self._retry_at.keys()
        assert list(self._order) == sorted(self._order)
        read = self._position or 0
        assert {(entry[0], offset) for offset, entry in opened.items() if entry[0] < read} <= set(self._order)
        planned = self._deadlines.offsets()
        assert opened.keys() <= planned | self._phases.keys() | self._retry_at.keys()
        assert self._retry_at.keys() <= self._retries.offsets()
        commit = self.commit_offset
        assert all(commit is not None and commit <= entry[0] for entry in opened.values())
        assert commit is None or self._skipped_from is None or commit <= self._skipped_from
        assert commit is None or self._position is None or commit <= self._position
        assert max(len(self._order), self._deadlines.size) <= 2 * len(opened) + STALE_MAX + self.config.open_max
