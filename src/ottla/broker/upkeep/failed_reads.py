"""Tracks the places of logs that the disk could not read, and reads them again until that works.

A replica with such a place is offline while another one is in sync, so that another node leads and acks=all does not
wait for it (`OwnLogs.offline`). It counts again when all its places can be read, or no longer belong to the log. An
index that can't be read is rebuilt from the batches. If a segment still can't be read after TRIES attempts, and another
node leads, the segment is damaged: it is copied again.

The time between two attempts doubles, also if the log could be read in between: a disk that fails now and then does not
move leaders each time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from ottla.broker.cluster.members import NOBODY
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import AT_ONCE, KeyedTimers, Schedule, Timed, Timer
from ottla.log import beneath
from ottla.log.answers import Damage, IndexFault
from ottla.log.config import LONG_MAX
from ottla.log.files import FileSystem, ReadError
from ottla.log.names import LOG_SUFFIX, TRANSACTION_SUFFIX
from ottla.log.segment import Segment
from ottla.machine import Millis

RETRY_MS: Final = 5_000
"""How long after a failed read the place is read again for the first time."""
RETRY_MAX_MS: Final = 600_000
TRIES: Final = 3
"""After so many failed attempts a segment is copied again: 35 seconds after the first failure."""
CALM_MS: Final = 3_600_000
"""After a log could be read for so long, its next failure is as its first one."""
PLACES_MAX: Final = 16
PROBE_BYTES: Final = 64 << 10
REBUILD_PAUSE_MS: Final = 20
"""Between two slices of an index that is rebuilt."""
NOT_OF_THE_DISK: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""Errors of reads for which the file is not to blame."""


class Place(NamedTuple):
    """A position in a file from which the disk could not read."""

    path: str
    position: int


class _Unreadable:
    """The places of one log. `wait_ms`: until the next attempt. `failed`: how many attempts in a row have failed.
    `read_at`: when the last place could be read again. `key`: of its timer."""

    __slots__ = ("failed", "key", "places", "read_at", "wait_ms")

    def __init__(self, key: tuple[int, Partition]) -> None:
        self.key = key
        self.places: dict[Place, None] = {}
        self.wait_ms = RETRY_MS
        self.failed = -1
        self.read_at: Millis | None = None


