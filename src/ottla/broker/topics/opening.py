"""Opens the logs of this node's partitions, and provides a substitute for a log that can't be opened.

It uses the directory of a partition, its checkpoints, and the set of directories that belong to other topics.

Invariant: a directory is opened for a partition only if `partition.metadata` names the topic's id.
"""

from __future__ import annotations

import errno
from typing import Final

from ottla.broker.environment import Environment
from ottla.broker.topics.adoption import Stranger
from ottla.broker.topics.survey import put_aside
from ottla.broker.upkeep.upkeep import Upkeep
from ottla.log.checkpoints import CheckpointUnreadableError, read_partition_metadata
from ottla.log.config import LogConfig
from ottla.log.left import Left
from ottla.log.log import Log
from ottla.log.recovery.found import What
from ottla.log.unopened import UnopenedLog
from ottla.machine import Millis
from ottla.metadata.topics import TopicRecord
from ottla.replica.copy_status import Event, ReplicaCopy

OF_THE_WHOLE_NODE: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)
"""Errors at the start that no single partition is to blame for."""
NOTHING_KNOWN: Final = (0, 0, 0)


class Logs:
    """Opens logs. `unowned`: why a partition's directory is not opened for its topic, nor for another of the name.
    `others`: partitions that were another topic's until this start. All logs of a topic share one `config`."""

    def __init__(self, environment: Environment, upkeep: Upkeep) -> None:
        self._environment = environment
        self._upkeep = upkeep
        self.unowned: dict[tuple[str, int], str] = {}
        self.others: frozenset[tuple[str, int]] = frozenset()

    def open_known(
        self,
        now: Millis,
        name: str,
        record: TopicRecord,
        index: int,
        config: LogConfig,
        *,
        clean_shutdown: bool,
        interrupted: bool,
    ) -> Log:
        """At start: the log of a partition that existed before. An unreadable log makes only its own partition offline.

        Raises OSError if nothing could be read.
        """
        try:
            if (why := self.unowned.get((name, index))) is not None:
                raise _UnownedError(why)
            is_new = (name, index) in self.others
            checkpoint = NOTHING_KNOWN if is_new else self._upkeep.checkpoints.of(name, index)
            left = self._upkeep.checkpoints.left(name, index, record.topic_id)
            log = self._open(now, name, record, index, config, checkpoint, clean_shutdown, interrupted, left)
            self._look_whether_gone(log, index)
            if not clean_shutdown:
                self._look_whether_replaced(log, index)
            return log
        except Exception as error:
            if isinstance(error, OSError) and error.errno in OF_THE_WHOLE_NODE:
                raise
            return self._unopened(now, name, record, index, config, error)

    def open_new(self, now: Millis, name: str, record: TopicRecord, index: int, config: LogConfig) -> Log:
        """The log of a partition that is new on this node; if it can't be opened, the partition is offline."""
        try:
            if (why := self.unowned.get((name, index))) is not None:
                raise _UnownedError(why)
            self._clear_way(name, record, index)
            return self._open(now, name, record, index, config, NOTHING_KNOWN, clean_shutdown=True)
        except Exception as error:
            return self._unopened(now, name, record, index, config, error)

    def _clear_way(self, name: str, record: TopicRecord, index: int) -> None:
        """Move away a directory here that belongs to another topic of the name, which the metadata store does not know,
        or to an earlier replica, which another process has restored. Raises OSError."""
        files, directory = self._environment.files, self._directory(name, index)
        if not files.exists(directory):
            return
        owner = read_partition_metadata(files, directory)
        if owner is not None:
            is_own = owner == record.topic_id
            why = "was restored while this node had no such replica" if is_own else "belongs to a topic with another id"
            left = put_aside(self._environment, Stranger(directory, owner, why))
            if left is not None:
                raise _UnownedError(left)

    def open_again(self, now: Millis, name: str, record: TopicRecord, index: int, config: LogConfig) -> Log | None:
        """The log of an offline partition, if it can be read now."""
        environment = self._environment
        directory = self._directory(name, index)
        try:
            if (
                environment.files.exists(directory)
                and read_partition_metadata(environment.files, directory) != record.topic_id
            ):
                return None
            checkpoint = self._upkeep.checkpoints.of(name, index)
            log = self._open(now, name, record, index, config, checkpoint, clean_shutdown=False, interrupted=True)
        except Exception:  # the partition stays offline, and the reason was logged before
            return None
        self._look_whether_gone(log, index)
        self.unowned.pop((name, index), None)
        return log

    def open_anew(
        self, now: Millis, name: str, record: TopicRecord, index: int, config: LogConfig, why: str
    ) -> Log | None:
        """An empty log in place of one whose files are damaged: their directory is renamed, and `why` names its
        replacement. None if that fails."""
        stranger = Stranger(self._directory(name, index), record.topic_id, why)
        if put_aside(self._environment, stranger) is not None:
            return None
        self.unowned.pop((name, index), None)
        log = self.open_new(now, name, record, index, config)
        return None if log.unopened else log

    def copy_of(self, log: Log, index: int) -> ReplicaCopy:
        """The status of a log that was here before: whether it may lack records that this node had acknowledged."""
        copy = ReplicaCopy()
        damaged_from = self._upkeep.failures.marks.of(log, index)
        if log.found.is_empty:
            copy.on(Event.LOST_ALL)
        elif damaged_from is not None:
            copy.damaged(damaged_from)
        elif self._may_lack_records(log):
            copy.on(Event.MAY_LACK)
        return copy

    def _may_lack_records(self, log: Log) -> bool:
        if isinstance(log, UnopenedLog) and log.is_damaged:
            return True
        may_be_gone = not log.segments and not self._upkeep.written.is_known
        return may_be_gone or not log.found.is_complete or not self._upkeep.checkpoints.knows_high_watermarks

    def _look_whether_gone(self, log: Log, index: int) -> None:
        """Report a log that had records, and was lost before any checkpoint showed that."""
        if not log.segments and not log.found.is_empty and self._upkeep.written.names((log.topic_id, index)):
            log.found.add(
                What.ALL, f"{log.directory}: it has no segment, but the log had records.", first=log.log_start_offset
            )

    def _look_whether_replaced(self, log: Log, index: int) -> None:
        """Report a log whose directory is a copy, which may be older than every checkpoint shows."""
        if log.found.is_complete and self._upkeep.written.is_replaced(log, index):
            sentence = f"{log.directory}: it is a copy of the directory that this node had, and may lack records."
            log.found.add(What.SHORT, sentence, first=log.log_end_offset)

    def _directory(self, name: str, index: int) -> str:
        return f"{self._environment.directory}/{name}-{index}"

    def _open(
        self,
        now: Millis,
        name: str,
        record: TopicRecord,
        index: int,
        config: LogConfig,
        checkpoint: tuple[int, int, int],
        clean_shutdown: bool,
        interrupted: bool = False,
        left: Left | None = None,
    ) -> Log:
        environment = self._environment
        recovery_point, log_start_offset, high_watermark = checkpoint
        return Log.open(
            environment.files,
            self._directory(name, index),
            config,
            topic_id=record.topic_id,
            now=now,
            clean_shutdown=clean_shutdown,
            same_boot=environment.same_boot,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            producer_id_expiration_ms=environment.settings["producer.id.expiration.ms"],
            write_again=self._upkeep.commits.by_fsync,
            interrupted=interrupted,
            start_known=self._upkeep.checkpoints.knows_starts,
            left=left,
            notes=environment.notes,
            wall=environment.wall,
        )

    def _unopened(
        self, now: Millis, name: str, record: TopicRecord, index: int, config: LogConfig, error: Exception
    ) -> UnopenedLog:
        """The substitute for a log that could not be opened; called while the exception is handled."""
        environment, directory = self._environment, self._directory(name, index)
        match error:
            case _UnownedError():
                why = str(error)
            case OSError():
                why = f"{error.filename or directory} can't be read: {error.strerror or error}"
            case _:
                why = f"{directory} can't be opened: {error!r}"
                environment.fault(f"{name}-{index} is offline", error)
        return UnopenedLog(
            environment.files,
            directory,
            config,
            topic_id=record.topic_id,
            now=now,
            checkpoint=self._upkeep.checkpoints.of(name, index),
            why=why,
            is_damaged=self._is_damaged(directory, error),
        )

    def _is_damaged(self, directory: str, error: Exception) -> bool:
        """Whether the files are damaged, and not only unreachable: then only another copy of them helps."""
        if not isinstance(error, _UnownedError):
            return not isinstance(error, OSError) or error.errno == errno.EIO
        try:
            read_partition_metadata(self._environment.files, directory)
        except CheckpointUnreadableError:
            return True
        except OSError:
            pass
        return False


class _UnownedError(Exception):
    """The directory is not this topic's, or its owner is unknown."""
