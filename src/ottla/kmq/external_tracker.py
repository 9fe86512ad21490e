"""Decides like `machine` where other processes carry out the redeliveries and only the markers topic shows the result.

`MarkersPartition` receives a report of every step and asks for the next one. Between the stages of a dataflow no stage
can report back. There, `HandoverPartition` emits `HandOver` and leaves the message open. The receiver reads the record,
asks `decided` what to do, writes the copy or the dead letter, and then writes the end marker.

The number of redeliveries is in the record, so this machine does not know it. It also does not know the result of a
handover.

**Back-off** depends on the record. So a message is handed over at each time at which it may be due: one for every
possible count. `decided` accepts exactly one of them.

**Retries.** If no end marker was read `CONFIRM_MS` after the last of these times, the message is handed over again.
Further handovers follow after growing pauses of up to `CONFIRM_MS_MAX`. Each of them is carried out: at-least-once
delivery. Retry times are measured by `clock`. So a written end marker is always read first, however far the reader
lags.

**A subset of the open messages** is enough: `resume` accepts the messages that a step is about, wherever the rest are
kept.

Invariants: those of the machine; `_asked` is never ahead of the clock.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ottla.kmq.config import KmqConfig
from ottla.kmq.deadlines import rounded
from ottla.kmq.events import DeadLetter, Effect, HandOver, Reason, RecordBeyondEnd, RecordGone, Redeliver
from ottla.kmq.machine import LOST, MarkersPartition, Open, becomes_dead_letter, comes_again_ms, reason_of

CONFIRM_MS: Final = 10_000
CONFIRM_MS_MAX: Final = 30_000
BEYOND_END_MS: Final = 120_000
"""A record that stays beyond the end of its partition for this long counts as lost."""


class HandoverPartition(MarkersPartition):
    """One partition of the markers topic. Each instance hands over at most `handed_max` messages, and has no other
    effects.

    It keeps only what it is given, so `open_max` does not bound it.
    """

    def __init__(self, partition: int, config: KmqConfig, handed_max: int) -> None:
        super().__init__(partition, replace(config, open_max=sys.maxsize))
        self._left = handed_max
        self._asked: dict[int, int] = {}

    def resume(
        self,
        opened: Mapping[int, Open],
        asked: Mapping[int, int],
        *,
        position: int | None,
        latest_ms: int,
        read_at_ms: int,
        at_end: bool,
        replay_end: int | None,
        replaying: bool,
    ) -> None:
        """Continue from the state of an earlier instance. `asked`: for messages that were handed over, when, by
        `clock`."""
        self._open, self._asked = dict(opened), dict(asked)
        self._position, self._latest_ms, self._read_at, self._at_end = position, latest_ms, read_at_ms, at_end
        self._replay_end, self._replaying = replay_end, replaying
        for offset, (_, due_ms, deadline_ms, verdict) in self._open.items():
            self._deadlines.add(rounded(due_ms) if verdict is None and due_ms == deadline_ms else due_ms, offset)

    # ---- queries ---------------------------------------------------------------------------------------------------

    @property
    def opened(self) -> Mapping[int, Open]:
        """The open messages of this instance."""
        return self._open

    @property
    def asked(self) -> Mapping[int, int]:
        """When each message was handed over; some may be closed since."""
        return self._asked

    @property
    def position(self) -> int | None:
        """The offset of the next marker to read."""
        return self._position

    @property
    def latest_ms(self) -> int:
        """The newest timestamp read."""
        return self._latest_ms

    @property
    def at_end(self) -> bool:
        """Whether the end was reached after the last marker."""
        return self._at_end

    # ---- overrides -------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._left

    def _begin(self, marker_offset: int, offset: int, due_ms: int) -> None:
        self._asked.pop(offset, None)
        super()._begin(marker_offset, offset, due_ms)

    def _start(self, marker_offset: int, offset: int, timestamp_ms: int, value: bytes) -> None:
        before = self._open.get(offset)
        super()._start(marker_offset, offset, timestamp_ms, value)
        if self._open.get(offset) is not before:
            self._asked.pop(offset, None)

    def _fetch(self, now: int, offset: int, effects: list[Effect]) -> None:
        """Hand the message over, and note when to do so again."""
        marker_offset, _, deadline_ms, verdict = self._open[offset]
        since_ms, reason, text = reason_of(deadline_ms, verdict)
        clock = self.clock(now)
        due = HandOver(offset, deadline_ms, since_ms, reason, text, clock, self._asked.get(offset))
        again_ms = next_ms(self.config, due, now)
        self._asked[offset] = clock
        self._open[offset] = (marker_offset, again_ms, deadline_ms, verdict)
        self._deadlines.add(again_ms, offset)
        self._left -= 1
        effects.append(due)


def last_ms(config: KmqConfig, due: HandOver) -> int:
    """The last of the times at which the message may be due."""
    if due.reason is Reason.REJECTED or not config.max_redeliveries:
        return due.deadline_ms
    return comes_again_ms(config, due.deadline_ms, due.since_ms, config.max_redeliveries - 1)


def next_ms(config: KmqConfig, due: HandOver, now: int) -> int:
    """When to hand the message over again if no end marker is read by then."""
    last = last_ms(config, due)
    if due.clock_ms < last:
        counts = range(config.max_redeliveries)
        at = bisect_right(
            counts, due.clock_ms, key=lambda count: comes_again_ms(config, due.deadline_ms, due.since_ms, count)
        )
        return comes_again_ms(config, due.deadline_ms, due.since_ms, at)
    return max(due.clock_ms, now) + min(max(due.clock_ms - last, CONFIRM_MS), CONFIRM_MS_MAX)


def decided(
    config: KmqConfig, due: HandOver, found: int | RecordGone | RecordBeyondEnd
) -> Redeliver | DeadLetter | None:
    """Decides what to do with a message that was handed over. `found`: its redelivery count, or why there is no record.

    Returns None for "nothing now": its back-off is not over, so it is handed over again later, or the redelivery was
    done before.
    """
    last, at_ms = last_ms(config, due), due.deadline_ms
    match found:
        case RecordGone():
            does = DeadLetter(due.offset, 0, Reason.LOST, LOST)
        case RecordBeyondEnd():
            does, at_ms = DeadLetter(due.offset, 0, Reason.LOST, LOST), last + BEYOND_END_MS
        case redeliveries if becomes_dead_letter(config, due.reason, redeliveries):
            does = DeadLetter(due.offset, redeliveries, due.reason, due.text)
        case redeliveries:
            does = Redeliver(due.offset, redeliveries + 1)
            at_ms = comes_again_ms(config, due.deadline_ms, due.since_ms, redeliveries)
    done_before = due.asked_ms is not None and at_ms <= due.asked_ms < last
    return None if at_ms > due.clock_ms or done_before else does
