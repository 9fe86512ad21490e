"""Maintains a node's logs: schedules their retention checks and their flushes.

One heap holds the time at which each log next needs work, so ten thousand idle logs need no timer each. An append only
marks its log for a new check. A log's upkeep is a generator of files to sync, so nothing here waits for an fsync on the
loop.

Source: Kafka's LogManager.scala.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.environment import Environment
from ottla.broker.partitions.commits import LOOK_AFTER_MS, GroupCommit
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import KeyedTimers, Timed, Timer
from ottla.broker.upkeep.checkpoints import HIGH_WATERMARK, RECOVERY_POINT, Checkpoints
from ottla.broker.upkeep.compactions import Compactions
from ottla.broker.upkeep.damage_marks import DamageMarks
from ottla.broker.upkeep.failures import Failures
from ottla.broker.upkeep.scrubs import Scrubs
from ottla.broker.upkeep.written import WrittenPartitions
from ottla.log.answers import StorageError
from ottla.log.files import ReadError
from ottla.log.left import Left
from ottla.log.syncing import Syncable
from ottla.machine import Millis
from ottla.metadata.store import MetadataStore, StoreError

REST_MS: Final = 60_000
"""How long a log rests after its upkeep failed unexpectedly."""
AGAIN_MS: Final = 30_000
"""How long after upkeep of a log failed it is tried again."""
FLUSH_PINS: Final = 16
"""How many files a flush of one log may be thought to have; seldom more than five."""


class Maintained(NamedTuple):
    """One log's running upkeep: its steps, its log start before them, and the files that wait for the disk."""

    partition: Partition
    steps: Iterator[Syncable]
    began: int
    names: Syncable | None = None


