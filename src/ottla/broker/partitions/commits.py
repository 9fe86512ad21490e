"""Commits appends in groups: each round of fsyncs commits the appends of many partitions.

One round runs at a time, and all appends meanwhile share the next one. The partitions that were appended to since the
last housekeeping are kept here too. If a log fails, `care` is notified.

Invariant: if the node's durability is fsync, a consumer never sees a record that no fsync has covered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from ottla.broker.effects import Outbox
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.log.answers import Damage
from ottla.log.files import File, FileSystem
from ottla.log.syncing import Syncable
from ottla.machine import Millis

AGAIN_MS: Final = 100
"""How long after a round could not begin, for want of a descriptor perhaps, the next one is tried."""
LOOK_AFTER_MS: Final = 250
"""How late housekeeping notices that an append brought a log's next deadline nearer."""


class Care(Protocol):
    """Handles a log that fails, and remembers the failure."""

    def storage_failed(self, now: Millis, partition: Partition, why: str) -> None: ...

    def sync_failed(self, now: Millis, partition: Partition, why: str) -> None: ...

    def found_damage(self, partition: Partition, damage: Damage) -> None: ...

    def read_failed(self, partition: Partition, why: OSError) -> None: ...

    def sync_worked(self, partition: Partition) -> None: ...


class Written(Protocol):
    """Remembers on the disk which logs have records."""

    def take_unsynced(self) -> list[File]:
        """The file, if an fsync of a log has to cover it too."""
        ...

    def sync_failed(self) -> None:
        """That fsync has failed."""
        ...

    def note(self, partition: Partition) -> None:
        """This log has been appended to."""
        ...


class GroupCommit:
    """Follows up the appends of one node; a `partitions.partition.Commits`.

    `by_fsync`: only an fsync commits an append. `unsynced`: the partitions that the next rounds cover. A round has no
    more files than may be pinned at once. `look`: fires when housekeeping has to check `appended_to`.
    """

    def __init__(
        self,
        outbox: Outbox,
        schedule: Schedule,
        care: Care,
        look: Timer,
        written: Written,
        *,
        by_fsync: bool,
        files: FileSystem,
    ) -> None:
        self.by_fsync = by_fsync
        self.appended_to: dict[Partition, None] = {}
        self._look = look
        self._written = written
        self._outbox = outbox
        self._care = care
        self._files = files
        self.unsynced: dict[Partition, None] = {}
        self._in_flight: dict[int, list[tuple[Partition, int, int]]] = {}
        self._rest = Timer(schedule, Timed.COMMITS, self._may_begin)

    # ---- appends ---------------------------------------------------------------------------------------------------

    def storage_failed(self, now: Millis, partition: Partition, why: str) -> None:
        """A write to this log failed."""
        self._care.storage_failed(now, partition, why)

    def found_damage(self, partition: Partition, damage: Damage) -> None:
        """A batch in this log is damaged."""
        self._care.found_damage(partition, damage)

    def read_failed(self, partition: Partition, why: OSError) -> None:
        """A read of this log failed."""
        self._care.read_failed(partition, why)

    def look_soon(self, now: Millis, partition: Partition) -> None:
        """An append, or another event, may have brought the log's next deadline nearer. A log without any segment was
        not appended to."""
        if not partition.log.segments:
            return
        self._written.note(partition)
        if not self.appended_to:
            self._look.set(now + LOOK_AFTER_MS)
        self.appended_to[partition] = None

    def take_appended_to(self) -> dict[Partition, None]:
        """Return the partitions to check, and clear the set."""
        taken, self.appended_to = self.appended_to, {}
        return taken

    def sync_soon(self, partition: Partition) -> None:
        """Cover this partition with the next round."""
        self.unsynced[partition] = None

    def forget(self, partition: Partition) -> None:
        """This partition is deleted."""
        self.unsynced.pop(partition, None)
        self.appended_to.pop(partition, None)
        if not self.appended_to:
            self._look.cancel()

    # ---- rounds ----------------------------------------------------------------------------------------------------

    def _may_begin(self, now: Millis) -> None:
        """A round that could not begin may be tried again: the node calls `begin` after every call."""

    def begin(self, now: Millis) -> None:
        """One round for all that waits, or as much of it as may be pinned at once: the rest has the next round."""
        if not self.unsynced or self._rest.at is not None or self._in_flight:
            return
        commits: list[tuple[Partition, int, int]] = []
        files: list[Syncable] = []
        room = self._files.pins_max // 2
        for partition in list(self.unsynced):
            if files and len(files) >= room:
                break
            log = partition.log
            if log.failed is None:
                try:
                    pending = log.pending_sync()
                except OSError as error:
                    self._care.storage_failed(now, partition, str(error))
                    self._rest.set(now + AGAIN_MS)
                    continue
                files.extend(pending)
                commits.append((partition, log.log_end_offset, len(pending)))
            del self.unsynced[partition]
        if commits:
            files.extend(self._written.take_unsynced())
            self._in_flight[self._outbox.sync(files)] = commits

    def synced(self, now: Millis, token: int, failures: Mapping[int, str]) -> bool:
        """The fsyncs of a Sync effect have ended; False if it was no round of these. A log checks only its own
        files."""
        commits = self._in_flight.pop(token, None)
        if commits is None:
            return False
        at = 0
        for partition, end_offset, count in commits:
            failed = first_failure(failures, at, at + count) if failures else None
            at += count
            if failed is not None:
                self._care.sync_failed(now, partition, failed)
                continue
            log = partition.log
            log.synced(end_offset)
            # Another round of this log may have failed meanwhile, and have taken the end of it back.
            partition.synced(now, min(end_offset, log.recovery_point))
            if log.recovery_point < end_offset and log.failed is None:
                self.sync_soon(partition)  # the round took only a part of it
            self._care.sync_worked(partition)
        if failures and max(failures) >= at:
            self._written.sync_failed()
        return True


def first_failure(failures: Mapping[int, str], begin: int, end: int) -> str | None:
    """The sentence of the first of a Sync's files in [begin, end) that failed."""
    return next((failures[at] for at in sorted(failures) if begin <= at < end), None)
