"""Collects missing or damaged data found when a log is opened, so that a cluster can let a complete replica lead.

A log that is opened after a kill or a power cut is repaired, whatever it has lost. Whether the loss matters depends on
other replicas, which a log does not know. So it reports every loss, with offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class What(Enum):
    """Kinds of damage in a log that was opened."""

    TORN = "torn"
    """The end of the file held a part of one batch, as a killed append leaves it. The part was cut off."""
    CUT = "cut"
    """More than a part of one batch was cut off the end: batches that did not match, or whole segments."""
    SHORT = "short"
    """The log ends below an offset that it once had, as a checkpoint or the last clean stop says."""
    HEAD = "head"
    """The log begins above the offset at which it should begin: its first segments are missing."""
    MIDDLE = "middle"
    """Records are missing between two segments or batches. No compaction has left this gap."""
    ALL = "all"
    """No segment is left of a log that had records."""
    DAMAGED = "damaged"
    """A batch contradicts its checksum, its neighbours or the leader epochs."""
    CHANGED = "changed"
    """The files are not those that the last clean stop left."""


_WITHIN = (What.HEAD, What.MIDDLE, What.DAMAGED, What.CHANGED)
"""Damage that fetching from the log's end does not repair."""


class Finding(NamedTuple):
    """One fault of the offsets from `first` up to `end`, -1 if unknown. `size`: the number of bytes that were cut
    off."""

    what: What
    first: int
    end: int
    size: int
    sentence: str


class Found:
    """The damage found while one log was opened. Every sentence is also passed to `note`."""

    __slots__ = ("_note", "findings")

    def __init__(self, note: Callable[[str], None] = lambda _: None) -> None:
        self._note = note
        self.findings: list[Finding] = []

    def add(self, what: What, sentence: str, *, first: int, end: int = -1, size: int = 0) -> None:
        self.findings.append(Finding(what, first, end, size, sentence))
        self._note(sentence)

    def add_gap(self, path: str, first: int, end: int) -> None:
        """Batches are missing in this segment, and no compaction has removed them."""
        sentence = f"{path}: lacks the offsets {first} to {end - 1}, which no compaction has removed."
        self.add(What.MIDDLE, sentence, first=first, end=end)

    @property
    def damaged_from(self) -> int | None:
        """The first changed or missing offset below the log's end; None if there is none."""
        return min((each.first for each in self.findings if each.what in _WITHIN), default=None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of a log that had records."""
        return any(each.what is What.ALL for each in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether the log has all that it ever had, as far as its own files can tell."""
        return not self.findings
