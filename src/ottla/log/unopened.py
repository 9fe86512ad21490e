"""Replaces a log that could not be opened while its partition is offline.

It keeps the reason, and the checkpointed offsets, so that the next checkpoints keep them too. It touches no file of the
partition, unless the partition is deleted. Appends, reads and look-ups raise StorageError.
"""

from __future__ import annotations

from typing import ClassVar

from ottla.log.answers import Isolation, ReadResult, StorageError, TimestampOffset
from ottla.log.config import LogConfig
from ottla.log.epochs import EpochCache
from ottla.log.files import FileSystem
from ottla.log.gaps import Gaps
from ottla.log.index.offsets import IndexCache
from ottla.log.log import Log
from ottla.log.producers import ProducerState
from ottla.log.recovery.loading import Loaded


class UnopenedLog(Log):
    """`why` is the sentence that every attempt gets. `is_damaged`: the files themselves are wrong, so that no later
    attempt opens them unless they are replaced."""

    __slots__ = ("is_damaged", "why")
    unopened: ClassVar[bool] = True

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        *,
        topic_id: bytes,
        now: int,
        checkpoint: tuple[int, int, int],
        why: str,
        is_damaged: bool = False,
    ) -> None:
        """`checkpoint`: recovery point, log start, high watermark."""
        recovery_point, log_start_offset, high_watermark = checkpoint
        end = max(checkpoint)
        loaded = Loaded(
            EpochCache(),
            ProducerState(0),
            Gaps(files, directory),
            log_start_offset=log_start_offset,
            log_end_offset=end,
            recovery_point=recovery_point,
            on_disk=True,
        )
        super().__init__(files, directory, config, topic_id, loaded, high_watermark, IndexCache(), now)
        self.why = why
        self.durability.fail(why)
        self.is_damaged = is_damaged

    def read(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.HIGH_WATERMARK,
        min_one_batch: bool = True,
    ) -> ReadResult:
        raise StorageError(self.why)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        raise StorageError(self.why)

    def max_timestamp(self) -> TimestampOffset | None:
        raise StorageError(self.why)

    def delete_records_before(self, offset: int) -> bool:
        raise StorageError(self.why)

    def assign_epoch(self, leader_epoch: int) -> None:
        """Do nothing: the epochs are in a file that could not be read."""
