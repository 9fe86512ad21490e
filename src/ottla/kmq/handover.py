"""Decides as `machine` does where others carry out the redeliveries, and only the markers topic tells that they did.

Knows: which messages may be due, and when to name one again whose end marker does not come. Does not know: how often a
message came again, for that stands in the record; nor what became of what it handed over.

`MarkersPartition` is told of every step and asks for the next one. Where nobody can tell it, as between the stages of a
dataflow, `HandoverPartition` says `HandOver` and leaves the message open. Whoever takes it reads the record, asks
`decided` what is to be done, writes the copy or the dead letter and then the end marker.

**Back-off** depends on the record, so a message is handed over at each of the times at which it may come again, once
for every count, and `decided` says yes to exactly one of them.

**Again.** When no end marker was read by `CONFIRM_MS` after the last of these times, it is handed over once more, then
with growing pauses of up to `CONFIRM_MS_MAX`, and each time it is to be carried out: at least once. That time is by
`clock`, so that an end marker that was written is read before, however far behind the reading is.

**A part of the open messages** is enough: `resume` takes those that a step is about, from wherever the others are kept.

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
"""A record that is beyond the end of its partition for so long counts as lost."""


class HandoverPartition(MarkersPartition):
    """One partition of the markers topic; hands over `handed_max` messages in its life, and has no other effects.

    It keeps no more than it is given, so `open_max` does not bound it.
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
        """Go on where another one was. `asked`: by the clock, when those were handed over that were."""
        self._open, self._asked = dict(opened), dict(asked)
        self._position, self._latest_ms, self._read_at, self._at_end = position, latest_ms, read_at_ms, at_end
        self._replay_end, self._replaying = replay_end, replaying
        for offset, (_, due_ms, deadline_ms, verdict) in self._open.items():
            self._deadlines.add(rounded(due_ms) if verdict is None and due_ms == deadline_ms else due_ms, offset)

    # ---- what can be asked -----------------------------------------------------------------------------------------

    @property
    def opened(self) -> Mapping[int, Open]:
        """The open messages that this one has."""
        return self._open

    @property
    def asked(self) -> Mapping[int, int]:
        """When messages were handed over; some may be closed since."""
        return self._asked

    @property
    def position(self) -> int | None:
        """Where the next marker stands."""
        return self._position

    @property
    def latest_ms(self) -> int:
        """The newest timestamp read."""
        return self._latest_ms

    @property
    def at_end(self) -> bool:
        """Whether the end was reached after the last marker."""
        return self._at_end

    # ---- what is otherwise -----------------------------------------------------------------------------------------

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
        """Hand it over, and note when to do so again."""
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
    """The last of the times at which a message may have to come again."""
    if due.reason is Reason.REJECTED or not config.max_redeliveries:
        return due.deadline_ms
    return comes_again_ms(config, due.deadline_ms, due.since_ms, config.max_redeliveries - 1)


def next_ms(config: KmqConfig, due: HandOver, now: int) -> int:
    """When to hand it over again if its end marker has not been read by then."""
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
    """What to do with a message that was handed over. `found`: how often it came again, or why there is none.

    None: not now; it is handed over again when its time has come, or it was carried out already.
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
