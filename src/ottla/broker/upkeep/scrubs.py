"""Scrubs the logs of a node, one at a time, in small slices between requests, at a bounded rate.

Every pass first compares the files of all logs with what is open (`ottla.log.beneath`), and then reads all segments
(`ottla.log.checking`). The next pass begins a set time after the last one began, or when that one ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from ottla.broker.environment import Environment
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import AT_ONCE, Timed, Timer
from ottla.log.answers import Damage
from ottla.machine import Millis

SETTING: Final = "ottla.scrub.bytes.per.second"
FIRST_AFTER_MS: Final = 60_000
"""How long after its start a node begins the first pass, as it is busy before."""
EVERY: Final = "ottla.scrub.interval.ms"
SLICE_PAUSE_MS: Final = 20

Slices = Iterator[int | Damage]
Check = Callable[[Partition, Millis], Slices]
"""Begins the check of a log; its slices have so many bytes."""


class Scrubs:
    """The scrubbing of one node's logs. `partitions`: those that are open. `found` is called with damage, `failed` with
    a log that could not be read."""

    def __init__(
        self,
        environment: Environment,
        partitions: Iterable[Partition],
        found: Callable[[Partition, Damage], None],
        failed: Callable[[Partition, OSError], None],
    ) -> None:
        self._settings = environment.settings
        self._notes = environment.notes
        self._partitions = partitions
        self._found = found
        self._failed = failed
        self._left: deque[tuple[Partition, Check]] = deque()
        self._under_way: tuple[Partition, Slices] | None = None
        self._pass_at: Millis = 0
        """When the next pass may begin."""
        self._pass = Timer(environment.schedule, Timed.UPKEEP, self._begin_pass)
        self._next_slice = Timer(environment.schedule, Timed.UPKEEP, self._check_slice)

    def start(self, now: Millis) -> None:
        """Every log is open: begin the first pass soon."""
        self._pass_at = now + min(FIRST_AFTER_MS, self._every_ms)
        self._pass.set(self._pass_at)

    def forget(self, partition: Partition) -> None:
        """This partition is deleted."""
        if self._under_way is not None and self._under_way[0] is partition:
            self._under_way = None

    def check_next(self, partition: Partition) -> None:
        """A reader has found fewer bytes in a file of this log than the log has: find out which records are damaged."""
        if self._under_way is not None:
            self._left.appendleft((self._under_way[0], self._batches))
            self._under_way = None
        left = [each for each in self._left if each[0] is not partition]
        self._left = deque([(partition, self._files), (partition, self._batches), *left])
        self._next_slice.set(AT_ONCE)

    def check_rest(self, partition: Partition) -> None:
        """The damaged end of this log was cut off. The segment that was cut may have damage that nobody has found, such
        as in an index, because a check ends at the first place: check it again, after the other logs."""
        active = partition.log.active
        if self._rate <= 0 or active is None:
            return
        if self._under_way is None and not self._left:
            self._next_slice.set(AT_ONCE)
        self._left.append((partition, partial(self._batches, base=active.base_offset - 1)))

    @property
    def _every_ms(self) -> Millis:
        every_ms: Millis = self._settings[EVERY]
        return every_ms

    @property
    def _rate(self) -> int:
        rate: int = self._settings[SETTING]
        return rate

    def _begin_pass(self, now: Millis) -> None:
        self._pass_at = now + self._every_ms
        if self._rate > 0:
            with_records = [partition for partition in self._partitions if partition.log.segments]
            self._left.extend((partition, self._files) for partition in with_records)
            self._left.extend((partition, self._batches) for partition in with_records)
            self._next_slice.set(now)
        else:
            self._pass.set(self._pass_at)

    def _check_slice(self, now: Millis) -> None:
        """Check the next slice; a pass is not begun before this one is through."""
        size = self._slice(now)
        if self._under_way is None and not self._left:
            self._pass.set(self._pass_at)
            return
        rate = self._rate
        self._next_slice.set(now + max(SLICE_PAUSE_MS, size * 1000 // rate if rate > 0 else self._every_ms))

    def _files(self, partition: Partition, now: Millis) -> Slices:
        from ottla.log.beneath import comparing  # no start scrubs

        return comparing(partition.log, self._notes, now)

    def _batches(self, partition: Partition, now: Millis, base: int = -1) -> Slices:
        del now
        from ottla.log.scrubbing import scrubbing

        return scrubbing(partition.log, self._notes, base)

    def _slice(self, now: Millis) -> int:
        """Check the next slice of the current log, or of the next one. Returns its size in bytes."""
        if self._under_way is None:
            if not self._left:
                return 0
            partition, check = self._left.popleft()
            if partition.log.failed is not None or partition not in self._partitions:
                return 0
            self._under_way = partition, check(partition, now)
        partition, slices = self._under_way
        try:
            found = next(slices, None)
        except OSError as error:
            self._under_way = None
            self._notes(f"{partition.name} could not be scrubbed: {error}")
            self._failed(partition, error)
            return 0
        if isinstance(found, Damage):
            self._found(partition, found)
            return 0
        if found is None:
            self._under_way = None
        return found or 0
