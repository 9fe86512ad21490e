"""Tracks the failures of partitions: failed writes, reads and fsyncs, logged once until they work again.

A failed write is retried by the next append, a read by the next fetch. A log whose fsync failed is cut back to what is
known to be on disk, or stays closed. A place in a segment that can't be read is read again until it can be
(failed_reads.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import KeyedTimers, Schedule, Timed, Timer
from ottla.broker.upkeep.damage_marks import DamageMarks
from ottla.broker.upkeep.failed_reads import FailedReads
from ottla.broker.upkeep.written import WrittenPartitions
from ottla.log import beneath
from ottla.log.answers import Damage, DamagedLogError
from ottla.log.files import FileSystem
from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode
from ottla.replica.copy_status import Event

WRITE, READ, SYNC, SHUT = "write", "read", "sync", "shut"
"""The kinds of failure of a partition."""
REOPEN_MS: Final = 5_000
"""How often the node tries to reopen a log that a failed fsync closed, in milliseconds."""
RETRY_MS: Final = 5_000
"""How long after a failed write a replica with nothing to write counts as offline."""


class Failures:
    """The failures of one node's partitions; a `partitions.commits.Care`.

    `partitions`: the open ones, with the keys of their timers. `taken_back` is called with a partition whose end was
    cut off; no client had seen that end, but a coordinator on this node had.
    """

    def __init__(
        self,
        notes: Callable[[str], None],
        taken_back: Callable[[Millis, Partition], None],
        partitions: Mapping[Partition, tuple[int, Partition]],
        schedule: Schedule,
        marks: DamageMarks,
        written: WrittenPartitions,
        files: FileSystem,
    ) -> None:
        self._written = written
        self.marks = marks
        self._notes = notes
        self._taken_back = taken_back
        self._partitions = partitions
        self._wrong: dict[Partition, str] = {}
        self._recoveries = KeyedTimers[tuple[int, Partition]](schedule, Timed.UPKEEP, self._take_to_work)
        self._reopening = Timer(schedule, Timed.UPKEEP, self._reopen_all)
        self._failed_writes: dict[Partition, Millis] = {}
        """When a write to logs last failed that are tried again."""
        self.damaged: dict[Partition, list[Damage]] = {}
        """Damage found in logs: other replicas should lead these partitions."""
        self.has_news = False
        """Whether something has failed or recovered since the last check."""
        self.reads = FailedReads(files, schedule, partitions, notes, self._has_changed, self.found_damage)

    def _has_changed(self) -> None:
        self.has_news = True

    def takes_nothing(self, partition: Partition) -> bool:
        """Whether the last write to this log failed, or none is tried any more."""
        return self._wrong.get(partition) in (WRITE, SHUT)

    def failing(self) -> set[Partition]:
        """The partitions whose logs take no records, or have a place that is damaged or can't be read."""
        closed = {partition for partition, what in self._wrong.items() if what in (WRITE, SHUT)}
        return closed | self.damaged.keys() | self.reads.all()

    def found_damage(self, partition: Partition, damage: Damage) -> None:
        """A batch that is stored in this log is damaged."""
        self.reads.forget(partition)
        known = self.damaged.setdefault(partition, [])
        if damage not in known:
            known.append(damage)
            self.marks.set(partition.log, partition.index, partition.copy.damaged(damage.first))
            self.has_news = True
            self._notes(f"{partition.name} is damaged: {damage}")

    def opened_again(self, now: Millis, partition: Partition) -> None:
        """This partition could not be opened, and has a log now: its leader is followed on."""
        self.has_news = True
        if not partition.leads:
            self._taken_back(now, partition)

    def mended(self, partition: Partition) -> None:
        """The damaged part of this log is cut off; it is copied again from the leader."""
        partition.copy.on(Event.CUT)
        if partition.log.failed is None:
            self._works_again(partition, SHUT, "takes writes again")
        self.damaged.pop(partition, None)
        self.reads.forget(partition)
        self.marks.clear(partition.log, partition.index)
        if not partition.log.segments:
            self._written.forget(partition)

    def storage_failed(self, now: Millis, partition: Partition, why: str) -> None:
        """A write of this log failed. If that closed the log, notify the requests that wait for a commit."""
        is_new = False
        if partition.log.failed is None:
            self._failed_writes[partition] = now
            self.leader_changed(partition)
            is_new = self._note(partition, WRITE, f"could not be written to, every append tries again: {why}")
        elif partition in self._partitions:
            is_new = self._note(partition, SHUT, f"takes no more writes: {why}")
            partition.resign(ErrorCode.KAFKA_STORAGE_ERROR)
        self._check_files(partition, is_new)

    def _check_files(self, partition: Partition, is_new: bool) -> None:
        """A file operation has failed, with `is_new` for the first time. If another process has removed files of the
        log, they have to be copied again."""
        if partition in self._partitions and (is_new or partition.log.is_gone):
            with suppress(OSError):  # the disk does not show what is there
                damage = beneath.displaced(partition.log)
                if damage is not None:
                    self.found_damage(partition, damage)

    def read_failed(self, partition: Partition, why: OSError) -> None:
        """A read of this log failed: the log stays unchanged, and other partitions are not affected."""
        if isinstance(why, DamagedLogError) and why.damage is not None:
            self.found_damage(partition, why.damage)
            return
        is_new = not self.reads.has(partition)
        if partition.copy.damaged_from is not None or not self.reads.failed(partition, why):
            is_new = self._note(partition, READ, f"could not be read, every fetch tries again: {why}")
        self._check_files(partition, is_new)

    def sync_failed(self, now: Millis, partition: Partition, why: str) -> None:
        """An fsync of this log failed: the appends that it should have covered may never reach the disk.

        Requests that wait for them are notified, and the appends are cut off. If a client or another node has seen them
        already, the log stays closed.
        """
        log = partition.log
        log.sync_failed(OSError(why))
        if partition not in self._partitions:
            return  # deleted meanwhile
        partition.resign(ErrorCode.KAFKA_STORAGE_ERROR)
        if not self._reopen(now, partition, why):
            is_new = self._note(partition, SHUT, f"takes no more writes: {log.failed}")
            if self._reopening.at is None:
                self._reopening.set(now + REOPEN_MS)
            self._check_files(partition, is_new)

    def write_worked(self, partition: Partition) -> None:
        """An append to this log ended well."""
        self._works_again(partition, WRITE, "takes writes again")

    def sync_worked(self, partition: Partition) -> None:
        """An fsync of this log ended well."""
        self._works_again(partition, SYNC, "can be synced again")

    def forget(self, partition: Partition, key: tuple[int, Partition] | None) -> None:
        """This partition is deleted. `key`: of its timers, if it was open."""
        self.marks.clear(partition.log, partition.index)
        self._written.forget(partition)
        self._wrong.pop(partition, None)
        self.damaged.pop(partition, None)
        self.reads.forget(partition)
        self._failed_writes.pop(partition, None)
        if key is not None:
            self._recoveries.cancel(key)

    def leader_changed(self, partition: Partition) -> None:
        """Whether this node leads the partition may be different: only a follower may have nothing to write."""
        self.reads.leader_changed(partition)
        key, failed_at = self._partitions.get(partition), self._failed_writes.get(partition)
        if key is None or failed_at is None or partition.leads:
            if key is not None:
                self._recoveries.cancel(key)
        else:
            self._recoveries.set(key, failed_at + RETRY_MS)

    def _take_to_work(self, now: Millis) -> None:
        """A follower that failed to write and has had nothing to write since may be in sync again."""
        while (due := self._recoveries.pop(now)) is not None:
            self._works_again(due[1], WRITE, "is taken to take writes again")

    def _reopen_all(self, now: Millis) -> None:
        """Try to reopen the closed logs that are closed only because a truncation failed."""
        shut = [
            partition for partition, what in self._wrong.items() if what == SHUT and partition.log.durability.in_doubt
        ]
        left = [partition for partition in shut if not self._reopen(now, partition, str(partition.log.failed))]
        if left:
            self._reopening.set(now + REOPEN_MS)

    def _reopen(self, now: Millis, partition: Partition, why: str) -> bool:
        # A leader's followers may have the records that would be cut, and no others must replace them; a follower has
        # reported all its records to its leader, unless it reports only those on disk.
        others_know = partition.followers is not None or not (partition.leads or partition.fsyncs_each)
        if not partition.log.reopen(now, others_know=others_know):
            return False
        partition.taken_back()
        self._note(
            partition,
            SYNC,
            f"could not be synced ({why}): records that were not acknowledged were cut off; appends continue",
        )
        self._taken_back(now, partition)
        return True

    def _note(self, partition: Partition, what: str, sentence: str) -> bool:
        """Report a failure, unless it is the last one that was reported. Returns whether it is new."""
        if self._wrong.get(partition) == what:
            return False
        self._wrong[partition] = what
        self.has_news = True
        self._notes(f"{partition.name} {sentence}")
        return True

    def _works_again(self, partition: Partition, what: str, sentence: str) -> None:
        if self._wrong and self._wrong.get(partition) == what and not partition.log.is_gone:
            del self._wrong[partition]
            self._failed_writes.pop(partition, None)
            self.leader_changed(partition)
            self.has_news = True
            self._notes(f"{partition.name} {sentence}")
