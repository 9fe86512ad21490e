"""Compacts logs, one at a time, in slices between requests, and chooses the next one.

It picks the log that needs compaction most, among those that have not had their turn in this round.
`ottla.log.compaction` compacts a log.

Source: Kafka's LogCleaner.java and LogCleanerManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.environment import Environment
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import Timed, Timer
from ottla.log.files import ReadError
from ottla.log.syncing import Syncable
from ottla.machine import Millis

NOTED_MAX: Final = 1_000
SLICE_PAUSE_MS: Final = 5
"""The pause between two slices of a compaction, so that it uses at most about half of the loop."""


class Compactions:
    """The compactions of one node's logs. `partitions`: those that are open. `read_failed` is called with a log that
    could not be read."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        partitions: Iterable[Partition],
        read_failed: Callable[[Partition, OSError], None],
    ) -> None:
        self._read_failed = read_failed
        self._metadata = metadata
        self._settings = environment.settings
        self._outbox = environment.outbox
        self._notes = environment.notes
        self._fault = environment.fault
        self._partitions = partitions
        self._round_at: Millis = 0
        """When the next round may begin."""
        self._round = Timer(environment.schedule, Timed.UPKEEP, self._begin_round)
        self._next_slice = Timer(environment.schedule, Timed.UPKEEP, self._compact_slice)
        self._under_way: tuple[Partition, Iterator[Syncable | None]] | None = None
        self._token: int | None = None
        """The token of the sync that the running compaction waits for."""
        self._compacted: set[Partition] = set()
        self._uncleanable: set[Partition] = set()
        self._noted: set[str] = set()

    def start(self, now: Millis) -> None:
        """Every log is open: begin a round once the interval has passed."""
        self._round_at = now + self._settings["log.cleaner.backoff.ms"]
        self._round.set(self._round_at)

    def stop(self) -> None:
        """Abort the running compaction; the log is unchanged."""
        self._end()

    def _end(self) -> None:
        """The running compaction has ended: the next round may begin."""
        self._under_way = None
        self._next_slice.cancel()
        self._round.set(self._round_at)

    def forget(self, partition: Partition) -> None:
        """This partition is deleted."""
        self._compacted.discard(partition)
        self._uncleanable.discard(partition)
        # One that waits for the disk ends when that is done: its file is pinned.
        if self._under_way is not None and self._under_way[0] is partition and self._token is None:
            self._end()

    @property
    def busy(self) -> bool:
        """Whether a compaction is running."""
        return self._under_way is not None

    def _begin_round(self, now: Millis) -> None:
        """Choose the log that needs a compaction most."""
        self._round_at = now + self._settings["log.cleaner.backoff.ms"]
        self._round.set(self._round_at)
        self._compacted.clear()
        self._begin(now)

    def _compact_slice(self, now: Millis) -> None:
        """Run one slice of the running compaction; one that waits for the disk has no next slice."""
        assert self._under_way is not None
        partition, slices = self._under_way
        try:
            file = next(slices)
        except StopIteration:
            self._end()
            self._begin(now)
            return
        except OSError as error:
            self._give_up(error.strerror or str(error))
            if isinstance(error, ReadError):
                self._read_failed(partition, error)
            return
        except Exception as error:
            self._end()
            self._uncleanable.add(partition)
            self._fault(f"compaction of {partition.name} failed and ends until the node starts again", error)
            return
        if file is None:
            self._next_slice.set(now + SLICE_PAUSE_MS)
        else:
            self._token = self._outbox.sync([file])

    def synced(self, now: Millis, token: int, failed: str | None) -> bool:
        """A sync has ended; False if no compaction waits for it."""
        if token != self._token:
            return False
        self._token = None
        if self._under_way is not None:
            if failed is None:
                self._next_slice.set(now)
            else:
                self._give_up(failed)
        return True

    def _give_up(self, why: str) -> None:
        """The log is as it was; the next round tries again."""
        if self._under_way is not None:
            self._notes(f"compaction of {self._under_way[0].name} gave up: {why}")
            self._end()

    def _begin(self, now: Millis) -> None:
        """Choose the log that needs it most; each has one turn in a round, even if its compaction gave up."""
        ratios = {
            partition: self._cleanable_ratio(now, partition)
            for partition in list(self._partitions)
            if partition.log.config.compacted
            and partition not in self._compacted
            and partition not in self._uncleanable
        }
        best = max(ratios, key=lambda partition: ratios[partition], default=None)
        if best is not None and ratios[best] > 0:
            from ottla.log.compaction.compaction import Compaction  # most nodes never need it, and all of them start

            self._compacted.add(best)
            compaction = Compaction(best.log, now, in_sync=self.in_sync(best), notes=self._note_once)
            self._under_way = (best, iter(compaction))
            self._round.cancel()
            self._next_slice.set(now)

    def in_sync(self, partition: Partition) -> bool:
        """Whether every replica of the partition is in sync, as far as this node knows."""
        topic = self._metadata.image.topics.get(partition.topic_name)
        placed = None if topic is None else topic.partitions[partition.index]
        return placed is not None and len(placed.isr) == len(placed.replicas)

    def _note_once(self, note: str) -> None:
        """Log a note once, as every compaction of the same log would repeat it."""
        if note not in self._noted:
            if len(self._noted) >= NOTED_MAX:
                self._noted.clear()
            self._noted.add(note)
            self._notes(note)

    def _cleanable_ratio(self, now: Millis, partition: Partition) -> float:
        """How urgently this log needs compaction. A log whose ratio can't be computed does not stop the compaction of
        others."""
        try:
            return partition.log.cleanable_ratio(now)
        except OSError as error:
            self._notes(f"{partition.name} can't be compacted now: {error}")
            if isinstance(error, ReadError):
                self._read_failed(partition, error)
        except Exception as error:
            self._uncleanable.add(partition)
            self._fault(f"compaction of {partition.name} failed and ends until the node starts again", error)
        return 0.0
