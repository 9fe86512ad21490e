"""Sweeps over groups for offsets they committed in topics that are gone.

Knows which topics are gone and which groups are still to be looked at. Does not know what was committed: whoever sweeps
does. Costs a name for each topic and each group, however many topics go at once: topics that go while a sweep is under
way wait for the next one.
"""

from collections import deque
from collections.abc import Iterable


class DeletedTopicsSweep:
    """One sweep after another, as long as there are deleted topics."""

    __slots__ = ("_groups", "_waiting", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        """What the sweep under way is about."""
        self._waiting: dict[str, None] = {}
        self._groups: deque[str] = deque()

    def __bool__(self) -> bool:
        return bool(self._groups or self._waiting)

    def add(self, topics: Iterable[str]) -> None:
        """These topics are gone."""
        self._waiting.update(dict.fromkeys(topics))

    def next_group(self, groups: Iterable[str]) -> str | None:
        """The group to look at now; a sweep that begins goes over all of `groups`. None: there is nothing to do."""
        if not self._groups:
            self.topics, self._waiting = self._waiting, {}
            if self.topics:
                self._groups.extend(groups)
        return self._groups.popleft() if self._groups else None

    def look_again(self, group_id: str) -> None:
        """There may be more of this group."""
        self._groups.append(group_id)