class Upkeep:
    """The housekeeping of one node. `partitions` are those that are open, with the key of each one's deadline."""

    def __init__(
        self, environment: Environment, metadata: Metadata, *, taken_back: Callable[[Millis, Partition], None]
    ) -> None:
        files, settings, outbox = environment.files, environment.settings, environment.outbox
        schedule = environment.schedule
        self.partitions: dict[Partition, tuple[int, Partition]] = {}
        look = Timer(schedule, Timed.UPKEEP, self._look_at_appended_to, comes_along=True)
        self._timers = KeyedTimers[tuple[int, Partition]](schedule, Timed.UPKEEP, self._maintain_due)
        self.checkpoints = Checkpoints(
            files, environment.directory, settings, outbox, self.partitions, schedule, self._write_checkpoints
        )
        marks = DamageMarks(files, environment.directory, environment.notes)
        self.written = WrittenPartitions(files, environment.directory, environment.notes)
        self.failures = Failures(environment.notes, taken_back, self.partitions, schedule, marks, self.written, files)
        self.compactions = Compactions(environment, metadata, self.partitions, self.failures.read_failed)
        self.scrubs = Scrubs(environment, self.partitions, self.failures.found_damage, self.failures.read_failed)
        by_fsync = settings["ottla.durability"] == "fsync"
        self.commits = GroupCommit(outbox, schedule, self.failures, look, self.written, by_fsync=by_fsync, files=files)
        self._files = files
        self._directory = environment.directory
        self._outbox = outbox
        self._notes = environment.notes
        self._fault = environment.fault
        self._watched = 0
        self._flushes: dict[int, tuple[Partition, int]] = {}
        self._flushing: dict[Partition, None] = {}
        self._to_flush: dict[Partition, None] = {}
        self._resting: dict[Partition, Millis] = {}
        self._maintained: dict[int, Maintained] = {}
        self._busy: set[Partition] = set()

    # ---- start and stop --------------------------------------------------------------------------------------------

    def start(self, now: Millis) -> None:
        """Everything is loaded: start the clocks."""
        self.checkpoints.start(now)
        self.compactions.start(now)
        self.scrubs.start(now)

    def finish(self, now: Millis, store: MetadataStore) -> None:
        """A clean stop: close every log, write the checkpoints, and last the marker with the store's generation."""
        self.compactions.stop()
        clean = True
        logs: list[tuple[str, int, Left]] = []
        for partition in self.partitions:
            clean = clean and partition.log.failed is None
            try:
                left = partition.log.close(now)
                if left is not None:
                    logs.append((partition.topic_name, partition.index, left))
            except (OSError, StorageError) as error:
                clean = False
                self._notes(f"{partition.name} could not be closed cleanly: {error}")
        try:
            self.checkpoints.write_all()
            if clean:
                self.checkpoints.note_clean_stop(store.generation, logs)
        except (OSError, StoreError) as error:
            self._notes(f"the next start must check every log, because the checkpoints could not be written: {error}")

    # ---- logs ------------------------------------------------------------------------------------------------------

    def watch(self, now: Millis, partition: Partition) -> None:
        """This partition is open from now on, or obeys other configs."""
        if partition not in self.partitions:
            self._watched += 1
            self.partitions[partition] = (self._watched, partition)
        self._timers.cancel(self.partitions[partition])
        self._schedule(now, partition)

    def forget(self, partition: Partition) -> None:
        """This partition is deleted."""
        self.commits.forget(partition)
        key = self.partitions.pop(partition, None)
        if key is not None:
            self._timers.cancel(key)
        self.checkpoints.topic_deleted(partition.topic_name)
        self.compactions.forget(partition)
        self.scrubs.forget(partition)
        self.failures.forget(partition, key)
        self._resting.pop(partition, None)
        self._to_flush.pop(partition, None)

    def wall_clock_was_set(self, now: Millis) -> None:
        """Retention depends on timestamps: the next check is due at a different time."""
        for partition in self.partitions:
            self.commits.look_soon(now, partition)

    def _schedule(self, now: Millis, partition: Partition, not_before: Millis = 0) -> None:
        try:
            deadline = partition.log.deadline(now)
        except OSError as error:
            self.failures.read_failed(partition, error)
            deadline = now + AGAIN_MS
        if deadline is not None:
            deadline = max(deadline, not_before, self._resting.get(partition, 0))
            self._timers.set(self.partitions[partition], deadline)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _look_at_appended_to(self, now: Millis) -> None:
        """Check the logs that were appended to: they may be due earlier than before."""
        for partition in self.commits.take_appended_to():
            self._schedule(now, partition)
            if partition.log.syncing.newborn:  # its directory is not on the disk: a power cut would take all of it
                self._flush(now, partition)
            self.failures.write_worked(partition)

    def _maintain_due(self, now: Millis) -> None:
        while (due := self._timers.pop(now)) is not None:
            self._maintain(now, due[1])

    def _write_checkpoints(self, now: Millis) -> None:
        for name in self.checkpoints.take_due(now):
            self.checkpoints.store(name)
            if name == HIGH_WATERMARK and self.commits.by_fsync:
                # They are the same then, and a start after a kill rewrites everything above it.
                self.checkpoints.store(RECOVERY_POINT)
            if name == RECOVERY_POINT:
                self._flush_rolled(now)

    def _maintain(self, now: Millis, partition: Partition) -> None:
        if partition in self._busy:
            return  # scheduled again when that is done
        if len(self._maintained) >= max(1, self._files.pins_max // FLUSH_PINS):
            self._schedule(now, partition, now + LOOK_AFTER_MS)
            return
        self._busy.add(partition)
        self._go_on(now, Maintained(partition, partition.log.maintaining(now), partition.log.log_start_offset))

    def _go_on(self, now: Millis, maintained: Maintained) -> None:
        """Take the next step of a log's upkeep; a removed name waits for the disk before the next one is removed."""
        partition = maintained.partition
        log = partition.log
        start = log.log_start_offset
        try:
            names = next(maintained.steps, None)
            if start != log.log_start_offset:
                partition.wake_all_fetches()
            if names is not None:
                names.pin()
                self._maintained[self._outbox.sync([names])] = maintained._replace(names=names)
                return
            if log.log_start_offset != maintained.began:
                self._notes(f"{partition.name}: retention deleted the records below offset {log.log_start_offset}")
            self._busy.discard(partition)
            if log.flush_due(now):
                self._flush(now, partition)
        except OSError as error:
            self._busy.discard(partition)
            if isinstance(error, ReadError):
                self.failures.read_failed(partition, error)
            else:
                self.failures.storage_failed(now, partition, str(error))
            self._schedule(now, partition, now + AGAIN_MS)
            return
        except Exception as error:
            self._busy.discard(partition)
            self._resting[partition] = now + REST_MS
            self._schedule(now, partition)
            self._fault(f"upkeep of {partition.name} failed and rests for {REST_MS // 1000} s", error)
            return
        # Due work that can't be done yet, like a flush behind a slow one, must not make `tick` spin.
        waits = partition in self._flushing or partition in self._to_flush
        self._schedule(now, partition, now + LOOK_AFTER_MS if waits else now + 1)

    def _flush(self, now: Millis, partition: Partition) -> None:
        """fsync this log off the loop, unless its fsync is running."""
        if partition not in self._flushing:
            self._to_flush[partition] = None
            self._begin_flushes(now)

    def _begin_flushes(self, now: Millis) -> None:
        """Begin as many of the waiting flushes as may run at once: each has its files pinned."""
        under_way_max = max(1, self._files.pins_max // FLUSH_PINS)
        while self._to_flush and len(self._flushing) < under_way_max:
            partition = next(iter(self._to_flush))
            del self._to_flush[partition]
            log = partition.log
            if log.failed is not None:
                continue
            try:
                pending = log.pending_sync()
            except OSError as error:
                self.failures.storage_failed(now, partition, str(error))
                continue
            self._flushing[partition] = None
            self._flushes[self._outbox.sync(pending)] = (partition, log.log_end_offset)

    def _flush_rolled(self, now: Millis) -> None:
        """fsync the logs that have rolled since, so that a recovery never has more than a segment to check."""
        for partition in self.partitions:
            log = partition.log
            if log.failed is None and log.active is not None and log.recovery_point < log.active.base_offset:
                self._flush(now, partition)

    def synced(self, now: Millis, token: int, failures: Mapping[int, str]) -> None:
        """A sync that was asked for has ended; see `effects.Sync` for `failures`."""
        if self.commits.synced(now, token, failures):
            return
        failed = next(iter(failures.values()), None)
        if self.compactions.synced(now, token, failed):
            return
        maintained = self._maintained.pop(token, None)
        if maintained is not None:
            self._name_synced(now, maintained, failed)
            return
        partition, end_offset = self._flushes.pop(token)
        self._flushing.pop(partition, None)
        if failed is None:
            partition.log.synced(end_offset)
            self.failures.sync_worked(partition)
        else:
            self.failures.sync_failed(now, partition, failed)
        self._begin_flushes(now)

    def _name_synced(self, now: Millis, maintained: Maintained, failed: str | None) -> None:
        partition = maintained.partition
        assert maintained.names is not None
        maintained.names.unpin()
        if partition not in self.partitions:
            self._busy.discard(partition)
        elif failed is None:
            self._go_on(now, maintained)
        else:
            self._busy.discard(partition)
            self.failures.storage_failed(now, partition, failed)
            self._schedule(now, partition, now + AGAIN_MS)
