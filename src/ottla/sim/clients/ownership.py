"""Records which member owns which partition of a group, by the answers in both protocols, and when members give it up.

A member owns a partition from the answer that assigns it. Its ownership ends when it sends a request that says so,
leaves, or is fenced.

Promises checked here, when each entry is recorded:

- No member is given a partition whose owner has a session that the node must still consider alive.
- In one epoch of a group a partition has one owner.
- A commit by a member of the new protocol is refused after another member was given the partition.
- No member joins a group in an epoch below one that another member has received.
"""

from collections.abc import Callable, Iterable

from ottla.sim.clients.history import TopicPartition
from ottla.sim.kernel.clock import Micros
from ottla.sim.kernel.trace import InvariantError


class Owner:
    """The owner of a partition, since when and from which epoch on. `is_safe`: whether the node must consider its
    member alive now."""

    __slots__ = ("epoch", "is_safe", "name", "since_us")

    def __init__(self, name: str, epoch: int, since_us: Micros, is_safe: Callable[[], bool]) -> None:
        self.name = name
        self.epoch = epoch
        self.since_us = since_us
        self.is_safe = is_safe


class Ownership:
    """The partitions of one group. `restarts`: an empty group may change its type, and then starts its epochs again."""

    def __init__(self, group: str, *, restarts: bool) -> None:
        self.group = group
        self._restarts = restarts
        self._owners: dict[TopicPartition, Owner] = {}
        self._of_epoch: dict[tuple[int, TopicPartition], str] = {}
        self._epochs: list[tuple[int, Micros]] = []
        """Rising epochs, and when a member first received each."""

    def told_epoch(self, now_us: Micros, who: str, epoch: int, sent_us: Micros, *, joins: bool) -> None:
        """Record the epoch that a member of the new protocol received in the answer to a request sent at `sent_us`."""
        self._notice_restart()
        if joins:
            for known, told_us in self._epochs:
                if known > epoch and told_us < sent_us:
                    raise InvariantError(
                        f"{who} joins {self.group} in epoch {epoch}, and somebody was in {known} before"
                    )
        if not self._epochs or epoch > self._epochs[-1][0]:
            self._epochs.append((epoch, now_us))

    def give(
        self,
        now_us: Micros,
        who: str,
        slot: str,
        epoch: int,
        partitions: Iterable[TopicPartition],
        is_safe: Callable[[], bool],
    ) -> None:
        """Record that `who` was assigned these partitions. `slot`: its instance id, or its member id."""
        if self._epochs and epoch < self._epochs[-1][0]:
            self._notice_restart()
        for where in partitions:
            before = self._owners.get(where)
            if before is not None and before.epoch > epoch:
                continue  # this answer was delayed
            if before is not None and before.name != who and before.is_safe():
                raise InvariantError(
                    f"{who} is given {where} of {self.group}, which {before.name} has and must not lose yet"
                )
            of_epoch = self._of_epoch.setdefault((epoch, where), slot)
            if of_epoch != slot:
                raise InvariantError(f"{where} belongs to {of_epoch} and to {slot} in epoch {epoch} of {self.group}")
            if before is None or before.name != who:
                self._owners[where] = Owner(who, epoch, now_us, is_safe)

    def let_go(self, who: str, partitions: Iterable[TopicPartition]) -> None:
        """Record that `who` has reported that it no longer owns these."""
        for where in partitions:
            owner = self._owners.get(where)
            if owner is not None and owner.name == who:
                del self._owners[where]
        if self._restarts and not self._owners:
            self._begin_anew()

    def _notice_restart(self) -> None:
        """Expect new epochs if the group may have been empty: the node need not consider any owner alive."""
        if self._restarts and not any(owner.is_safe() for owner in self._owners.values()):
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget the epochs: the group may have been empty. Owners may not have heard yet that they are out."""
        self._epochs.clear()
        self._of_epoch.clear()
        for owner in self._owners.values():
            owner.epoch = 0

    def commit_taken(self, who: str, where: TopicPartition, sent_us: Micros) -> None:
        """Check that the node could accept a commit that `who` sent at `sent_us`."""
        owner = self._owners.get(where)
        if owner is not None and owner.name != who and owner.since_us < sent_us and owner.is_safe():
            raise InvariantError(f"{who} commits {where} of {self.group}, which {owner.name} was given before that")
