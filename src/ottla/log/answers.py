"""Defines the parameters and results of a log's operations."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ottla.log.files import FileSlice
from ottla.log.index.transactions import AbortedTransaction
from ottla.protocol.errors import ErrorCode


class Origin(IntEnum):
    """The writer of a batch that a leader appends; it decides which checks the batch undergoes. Source: Kafka's
    AppendOrigin.java."""

    CLIENT = 0  # everything is checked
    COORDINATOR = 1  # a coordinator's records and markers: producer epochs are checked, sequences are not
    REPLICATION = 2  # a follower's or a replay's: nothing is checked, state is updated


class Isolation(IntEnum):
    """The isolation of a read. Source: Kafka's FetchIsolation.java."""

    LOG_END = 0  # followers, coordinators loading
    HIGH_WATERMARK = 1  # read_uncommitted
    TXN_COMMITTED = 2  # read_committed: up to the last stable offset


class AppendRefusedError(Exception):
    """Raised if the log refuses a batch; the client gets `error_code` and `sentence`. Nothing was written.

    `record_errors` are (index in the batch, sentence) of the faulty records, if these are known (KIP-467).
    """

    def __init__(self, error_code: ErrorCode, sentence: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(f"{error_code.name}: {sentence}")
        self.error_code = error_code
        self.sentence = sentence
        self.record_errors = record_errors


class StorageError(OSError):
    """A write failed and has no effect. A later one may succeed, unless `Log.failed` says that the log is closed.
    KAFKA_STORAGE_ERROR."""

    error_code = ErrorCode.KAFKA_STORAGE_ERROR


class Damage(NamedTuple):
    """Damage in a segment: its first offset, the offset before which it ends at the latest, its place in the file, and
    the reason."""

    path: str
    position: int
    first: int
    end: int
    why: str

    def __str__(self) -> str:
        return f"{self.path}, position {self.position}, offset {self.first}: {self.why}"


class IndexFault(NamedTuple):
    """An index file of a segment that does not agree with its batches; it can be rebuilt from them."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


class DamagedLogError(OSError):
    """Raised for a corrupt batch: bytes in the log have changed since they were written. CORRUPT_MESSAGE, as in Kafka.

    `damage`: its place in a log of this node.
    """

    error_code = ErrorCode.CORRUPT_MESSAGE

    def __init__(self, what: Damage | str) -> None:
        super().__init__(str(what))
        self.damage = what if isinstance(what, Damage) else None


class OffsetOutOfRangeError(Exception):
    """The offset is below the log start or above the log end."""

    error_code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} is not within {log_start_offset}..{log_end_offset}")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class DivergingOffsetError(Exception):
    """The leader's records do not continue the follower's log. Kafka's UnexpectedAppendOffsetException."""

    def __init__(self, first_offset: int, last_offset: int, log_end_offset: int) -> None:
        super().__init__(f"records {first_offset}..{last_offset} do not continue a log that ends at {log_end_offset}")
        self.first_offset = first_offset
        self.last_offset = last_offset


class Appended(NamedTuple):
    """The place of a batch in the log. `log_append_time_ms` is -1 on CreateTime topics, except that a duplicate gives
    the first one's timestamp; `duplicate` means nothing was written now."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool


class ReadResult(NamedTuple):
    """One read: whole batches or None, and the offsets as they were before the read.

    `aborted` is for TXN_COMMITTED reads: the aborted transactions that touch the slice; None for other reads.
    `next_offset` is where a reader of the whole slice continues, as far as that is known without reading on.
    """

    slice: FileSlice | None
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted: list[AbortedTransaction] | None


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int
