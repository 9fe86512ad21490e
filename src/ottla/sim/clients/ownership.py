"""Notes who was told to own which partition of a group, in both protocols, and when somebody let go.

A member owns a partition from the answer that gives it until it asks for something that says it does not, leaves, or is
fenced. The promises held here, each as it is written down:
- nobody is given a partition that another owns whose session the node must still believe in;
- in one epoch of a group a partition has one owner;
- what a member of the new protocol commits is not taken once another was given the partition;
- nobody joins a group in an epoch below one that a member was told.
"""

from collections.abc import Callable, Iterable

from ottla.sim.clients.history import TopicPartition
from ottla.sim.kernel.clock import Micros
from ottla.sim.kernel.trace import Broken


class Owner:
    """Who has a partition, since when and from which epoch on. `is_safe`: whether the node has to take its member for
    alive now."""

    __slots__ = ("epoch", "is_safe", "name", "since_us")

    def __init__(self, name: str, epoch: int, since_us: Micros, is_safe: Callable[[], bool]) -> None:
        self.name = name
        self.epoch = epoch
        self.since_us = since_us
        self.is_safe = is_safe


class Ownership:
    """The partitions of one group. `restarts`: when it has nobody it may change its kind, and then counts anew."""

    def __init__(self, group: str, *, restarts: bool) -> None:
        self.group = group
        self._restarts = restarts
        self._owners: dict[TopicPartition, Owner] = {}
        self._of_epoch: dict[tuple[int, TopicPartition], str] = {}
        self._epochs: list[tuple[int, Micros]] = []
        """Ever higher ones, and when somebody was first told so."""

    def told_epoch(self, now_us: Micros, who: str, epoch: int, sent_us: Micros, *, joins: bool) -> None:
        """A member of the new protocol that asked at `sent_us` was told its epoch."""
        if self._restarts and not any(owner.is_safe() for owner in self._owners.values()):
            self._begin_anew()
        if joins:
            for known, told_us in self._epochs:
                if known > epoch and told_us < sent_us:
                    raise Broken(f"{who} joins {self.group} in epoch {epoch}, and somebody was in {known} before")
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
        """`who` was told that these are its own. `slot`: its instance id, or its member id."""
        for where in partitions:
            before = self._owners.get(where)
            if before is not None and before.epoch > epoch:
                continue  # this answer was long under way
            if before is not None and before.name != who and before.is_safe():
                raise Broken(f"{who} is given {where} of {self.group}, which {before.name} has and must not lose yet")
            of_epoch = self._of_epoch.setdefault((epoch, where), slot)
            if of_epoch != slot:
                raise Broken(f"{where} belongs to {of_epoch} and to {slot} in epoch {epoch} of {self.group}")
            if before is None or before.name != who:
                self._owners[where] = Owner(who, epoch, now_us, is_safe)

    def let_go(self, who: str, partitions: Iterable[TopicPartition]) -> None:
        """`who` owns these no more, and says so."""
        for where in partitions:
            owner = self._owners.get(where)
            if owner is not None and owner.name == who:
                del self._owners[where]
        if self._restarts and not self._owners:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """The group may have had nobody: those who own something have perhaps not heard yet that they are out."""
        self._epochs.clear()
        self._of_epoch.clear()
        for owner in self._owners.values():
            owner.epoch = 0

    def commit_taken(self, who: str, where: TopicPartition, sent_us: Micros) -> None:
        """What `who` asked at `sent_us` to commit was taken."""
        owner = self._owners.get(where)
        if owner is not None and owner.name != who and owner.since_us < sent_us and owner.is_safe():
            raise Broken(f"{who} commits {where} of {self.group}, which {owner.name} was given before that")
