"""Names the files that a clean stop of many partitions must sync, so that they are synced in parallel.

A partition with records has five files to sync, each some milliseconds of waiting: 20,000 partitions take minutes. If
many syncs are requested at once, the file system writes its journal once for all of them. The I/O host has the
threads.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ottla.log.answers import StorageError
from ottla.log.syncing import Syncable

if TYPE_CHECKING:
    from ottla.broker.partitions.partition import Partition
    from ottla.log.log import Log

FILES_AT_ONCE: Final = 500


def completing(
    partitions: Sequence[Partition], directory: Syncable, pins_max: int
) -> Generator[list[Syncable], Mapping[int, str], None]:
    """Batches of files, each to be synced whole; failures are sent back: the index in the batch, and why.

    `directory`: the data directory, which is synced once for all new logs. A log that can't be completed here is left
    to its `close`, which will fail in the same way and report it.
    """
    with suppress(OSError):
        yield from _names_of_newborn([partition.log for partition in partitions], directory)
    files: list[Syncable] = []
    logs: list[tuple[Partition, int, range]] = []  # with the log's end, and the range of its files in `files`
    for partition in partitions:
        log = partition.log
        with suppress(OSError, StorageError):
            if log.complete():
                more = log.pending_sync()
                logs.append((partition, log.log_end_offset, range(len(files), len(files) + len(more))))
                files += more
        if len(files) >= min(FILES_AT_ONCE, pins_max):
            _completed(logs, (yield files))
            files, logs = [], []
    if files:
        _completed(logs, (yield files))


def _names_of_newborn(logs: Sequence[Log], directory: Syncable) -> Generator[list[Syncable], Mapping[int, str], None]:
    """The directory, if names of logs wait for the disk. Raises OSError."""
    newborn = [log for log in logs if log.syncing.newborn]
    if newborn:
        directory.pin()
        try:
            failures = yield [directory]
        finally:
            directory.unpin()
        for log in newborn:
            log.syncing.name_synced(failed=bool(failures))


def _completed(logs: list[tuple[Partition, int, range]], failures: Mapping[int, str]) -> None:
    """The files of these logs were synced, except the failed ones."""
    for partition, end_offset, places in logs:
        why = next((failures[place] for place in places if place in failures), None)
        if why is None:
            partition.log.synced(end_offset)
        else:
            partition.log.sync_failed(OSError(why))
