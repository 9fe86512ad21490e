"""Names the files in a log's directory, as Kafka does.

Source: Kafka's LogFileUtils.java, LocalLog.scala.
"""

from __future__ import annotations

from typing import Final

LOG_SUFFIX: Final = ".log"
TRANSACTION_SUFFIX: Final = ".txnindex"
INDEX_SUFFIXES: Final = (".index", ".timeindex", TRANSACTION_SUFFIX)
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = ".deleted"
"""The suffix of a file that will be unlinked."""
CLEANED_SUFFIX: Final = ".cleaned"
"""The suffix of the files of a segment that a compaction is writing."""
UNFINISHED_SUFFIX: Final = ".tmp"
"""The suffix of a file that is being written to replace another; a start removes it."""
SWAP_SUFFIX: Final = ".swap"
"""The suffix of the files of a complete segment that replaces others."""
FSYNC_FAILED_FILE: Final = "fsync-failed"
"""A file in the directory of a log that was closed because an fsync failed, so that the state survives a kill."""


def segment_name(base_offset: int) -> str:
    """Kafka's file name without suffix: the base offset in twenty digits."""
    return f"{base_offset:020d}"


def snapshot_name(offset: int) -> str:
    return f"{segment_name(offset)}{SNAPSHOT_SUFFIX}"


def is_log(name: str) -> bool:
    return is_of_a_segment(name, LOG_SUFFIX)


def is_of_a_segment(name: str, suffix: str) -> bool:
    """Whether this is an offset in digits, and then `suffix`."""
    return name.endswith(suffix) and name.removesuffix(suffix).isdecimal()


def offset_in(name: str) -> int:
    return int(name.split(".")[0])
