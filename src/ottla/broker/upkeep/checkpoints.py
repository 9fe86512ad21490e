"""Writes the offset checkpoints of a data directory: the logs' durable ends, their starts, their high watermarks.

It writes the files that are stale, in Kafka's formats: `recovery-point-offset-checkpoint`,
`log-start-offset-checkpoint`, `replication-offset-checkpoint`.

Invariant: a checkpoint never claims more than the logs have: it is made from their present state, and recovery clamps
it.

Source: Kafka's LogManager.scala.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from ottla.broker.config.live import LiveSettings
from ottla.broker.effects import Outbox, Store, Withdrawal
from ottla.broker.partitions.partition import Partition
from ottla.broker.schedule import NEVER, KeyedTimers, Schedule, Timed, Timer
from ottla.log.answers import StorageError
from ottla.log.checkpoints import (
    CheckpointUnreadableError,
    encode_offsets,
    read_offsets,
    take_clean_shutdown,
    write_clean_shutdown,
)
from ottla.log.files import FileSystem
from ottla.log.left import Left, take_left, write_left
from ottla.machine import Millis

RECOVERY_POINT: Final = "recovery-point-offset-checkpoint"
LOG_START: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK: Final = "replication-offset-checkpoint"
CHECKPOINTS: Final = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK)
_INTERVALS: Final = {
    RECOVERY_POINT: "log.flush.offset.checkpoint.interval.ms",
    LOG_START: "log.flush.start.offset.checkpoint.interval.ms",
    HIGH_WATERMARK: "replica.high.watermark.checkpoint.interval.ms",
}
AGAIN_MS: Final = 1_000
"""How long after a file could not be written that is tried again."""


class Checkpoints:
    """The checkpoint files of one node.

    - `partitions`: the open ones; the code that opens and deletes partitions updates it.
    - `write`: called when files are due; `take_due` names them.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        settings: LiveSettings,
        outbox: Outbox,
        partitions: Collection[Partition],
        schedule: Schedule,
        write: Callable[[Millis], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self._settings = settings
        self._outbox = outbox
        self._partitions = partitions
        self._read: dict[str, dict[tuple[str, int], int]] = {name: {} for name in CHECKPOINTS}
        self._unreadable: set[str] = set()
        self._has_high_watermarks = False
        self._left: Mapping[tuple[str, int], Left] = {}
        self._written: dict[str, bytes] = {}
        self._gone: set[str] = set()
        """Names of deleted topics that the files may still have."""
        self._not_stored: dict[int, None] = {}
        """Files that could not be written, by their place in CHECKPOINTS."""
        self._again = Timer(schedule, Timed.UPKEEP, self._write_again, comes_along=True)
        self._due = KeyedTimers[int](schedule, Timed.UPKEEP, write)
        self._withdrawals = {name: Withdrawal() for name in CHECKPOINTS}
        """The withdrawals of the writes that were issued since the last truncation."""

    def read(self, notes: Callable[[str], None]) -> None:
        """Read the files of the previous incarnation. An unreadable file is logged and ignored."""
        for name in CHECKPOINTS:
            try:
                offsets = read_offsets(self._files, self._path(name))
                self._read[name] = offsets or {}
                if name == HIGH_WATERMARK:
                    self._has_high_watermarks = offsets is not None
            except CheckpointUnreadableError as unreadable:
                notes(f"{unreadable}; recovery does without it")
                self._unreadable.add(name)

    def begin(self) -> None:
        """Write the file of high watermarks if there is none, so that a later start can detect its loss. Raises
        OSError."""
        if not self._has_high_watermarks:
            content = encode_offsets(self._offsets(HIGH_WATERMARK))
            self._files.write_atomically(self._path(HIGH_WATERMARK), content, durable=False)

    def take_clean_stop(self, notes: Callable[[str], None]) -> bool:
        """Whether the previous incarnation stopped cleanly. Its marker files are removed here. Raises OSError."""
        left: Mapping[tuple[str, int], Left] = {}
        broker_epoch = take_clean_shutdown(self._files, self._directory)
        try:
            left = take_left(self._files, self._directory, broker_epoch)
        except CheckpointUnreadableError as unreadable:
            notes(f"{unreadable}; whether the logs are as the last clean stop left them is not known")
        self._left = left
        return broker_epoch is not None

    @property
    def knows_starts(self) -> bool:
        """Whether the file of log starts could be read, or there is none."""
        return LOG_START not in self._unreadable

    @property
    def knows_high_watermarks(self) -> bool:
        """Whether the file of high watermarks exists and could be read."""
        return self._has_high_watermarks

    @property
    def knows_left(self) -> bool:
        """Whether the last clean stop says how it left the logs."""
        return bool(self._left)

    def left(self, topic: str, index: int, topic_id: bytes) -> Left | None:
        """The state in which the last clean stop left this log, None if it is not known."""
        left = self._left.get((topic, index))
        return left if left is not None and left.topic_id == topic_id else None

    def of(self, topic: str, index: int) -> tuple[int, int, int]:
        """(recovery_point, log_start_offset, high_watermark) as last checkpointed, 0 if unknown."""
        key = (topic, index)
        recovery_point, log_start, high_watermark = (self._read[name].get(key, 0) for name in CHECKPOINTS)
        return recovery_point, log_start, high_watermark

    def start(self, now: Millis) -> None:
        """Every log is open: write each file once its interval has passed."""
        for at, name in enumerate(CHECKPOINTS):
            self._due.set(at, now + self._settings[_INTERVALS[name]])
        here = {(partition.topic_name, partition.index) for partition in self._partitions}
        self._gone = {topic for known in self._read.values() for topic, _ in known.keys() - here}

    def _write_again(self, now: Millis) -> None:
        """Make the files that could not be written due again soon."""
        for at in self._not_stored:
            self._due.set(at, min(self._due.at(at) or now, now + AGAIN_MS))
        self._not_stored.clear()

    def take_due(self, now: Millis) -> list[str]:
        """The files whose interval has passed; starts their next interval."""
        due = self._due.pop_all(now)
        for at in due:
            self._due.set(at, now + self._settings[_INTERVALS[CHECKPOINTS[at]]])
        return [CHECKPOINTS[at] for at in due]

    def store(self, name: str) -> None:
        """Replace this file, if its content has changed."""
        offsets = self._offsets(name)
        content = encode_offsets(offsets)
        if self._written.get(name) != content:
            if name == LOG_START:
                self.store(
                    HIGH_WATERMARK
                )  # first: with it, a start above the high watermark is not mistaken for damage
            self._written[name] = content
            self._outbox.add(Store(self._path(name), content, self._withdrawals[name]))

    def not_stored(self, path: str) -> None:
        """A file could not be written: write it again soon, even if nothing changes. It may list a deleted topic."""
        name = path.rpartition("/")[2]
        self._written.pop(name, None)
        self._not_stored[CHECKPOINTS.index(name)] = None
        self._again.set(NEVER)  # with the next tick: this call does not know the time

    def write_all(self) -> None:
        """Write every file at once, for a stop. Raises OSError."""
        for name in CHECKPOINTS:
            self._files.write_atomically(self._path(name), encode_offsets(self._offsets(name)))

    def note_clean_stop(self, broker_epoch: int, left: Iterable[tuple[str, int, Left]]) -> None:
        """Write last that the stop was clean, and how it left the logs (topic, index, how). Raises OSError."""
        write_left(self._files, self._directory, broker_epoch, left)
        write_clean_shutdown(self._files, self._directory, broker_epoch)

    def write_cut(self) -> None:
        """A log was truncated: write the checkpoints that may be above its new end now. Raises StorageError.

        Writes that the host has not done yet may be from before the truncation: they are withdrawn.
        """
        for name in CHECKPOINTS:
            content = encode_offsets(self._offsets(name))
            if name == LOG_START and self._written.get(name) == content:
                continue
            self._withdrawals[name].is_made = True
            self._withdrawals[name] = Withdrawal()
            self._written.pop(name, None)
            try:
                self._files.write_atomically(self._path(name), content)
            except OSError as error:
                raise StorageError(f"writing {self._path(name)} failed: {error}") from error
            self._written[name] = content

    def topic_deleted(self, name: str) -> None:
        """The files may have this name for some time yet."""
        self._gone.add(name)

    def names_made(self, names: AbstractSet[str]) -> None:
        """New topics get these names. They must not start at the checkpoints of a deleted topic of the same name: files
        that still have it are replaced before any fsync of the new topic ends."""
        if not self._gone.isdisjoint(names):
            self._gone.clear()
            self.store(LOG_START)
            self.store(HIGH_WATERMARK)
            self.store(RECOVERY_POINT)

    def _offsets(self, name: str) -> dict[tuple[str, int], int]:
        logs = ((partition.topic_name, partition.index, partition.log) for partition in self._partitions)
        match name:
            case "recovery-point-offset-checkpoint":
                return {(topic, index): log.recovery_point for topic, index, log in logs}
            case "log-start-offset-checkpoint":
                return {(topic, index): log.log_start_offset for topic, index, log in logs if log.log_start_offset}
            case _:
                return {(topic, index): log.high_watermark for topic, index, log in logs}

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
