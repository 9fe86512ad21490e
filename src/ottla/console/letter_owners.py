"""Remembers which records of a dead-letter topic are dead letters of a share group, to count those that wait.

Only a record's headers name its group. So the newest records are read, each of them once: while the ends of the
partitions stay, nothing is read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ottla.client.client import Client
from ottla.client.dead_letters import Progress, Redrive, letter_of
from ottla.client.errors import TimedOutError
from ottla.console.access import RecordsHiddenError
from ottla.console.browsing.scan import scanned

READ_MAX: Final = 500
"""The newest records of each partition of the dead-letter topic that are read for the page."""
BYTES_MAX: Final = 8 << 20
"""Bytes of dead letters that one update reads; the next one continues."""
KEPT_MAX: Final = 8_192
"""Offsets of a partition whose owner is remembered, the newest: a bit for each."""
GROUPS_MAX: Final = 100
FRESH_S: Final = 20.0
"""Seconds for which the last count holds: an open page of the group counts every 5."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Dead letters that were not sent back: `known` by their headers, and at most `unread` among records that were not
    read."""

    known: int
    unread: int


@dataclass(slots=True)
class _Owned:
    """The records of a partition that were read, from `first` up to but excluding `end`: bit N of `letters` says
    whether the record at `first` + N is a dead letter of the group."""

    first: int
    end: int
    letters: int = 0

    def forget_below(self, offset: int) -> None:
        """The records below are counted no more."""
        if offset > self.first:
            self.letters >>= offset - self.first
            self.first, self.end = offset, max(self.end, offset)

    def waiting(self, progress: Progress) -> int:
        """The dead letters among them that were not sent back."""
        left = self.letters
        for first, end in ((self.first, progress.position), *progress.ranges):
            first, end = max(first, self.first), min(end, self.end)
            if first < end:
                left &= ~(((1 << (end - first)) - 1) << (first - self.first))
        return left.bit_count()


class LetterCounts:
    """The owners of the newest records of dead-letter topics, as far as they were read; used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, dict[int, _Owned]]] = {}
        self._last: dict[tuple[str, str], tuple[float, Waiting]] = {}
        """The last counts by group and topic, and when they were made."""

    def waiting(
        self, client: Client, group: str, topic: str, redrive: Redrive, wait_s: float, unseen: list[str]
    ) -> Waiting:
        """How many dead letters of the group were not sent back. `redrive` has just been opened. Reads the records that
        were added since the last time, and of many the newest. Raises TimedOutError."""
        if not self._lock.acquire(timeout=wait_s):
            raise TimedOutError("The cluster did not answer in time.")
        try:
            key = client.known_topic(topic).topic_id, topic, group
            _, owned = self._kept.pop(key, (0.0, {}))
            self._kept[key] = time.monotonic(), owned
            while len(self._kept) > GROUPS_MAX:
                del self._kept[next(iter(self._kept))]
            self._read(client, group, topic, redrive, owned, unseen)
            known = unread = 0
            for index, progress in redrive.progress.items():
                part, start, end = owned[index], redrive.starts[index], redrive.ends[index]
                known += part.waiting(progress)
                unread += progress.left(start, part.first) + progress.left(part.end, end)
            found = Waiting(known, unread)
            self._last.pop((group, topic), None)
            self._last[group, topic] = time.monotonic(), found
            while len(self._last) > GROUPS_MAX:
                del self._last[next(iter(self._last))]
            return found
        finally:
            self._lock.release()

    def last(self, group: str, topic: str) -> Waiting | None:
        """What `waiting` returned last, None if that was more than FRESH_S ago."""
        at, found = self._last.get((group, topic), (-FRESH_S, None))
        return found if time.monotonic() - at < FRESH_S else None

    def _read(
        self,
        client: Client,
        group: str,
        topic: str,
        redrive: Redrive,
        owned: dict[int, _Owned],
        unseen: list[str],
    ) -> None:
        """Read the records that were not read yet and may have to be counted."""
        for index, end in redrive.ends.items():
            part = owned.get(index)
            if part is None or not end - READ_MAX <= part.end <= end:
                part = owned[index] = _Owned(max(0, end - READ_MAX), max(0, end - READ_MAX))
            part.forget_below(max(redrive.starts[index], redrive.progress[index].position, end - KEPT_MAX))
        with suppress(RecordsHiddenError):
            starts = {index: part.end for index, part in owned.items()}
            rows, positions, _ = scanned(client, topic, starts, redrive.ends, BYTES_MAX, unseen)
            for index, at in positions.items():
                owned[index].end = at
            for index, record, *_ in rows:
                letter = letter_of(index, record)
                if letter is not None and letter.group == group:
                    owned[index].letters |= 1 << (record.offset - owned[index].first)

    def forget(self, older_than_s: float) -> None:
        """Drop what no page has asked for that long. Does not wait for a thread that reads."""
        until = time.monotonic() - older_than_s
        self._kept = {key: kept for key, kept in list(self._kept.items()) if kept[0] > until}
        self._last = {key: last for key, last in list(self._last.items()) if last[0] > until}
