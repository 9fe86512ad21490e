"""What a node does beside its requests: its identity on disk, checkpoints, retention, flushes, compaction.

Knows: when each log next needs something (one heap for all, so ten thousand idle logs cost no timer each), which
checkpoint files are stale, and which compaction is under way. Does not know: how a log does what it is told to.

Files in the data directory, in Kafka's formats (cluster notes, rule 12): `meta.properties`, `.kafka_cleanshutdown`,
`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `replication-offset-checkpoint`.

Invariant: a checkpoint never claims more than the logs hold: it is made from the logs as they are, and recovery clamps.
Sources: Kafka's LogManager.scala, LogCleaner.java, MetaProperties.java.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from heapq import heappop, heappush
from os.path import dirname
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.effects import Store
from ottla.broker.partitions.commits import LOOK_AFTER_MS
from ottla.broker.upkeep.clean_stop import completing
from ottla.log.answers import StorageFailed
from ottla.log.checkpoints import (
    CheckpointUnreadable,
    encode_checkpoint,
    read_offsets,
    read_properties,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offsets,
    write_properties,
)
from ottla.log.syncing import Syncable
from ottla.machine import Millis
from ottla.metadata.store import Put, StoreFailed, decoded
from ottla.protocol.uuids import uuid_text

if TYPE_CHECKING:
    from ottla.broker.node import Node
    from ottla.broker.partitions.partition import Partition

META_PROPERTIES: Final = "meta.properties"
RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
LOG_START: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK: Final = "replication-offset-checkpoint"
CHECKPOINTS: Final = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK)

CLUSTER_ID_KEY: Final = "cluster/id"
REST_MS: Final = 60_000
"""How long a log whose upkeep failed unexpectedly is left alone."""
REOPEN_MS: Final = 5_000
"""How often a log that an fsync closed is looked at again."""
AGAIN_MS: Final = 30_000
"""How long after upkeep of a log failed it is tried again."""
FLUSH_PINS: Final = 16
"""How many files a flush of one log may be thought to have; seldom more than five."""
WRITE, READ, SYNC, SHUT = "write", "read", "sync", "shut"
"""What may be wrong with a partition."""
NOTED_MAX: Final = 1_000
SLICE_PAUSE_MS: Final = 5
"""Between two slices of a compaction, so that it takes at most about half of the loop."""


class StartRefused(Exception):
    """The node can't start on this directory; one sentence why."""


class Maintained(NamedTuple):
    """One log's upkeep under way: its steps, its log start before them, and what waits for the disk."""

    partition: Partition
    steps: Iterator[Syncable]
    began: int
    names: Syncable | None = None


