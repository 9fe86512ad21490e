"""Delivers one partition to one share group: which records are available, acquired or done.

It contains the record state machine, the limits, locks and delays, and determines the state to be persisted. Its host
reads the log, submits `writes`, copies `letters` to the dead-letter topic, and calls it when time has passed.

    next_piece -> the host reads batches there -> acquire / skip / hold_back
    acknowledge -> Write (pending) -> persisted: it takes effect | failed: it is undone
    expire, release_member, log_start_moved, dead_lettered -> take effect at once and write the new state

The window runs from `start` (share_start_offset) to `end`. Kafka limits its length. Here only acquired records count
against `record_locks_max`, so one stuck record never stops a partition. Memory is bounded by the number of runs: beyond
RUNS_MAX no new offsets are delivered until the window has shrunk (200,000 runs: 10 MB here, 4 MB in a snapshot).

Invariants (`check`): the counters agree with the runs. A run with a pending write is ACQUIRED. `start` is a record that
is not done. Every lock and delay has an entry in `_deadlines`, and every deliverable record one in `_ready`.

Sources: KIP-932, 1191, 1206, 1222, 1226; Kafka's SharePartition.java for what clients see.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode
from ottla.share.deadlines import Deadlines, rounded
from ottla.share.failures import ExplainedFailure, Failures, Reason
from ottla.share.runs import Runs
from ottla.share.settings import ShareSettings
from ottla.share.standing import (
    NO_WRITE,
    Acknowledge,
    AcknowledgeBatch,
    Back,
    Change,
    DeliverableRange,
    DeliveryState,
    InFlight,
    Letter,
    State,
    StateBatch,
    Write,
)

RUNS_MAX: Final = 200_000
RUNS_PER_STEP: Final = 2_000
"""Runs that one step examines when locks expire: about 10 ms of work."""

_AVAILABLE, _ACQUIRED, _ACKNOWLEDGED, _ARCHIVING, _ARCHIVED = map(int, State)
_TERMINAL = (_ACKNOWLEDGED, _ARCHIVED)
_DONE = DeliveryState(_ARCHIVED)
_SAME_TYPES = re.compile(rb"(.)\1*", re.DOTALL)


class _NotHeldError(Exception):
    """Some of the records cannot be acknowledged; `error` says why."""

    def __init__(self, error: ErrorCode) -> None:
        self.error = error


class SharePartition:
    """A machine; methods are its events, `writes` and `letters` its effects. See the module's docstring."""

    __slots__ = (
        "_deadlines",
        "_last_released",
        "_leaving",
        "_next_write",
        "_ready",
        "_under_way",
        "acknowledged",
        "archiving",
        "complete_count",
        "failures",
        "held",
        "in_flight",
        "letters",
        "lock_timeouts",
        "pace_ms",
        "runs",
        "settings",
        "writes",
    )

    def __init__(
        self, settings: ShareSettings, start_offset: int, batches: Iterable[StateBatch] = (), now: Millis = 0
    ) -> None:
        """Load the state that the coordinator keeps, at `now`. Runs below `start_offset` are ignored, and gaps are
        available. The delay of returned records starts now, because their return time is unknown, unless `resume` gives
        it."""
        self.settings = settings
        self.runs: Runs[DeliveryState] = Runs(start_offset)
        self.in_flight = 0
        """Acquired records, including those with a pending write."""
        self.archiving = 0
        self.complete_count = 0
        """Records in the window that are done (KIP-1226)."""
        self.held: dict[str, int] = {}
        self.writes: list[Write] = []
        self.letters: list[Letter] = []
        self.acknowledged = [0, 0, 0, 0, 0]
        """Records by acknowledgement type since this partition was loaded."""
        self.lock_timeouts = 0
        self.failures = Failures(start_offset)
        self.pace_ms: float | None = None
        """The recent average time of members for a record, from its delivery to its acknowledgement."""
        self._next_write = 1
        self._last_released = DeliveryState(_AVAILABLE)  # a million records released alike share one object
        self._deadlines = Deadlines()
        self._leaving: dict[str, tuple[Millis, int]] = {}
        """Members that left and may still have acquired records: the time they left, and the offset to continue the
        scan from."""
        self._ready: list[int] = []
        self._under_way: dict[int, tuple[int, int]] = {}
        """Pending writes, which may still fail, by number: the resulting start offset, and how many records they
        complete."""
        self._load(now, batches)

    def _load(self, now: Millis, batches: Iterable[StateBatch]) -> None:
        runs = self.runs
        for first, last, state, delivery_count in sorted(batches):
            if last < runs.start:
                continue
            runs.append(first, DeliveryState(_AVAILABLE))
            is_back = state == _AVAILABLE and delivery_count > 0
            runs.append(last + 1, self._back(now, delivery_count) if is_back else DeliveryState(state, delivery_count))
        for first, end, standing in runs.within(runs.start, runs.end):
            self._arrive(first, end, standing)
        self.letters = [letter._replace(was_loaded=True) for letter in self.letters]
        self._advance()

    def backs(self) -> list[Back]:
        """The returned records that are not acquired, in the order of offsets."""
        return [
            Back(low, high, standing.delivery_count, standing.time, failure)
            for first, end, standing in self.runs.within(self.start, self.end)
            if standing.state == _AVAILABLE and standing.delivery_count
            for low, high, failure in self.failures.within(first, end)
        ]

    def resume(self, now: Millis, backs: Iterable[Back], recent: Iterable[ExplainedFailure] = ()) -> None:
        """Right after loading: these records have been delayed since an earlier time, unless they were delivered
        since. `recent`: the latest failures with a reason."""
        runs = self.runs
        self.failures.recent.extend(recent)
        for first, end, delivery_count, until, failure in backs:
            for low, high, standing in runs.within(max(first, runs.start), min(end, runs.end)):
                if standing.state == _AVAILABLE and standing.delivery_count == delivery_count:
                    self.failures.restore(low, high, failure)
                    time = until if until > now else 0
                    runs.assign(low, high, standing._replace(time=time))
                    if time:
                        self._deadlines.add(time, low, high)
                    else:
                        self._push_ready(low)

    @property
    def start(self) -> int:
        """share_start_offset: every record below it is done."""
        return self.runs.start

    @property
    def end(self) -> int:
        """Every record from here on is new."""
        return self.runs.end

    @property
    def available_count(self) -> int:
        """Records in the window that are neither acquired nor done; some may be delayed."""
        return self.end - self.start - self.in_flight - self.archiving - self.complete_count

    # ---- delivery --------------------------------------------------------------------------------------------------

    def has_more(self, now: Millis, log_end: int) -> bool:
        """Whether a fetch could acquire something, if the log may be read up to `log_end`."""
        piece = self.next_piece(now)
        return piece is not None and piece.first < log_end

    def next_piece(self, now: Millis) -> DeliverableRange | None:
        """The first deliverable records, returned ones first; None while the limit is reached."""
        if self.in_flight >= self.settings.record_locks_max:
            return None
        runs, ready = self.runs, self._ready
        while ready:
            offset = ready[0]
            if runs.start <= offset < runs.end:
                first, end, standing = runs.at(offset)
                if standing.state == _AVAILABLE and standing.time <= now:
                    return self._piece(first, end, standing)
            heappop(ready)
        if runs.count > RUNS_MAX:
            return None
        return DeliverableRange(runs.end, None, fresh=True)

    def _piece(self, first: int, end: int, standing: DeliveryState) -> DeliverableRange:
        """The part of a run to deliver next: all of it, or half of it or one record if it may contain a poison
        message."""
        limit, count = self.settings.delivery_count_limit, standing.delivery_count
        if limit > 2 and count >= limit - 1:
            return DeliverableRange(first, first + 1, True)
        if count >= self.settings.isolating_from:
            return DeliverableRange(first, first + max(1, (end - first) // 2), True)
        return DeliverableRange(first, end, fresh=not count and not standing.time)

    def acquire(self, now: Millis, member: str, first: int, end: int) -> int:
        """Acquire [first, end), a part of one piece, for this member. Returns the delivery count, including this
        delivery."""
        runs = self.runs
        lock_deadline = rounded(now + self.settings.lock_duration_ms)
        if first >= runs.end:
            assert first == runs.end, (first, runs.end)
            count = 1
            runs.append(end, DeliveryState(_ACQUIRED, 1, member, lock_deadline, now))
        else:
            _, run_end, standing = runs.at(first)
            assert end <= run_end, (end, run_end)
            assert standing.state == _AVAILABLE, standing
            count = standing.delivery_count + 1
            runs.assign(first, end, DeliveryState(_ACQUIRED, count, member, lock_deadline, now))
            if end < run_end:
                heappush(self._ready, end)
        self._deadlines.add(lock_deadline, first, end)
        self.in_flight += end - first
        self.held[member] = self.held.get(member, 0) + end - first
        return count

    def skip(self, first: int, end: int) -> None:
        """Mark [first, end) as never deliverable: no record, a marker, or records of an aborted transaction."""
        runs = self.runs
        if first >= runs.end:
            runs.append(end, _DONE)
        else:
            _, run_end, standing = runs.at(first)
            assert end <= run_end, (end, run_end)
            assert standing.state == _AVAILABLE, standing
            runs.assign(first, end, _DONE)
            if end < run_end:
                heappush(self._ready, end)
        self.complete_count += end - first
        self._advance()

    def hold_back(self, first: int, end: int, until: Millis) -> None:
        """Delay [first, end), which was never delivered, until `until`."""
        until = rounded(until)
        runs, standing = self.runs, DeliveryState(_AVAILABLE, 0, "", until)
        if first >= runs.end:
            runs.append(end, standing)
        else:
            _, run_end, before = runs.at(first)
            assert end <= run_end, (end, run_end)
            assert before.state == _AVAILABLE, before
            runs.assign(first, end, standing)
            if end < run_end:
                heappush(self._ready, end)
        self._deadlines.add(until, first, end)

    def put_off(self, by_ms: int) -> None:
        """Move the delivery of delayed new records by this time: later, or earlier if it is negative."""
        held = [
            (first, end, standing)
            for first, end, standing in self.runs.within(self.start, self.end)
            if standing.state == _AVAILABLE and standing.time and not standing.delivery_count
        ]
        for first, end, standing in held:
            until = rounded(max(standing.time + by_ms, 1))
            self.runs.assign(first, end, standing._replace(time=until))
            self._deadlines.add(until, first, end)

    # ---- acknowledgement -------------------------------------------------------------------------------------------

    def holder(self, offset: int, delivery_count: int) -> str | None:
        """The member that has acquired this record with this delivery and has not acknowledged it; None without one."""
        if not self.start <= offset < self.end:
            return None
        _, _, standing = self.runs.at(offset)
        is_held = standing.state == _ACQUIRED and standing.write == NO_WRITE
        return standing.member if is_held and standing.delivery_count == delivery_count else None

    def explain(self, offset: int, delivery_count: int, text: str) -> bool:
        """The holder of the record says why this delivery fails. Replaces an earlier reason. Returns False if there is
        no room for it.

        The reason stays until the record is done, or another one is given: a record that is released, and delivered
        again, keeps it.
        """
        assert self.holder(offset, delivery_count) is not None, offset
        return self.failures.explain(offset, offset + 1, Reason(text, delivery_count))

    def acknowledge(
        self,
        now: Millis,
        member: str,
        batches: Sequence[AcknowledgeBatch],
        runs_max: int | None = None,
        *,
        is_rest: bool = False,
    ) -> tuple[ErrorCode, Write | None, Sequence[AcknowledgeBatch]]:
        """Acknowledge batches. Batches that remain after `runs_max` runs are returned; pass them to the next call as
        the rest.

        All or nothing, unless an event occurs between two calls. With NONE and a Write, the answer has to wait for
        `persisted` or `failed`. Batches ascend and do not overlap; offsets below `start` are ignored.
        """
        named = self._named(member, batches)
        try:
            taken = list(islice(named, runs_max))
            if not is_rest:
                deque(named, maxlen=0)  # validate the rest before any change
        except _NotHeldError as refused:
            return refused.error, None, ()
        rest = _behind(batches, taken[-1][2]) if len(taken) == runs_max else ()
        said: list[tuple[int, Change]] = []
        lock_deadline = rounded(now + self.settings.lock_duration_ms)
        for kind, first, end, standing in taken:
            renewed = kind == Acknowledge.RENEW
            after = standing._replace(time=lock_deadline) if renewed else self._after(now, standing, kind)
            said.append((kind, Change(first, end, standing, after)))
        self._keep_pace(now, said)
        changes: list[Change] = []
        for kind, change in said:
            first, end, _, after = change
            self.acknowledged[kind] += end - first
            if kind == Acknowledge.RENEW:
                self.runs.assign(first, end, after)
                self._deadlines.add(after.time, first, end)
            else:
                changes.append(change)
        if not changes:
            return ErrorCode.NONE, None, rest
        self._note_failures(now, changes)
        write = self._write(changes, stands=False)
        for first, end, before, _ in changes:
            self.runs.assign(first, end, before._replace(write=write.number))
        return ErrorCode.NONE, write, rest

    def _keep_pace(self, now: Millis, said: list[tuple[int, Change]]) -> None:
        """Update a moving average over requests: records of one request count as processed one after the other."""
        since, count = now, 0
        for kind, (first, end, before, _) in said:
            if kind != Acknowledge.RENEW:
                since = min(since, before.since)
                count += end - first
        if count:
            pace_ms = (now - since) / count
            self.pace_ms = pace_ms if self.pace_ms is None else 0.8 * self.pace_ms + 0.2 * pace_ms

    def _named(self, member: str, batches: Sequence[AcknowledgeBatch]) -> Iterator[tuple[int, int, int, DeliveryState]]:
        """(type, first, end, standing) of every run in the batches, cut to their ranges. Raises _NotHeldError."""
        runs = self.runs
        for first, last, types in batches:
            if last < runs.start:
                continue
            if runs.start == runs.end:
                raise _NotHeldError(ErrorCode.INVALID_RECORD_STATE)
            if last >= runs.end or (not self.settings.renew_enabled and Acknowledge.RENEW in types):
                raise _NotHeldError(ErrorCode.INVALID_REQUEST)
            for low, high, kind in _spans(first, last, types):
                for at, end, standing in runs.within(low, high):
                    if standing.state != _ACQUIRED or standing.member != member or standing.write:
                        raise _NotHeldError(ErrorCode.INVALID_RECORD_STATE)
                    yield kind, at, end, standing

    def _after(self, now: Millis, standing: DeliveryState, kind: int) -> DeliveryState:
        """The state of an acquired record after this acknowledgement."""
        count = standing.delivery_count
        if kind == Acknowledge.ACCEPT:
            return DeliveryState(_ACKNOWLEDGED, count)
        if kind == Acknowledge.GAP:
            return DeliveryState(_ARCHIVED, count)
        if kind == Acknowledge.REJECT or count >= self.settings.delivery_count_limit:
            if not self.settings.dead_letters:
                return DeliveryState(_ARCHIVED, count)
            return DeliveryState(_ARCHIVING, count, rejected=kind == Acknowledge.REJECT)
        return self._back(now, count)

    def _back(self, now: Millis, count: int) -> DeliveryState:
        """The state of a record that is returned after this many deliveries."""
        delay_ms = self.settings.delay_ms(count)
        time = rounded(now + delay_ms) if delay_ms else 0
        last = self._last_released
        if last.delivery_count != count or last.time != time:
            last = self._last_released = DeliveryState(_AVAILABLE, count, "", time)
        return last

    def _note_failures(self, now: Millis, changes: Iterable[Change]) -> None:
        """Count the reasons of records that failed, and remember when those that are returned failed first."""
        for first, end, before, after in changes:
            if after.state != _ACKNOWLEDGED:
                self.failures.failed(now, first, end, before.delivery_count)
            if self.settings.dead_letters and after.state == _AVAILABLE and before.delivery_count == 1:
                self.failures.note(now, first, end)

    def persisted(self, write: Write) -> None:
        """The coordinator has persisted this write: its changes take effect."""
        if not write.stands:
            del self._under_way[write.number]
            self._settle(write.changes)

    def failed(self, write: Write) -> None:
        """The write failed: its records remain acquired as before, so that the member may retry."""
        if write.stands:
            return
        del self._under_way[write.number]
        for first, end, before, _ in write.changes:
            first = max(first, self.start)
            if first < end:
                self.runs.assign(first, end, before)
                self._deadlines.add(before.time, first, end)  # its own entry may have expired meanwhile

    def _settle(self, changes: list[Change]) -> None:
        """Apply the changes to acquired records."""
        runs = self.runs
        for first, end, before, after in changes:
            first = max(first, runs.start)
            if first >= end:
                continue
            runs.assign(first, end, after)
            self.in_flight -= end - first
            self._let_go(before.member, end - first)
            self._arrive(first, end, after, before.member)
        self._advance()

    def _arrive(self, first: int, end: int, standing: DeliveryState, member: str = "") -> None:
        """Count [first, end) in its new state, and set its next deadline. `member`: the one that had acquired it."""
        state = standing.state
        if state in _TERMINAL:
            self.complete_count += end - first
            self.failures.forget(first, end)
        elif state == _ARCHIVING:
            self.archiving += end - first
            rejected = standing.rejected or standing.delivery_count < self.settings.delivery_count_limit
            for low, high, failure in self.failures.within(first, end):
                self.letters.append(Letter(low, high, standing.delivery_count, rejected, failure, member))
        elif standing.time:
            self._deadlines.add(standing.time, first, end)
        else:
            self._push_ready(first)

    def _push_ready(self, offset: int) -> None:
        ready = self._ready
        heappush(ready, offset)
        if len(ready) > 1024 + 2 * self.runs.count:
            known = {first for at in ready if (first := self._deliverable_at(at)) is not None}
            ready[:] = known
            heapify(ready)

    def _deliverable_at(self, offset: int) -> int | None:
        if not self.start <= offset < self.end:
            return None
        first, _, standing = self.runs.at(offset)
        return first if standing.state == _AVAILABLE else None

    def _let_go(self, member: str, count: int) -> None:
        left = self.held[member] - count
        if left:
            self.held[member] = left
        else:
            del self.held[member]

    def _advance(self) -> None:
        """Remove completed records from the head of the window."""
        runs = self.runs
        while (run := runs.first_run()) is not None and run[1].state in _TERMINAL:
            self.complete_count -= run[0] - runs.start
            runs.trim(run[0])
        self.failures.forget_below(runs.start)

    # ---- writes ----------------------------------------------------------------------------------------------------

    def _write(self, changes: list[Change], *, stands: bool) -> Write:
        """The state that the coordinator has to persist for these changes, with the resulting start offset."""
        number = self._next_write
        self._next_write += 1
        start, done = self.start, 0
        if not stands:
            start = self._start_after(changes)
            done = sum(end - first for first, end, _, after in changes if after.state in _TERMINAL)
        # The count assumes that all pending writes succeed; no decision depends on it.
        begins = max([start, *(other for other, _ in self._under_way.values())])
        complete_count = self.complete_count + done + sum(each for _, each in self._under_way.values())
        complete_count -= begins - self.start
        if not stands:
            self._under_way[number] = (start, done)
        write = Write(number, start, complete_count, _batches(changes, start), changes, stands)
        self.writes.append(write)
        return write

    def _start_after(self, changes: list[Change]) -> int:
        """Where the window begins after these changes. Other pending writes do not count: they may fail."""
        start, runs = self.start, self.runs
        at = 0
        while True:
            while at < len(changes) and changes[at].end <= start:
                at += 1
            if at < len(changes) and changes[at].first <= start and changes[at].after.state in _TERMINAL:
                start = changes[at].end
                continue
            if start >= runs.end:
                return start
            _, end, standing = runs.at(start)
            if standing.state not in _TERMINAL:
                return start
            start = end

    def take_writes(self) -> list[Write]:
        """Return and clear the writes to submit, in this order."""
        writes, self.writes = self.writes, []
        return writes

    def take_letters(self) -> list[Letter]:
        """Return and clear the records to copy to the dead-letter topic."""
        letters, self.letters = self.letters, []
        return letters

    # ---- time and leaving members ----------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        leaving = next(iter(self._leaving.values()), None)
        return self._deadlines.next() if leaving is None else leaving[0]

    def expire(self, now: Millis, runs_max: int = RUNS_PER_STEP) -> int:
        """End the locks and delays that are due, and the locks of members that left. Returns how many runs were
        examined, at most `runs_max`; while there are more, `deadline` stays due."""
        changes: list[Change] = []
        looked = self._release_more(now, runs_max, changes)
        released = sum(change.end - change.first for change in changes)
        while looked < runs_max and (due := self._deadlines.next_range(now)) is not None:
            ended: list[Change] = []
            first, end = due
            for low, high, standing in self.runs.within(first, end):
                if looked >= runs_max:
                    self._deadlines.put_back(low, end)
                    break
                looked += 1
                if standing.time > now or standing.write:
                    continue
                if standing.state == _ACQUIRED:
                    ended.append(Change(low, high, standing, self._after(now, standing, Acknowledge.RELEASE)))
                elif standing.state == _AVAILABLE:
                    self._push_ready(low)
            self._note_failures(now, ended)
            self._settle(ended)  # at once: a range may be noted twice
            changes += ended
        self.lock_timeouts += sum(change.end - change.first for change in changes) - released
        self._write_ended(changes)
        return looked

    def release_member(self, now: Millis, member: str, runs_max: int = RUNS_PER_STEP) -> int:
        """A member left: its records are returned, or archived if they were delivered too often. Returns how many runs
        were examined, at most `runs_max`; `expire` continues."""
        if member not in self.held:
            return 0
        self._leaving[member] = (now, self.start)
        changes: list[Change] = []
        looked = self._release_more(now, runs_max, changes)
        self._write_ended(changes)
        return looked

    def _release_more(self, now: Millis, runs_max: int, changes: list[Change]) -> int:
        """Examine some runs of members that left; returns how many."""
        looked = 0
        while self._leaving and looked < runs_max:
            member, (since, begin) = next(iter(self._leaving.items()))
            left = self.held.get(member, 0)
            ended: list[Change] = []
            for first, end, standing in self.runs.within(begin, self.end):
                if not left:
                    break
                if looked >= runs_max:
                    self._leaving[member] = (since, first)
                    break
                looked += 1
                if standing.state == _ACQUIRED and standing.member == member:
                    left -= end - first
                    if not standing.write and standing.since <= since:  # it may have rejoined and acquired others
                        ended.append(Change(first, end, standing, self._after(now, standing, Acknowledge.RELEASE)))
            else:
                left = 0
            if not left:
                del self._leaving[member]
            self._note_failures(now, ended)
            self._settle(ended)
            changes += ended
        return looked

    def _write_ended(self, changes: list[Change]) -> None:
        if changes:
            changes.sort()
            self._write(changes, stands=True)

    def log_start_moved(self, log_start_offset: int) -> None:
        """The log now starts here: records below are gone, acquired or not, and the window begins here at the
        earliest."""
        runs = self.runs
        if log_start_offset <= runs.start:
            return
        for first, end, standing in runs.within(runs.start, log_start_offset):
            if standing.state == _ACQUIRED:
                self.in_flight -= end - first
                self._let_go(standing.member, end - first)
            elif standing.state == _ARCHIVING:
                self.archiving -= end - first
            elif standing.state in _TERMINAL:
                self.complete_count -= end - first
        runs.trim(log_start_offset)
        self._advance()
        run = runs.first_run()
        if run is not None and run[1].state == _AVAILABLE:
            heappush(self._ready, runs.start)  # the entry of this run may have been below
        self._write([], stands=True)

    def log_end_is(self, log_end_offset: int) -> bool:
        """Right after loading: drop state of records that the log lost in a crash.

        `log_end_offset` is the present end of the log of the leader that wrote this state; other records may follow. If
        the window begins beyond it, the window now begins there. Returns True if any state was dropped: the coordinator
        must then delete all state of the partition, and receive the output of `rewrite`.
        """
        runs = self.runs
        if log_end_offset >= runs.end:
            return False
        for first, end, standing in runs.within(log_end_offset, runs.end):
            if standing.state == _ARCHIVING:
                self.archiving -= end - first
            elif standing.state in _TERMINAL:
                self.complete_count -= end - first
        runs.cut(log_end_offset)
        self.letters = [letter for letter in self.letters if letter.first < log_end_offset]
        self._advance()
        return True

    def rewrite(self) -> None:
        """Write the whole state, right after loading."""
        changes = [
            Change(first, end, standing, standing)
            for first, end, standing in self.runs.within(self.start, self.end)
            if standing.state != _AVAILABLE or standing.delivery_count
        ]
        self._write(changes, stands=True)

    def dead_lettered(self, first: int, end: int) -> None:
        """These records are durable in the dead-letter topic, or gone from the log."""
        changes: list[Change] = []
        for low, high, standing in self.runs.within(first, end):
            if standing.state == _ARCHIVING:
                after = DeliveryState(_ARCHIVED, standing.delivery_count)
                changes.append(Change(low, high, standing, after))
        for low, high, _, after in changes:
            self.runs.assign(low, high, after)
            self.failures.forget(low, high)
            self.archiving -= high - low
            self.complete_count += high - low
        if changes:
            self._advance()
            self._write(changes, stands=True)

    # ---- inspection ------------------------------------------------------------------------------------------------

    def in_flight_from(self, offset: int, runs_max: int, examined_max: int) -> tuple[list[InFlight], int | None]:
        """At most `runs_max` runs that are in flight, from `offset` on, in the order of offsets; and the offset from
        which there may be more, None at the end. Examines at most `examined_max` runs.

        In flight is every run but those that are done, and those that no member has had and that have no delay.
        """
        found: list[InFlight] = []
        left = examined_max
        for first, end, standing in self.runs.within(offset, self.end):
            if not left or len(found) == runs_max:
                return found, first
            left -= 1
            state, count, member, until, since, write, rejected = standing
            if state in _TERMINAL or (state == _AVAILABLE and not count and not until):
                continue
            is_being_written = write != NO_WRITE
            for low, high, failure in self.failures.within(first, end):
                if len(found) == runs_max:
                    return found, low
                run = InFlight(
                    low, high - 1, State(state), count, member, since, until, is_being_written, rejected, failure.reason
                )
                if found and found[-1].last == low - 1 and found[-1]._replace(first=low, last=high - 1) == run:
                    found[-1] = found[-1]._replace(last=high - 1)  # they differ in the time of the first failure alone
                else:
                    found.append(run)
        return found, None

    def check(self) -> None:
        runs = self.runs
        runs.check()
        self.failures.check()
        in_flight = archiving = complete_count = locked = 0
        held: dict[str, int] = {}
        ready = set(self._ready)
        for first, end, standing in runs.within(runs.start, runs.end):
            length = end - first
            if standing.state == _ACQUIRED:
                in_flight += length
                held[standing.member] = held.get(standing.member, 0) + length
                locked += standing.write == NO_WRITE
                assert standing.delivery_count >= 1, standing
            else:
                assert standing.write == NO_WRITE, standing
                assert not standing.member, standing
            if standing.state == _ARCHIVING:
                archiving += length
            elif standing.state in _TERMINAL:
                complete_count += length
                assert first > runs.start, "what is done at the head is still there"
            elif standing.state == _AVAILABLE and not standing.time:
                assert any(first <= offset < end for offset in ready), f"nobody will deliver {first}"
        assert (in_flight, archiving, complete_count) == (self.in_flight, self.archiving, self.complete_count)
        assert held == self.held
        assert self._deadlines.next() is not None or not locked


def _behind(batches: Sequence[AcknowledgeBatch], end: int) -> Sequence[AcknowledgeBatch]:
    """The part of these batches from `end` on; one of them may be cut."""
    at = bisect_left(batches, end - 1, key=lambda batch: batch[1])
    first, last, types = batches[at]
    if end > last:
        return batches[at + 1 :]
    return [(end, last, types if len(types) == 1 else types[end - first :]), *batches[at + 1 :]]


def _spans(first: int, last: int, types: bytes) -> Iterable[tuple[int, int, int]]:
    """(first, end, type) of equal neighbours; a single type applies to the whole batch."""
    if len(types) == 1 or types.count(types[0]) == len(types):
        return ((first, last + 1, types[0]),)
    return ((first + found.start(), first + found.end(), types[found.start()]) for found in _SAME_TYPES.finditer(types))


def _batches(changes: list[Change], start: int) -> list[StateBatch]:
    """The changes in the coordinator's form: neighbours with the same state are merged, offsets below `start`
    dropped."""
    batches: list[StateBatch] = []
    for first, end, _, after in changes:
        if end <= start:
            continue
        state, count = after.state, after.delivery_count
        if batches and batches[-1][1] == first - 1 and batches[-1][2:] == (state, count):
            batches[-1] = StateBatch(batches[-1][0], end - 1, state, count)
        else:
            batches.append(StateBatch(max(first, start), end - 1, state, count))
    return batches
