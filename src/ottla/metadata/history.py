"""Defines the row that distinguishes histories of the metadata store: the starts of nodes, newest last.

    cluster/history    {"newest": NAME, "before": GENERATION, "earlier": [[GENERATION, NAME, GENERATION], ...]}

The first commit of every start of a node adds an entry here. An entry has the generation of the commit that added it
(for the newest entry, that is the version of the row), and the generation before that. The two are consecutive, unless
the node found commits missing: then the new numbers begin above the lost ones.

A store that was restored from a backup repeats generations that it had before. So a generation alone does not show what
was lost. A node remembers it together with the newest entries that it had seen by then. After a restore all nodes start
again, so the new history begins with an entry that the lost one did not have:

    before the restore    ... 98 99 100 101 102 ... 107        a node has seen 107, and no entry behind 90
    after it              ... 98 99 100 101 (a start) 102 ...  this entry, at 101, shows that 101 to 107 are lost

That is still visible to a node that starts long after the store has passed 107 again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ottla.metadata.row_kinds import single

HISTORY_KEY: Final = "cluster/history"
ENTRIES_KEPT: Final = 200
"""Number of starts that the row names. A node that was away for more of them can't find out what was lost meanwhile."""
ENTRIES_REMEMBERED: Final = 10
"""Number of starts that a node remembers."""


class Entry(NamedTuple):
    """A start of a node: its first commit, a unique name, and the commit before."""

    generation: int
    name: str
    before: int


class HistoryRecord(NamedTuple):
    """The row. `before`: the commit before the newest start, None if the numbers are consecutive; `version`: that of
    the row, 0 until it is committed."""

    newest: str
    before: int | None = None
    earlier: tuple[Entry, ...] = ()
    version: int = 0

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Every start that the row names, oldest first."""
        before = self.version - 1 if self.before is None else self.before
        return (*self.earlier, Entry(self.version, self.newest, before))

    def followed_by(self, name: str, before: int | None = None) -> HistoryRecord:
        """The row after another start."""
        return HistoryRecord(name, before, self.entries[-ENTRIES_KEPT:])

    def encode(self) -> bytes:
        row = {"newest": self.newest, "before": self.before, "earlier": self.earlier}
        return json.dumps(row, separators=(",", ":")).encode()

    @staticmethod
    def decode(value: bytes) -> HistoryRecord:
        """Raises ValueError, KeyError or TypeError if the value is not a history."""
        row = json.loads(value)
        earlier = tuple(Entry(int(generation), str(name), int(before)) for generation, name, before in row["earlier"])
        return HistoryRecord(str(row["newest"]), None if row["before"] is None else int(row["before"]), earlier)


HISTORY: Final = single(HISTORY_KEY, HistoryRecord.decode)
"""None if no node of a cluster has started yet."""


def is_continued(history: HistoryRecord | None, seen: int, later: HistoryRecord, newest: int) -> bool:
    """Whether a store with this later history, at generation `newest`, is the one whose history was known up to
    generation `seen`."""
    entries = () if history is None else history.entries
    return lost_commits(seen, [(entry.generation, entry.name) for entry in entries], later.entries, newest) == 0


def lost_commits(seen: int, starts: Collection[tuple[int, str]], entries: Sequence[Entry], newest: int) -> int:
    """How many of the commits up to generation `seen` the store does not have any more, at the least.

    `starts`: generations and names of the newest starts of nodes up to `seen`; `entries`: those that the store names
    now, oldest first; `newest`: the generation of the store.
    """
    shared = max((at for at, entry in enumerate(entries) if (entry.generation, entry.name) in starts), default=-1)
    unknown = [entry for entry in entries[shared + 1 :] if entry.before < seen]
    common = unknown[0].before if unknown else newest
    return max(0, seen - common)
