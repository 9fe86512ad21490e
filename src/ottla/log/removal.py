"""Removes segments and partitions' directories: renamed first, so that no restart mistakes the rest for a log.

A segment's files are renamed `.deleted` at once and unlinked `file.delete.delay.ms` later, so that slower readers still
find them.

Source: Kafka's LocalLog.scala (deleteSegmentFiles, logDeleteDirName: the name is cut so that the new one fits).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from ottla.log.checkpoints import PARTITION_METADATA_FILE
from ottla.log.files import FileSystem
from ottla.log.names import DELETED_SUFFIX
from ottla.log.segment import Segment
from ottla.log.state import LogState

FILE_NAME_MAX: Final = 255
"""Maximum bytes of the name of a file or directory on all common file systems."""
DELETED_DIRECTORY_SUFFIX: Final = "-delete"


def drop_segments(log: LogState, dropped: list[Segment], now: int) -> None:
    """Take segments out of the log and out of a restart's sight; their files go later.

    In the order given, which must leave a log without gaps if the process dies in between.
    """
    log.syncing.forgotten(dropped)
    log.segments.dropped(dropped)
    for segment in dropped:
        discard_files(log, segment, now)
        log.durability.drop_snapshot(segment.base_offset)


def is_gone(log: LogState) -> bool:
    """Whether another process has removed or renamed the log's directory."""
    if not log.segments or log.files.exists(log.directory):
        return False
    parent, _, name = log.directory.rpartition("/")
    try:
        return name not in log.files.listdir(parent)
    except FileNotFoundError:
        return True
    except OSError:  # it may be there, but the disk does not show it
        return False


def forget_files(log: LogState) -> None:
    """The files of the segments have lost their names: new files may get these names. Slices already handed out stay
    readable."""
    for segment in log.segments:
        segment.close_indexes()
        for path in segment.names():
            with contextlib.suppress(OSError):
                log.files.unlink(path)


def discard_files(log: LogState, segment: Segment, now: int) -> None:
    """Rename a segment's files `.deleted` and note when to unlink them."""
    segment.close_indexes()
    try:
        # The log goes first: a crash in between leaves indexes without a log, which do no harm.
        discard(log, reversed(segment.names()), now)
    except OSError as error:
        raise log.durability.fail(f"deleting {segment.path} failed: {error}") from error


def discard(log: LogState, paths: Iterable[str], now: int) -> None:
    """Rename those of these files that exist `.deleted`, and note when to unlink them. Raises OSError."""
    for path in paths:
        if log.files.exists(path):
            log.files.rename(path, path + DELETED_SUFFIX)
            log.retention.renamed(now + log.config.file_delete_delay_ms, path + DELETED_SUFFIX)


def remove_deleted_files(log: LogState, now: int, *, at_once: bool = False) -> None:
    """Unlink what was renamed long enough ago."""
    upkeep = log.retention
    remaining: list[tuple[int, str]] = []
    for when, path in upkeep.deletions:
        if when > now and not at_once:
            remaining.append((when, path))
        elif log.files.exists(path):
            log.files.unlink(path)
    upkeep.unlinked(remaining)


def fitting(name: str, suffix: str) -> str:
    """A directory's name with a suffix, cut to the file system's limit; its partition's number stays."""
    topic, dash, partition = name.rpartition("-")
    tail = f"{dash}{partition}{suffix}"
    return topic[: FILE_NAME_MAX - len(tail)] + tail


def grave_of(directory: str, topic_id: bytes) -> str:
    """The new name of a partition's directory when the partition is deleted."""
    parent, _, name = directory.rpartition("/")
    return f"{parent}/{fitting(name, f'.{topic_id.hex()}{DELETED_DIRECTORY_SUFFIX}')}"


def bury_partition(files: FileSystem, directory: str, topic_id: bytes) -> bool:
    """Rename a partition's directory for its deletion. Returns whether it existed. The caller syncs its parent.

    Raises OSError.
    """
    if not files.exists(directory):
        return False
    try:
        files.rename(directory, grave_of(directory, topic_id))
    except OSError:  # perhaps names are shorter here: delete in place, the identity file last
        for entry in files.listdir(directory):
            if entry != PARTITION_METADATA_FILE:
                files.unlink(f"{directory}/{entry}")
        files.rmtree(directory)
    return True


def remove_partition(files: FileSystem, directory: str, topic_id: bytes) -> None:
    """Remove a partition's directory and all in it. Raises OSError; the next attempt removes the rest."""
    if bury_partition(files, directory, topic_id):
        files.sync_directory(directory.rpartition("/")[0] or ".")
    with contextlib.suppress(FileNotFoundError):
        files.rmtree(grave_of(directory, topic_id))
