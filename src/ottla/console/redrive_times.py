"""Finds out when dead letters were sent back: a redrive commits which ones it sent, and the commits have times.

`__consumer_offsets` keeps the commits until it is compacted. So the first commit that is left and includes a dead
letter says when it was sent back at the latest. Reading needs the right to read the topic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from ottla.client.client import EARLIEST
from ottla.client.errors import ClientError
from ottla.console.group_history import group_history
from ottla.console.page import Context
from ottla.doctor.snapshot import Commit

COMMITS_MAX: Final = 200
"""Commits of a redrive in a partition that are read, the newest."""
OFFSETS_MAX: Final = 20_000
"""Offsets of the partition of `__consumer_offsets` that are read, the newest: other groups use it too."""


SentBack: TypeAlias = Callable[[int], bool]
"""Whether the dead letter at an offset was sent back."""


class RedriveTimes:
    """The commits of a redrive by partition, oldest first: the time, and what was sent back until then."""

    def __init__(self, commits: Mapping[int, Sequence[tuple[int, SentBack]]] | None = None) -> None:
        self._commits = commits or {}

    def at(self, partition: int, offset: int) -> int | None:
        """The time until which this dead letter was sent back, None if no commit that was read includes it."""
        commits = self._commits.get(partition, ())
        first = bisect_left(commits, True, key=lambda each: each[1](offset))
        return commits[first][0] if first < len(commits) else None


def redrive_times(context: Context, group: str, topic: str, read: Callable[[int, str], SentBack]) -> RedriveTimes:
    """When the dead letters of a topic were sent back. `group`: the consumer group that keeps the progress. `read`:
    reads it from the offset and the metadata of a commit. Without the right to read commits, no time is known."""
    try:
        history = group_history(context, group, EARLIEST, COMMITS_MAX, newest=OFFSETS_MAX)
    except ClientError:
        return RedriveTimes()
    found = {
        partition: [(each.at_ms, read(each.offset, each.metadata)) for each in forwards(commits)]
        for (name, (committed_topic, partition)), commits in history.commits.items()
        if (name, committed_topic) == (group, topic)
    }
    return RedriveTimes(found)


def forwards(commits: Sequence[Commit]) -> Sequence[Commit]:
    """The commits since the last one that went backwards: those before it are of another topic of this name."""
    back = [at for at, (before, after) in enumerate(pairwise(commits), 1) if after.offset < before.offset]
    return commits[back[-1] :] if back else commits