class FailedReads:
    """The places of one node's logs. `partitions`: the open ones, with the keys of their timers. `changed`: it changed
    whether some log can be read. `damaged`: a segment has to be copied again."""

    def __init__(
        self,
        files: FileSystem,
        schedule: Schedule,
        partitions: Mapping[Partition, tuple[int, Partition]],
        notes: Callable[[str], None],
        changed: Callable[[], None],
        damaged: Callable[[Partition, Damage], None],
    ) -> None:
        self._files = files
        self._partitions = partitions
        self._notes = notes
        self._changed = changed
        self._damaged = damaged
        self._of: dict[Partition, _Unreadable] = {}
        self._attempts = KeyedTimers[tuple[int, Partition]](schedule, Timed.UPKEEP, self._read_due)
        self._rebuilding: dict[str, Iterator[int]] = {}
        """The indexes that are rebuilt, by path."""
        self._next_slice = Timer(schedule, Timed.UPKEEP, self._rebuild_slice)

    def has(self, partition: Partition) -> bool:
        """Whether a place of this log can't be read."""
        known = self._of.get(partition)
        return known is not None and bool(known.places)

    def all(self) -> set[Partition]:
        """The partitions with a place that can't be read."""
        return {partition for partition, known in self._of.items() if known.places}

    def failed(self, partition: Partition, error: OSError) -> bool:
        """A read of this log has failed. Returns whether the disk could not read a file of one of its segments."""
        key, path = self._partitions.get(partition), error.filename
        if key is None or error.errno in NOT_OF_THE_DISK or not isinstance(path, str):
            return False
        if _segment_of(partition, path) is None:
            return False
        known = self._of.setdefault(partition, _Unreadable(key))
        if not known.places:
            known.failed = -1
            self._attempts.set(key, AT_ONCE)
            self._notes(f"{partition.name} could not be read; its node tries again: {error}")
            self._changed()
        if len(known.places) < PLACES_MAX:
            known.places[Place(path, error.position if isinstance(error, ReadError) else 0)] = None
        return True

    def leader_changed(self, partition: Partition) -> None:
        """Another node may lead now: what still can't be read may be copied from there."""
        known = self._of.get(partition)
        if known is not None and known.places and known.failed >= TRIES:
            self._attempts.set(known.key, AT_ONCE)

    def forget(self, partition: Partition) -> None:
        """This log is deleted, or damaged, or its damaged part was cut off."""
        known = self._of.pop(partition, None)
        if known is not None:
            self._attempts.cancel(known.key)
            self._changed()

    def _read_due(self, now: Millis) -> None:
        """Read the places of one log again: a disk that fails may take long for each."""
        key = self._attempts.pop(now)
        if key is None:
            return
        partition = key[1]
        known = self._of[partition]
        if known.failed < 0:  # it has failed a moment ago
            known.failed = 0
            if known.read_at is not None and known.read_at + CALM_MS < now:
                known.wait_ms = RETRY_MS
        elif not self._attempt(now, partition, known):
            return
        self._rebuild_indexes(partition, known)
        self._attempts.set(key, now + known.wait_ms)
        known.wait_ms = min(2 * known.wait_ms, RETRY_MAX_MS)

    def _attempt(self, now: Millis, partition: Partition, known: _Unreadable) -> bool:
        """Read every place again. Returns whether another attempt is needed."""
        errors = {place: error for place in known.places if (error := self._error_at(partition, place)) is not None}
        known.places = dict.fromkeys(errors)
        if not errors:
            known.read_at = now
            self._notes(f"{partition.name} can be read again")
            self._changed()
            return False
        known.failed += 1
        placed = partition.placed
        if known.failed < TRIES or partition.leads or placed is None or placed.leader == NOBODY:
            return True
        lost = [self._lost(partition, *each) for each in errors.items() if each[1].errno == errno.EIO]
        if not lost:
            return True
        self._damaged(partition, min(lost, key=lambda damage: damage.first))
        return False

    def _error_at(self, partition: Partition, place: Place) -> OSError | None:
        """Why this place can't be read; None if it can, or does not belong to the log any more."""
        segment = _segment_of(partition, place.path)
        if segment is None:
            return None
        try:
            if place.path.endswith(LOG_SUFFIX):
                segment.file.read(place.position, min(PROBE_BYTES, max(segment.size - place.position, 0)))
            elif self._files.exists(place.path):
                self._files.read_bytes(place.path)
        except OSError as error:
            return error
        return None

    def _lost(self, partition: Partition, place: Place, error: OSError) -> Damage:
        """The segment with this place: a cut in the middle of it would have to read it."""
        segment = _segment_of(partition, place.path)
        assert segment is not None
        return Damage(place.path, place.position, segment.base_offset, LONG_MAX, str(error.strerror))

    # ---- indexes ---------------------------------------------------------------------------------------------------

    def _rebuild_indexes(self, partition: Partition, known: _Unreadable) -> None:
        """Begin to rebuild the indexes that can't be read."""
        for path, _ in known.places:
            segment = _segment_of(partition, path)
            if segment is None or path.endswith(LOG_SUFFIX) or path in self._rebuilding:
                continue
            if path.endswith(TRANSACTION_SUFFIX):
                with suppress(OSError):  # the next attempt tries again
                    beneath.mend_transactions(partition.log, segment, self._notes)
            else:
                fault = IndexFault(path, "the disk can't read it")
                self._rebuilding[path] = beneath.mending(partition.log, segment, fault, self._notes)
                self._next_slice.set(AT_ONCE)

    def _rebuild_slice(self, now: Millis) -> None:
        path, slices = next(iter(self._rebuilding.items()))
        try:
            is_done = next(slices, None) is None
        except OSError:  # the next attempt begins again
            is_done = True
        if is_done:
            del self._rebuilding[path]
        if self._rebuilding:
            self._next_slice.set(now + REBUILD_PAUSE_MS)


def _segment_of(partition: Partition, path: str) -> Segment | None:
    """The segment that this file belongs to."""
    stem = path.rpartition(".")[0]
    return next((segment for segment in partition.log.segments if segment.path == stem), None)
