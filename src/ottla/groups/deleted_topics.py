"""Sweeps over groups for the offsets that they committed in deleted topics.

It knows the deleted topics and the groups that are still to be checked; the caller knows and deletes the offsets. The
memory is a name for each topic and each group, however many topics are deleted at once. Topics that are deleted during
a sweep wait for the next one.
"""

from collections import deque
from collections.abc import Iterable


class DeletedTopicsSweep:
    """One sweep after another, as long as there are deleted topics."""

    __slots__ = ("_groups", "_waiting", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        """The topics of the current sweep."""
        self._waiting: dict[str, None] = {}
        self._groups: deque[str] = deque()

    def __bool__(self) -> bool:
        return bool(self._groups or self._waiting)

    def add(self, topics: Iterable[str]) -> None:
        """Add deleted topics."""
        self._waiting.update(dict.fromkeys(topics))

    def next_group(self, groups: Iterable[str]) -> str | None:
        """The next group to check. A new sweep covers all of `groups`. None: there is no work."""
        if not self._groups:
            self.topics, self._waiting = self._waiting, {}
            if self.topics:
                self._groups.extend(groups)
        return self._groups.popleft() if self._groups else None

    def look_again(self, group_id: str) -> None:
        """Check this group again: it may have more offsets."""
        self._groups.append(group_id)
