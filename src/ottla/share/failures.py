"""Remembers of the records of a share partition when they failed first, and the reason that a member gave last.

Kept in memory alone, by the leader: the state of a share partition has neither times nor reasons. A time is rounded
down to a second, so that records that fail together share a range.

Bounds of a share partition: beyond RANGES_MAX ranges, later failures and reasons are not remembered. Beyond
REASON_BYTES_MAX bytes of different reasons, further different ones are not remembered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.machine import Millis
from ottla.share.runs import Runs

RANGES_MAX: Final = 10_000
"""About half a megabyte for each share partition."""
STEP_MS: Final = 1_000
REASON_BYTES_MAX: Final = 256 << 10
"""Bytes, in UTF-8, of all the different reasons of a share partition."""
RECENT_MAX: Final = 200
"""Ranges of records that failed last, whose reasons are counted."""


class Reason(NamedTuple):
    """The text in which a member explained a delivery, and the number of this delivery, from 1."""

    text: str
    delivery_count: int


class Failure(NamedTuple):
    """What is known of the failed deliveries of a record. `first_failed`: None if it is not known."""

    first_failed: Millis | None = None
    reason: Reason | None = None


class ExplainedFailure(NamedTuple):
    """Records that failed together, for a reason."""

    at: Millis
    text: str
    records: int


NO_FAILURE: Final = Failure()


class Failures:
    """The failures of records that are not done, by offset."""

    __slots__ = ("_runs", "_text_bytes", "_texts", "recent")

    def __init__(self, start: int) -> None:
        self._runs: Runs[Failure] = Runs(start)
        self._texts: dict[str, str] = {}
        """The different reasons, including some that no record has any more; `_text_bytes` is their size."""
        self._text_bytes = 0
        self.recent: deque[ExplainedFailure] = deque(maxlen=RECENT_MAX)
        """The latest failures with a reason, the last one last."""

    def note(self, now: Millis, first: int, end: int) -> None:
        """The first delivery of the records from `first` up to but excluding `end` has failed."""
        first = max(first, self._runs.start)
        if first < end and self._runs.count < RANGES_MAX:
            time = now - now % STEP_MS
            for low, high, before in list(self.within(first, end)):
                self._assign(low, high, before._replace(first_failed=time))

    def explain(self, first: int, end: int, reason: Reason) -> bool:
        """Replace the reason of these records. Returns False if there is no room for it."""
        text = self._text(reason.text) if self._runs.count < RANGES_MAX else None
        if text is None:
            return False
        for low, high, before in list(self.within(max(first, self._runs.start), end)):
            self._assign(low, high, before._replace(reason=reason._replace(text=text)))
        return True

    def _text(self, text: str) -> str | None:
        """The same text as it is kept already, so that equal ones need memory once; None if there is no room."""
        known = self._texts.get(text)
        if known is not None:
            return known
        size = _size(text)
        if self._text_bytes + size > REASON_BYTES_MAX:
            runs = self._runs
            used = {each.reason.text for _, _, each in runs.within(runs.start, runs.end) if each.reason is not None}
            self._texts = dict(zip(used, used, strict=True))
            self._text_bytes = sum(map(_size, used))
            if self._text_bytes + size > REASON_BYTES_MAX:
                return None
        self._text_bytes += size
        self._texts[text] = text
        return text

    def failed(self, now: Millis, first: int, end: int, delivery_count: int) -> None:
        """This delivery of the records has failed: count the reasons that were given for it."""
        for low, high, failure in self._runs.within(first, end):
            if failure.reason is not None and failure.reason.delivery_count == delivery_count:
                self.recent.append(ExplainedFailure(now, failure.reason.text, high - low))

    def within(self, first: int, end: int) -> Iterator[tuple[int, int, Failure]]:
        """The ranges between two offsets with what is known of them."""
        for low, high, failure in self._runs.within(first, end):
            if first < low:
                yield first, low, NO_FAILURE
            yield low, high, failure
            first = high
        if first < end:
            yield first, end, NO_FAILURE

    def restore(self, first: int, end: int, failure: Failure) -> None:
        """Remember this again of records whose state was read again."""
        if failure.first_failed is not None:
            self.note(failure.first_failed, first, end)
        if failure.reason is not None:
            self.explain(first, end, failure.reason)

    def forget(self, first: int, end: int) -> None:
        """These records are done."""
        runs = self._runs
        first, end = max(first, runs.start), min(end, runs.end)
        if first < end and any(failure != NO_FAILURE for _, _, failure in runs.within(first, end)):
            runs.assign(first, end, NO_FAILURE)

    def forget_below(self, offset: int) -> None:
        """The records below are done."""
        self._runs.trim(offset)

    def _assign(self, first: int, end: int, failure: Failure) -> None:
        self._runs.append(end, NO_FAILURE)
        self._runs.assign(first, end, failure)

    def check(self) -> None:
        self._runs.check()
        assert self._text_bytes == sum(map(_size, self._texts))
        assert self._text_bytes <= REASON_BYTES_MAX


def _size(text: str) -> int:
    """The bytes of a text in UTF-8."""
    return len(text.encode("utf-8", "replace"))