class Upkeep:
    """The housekeeping of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._checkpoints: dict[str, dict[tuple[str, int], int]] = {name: {} for name in CHECKPOINTS}
        self._written: dict[str, bytes] = {}
        self._gone: set[str] = set()
        """Names of deleted topics that the checkpoint files may still have."""
        self._partitions: dict[Partition, Millis | None] = {}
        self._due: list[tuple[Millis, int, Partition]] = []
        self._order = 0
        self._checkpoint_at: dict[str, Millis] = {}
        self._clean_at: Millis | None = None
        self._compaction: tuple[Partition, Iterator[Syncable | None]] | None = None
        self._slice_at: Millis | None = None
        self._compaction_token: int | None = None
        self._compacted: set[Partition] = set()
        self._flushes: dict[int, tuple[Partition, int]] = {}
        self._flushing: dict[Partition, None] = {}
        self._resting: dict[Partition, Millis] = {}
        self._uncleanable: set[Partition] = set()
        self._noted: set[str] = set()
        self._to_flush: dict[Partition, None] = {}
        self._maintained: dict[int, Maintained] = {}
        self._busy: set[Partition] = set()
        self._ailing: dict[Partition, str] = {}
        self._reopen_at: Millis | None = None

    # ---- start and stop --------------------------------------------------------------------------------------------

    def begin(self, now: Millis) -> bool:
        """Check that the directory is ours, read the checkpoints; True after a clean stop. Raises StartRefused."""
        node = self._node
        node.files.makedirs(node.directory)
        try:
            self._identify()
            for name in CHECKPOINTS:
                try:
                    self._checkpoints[name] = read_offsets(node.files, self._path(name)) or {}
                except CheckpointUnreadable as unreadable:
                    node.notes(f"{unreadable}; recovery does without it")
        except CheckpointUnreadable as unreadable:
            raise StartRefused(f"{unreadable}. Restore the file or choose another data directory.") from unreadable
        clean = take_clean_shutdown(node.files, node.directory) is not None
        return clean

    def _identify(self) -> None:
        """meta.properties and the store must name the same cluster and this node; a fresh directory gets both."""
        node = self._node
        path = self._path(META_PROPERTIES)
        stored = node.store.get(CLUSTER_ID_KEY)
        properties = read_properties(node.files, path)
        if properties is not None:
            if properties.get("version") != "1":
                raise StartRefused(
                    f"The data directory {node.directory} has version {properties.get('version')} of meta.properties; "
                    "this node reads version 1."
                )
            if properties.get("node.id") != str(node.node_id):
                raise StartRefused(
                    f"The data directory {node.directory} belongs to node {properties.get('node.id')}, not to node "
                    f"{node.node_id}. Set node.id to match, or choose another directory."
                )
        if stored is not None:
            node.cluster_id = decoded(node.store, CLUSTER_ID_KEY, bytes.decode, stored.value)
            if properties is not None and properties.get("cluster.id") != node.cluster_id:
                raise StartRefused(
                    f"The data directory {node.directory} belongs to cluster {properties.get('cluster.id')}, its "
                    f"metadata to cluster {node.cluster_id}. Restore one of both from the same backup."
                )
        else:
            known = None if properties is None else properties.get("cluster.id")
            node.cluster_id = known or uuid_text(node.entropy.randbytes(16))
            node.store.commit([Put(CLUSTER_ID_KEY, node.cluster_id.encode())])
        if properties is None:
            # First: where the properties are, nobody looks whether the directory's own name is on the disk.
            with suppress(PermissionError):  # a parent that may not be read: its owner made the directory
                node.files.sync_directory(dirname(node.directory) or ".")
            write_properties(
                node.files,
                path,
                {
                    "version": "1",
                    "cluster.id": node.cluster_id,
                    "node.id": str(node.node_id),
                    "directory.id": uuid_text(node.entropy.randbytes(16)),
                },
            )

    def checkpoint_of(self, topic: str, index: int) -> tuple[int, int, int]:
        """(recovery_point, log_start_offset, high_watermark) as last checkpointed, 0 where nothing is known."""
        key = (topic, index)
        recovery_point, log_start, high_watermark = (self._checkpoints[name].get(key, 0) for name in CHECKPOINTS)
        return recovery_point, log_start, high_watermark

    def watch_all(self, now: Millis) -> None:
        """Everything is loaded: start the clocks."""
        settings = self._node.settings
        self._checkpoint_at = {name: now + settings[_interval(name)] for name in CHECKPOINTS}
        here = {(partition.topic_name, partition.index) for partition in self._partitions}
        self._gone = {topic for known in self._checkpoints.values() for topic, _ in known.keys() - here}
        self._clean_at = now + settings["log.cleaner.backoff.ms"]

    def completing(self) -> Generator[list[Syncable], Mapping[int, str], None]:
        """See `Node.completing`."""
        return completing(list(self._partitions), self._node.files.pins_max // 2)

    def finish(self, now: Millis) -> None:
        """A clean stop: close every log, write the checkpoints, and last the marker."""
        node = self._node
        self._compaction = None
        clean = True
        for partition in self._partitions:
            clean = clean and partition.log.failed is None
            try:
                partition.log.close(now)
            except (OSError, StorageFailed) as error:
                clean = False
                node.notes(f"{partition.name} could not be closed cleanly: {error}")
        try:
            for name in CHECKPOINTS:
                write_offsets(node.files, self._path(name), self._offsets(name))
            if clean:
                write_clean_shutdown(node.files, node.directory, node.store.generation)
        except (OSError, StoreFailed) as error:
            node.notes(f"the next start has to look at every log, as checkpoints could not be written: {error}")

    # ---- logs ------------------------------------------------------------------------------------------------------

    def watch(self, now: Millis, partition: Partition) -> None:
        """This partition is open from now on."""
        self._partitions[partition] = None
        self._schedule(now, partition)

    def forget(self, partition: Partition) -> None:
        """This partition is deleted."""
        self._partitions.pop(partition, None)
        self._gone.add(partition.topic_name)
        self._compacted.discard(partition)
        self._resting.pop(partition, None)
        self._uncleanable.discard(partition)
        self._ailing.pop(partition, None)
        self._to_flush.pop(partition, None)
        # One that waits for the disk ends when that is done: its file is pinned.
        if self._compaction is not None and self._compaction[0] is partition and self._compaction_token is None:
            self._compaction = None

    def names_made(self, names: AbstractSet[str]) -> None:
        """New topics get these names. They must not begin where a deleted one of the name did: the checkpoints that
        still know it are replaced before any fsync of the new one ends."""
        if not self._gone.isdisjoint(names):
            self._gone.clear()
            self._store(LOG_START)
            self._store(RECOVERY_POINT)

    def wall_clock_was_set(self, now: Millis) -> None:
        """Retention goes by timestamps: what is next is due at another moment."""
        for partition in self._partitions:
            self._node.commits.look_soon(now, partition)

    # A partition that ails: its sentence is said once until it is well again, however often it is met.

    def storage_failed(self, now: Millis, partition: Partition, why: str) -> None:
        """A write of this log failed. Where that closed the log, who waits for a commit is told."""
        if partition.log.failed is None:
            self._ails(partition, WRITE, f"could not be written to, every append tries again: {why}")
        elif partition in self._partitions:
            self._ails(partition, SHUT, f"takes no more writes: {why}")
            partition.resign(now)

    def read_failed(self, partition: Partition, why: str) -> None:
        """A read of this log failed: nothing of it is changed, and other partitions go on."""
        self._ails(partition, READ, f"could not be read, every fetch tries again: {why}")

    def sync_failed(self, now: Millis, partition: Partition, why: str) -> None:
        """An fsync of this log failed: what it should have covered may never reach the disk. Who waits for it is told
        and it is taken back; where somebody knows of it already the log stays shut."""
        log = partition.log
        log.sync_failed(OSError(why))
        if partition not in self._partitions:
            return  # deleted meanwhile
        partition.resign(now)
        if not self._reopen(now, partition, why):
            self._ails(partition, SHUT, f"takes no more writes: {log.failed}")
            self._reopen_at = self._reopen_at or now + REOPEN_MS

    def sync_worked(self, partition: Partition) -> None:
        """An fsync of this log ended well."""
        if self._ailing and self._ailing.get(partition) == SYNC:
            del self._ailing[partition]
            self._node.notes(f"{partition.name} can be synced again")

    def _reopen(self, now: Millis, partition: Partition, why: str) -> bool:
        if not partition.log.reopen(now):
            return False
        partition.holding = False
        self._ails(
            partition, SYNC, f"could not be synced ({why}): what nobody had been told of was cut off, appends go on"
        )
        self._node.taken_back(now, partition)
        return True

    def _ails(self, partition: Partition, how: str, sentence: str) -> None:
        if self._ailing.get(partition) != how:
            self._ailing[partition] = how
            self._node.notes(f"{partition.name} {sentence}")

    def _schedule(self, now: Millis, partition: Partition, not_before: Millis = 0) -> None:
        try:
            deadline = partition.log.deadline(now)
        except OSError as error:
            self.read_failed(partition, str(error))
            deadline = now + AGAIN_MS
        if deadline is None:
            return
        deadline = max(deadline, not_before, self._resting.get(partition, 0))
        if self._partitions.get(partition) == deadline:
            return
        self._partitions[partition] = deadline
        self._order += 1
        heappush(self._due, (deadline, self._order, partition))

    # ---- time ------------------------------------------------------------------------------------------------------

    def deadline(self) -> Millis | None:
        times = list(self._checkpoint_at.values())
        if self._due:
            times.append(self._due[0][0])
        commits = self._node.commits
        if commits.appended_to and commits.look_at is not None:
            times.append(commits.look_at)
        look_at = self._clean_at if self._compaction is None else self._slice_at
        if look_at is not None:  # a compaction that waits for the disk has no next slice
            times.append(look_at)
        if self._reopen_at is not None:
            times.append(self._reopen_at)
        return min(times) if times else None

    def tick(self, now: Millis) -> None:
        for partition in self._node.commits.take_appended_to():
            self._schedule(now, partition)
            if partition.log.syncing.newborn:  # its directory is not on the disk: a power cut would take all of it
                self._flush(now, partition)
            if self._ailing and self._ailing.get(partition) == WRITE:  # an append worked
                del self._ailing[partition]
                self._node.notes(f"{partition.name} takes writes again")
        while self._due and self._due[0][0] <= now:
            deadline, _, partition = heappop(self._due)
            if self._partitions.get(partition) != deadline:
                continue  # it was rescheduled, or is gone
            self._partitions[partition] = None
            self._maintain(now, partition)
        for name, due in self._checkpoint_at.items():
            if due <= now:
                self._checkpoint_at[name] = now + self._node.settings[_interval(name)]
                self._store(name)
                if name == HIGH_WATERMARK and self._node.commits.by_fsync:
                    # They are the same then, and a start after a kill writes what is above it again.
                    self._store(RECOVERY_POINT)
                if name == RECOVERY_POINT:
                    self._flush_rolled(now)
        if self._reopen_at is not None and self._reopen_at <= now:
            self._reopen_shut(now)
        self._compact(now)

    def _reopen_shut(self, now: Millis) -> None:
        """A cut that failed is tried again."""
        shut = [partition for partition, how in self._ailing.items() if how == SHUT and partition.log.in_doubt]
        left = [partition for partition in shut if not self._reopen(now, partition, str(partition.log.failed))]
        self._reopen_at = now + REOPEN_MS if left else None

    def _maintain(self, now: Millis, partition: Partition) -> None:
        if partition in self._busy:
            return  # scheduled again when that is done
        if len(self._maintained) >= max(1, self._node.files.pins_max // FLUSH_PINS):
            self._schedule(now, partition, now + LOOK_AFTER_MS)
            return
        self._busy.add(partition)
        self._go_on(now, Maintained(partition, partition.log.maintaining(now), partition.log.log_start_offset))

    def _go_on(self, now: Millis, maintained: Maintained) -> None:
        """Take the next step of a log's upkeep; a name that went waits for the disk before another one goes."""
        partition = maintained.partition
        log = partition.log
        start = log.log_start_offset
        try:
            names = next(maintained.steps, None)
            if start != log.log_start_offset:
                partition.wake_all_fetches()
            if names is not None:
                names.pin()
                self._maintained[self._node.outbox.sync([names])] = maintained._replace(names=names)
                return
            if log.log_start_offset != maintained.began:
                self._node.notes(f"{partition.name}: retention deleted the records below offset {log.log_start_offset}")
            self._busy.discard(partition)
            if log.flush_due(now):
                self._flush(now, partition)
        except OSError as error:
            self._busy.discard(partition)
            self.storage_failed(now, partition, str(error))
            self._schedule(now, partition, now + AGAIN_MS)
            return
        except Exception as error:
            self._busy.discard(partition)
            self._resting[partition] = now + REST_MS
            self._schedule(now, partition)
            self._node.fault(f"upkeep of {partition.name} failed and rests for {REST_MS // 1000} s", error)
            return
        # What is due and can't be done yet, like a flush behind a slow one, must not keep `tick` going round.
        waits = partition in self._flushing or partition in self._to_flush
        self._schedule(now, partition, now + LOOK_AFTER_MS if waits else now + 1)

    def _flush(self, now: Millis, partition: Partition) -> None:
        """fsync this log off the loop, unless that is under way."""
        if partition not in self._flushing:
            self._to_flush[partition] = None
            self._begin_flushes(now)

    def _begin_flushes(self, now: Millis) -> None:
        """Begin as many of the flushes that wait as may be under way: each has its files pinned."""
        under_way_max = max(1, self._node.files.pins_max // FLUSH_PINS)
        while self._to_flush and len(self._flushing) < under_way_max:
            partition = next(iter(self._to_flush))
            del self._to_flush[partition]
            log = partition.log
            if log.failed is not None:
                continue
            try:
                pending = log.pending_sync()
            except OSError as error:
                self.storage_failed(now, partition, str(error))
                continue
            self._flushing[partition] = None
            self._flushes[self._node.outbox.sync(pending)] = (partition, log.log_end_offset)

    def synced(self, now: Millis, token: int, failures: Mapping[int, str]) -> None:
        """A sync that upkeep asked for has ended."""
        failed = next(iter(failures.values()), None)
        if token == self._compaction_token:
            self._compaction_token = None
            self._slice_at = now
            if failed is not None and self._compaction is not None:
                self._give_up_compaction(failed)
            return
        maintained = self._maintained.pop(token, None)
        if maintained is not None:
            self._name_synced(now, maintained, failed)
            return
        partition, end_offset = self._flushes.pop(token)
        self._flushing.pop(partition, None)
        if failed is None:
            partition.log.synced(end_offset)
            self.sync_worked(partition)
        else:
            self.sync_failed(now, partition, failed)
        self._begin_flushes(now)

    def _name_synced(self, now: Millis, maintained: Maintained, failed: str | None) -> None:
        partition = maintained.partition
        assert maintained.names is not None
        maintained.names.unpin()
        if partition not in self._partitions:
            self._busy.discard(partition)
        elif failed is None:
            self._go_on(now, maintained)
        else:
            self._busy.discard(partition)
            self.storage_failed(now, partition, failed)
            self._schedule(now, partition, now + AGAIN_MS)

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def _offsets(self, name: str) -> dict[tuple[str, int], int]:
        logs = ((partition.topic_name, partition.index, partition.log) for partition in self._partitions)
        match name:
            case "recovery-point-offset-checkpoint":
                return {(topic, index): log.recovery_point for topic, index, log in logs}
            case "log-start-offset-checkpoint":
                return {(topic, index): log.log_start_offset for topic, index, log in logs if log.log_start_offset}
            case _:
                return {(topic, index): log.high_watermark for topic, index, log in logs}

    def _flush_rolled(self, now: Millis) -> None:
        """fsync the logs that have rolled since, so that a recovery never has more than a segment to check."""
        for partition in self._partitions:
            log = partition.log
            if log.failed is None and log.active is not None and log.recovery_point < log.active.base_offset:
                self._flush(now, partition)

    def _store(self, name: str) -> None:
        offsets = self._offsets(name)
        content = encode_checkpoint(f"{topic} {index} {offset}" for (topic, index), offset in offsets.items())
        if self._written.get(name) != content:
            if name == LOG_START:
                self._store(HIGH_WATERMARK)  # first: a start above it is told from damage by that
            self._written[name] = content
            self._node.outbox.add(Store(self._path(name), content))

    def not_stored(self, path: str) -> None:
        """A checkpoint could not be written: the next time it is due it is written even if nothing changed."""
        self._written.pop(path.rpartition("/")[2], None)

    def _path(self, name: str) -> str:
        return f"{self._node.directory}/{name}"

    # ---- compaction ------------------------------------------------------------------------------------------------

    def _compact(self, now: Millis) -> None:
        """Run one slice of the compaction under way, or choose the log that needs one most."""
        if self._compaction is None and self._clean_at is not None and self._clean_at <= now:
            self._clean_at = now + self._node.settings["log.cleaner.backoff.ms"]
            self._compacted.clear()
            self._begin_compaction(now)
        if self._compaction is None or self._slice_at is None or self._slice_at > now:
            return
        partition, slices = self._compaction
        try:
            file = next(slices)
        except StopIteration:
            self._compaction = None
            self._slice_at = now
            self._begin_compaction(now)
            return
        except OSError as error:
            self._give_up_compaction(error.strerror or str(error))
            return
        except Exception as error:
            self._compaction = None
            self._uncleanable.add(partition)
            self._node.fault(f"compaction of {partition.name} failed and ends until the node starts again", error)
            return
        if file is None:
            self._slice_at = now + SLICE_PAUSE_MS
        else:
            self._slice_at = None  # until the file is on the disk
            self._compaction_token = self._node.outbox.sync([file])

    def _give_up_compaction(self, why: str) -> None:
        """The log is as it was; the next round tries again."""
        if self._compaction is not None:
            self._node.notes(f"compaction of {self._compaction[0].name} gave up: {why}")
            self._compaction = None

    def _begin_compaction(self, now: Millis) -> None:
        """Choose the log that needs it most; each has one turn in a round, also where its compaction gave up."""
        ratios = {
            partition: self._cleanable_ratio(now, partition)
            for partition in list(self._partitions)
            if partition.log.config.compacted
            and partition not in self._compacted
            and partition not in self._uncleanable
        }
        best = max(ratios, key=lambda partition: ratios[partition], default=None)
        if best is not None and ratios[best] > 0:
            from ottla.log.compaction import Compaction  # most nodes never need it, and all of them start

            self._compacted.add(best)
            self._compaction = (best, iter(Compaction(best.log, now, notes=self._note_once)))
            self._slice_at = now

    def _note_once(self, note: str) -> None:
        """What every compaction of a log meets again need not be said again."""
        if note not in self._noted:
            if len(self._noted) >= NOTED_MAX:
                self._noted.clear()
            self._noted.add(note)
            self._node.notes(note)

    def _cleanable_ratio(self, now: Millis, partition: Partition) -> float:
        """How much one log needs it; a log that can't say so does not keep the others from theirs."""
        try:
            return partition.log.cleanable_ratio(now)
        except OSError as error:
            self._node.notes(f"{partition.name} can't be compacted now: {error}")
        except Exception as error:
            self._uncleanable.add(partition)
            self._node.fault(f"compaction of {partition.name} failed and ends until the node starts again", error)
        return 0.0


def _interval(checkpoint: str) -> str:
    return {
        RECOVERY_POINT: "log.flush.offset.checkpoint.interval.ms",
        LOG_START: "log.flush.start.offset.checkpoint.interval.ms",
        HIGH_WATERMARK: "replica.high.watermark.checkpoint.interval.ms",
    }[checkpoint]
